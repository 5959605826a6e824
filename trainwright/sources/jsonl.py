"""JSONL files: one object a line, read in blocks, with types that hold for the whole file.

Numbers, truths, texts, lists and objects keep their kind; a text column is one of dates or times if every
value is. Lists and objects are kept as Arrow's lists and structs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import json

from trainwright.errors import InputError
from trainwright.sources.formats import File
from trainwright.sources.jsonl_faults import (
    count_rows,
    find_fault,
    find_inexact,
    find_too_deep,
    is_suspect,
)
from trainwright.sources.jsonl_types import as_read, may_be_inexact, united, without_times
from trainwright.sources.schemas import Found
from trainwright.sources.texts import open_text
from trainwright.sources.textual import KindFinder, convert
from trainwright.tables import require_distinct

_PIECE = 8 << 20
_LONGEST = 64 << 20


def find_types(file: File, declared: Mapping[str, pa.DataType]) -> Found:
    """Read a file once, and find the type of each column that takes all its values.

    Args:
        file: The file.
        declared: Types by column that are not to be found.

    Raises:
        InputError: A line is no object, or a column is of two kinds; says in which line.
    """
    known: dict[str, pa.DataType] = {}
    finders: dict[str, KindFinder] = {}
    for block in _blocks(file):
        table = _guess(block, known, declared)
        for name, column in zip(table.column_names, table.columns, strict=True):
            known[name] = _joined(known, name, column.type, block)
            if known[name] == pa.string() and name not in declared:
                finder = finders.setdefault(name, KindFinder(times_only=True))
                for chunk in column.cast(pa.string()).chunks:
                    finder.add(chunk)
    found = {name: finders[name].kind if name in finders else kind for name, kind in known.items()}
    schema = pa.schema(list((found | {name: declared[name] for name in declared if name in known}).items()))
    return Found(uri=file.uri, schema=require_distinct(schema, file.uri), guessed=True)


def read_jsonl(file: File, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a file in order, with known columns and types; memory is that of a few blocks.

    Raises:
        InputError: A line is no object, or a value does not fit its column's type.
    """
    wanted = pa.schema([field.with_type(as_read(field.type)) for field in schema])
    start = 0
    for block in _blocks(file):
        table = _parse(block, wanted, "error")
        columns = [
            pa.chunked_array(
                [convert(chunk, field.type, field.name, file.uri, start) for chunk in column.chunks],
                field.type,
            )
            if pa.types.is_string(column.type)
            else column
            for column, field in zip(table.columns, schema, strict=True)
        ]
        yield pa.Table.from_arrays(columns, schema=schema)
        start += table.num_rows


@dataclass(frozen=True)
class _Block:
    """Some whole lines of a file, and the number of the first."""

    file: File
    line: int
    data: bytes


def _blocks(file: File) -> Iterator[_Block]:
    """Cut a file into blocks at line ends; the last one may have no rows."""
    with _naming(file), open_text(file, "JSONL file") as text:
        line, rest = 1, b""
        while piece := text.read(_PIECE):
            whole, end, tail = piece.rpartition(b"\n")
            if not end:
                rest = rest + piece
            else:
                data, rest = rest + whole + end, tail
                yield _Block(file, line, data)
                line += data.count(b"\n")
            if len(rest) > _LONGEST:
                raise InputError(
                    f"line {line:,} is longer than {_LONGEST:,} bytes",
                    where=file.uri,
                    hint="A JSONL file has one object a line; a line break may be missing.",
                )
        yield _Block(file, line, rest)


def _guess(block: _Block, known: Mapping[str, pa.DataType], declared: Mapping[str, pa.DataType]) -> pa.Table:
    """Parse a block of unknown types. What Arrow takes for times is text: it is looked at more strictly."""
    fixed = {name: kind for name, kind in known.items() if kind == pa.string()}
    fixed |= {name: as_read(kind) for name, kind in declared.items()}
    table = _parse(block, pa.schema(list(fixed.items())), "infer")
    timeless = pa.schema([field.with_type(without_times(field.type)) for field in table.schema])
    if timeless != table.schema:
        typed = [field for field in timeless if not pa.types.is_null(field.type)]
        table = _parse(block, pa.schema(typed), "infer").select(table.column_names)
    absent = [name for name in fixed if name not in known and table[name].null_count == table.num_rows]
    return table.drop_columns(absent)


def _joined(known: Mapping[str, pa.DataType], name: str, kind: pa.DataType, block: _Block) -> pa.DataType:
    """Return the type that takes a column's values so far and those of this block."""
    before = known.get(name, pa.null())
    joined = united(before, kind)
    if joined is None:
        fault = find_fault(block.data, block.line, pa.schema(list(known.items())))
        raise InputError(
            fault or f"from line {block.line:,} on: column {name!r} is {kind}, and {before} before",
            where=block.file.uri,
        )
    return joined


def _parse(block: _Block, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse a block with Arrow.

    Raises:
        InputError: It cannot, or an integer came out as a float that does not keep its digits.
    """
    if not block.data.strip():
        return schema.empty_table()
    _require_rows(block)
    read = json.ReadOptions(block_size=len(block.data) + 1)
    parse = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    try:
        table = json.read_json(BytesIO(block.data), read_options=read, parse_options=parse)
    except (pa.ArrowException, ValueError) as error:
        fault = find_fault(block.data, block.line, schema) or f"from line {block.line:,} on: {error!s:.300}"
        raise InputError(fault, where=block.file.uri) from None
    if table.num_rows != count_rows(block.data):
        fault = (
            find_fault(block.data, block.line, schema) or f"not one row a line from line {block.line:,} on"
        )
        raise InputError(fault, where=block.file.uri)
    if may_be_inexact(table) and (fault := find_inexact(block.data, block.line, table.schema)):
        hint = "Write such numbers as text, in quotes: a float does not keep all their digits."
        raise InputError(fault, where=block.file.uri, hint=hint)
    return table


def _require_rows(block: _Block) -> None:
    """Refuse what ends Arrow's parser together with the process: a null row, and thousands of brackets."""
    fault = find_too_deep(block.data, block.line)
    if not fault and is_suspect(block.data):
        fault = find_fault(block.data, block.line, pa.schema([]))
    if fault:
        raise InputError(fault, where=block.file.uri)


@contextmanager
def _naming(file: File) -> Iterator[None]:
    """Turn what Arrow says about a file into an error that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"the JSONL file cannot be read: {error!s:.300}", where=file.uri) from None
