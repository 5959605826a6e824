"""Source files as record batches of one schema: Parquet says its types, CSV's are found by reading it."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv
from pyarrow import parquet as pq

from trainwright.errors import InputError
from trainwright.storage import local_path, open_file
from trainwright.tables import (
    ROW_GROUP,
    STREAM_BUFFER,
    plain,
    require_distinct,
    schema_difference,
    stream_batches,
)

_BLOCK = 8 << 20
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #[\d,]+: )?CSV conversion error to [^:]+: (?:invalid value '(.*)')?",
    re.DOTALL,
)
_SEVERAL_LINES = (
    "a value goes over several lines: a quote may not be closed, which hides rows; "
    "if the line break is meant, write Parquet"
)
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class Sources:
    """The files of a source, opened as one table that is read once, in order, batch by batch.

    Args:
        uris: The files, in the order of reading.
        missing: Texts that mean "no value" in a CSV file.

    Raises:
        InputError: A file is incomplete or not of its kind, or two files differ in their columns.
    """

    def __init__(self, uris: Sequence[str], missing: Sequence[str]) -> None:
        self.uris = tuple(uris)
        self._missing = list(missing)
        self.schema = _merge({uri: self._schema_of(uri) for uri in self.uris})

    def batches(self) -> Iterator[tuple[str, int, pa.Table]]:
        """Give every file's rows: the file's URI, the number of rows before these in it, the rows."""
        for uri in self.uris:
            start = 0
            with _naming(uri):
                for table in self._read(uri):
                    yield uri, start, table
                    start += table.num_rows

    def _schema_of(self, uri: str) -> pa.Schema:
        with _naming(uri):
            if _is_csv(uri):
                schema = _infer(lambda types: self._open_csv(uri, types), uri)
            else:
                schema = require_distinct(_open_parquet(uri).schema_arrow, uri)
            return plain(schema.empty_table()).schema

    def _read(self, uri: str) -> Iterator[pa.Table]:
        if _is_csv(uri):
            batches = self._open_csv(uri, _by_name(self.schema))
        else:
            batches = stream_batches(_open_parquet(uri), ROW_GROUP)
        for batch in batches:
            table = plain(pa.Table.from_batches([batch]), uri).select(self.schema.names)
            yield table.cast(self.schema)

    def _open_csv(self, uri: str, types: Mapping[str, pa.DataType]) -> csv.CSVStreamingReader:
        path = local_path(uri)
        codec = next((name for suffix, name in _CODECS.items() if uri.lower().endswith(suffix)), None)
        stream = pa.input_stream(str(path) if path else open_file(uri), compression=codec)
        return csv.open_csv(
            stream,
            read_options=csv.ReadOptions(block_size=_BLOCK),
            convert_options=csv.ConvertOptions(
                column_types=dict(types), null_values=self._missing, strings_can_be_null=True
            ),
        )


def _is_csv(uri: str) -> bool:
    name = uri.lower()
    for suffix in _CODECS:
        name = name.removesuffix(suffix)
    if name.endswith(".csv"):
        return True
    if name.endswith((".parquet", ".pq")):
        return False
    raise InputError("neither a Parquet nor a CSV file, by its name", where=uri)


def _open_parquet(uri: str) -> pq.ParquetFile:
    path = local_path(uri)
    return pq.ParquetFile(path or open_file(uri), buffer_size=STREAM_BUFFER, page_checksum_verification=True)


def _infer(opened: Callable[[Mapping[str, pa.DataType]], csv.CSVStreamingReader], uri: str) -> pa.Schema:
    """Find types that hold for the whole file, not for its first block alone.

    Arrow guesses from the first block. Where a later value does not fit, that column's type is widened
    to one that takes both, and the file is read again.
    """
    schema = _require_text(require_distinct(opened({}).schema, uri), uri)
    while True:
        try:
            for batch in opened(_by_name(schema)):
                _require_single_lines(batch, uri)
        except pa.ArrowInvalid as error:
            schema = _widened(schema, error)
        else:
            return schema


def _by_name(schema: pa.Schema) -> dict[str, pa.DataType]:
    return dict(zip(schema.names, schema.types, strict=True))


def _widened(schema: pa.Schema, error: pa.ArrowInvalid) -> pa.Schema:
    """Return the schema with a wider type for the column that a value did not fit; text in the end."""
    found = _CONVERSION.search(str(error))
    place = int(found.group(1)) if found else 0
    field = schema.field(place)
    if not found or pa.types.is_string(field.type):
        raise error
    value = found.group(2)
    wider = pa.string() if value is None else _wider(field.type, _type_of(value))
    return schema.set(place, field.with_type(pa.string() if wider == field.type else wider))


def _require_single_lines(batch: pa.RecordBatch, uri: str) -> None:
    """Refuse a value over several lines: Arrow lets a quote that is not closed take in the rows after it."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_string(field.type):
            broken = pc.or_(pc.match_substring(column, "\n"), pc.match_substring(column, "\r"))
            if pc.any(broken).as_py():
                value = column.filter(broken)[0].as_py()
                raise InputError(f"{_SEVERAL_LINES} (column {field.name!r}: {value!r:.80})", where=uri)


