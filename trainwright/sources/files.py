"""Files as one table: Parquet has its types, those of CSV and JSONL are inferred; folders may be columns."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Listing
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.sources import csv, jsonl
from trainwright.sources.formats import File, file_of, read_footer, read_groups
from trainwright.sources.inference import declared_types
from trainwright.sources.parts import FileSchema, SourcePart, Sources, merge, split_file
from trainwright.storage import Access, local_path
from trainwright.tables import plain

_PAIR = re.compile(r"([^=/]+)=([^/]*)")
_WILD = re.compile(r"[*?\[]")
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")

Values = dict[str, dict[str, int | str | date | None]]
"""Values of the partition columns, by file."""


def partitions_of(source: str, uris: Sequence[str]) -> tuple[pa.Schema, Values]:
    """Return the Hive partition columns of a source, as in ``day=2013-01-01/part-0.parquet``.

    Folders count from the source's own on, and in a glob from the first wildcard on, so that a single
    partition is read as any other folder.

    Args:
        source: The listed source.
        uris: Its files.

    Returns:
        The columns, each ``int64``, ``date32`` or ``string``: the narrowest that takes all values, where a
        number with leading zeros is text; and the values by file.

    Raises:
        InputError: The folders of two files have different columns.
    """
    texts = {uri: _pairs(uri, source) for uri in uris}
    first = uris[0]
    names = list(texts[first])
    for uri in uris:
        if list(texts[uri]) != names:
            raise InputError(
                f"the folders of this source name different columns: {list(texts[uri])}, not {names}",
                where=f"{uri}, against {first}",
                hint="Name only files that are partitioned alike.",
            )
    kinds = {name: _kind_of([texts[uri][name] for uri in uris]) for name in names}
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in kinds.items()])
    values: Values = {
        uri: {name: None if text is None else kinds[name][1](text) for name, text in pairs.items()}
        for uri, pairs in texts.items()
    }
    return schema, values


def _pairs(uri: str, source: str) -> dict[str, str | None]:
    """Return the names and texts of one file's folders, outermost first."""
    root = _root(source)
    inside = uri.removeprefix(root) if uri.startswith(f"{root}/") else ""
    found: dict[str, str | None] = {}
    for folder in inside.split("/")[:-1]:
        if pair := _PAIR.fullmatch(folder):
            name, text = (unquote(part) for part in pair.groups())
            if name in found:
                raise InputError(f"two folders of its path name the column {name!r}", where=uri)
            found[name] = None if text in {_NOTHING, ""} else text
    return found


def _root(source: str) -> str:
    """Return the folder from which on folders count."""
    wild = _WILD.search(source)
    root = source[: wild.start()].rpartition("/")[0] if wild else source
    path = local_path(root or ("/" if source.startswith("/") else "."))
    return (str(path) if path else root).rstrip("/")


def _kind_of(texts: Sequence[str | None]) -> tuple[pa.DataType, Callable[[str], int | str | date]]:
    present = {text for text in texts if text is not None}
    if present and all(_WHOLE.fullmatch(text) for text in present):
        return pa.int64(), int
    if present and all(_is_date(text) for text in present):
        return pa.date32(), date.fromisoformat
    return pa.string(), str


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


_AT_A_TIME = 16
"""Footers fetched at a time."""


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
        _reject_duplicates(self._added.names, inside.names, self._found[0].uri)
        self._require_declared(inside)
        self._inside = inside
        self.schema = pa.schema([*inside, *self._added])

    def parts(self) -> list[SourcePart]:
        """Return one part a text file, and parts of about ``data.shard_rows`` rows of Parquet files."""
        parts = [
            SourcePart(index=0, uri=found.uri, first=first, last=last, start=start, rows=rows)
            for found in self._found
            for first, last, start, rows in split_file(found, self._shard_rows)
        ]
        return [replace(part, index=index) for index, part in enumerate(parts)]

    def batches(self, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
        """Yield a part's rows with the file's URI and the number of rows before them in it."""
        start = part.start
        for table in self._read(self._files[part.uri], part):
            yield part.uri, start, self._complete(table, part.uri)
            start += table.num_rows

    def _read(self, file: File, part: SourcePart) -> Iterator[pa.Table]:
        if file.kind == "csv":
            yield from csv.read_csv(file, self._inside, self._missing)
        elif file.kind == "jsonl":
            yield from jsonl.read_jsonl(file, self._inside)
        else:
            for batch in read_groups(file, part.first, part.last):
                yield pa.Table.from_batches([batch])

    def _complete(self, table: pa.Table, uri: str) -> pa.Table:
        """Cast rows to the common schema, and add the partition columns."""
        inside = plain(table, uri).select(self._inside.names).cast(self._inside)
        columns = [
            pa.chunked_array([pa.repeat(pa.scalar(self._values[uri][field.name], field.type), len(inside))])
            for field in self._added
        ]
        return pa.Table.from_arrays([*inside.columns, *columns], schema=self.schema)

    def _find(self, workers: int) -> list[FileSchema]:
        files = list(self._files.values())
        footers = all(file.kind == "parquet" for file in files)
        with ThreadPoolExecutor(min(len(files), _AT_A_TIME if footers else workers)) as pool:
            return list(pool.map(self._find_one, files))

    def _find_one(self, file: File) -> FileSchema:
        if file.kind == "csv":
            return csv.infer_csv(file, self._declared, self._missing)
        if file.kind == "jsonl":
            return jsonl.infer_jsonl(file, self._declared)
        schema, groups = read_footer(file)
        return FileSchema(uri=file.uri, schema=plain(schema.empty_table(), file.uri).schema, groups=groups)

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


def _reject_duplicates(folders: Sequence[str], inside: Sequence[str], uri: str) -> None:
    if both := sorted(set(folders) & set(inside)):
        raise InputError(
            f"columns {both} are named by the folders, and are in the files, too",
            where=uri,
            hint="Rename the folders, or leave the columns out of the files.",
        )
