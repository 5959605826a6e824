"""Files as one table: Parquet says its types, those of CSV and JSONL are found by reading them."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Listing
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.sources import csv, jsonl, parquet
from trainwright.sources.declared import declared_types
from trainwright.sources.formats import File, file_of
from trainwright.sources.partitions import partitions_of
from trainwright.sources.parts import Part, Sources, cut
from trainwright.sources.schemas import Found, merge
from trainwright.storage import Access
from trainwright.tables import plain

_AT_A_TIME = 16
"""Footers that are fetched at a time."""


class FileSources(Sources):
    """The files of a listing, read in its order.

    Args:
        listing: The files.
        data: Format, types, texts that mean no value, rows a shard.
        access: What may be reached.

    Raises:
        InputError: A file is empty, incomplete or not of its kind, or two files differ in their columns.
    """

    def __init__(self, listing: Listing, data: Data, access: Access) -> None:
        self._missing, self._shard_rows = data.missing, data.shard_rows
        self._declared = declared_types(data.types)
        self._files = {entry.uri: file_of(entry, data, access) for entry in listing.files}
        self._added, self._values = partitions_of(listing.source, list(self._files))
        self._found = self._find(data.runner.workers)
        inside = merge(self._found)
        _refuse_both(self._added.names, inside.names, self._found[0].uri)
        self._require_declared(inside)
        self._inside = inside
        self.schema = pa.schema([*inside, *self._added])

    def parts(self) -> list[Part]:
        """Return one part a text file, and parts of about ``data.shard_rows`` rows of Parquet files."""
        parts = [
            Part(index=0, uri=found.uri, first=first, last=last, start=start, rows=rows)
            for found in self._found
            for first, last, start, rows in cut(found, self._shard_rows)
        ]
        return [replace(part, index=index) for index, part in enumerate(parts)]

    def batches(self, part: Part) -> Iterator[tuple[str, int, pa.Table]]:
        """Give a part's rows with the file's URI and the number of rows before them in it."""
        start = part.start
        for table in self._read(self._files[part.uri], part):
            yield part.uri, start, self._complete(table, part.uri)
            start += table.num_rows

    def _read(self, file: File, part: Part) -> Iterator[pa.Table]:
        if file.kind == "csv":
            yield from csv.read_csv(file, self._inside, self._missing)
        elif file.kind == "jsonl":
            yield from jsonl.read_jsonl(file, self._inside)
        else:
            for batch in parquet.read_groups(file, part.first, part.last):
                yield pa.Table.from_batches([batch])

    def _complete(self, table: pa.Table, uri: str) -> pa.Table:
        """Bring rows to the schema of all files, and add what the folders say."""
        inside = plain(table, uri).select(self._inside.names).cast(self._inside)
        columns = [
            pa.chunked_array([pa.repeat(pa.scalar(self._values[uri][field.name], field.type), len(inside))])
            for field in self._added
        ]
        return pa.Table.from_arrays([*inside.columns, *columns], schema=self.schema)

    def _find(self, workers: int) -> list[Found]:
        files = list(self._files.values())
        footers = all(file.kind == "parquet" for file in files)
        with ThreadPoolExecutor(min(len(files), _AT_A_TIME if footers else workers)) as pool:
            return list(pool.map(self._find_one, files))

    def _find_one(self, file: File) -> Found:
        if file.kind == "csv":
            return csv.find_types(file, self._declared, self._missing)
        if file.kind == "jsonl":
            return jsonl.find_types(file, self._declared)
        schema, groups = parquet.read_footer(file)
        return Found(uri=file.uri, schema=plain(schema.empty_table(), file.uri).schema, groups=groups)

    def _require_declared(self, inside: pa.Schema) -> None:
        kinds = {file.kind for file in self._files.values()}
        if self._declared and "parquet" in kinds:
            raise InputError(
                f"types are said for {sorted(self._declared)}, but Parquet files say their own",
                where="data.types",
                hint="Leave data.types out, or convert the files.",
            )
        if unknown := sorted(set(self._declared) - set(inside.names)):
            raise InputError(
                f"types are said for columns that are not there: {unknown}",
                where="data.types",
                hint=f"The columns: {', '.join(inside.names)}.",
            )


def _refuse_both(folders: Sequence[str], inside: Sequence[str], uri: str) -> None:
    if both := sorted(set(folders) & set(inside)):
        raise InputError(
            f"columns {both} are named by the folders, and are in the files, too",
            where=uri,
            hint="Which one holds cannot be told: rename the folders, or leave the columns out of the files.",
        )