def _require_text(schema: pa.Schema, uri: str) -> pa.Schema:
    """Refuse columns that Arrow could only take as bytes, and a file that commas do not part."""
    if raw := [field.name for field in schema if pa.types.is_binary(field.type)]:
        raise InputError(f"columns {raw} are not UTF-8 text", where=uri, hint="Write the file as UTF-8.")
    for separator, name in _SEPARATORS.items():
        if len(schema) == 1 and separator in schema.names[0]:
            raise InputError(
                f"its columns are parted by {name}, not commas: {schema.names[0]!r:.80}",
                where=uri,
                hint="Write the file with commas, or as Parquet.",
            )
    return schema


def _type_of(value: str) -> pa.DataType:
    """Guess the type of a single CSV value."""
    options = csv.ReadOptions(column_names=["value"])
    lines = csv.ParseOptions(newlines_in_values=True)
    present = csv.ConvertOptions(null_values=[])
    quoted = '"' + value.replace('"', '""') + '"'
    table = csv.read_csv(
        BytesIO(quoted.encode()), read_options=options, parse_options=lines, convert_options=present
    )
    return table.schema.types[0]


def _wider(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the narrowest type that takes values of both; text takes all."""
    if pa.types.is_null(first):
        return second
    if {first, second} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_timestamp(first) and pa.types.is_timestamp(second) and first.tz == second.tz:
        return pa.timestamp("ns", tz=first.tz)
    return pa.string()


def _merge(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the one schema of all files. Types of CSV files are guesses and give way to wider ones."""
    (first, merged), *others = schemas.items()
    for uri, schema in others:
        guessed = _is_csv(first) and _is_csv(uri)
        if set(schema.names) != set(merged.names):
            _refuse(first, merged, uri, schema)
        for index, field in enumerate(merged):
            kind = _common_type(field.type, schema.field(field.name).type, guessed)
            if kind is None:
                _refuse(first, merged, uri, schema)
            merged = merged.set(index, pa.field(field.name, kind))
    return merged


def _common_type(first: pa.DataType, second: pa.DataType, guessed: bool) -> pa.DataType | None:
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    wider = _wider(first, second)
    return wider if guessed and wider != pa.string() else None


def _refuse(first: str, expected: pa.Schema, uri: str, schema: pa.Schema) -> None:
    raise InputError(
        f"the files of this source differ: {schema_difference(expected, schema)}",
        where=f"{uri}, against {first}",
        hint="Bring the files to the same columns, or name only those that belong together.",
    )


@contextmanager
def _naming(uri: str) -> Iterator[None]:
    """Turn what Arrow says about a file into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(_plainly(uri, error), where=uri) from None


def _plainly(uri: str, error: Exception) -> str:
    text = str(error)
    if "magic bytes not found" in text or "Parquet file size is" in text:
        return "Parquet footer missing: the file is incomplete, or not Parquet"
    if "out of sync with chunker" in text:
        return _SEVERAL_LINES
    kind = "CSV" if _is_csv(uri) else "Parquet"
    return f"the {kind} file cannot be read: {text:.300}"


def example_values(column: Any, count: int = 3) -> str:
    """Show a few different values of a column, for an error."""
    values = column.drop_null().slice(0, 1000).to_pylist()
    shown = dict.fromkeys(repr(value) if isinstance(value, str) else str(value) for value in values)
    return ", ".join(itertools.islice(shown, count)) or "no value"
