"""Files as one table: Parquet has its types, those of CSV and JSONL are inferred; folders may be columns."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Listing
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.sources import csv, jsonl
from trainwright.sources.formats import file_of, read_footer, read_groups
from trainwright.sources.inference import declared_types
from trainwright.sources.sources import FileSchema, SourcePart, Sources, merge, split
from trainwright.storage import TABLE_SUFFIXES, Access, list_files, local_path, take_listing
from trainwright.tables import plain

_PAIR = re.compile(r"([^=/]+)=([^/]*)")
_WILD = re.compile(r"[*?\[]")
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")

_PARALLEL_FOOTERS = 16


def list_source(source: str, data: Data, access: Access, inspect: Callable[..., None] | None) -> Listing:
    """List the table files of a source."""
    if inspect is not None:
        inspect(list_files(source, TABLE_SUFFIXES, access))
    return take_listing(source, access, data.remember)


class FileSources(Sources):
    """The files of a listing, read in its order."""

    def __init__(self, listing: Listing, data: Data, access: Access) -> None:
        self._missing, self._csv, self._shard_rows = data.missing, data.csv, data.shard_rows
        self._declared = declared_types(data.types)
        self._files = {entry.uri: file_of(entry, data, access) for entry in listing.files}
        self._added, self._values = partitions_of(listing.source, list(self._files))
        parquet = all(file.kind == "parquet" for file in self._files.values())
        workers = _PARALLEL_FOOTERS if parquet else data.engine.workers
        with ThreadPoolExecutor(min(len(self._files), workers)) as pool:
            self._found = list(pool.map(self._infer, self._files))
        inside = merge(self._found)
        if both := sorted(set(self._added.names) & set(inside.names)):
            raise InputError(
                f"columns {both} are named by the folders, and are in the files, too",
                where=self._found[0].uri,
                hint="Rename the folders, or leave the columns out of the files.",
            )
        self._require_declared(inside)
        self._inside = inside
        self.schema = pa.schema([*inside, *self._added])

    def parts(self) -> list[SourcePart]:
        """Return one part a text file, and parts of about ``data.shard_rows`` rows of Parquet files."""
        return split(self._found, self._shard_rows)

    def batches(self, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
        """Yield a part's rows with the file's URI and the number of rows before them in it."""
        start = part.start
        for table in self._read(part):
            inside = plain(table, part.uri).select(self._inside.names).cast(self._inside)
            columns = [
                pa.chunked_array(
                    [pa.repeat(pa.scalar(self._values[part.uri][field.name], field.type), len(inside))]
                )
                for field in self._added
            ]
            yield part.uri, start, pa.Table.from_arrays([*inside.columns, *columns], schema=self.schema)
            start += table.num_rows

    def column(self, part: SourcePart, name: str) -> Iterator[pa.ChunkedArray]:
        """Yield the values of one column of a part; of a Parquet file only they are read."""
        file = self._files[part.uri]
        if file.kind != "parquet" or name not in self._inside.names:
            yield from super().column(part, name)
            return
        for batch in read_groups(file, part.first, part.last, [name]):
            values = plain(pa.Table.from_batches([batch]), part.uri)[name]
            yield values.cast(self._inside.field(name).type)

    def _read(self, part: SourcePart) -> Iterator[pa.Table]:
        file = self._files[part.uri]
        if file.kind == "csv":
            yield from csv.read_csv(file, self._inside, self._missing, self._csv)
        elif file.kind == "jsonl":
            yield from jsonl.read_jsonl(file, self._inside)
        else:
            for batch in read_groups(file, part.first, part.last):
                yield pa.Table.from_batches([batch])

    def _infer(self, uri: str) -> FileSchema:
        file = self._files[uri]
        if file.kind == "csv":
            return csv.infer_csv(file, self._declared, self._missing, self._csv)
        if file.kind == "jsonl":
            return jsonl.infer_jsonl(file, self._declared)
        schema, groups = read_footer(file)
        return FileSchema(uri=uri, schema=plain(schema.empty_table(), uri).schema, groups=groups)

    def _require_declared(self, inside: pa.Schema) -> None:
        if self._declared and any(file.kind == "parquet" for file in self._files.values()):
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


open_source = FileSources


def column_names(listing: Listing, data: Data, access: Access, wanted: Collection[str]) -> list[str]:
    """Return the columns of the first file, and of the names of its folders."""
    file = file_of(listing.files[0], data, access)
    added, _ = partitions_of(listing.source, [file.uri])
    if file.kind == "csv":
        inside = csv.read_header(file, data.csv)
    elif file.kind == "jsonl":
        inside = jsonl.read_names(file, wanted)
    else:
        inside = read_footer(file)[0].names
    return [*inside, *added.names]


def partitions_of(source: str, uris: Sequence[str]) -> tuple[pa.Schema, dict[str, dict[str, Any]]]:
    """Return the Hive partition columns of files, as in ``day=2013-01-01/part-0.parquet``, and their values.

    Folders count from the source's own on, and in a glob from the first wildcard on, so that a single
    partition is read as any other folder. A column is ``int64``, ``date32`` or ``string``: the narrowest that
    takes all values, where a number with leading zeros is text.
    """
    wild = _WILD.search(source)
    root = source[: wild.start()].rpartition("/")[0] if wild else source
    path = local_path(root or ("/" if source.startswith("/") else "."))
    root = (str(path) if path else root).rstrip("/")
    texts = {uri: _pairs(uri, root) for uri in uris}
    names = list(texts[uris[0]])
    for uri in uris:
        if list(texts[uri]) != names:
            raise InputError(
                f"the folders of this source name different columns: {list(texts[uri])}, not {names}",
                where=f"{uri}, against {uris[0]}",
                hint="Name only files that are partitioned alike.",
            )
    kinds = {name: _kind_of({texts[uri][name] for uri in uris} - {None}) for name in names}
    values = {
        uri: {name: None if text is None else kinds[name][1](text) for name, text in pairs.items()}
        for uri, pairs in texts.items()
    }
    return pa.schema([(name, kind) for name, (kind, _) in kinds.items()]), values


def _pairs(uri: str, root: str) -> dict[str, str | None]:
    """Return the names and texts of one file's folders below the root, outermost first."""
    inside = uri.removeprefix(root) if uri.startswith(f"{root}/") else ""
    found: dict[str, str | None] = {}
    for folder in inside.split("/")[:-1]:
        if pair := _PAIR.fullmatch(folder):
            name, text = (unquote(part) for part in pair.groups())
            if name in found:
                raise InputError(f"two folders of its path name the column {name!r}", where=uri)
            found[name] = None if text in {_NOTHING, ""} else text
    return found


def _kind_of(texts: set[Any]) -> tuple[pa.DataType, Callable[[str], Any]]:
    """Return the type of a partition column, and the conversion to it."""
    if texts and all(_WHOLE.fullmatch(text) for text in texts):
        return pa.int64(), int
    try:
        if texts and all(date.fromisoformat(text).isoformat() == text for text in texts):
            return pa.date32(), date.fromisoformat
    except ValueError:
        pass
    return pa.string(), str
