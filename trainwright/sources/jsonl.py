"""JSONL files: one object a line, read in blocks, with types that hold for the whole file.

Numbers, booleans, texts, lists and objects keep their kind; a text column is one of dates or times if every
value is. Lists and objects become Arrow's lists and structs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import json as arrow_json

from trainwright.errors import InputError
from trainwright.sources.formats import File, open_text
from trainwright.sources.inference import TypeInference, convert
from trainwright.sources.parts import EXACT, FileSchema, as_read, may_be_inexact, united, without_times
from trainwright.tables import require_distinct

DEEPEST = 64
"""Nested lists and objects, at most; Arrow's parser ends the process at a few thousand."""

_OTHERS = bytes(set(range(256)) - set(b"[]{}\n"))
_NULL_ROW = re.compile(rb"\}\s*null")
_MANY_DIGITS = re.compile(rb"\d{16}")
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def find_fault(data: bytes, line: int, schema: pa.Schema) -> str:
    """Return the fault of the first faulty line; empty if none is found. Slow: for blocks that Arrow rejects.

    Args:
        data: Whole lines.
        line: The number of the first.
        schema: The known columns.
    """
    seen = {field.name: (_kind_of_type(field.type), 0) for field in schema}
    for number, text in _lines(data, line):
        try:
            row = json.loads(text, object_pairs_hook=_distinct)
        except RecursionError:
            return f"line {number:,} is nested too deeply"
        except ValueError as error:
            return f"line {number:,} is no JSON: {_short(error)}: {_shown(text)}"
        if not isinstance(row, dict):
            return f"line {number:,} is {_KINDS.get(type(row), 'null')}, not an object: {_shown(text)}"
        for name, value in row.items():
            kind = _KINDS.get(type(value), "")
            before, where = seen.setdefault(name, (kind, number))
            if kind and before and kind != before:
                since = f"in line {where:,}" if where else "before"
                return f"line {number:,}: column {name!r} is {kind}, {value!r:.80}; {since} it is {before}"
            if kind and not before:
                seen[name] = (kind, number)
    return ""


def is_suspect(data: bytes) -> bool:
    """Tell whether a line may have something else than one object: Arrow's parser crashes on a null."""
    ended = data if data.endswith(b"\n") else data + b"\n"
    starts = ended.count(b"\n{") + ended.startswith(b"{")
    return starts != ended.count(b"\n") or _NULL_ROW.search(data) is not None


def count_rows(data: bytes) -> int:
    """Count the lines that are not empty."""
    if b"\n\n" not in data and b"\n\r" not in data and data[:1] == b"{":
        return data.count(b"\n") + (not data.endswith(b"\n"))
    return sum(1 for _ in _lines(data, 1))


def find_too_deep(data: bytes, line: int) -> str:
    """Return the fault of the first line nested deeper than :data:`DEEPEST`; empty if there is none.

    Brackets are removed pair by pair, innermost first, so that flat rows cost little; only lines with many
    left are parsed, since brackets in text count as well.
    """
    brackets, before = data.translate(None, _OTHERS), b""
    for _ in range(DEEPEST):
        if brackets == before or not brackets.strip():
            break
        before, brackets = brackets, brackets.replace(b"[]", b"").replace(b"{}", b"")
    if not brackets.strip():
        return ""
    rows = zip(data.split(b"\n"), brackets.split(b"\n"), strict=True)
    for number, (text, left) in enumerate(rows, line):
        if len(left) > DEEPEST and _depth(text) > DEEPEST:
            return f"line {number:,} is nested too deeply: more than {DEEPEST} levels: {_shown(text)}"
    return ""


def _depth(text: bytes) -> int:
    """Return the depth of a line; text in quotes does not count."""
    deepest = depth = 0
    for bracket in re.findall(rb"[\[\]{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def find_inexact(data: bytes, line: int, schema: pa.Schema) -> str:
    """Return the fault of the first integer that loses digits as a float; empty if there is none."""
    if not _MANY_DIGITS.search(data):
        return ""
    for number, text in _lines(data, line):
        if _MANY_DIGITS.search(text):
            for name, value in json.loads(text).items():
                kind = schema.field(name).type
                if found := next(_large(value, kind), None):
                    return f"line {number:,}: column {name!r} is {kind}, and loses digits of {found}"
    return ""


def _large(value: Any, kind: pa.DataType) -> Iterator[int]:
    if isinstance(value, int) and pa.types.is_floating(kind):
        if abs(value) > EXACT:
            yield value
    elif isinstance(value, list):
        for entry in value:
            yield from _large(entry, kind.value_type)
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from _large(entry, kind.field(name).type)


def _lines(data: bytes, line: int) -> Iterator[tuple[int, bytes]]:
    for number, text in enumerate(data.split(b"\n"), line):
        if text.strip():
            yield number, text


def _kind_of_type(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return ""
    if pa.types.is_boolean(kind):
        return _KINDS[bool]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _KINDS[int]
    if pa.types.is_list(kind):
        return _KINDS[list]
    return _KINDS[dict] if pa.types.is_struct(kind) else _KINDS[str]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return row


def _short(error: ValueError) -> str:
    return str(getattr(error, "msg", error))


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace"))[:80]


_PIECE = 8 << 20
_LONGEST = 64 << 20


def infer_jsonl(file: File, declared: Mapping[str, pa.DataType]) -> FileSchema:
    """Read a file once, and infer the type of each column that takes all its values.

    Args:
        file: The file.
        declared: Types by column that are not inferred.

    Raises:
        InputError: A line is no object, or a column has two kinds; names the line.
    """
    known: dict[str, pa.DataType] = {}
    finders: dict[str, TypeInference] = {}
    for block in _blocks(file):
        table = _guess(block, known, declared)
        for name, column in zip(table.column_names, table.columns, strict=True):
            known[name] = _joined(known, name, column.type, block)
            if known[name] == pa.string() and name not in declared:
                finder = finders.setdefault(name, TypeInference(times_only=True))
                for chunk in column.cast(pa.string()).chunks:
                    finder.add(chunk)
    found = {name: finders[name].kind if name in finders else kind for name, kind in known.items()}
    schema = pa.schema(list((found | {name: declared[name] for name in declared if name in known}).items()))
    return FileSchema(uri=file.uri, schema=require_distinct(schema, file.uri), guessed=True)


def read_jsonl(file: File, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a file in order, with known columns and types, a few blocks at a time.

    Raises:
        InputError: A line is no object, or a value is not of its column's type.
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
    """Whole lines of a file, and the number of the first."""

    file: File
    line: int
    data: bytes


def _blocks(file: File) -> Iterator[_Block]:
    """Split a file into blocks at line ends; the last one may have no rows."""
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
    """Parse a block of unknown types. Arrow's times stay text: ours are inferred more strictly."""
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
    """Parse a block with Arrow."""
    if not block.data.strip():
        return schema.empty_table()
    _require_rows(block)
    read = arrow_json.ReadOptions(block_size=len(block.data) + 1)
    parse = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    try:
        table = arrow_json.read_json(BytesIO(block.data), read_options=read, parse_options=parse)
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
    """Reject what crashes Arrow's parser: a null row, and thousands of brackets."""
    fault = find_too_deep(block.data, block.line)
    if not fault and is_suspect(block.data):
        fault = find_fault(block.data, block.line, pa.schema([]))
    if fault:
        raise InputError(fault, where=block.file.uri)


@contextmanager
def _naming(file: File) -> Iterator[None]:
    """Translate Arrow's errors about a file into one that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"the JSONL file cannot be read: {error!s:.300}", where=file.uri) from None
