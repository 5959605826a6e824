"""CSV files: read as text in blocks, and brought to the types that take every value of the whole file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv

from trainwright.errors import InputError
from trainwright.sources.csv_faults import SEVERAL_LINES, find_fault, line_with_open_quote
from trainwright.sources.csv_header import read_header
from trainwright.sources.formats import File
from trainwright.sources.schemas import Found
from trainwright.sources.texts import Text, open_text
from trainwright.sources.textual import KindFinder, convert

_BLOCK = 8 << 20


def find_types(file: File, declared: Mapping[str, pa.DataType], missing: Sequence[str]) -> Found:
    """Read a file once, and find the narrowest type of each column that takes all its values.

    Args:
        file: The file.
        declared: Types by column that are not to be found.
        missing: Texts that mean no value.

    Raises:
        InputError: It is no CSV file as it should be; says in which line and why.
    """
    names = read_header(file)
    finders = {name: KindFinder() for name in names if name not in declared}
    for batch in _read_texts(file, names, missing):
        for name, finder in finders.items():
            finder.add(batch.column(name))
    kinds = {name: finder.kind for name, finder in finders.items()} | dict(declared)
    return Found(
        uri=file.uri,
        schema=pa.schema([(name, kinds[name]) for name in names if name in kinds]),
        guessed=True,
        digits=frozenset(
            name for name, finder in finders.items() if finder.digits and finder.kind == pa.string()
        ),
    )


def read_csv(file: File, schema: pa.Schema, missing: Sequence[str]) -> Iterator[pa.Table]:
    """Read a file in order, with known columns and types; memory is that of a few blocks.

    Raises:
        InputError: It is no CSV file as it should be, or a value does not fit its column's type.
    """
    start = 0
    for batch in _read_texts(file, read_header(file), missing):
        columns = [
            convert(batch.column(field.name), field.type, field.name, file.uri, start) for field in schema
        ]
        start += batch.num_rows
        yield pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class _Options:
    """How Arrow is to read: everything as text, nothing skipped but the header."""

    names: list[str]
    missing: list[str]

    def open(self, text: Text) -> csv.CSVStreamingReader:
        return csv.open_csv(
            text.stream(),
            read_options=csv.ReadOptions(block_size=_BLOCK, column_names=self.names, skip_rows=1),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(self.names, pa.string()),
                null_values=self.missing,
                strings_can_be_null=True,
            ),
        )


def _read_texts(file: File, names: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read all columns as text, null where there is no value; every row is one line."""
    with _naming(file, len(names)), open_text(file, "CSV file") as text:
        if text.ends_with_its_first_line():
            yield pa.RecordBatch.from_pylist([], schema=pa.schema([(name, pa.string()) for name in names]))
            return
        for batch in _Options(list(names), list(missing)).open(text):
            if text.quoted:
                _require_single_lines(batch, file)
            yield batch


def _require_single_lines(batch: pa.RecordBatch, file: File) -> None:
    """Refuse a value over several lines: Arrow lets a quote that is not closed take in the rows after it."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        broken = pc.or_(pc.match_substring(column, "\n"), pc.match_substring(column, "\r"))
        if pc.any(broken).as_py():
            line, value = line_with_open_quote(file), column.filter(broken)[0].as_py()
            raise InputError(
                f"line {line:,}: {SEVERAL_LINES} (column {field.name!r}: {value!r:.80})", where=file.uri
            )


@contextmanager
def _naming(file: File, fields: int) -> Iterator[None]:
    """Turn what Arrow says about a file into an error that names the file, the line and what is wrong."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        found = find_fault(file, fields) or f"the CSV file cannot be read: {error!s:.300}"
        raise InputError(found, where=file.uri) from None
