"""JSONL files: one object a line, read in blocks, with types that hold for the whole file.

Numbers, booleans, texts, lists and objects keep their kind; a text column is one of dates or times if every
value is. Lists and objects become Arrow's lists and structs. Arrow parses the blocks; one that it rejects, or
would read wrongly, is parsed once more line by line to name the fault.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NoReturn

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import json as arrow_json

from trainwright.errors import InputError
from trainwright.sources.formats import File, open_text
from trainwright.sources.inference import EXACT, TypeInference, convert
from trainwright.sources.sources import FileSchema, change_type, wider
from trainwright.tables import require_distinct

DEEPEST = 64
"""Nested lists and objects, at most; Arrow's parser ends the process at a few thousand."""

_PIECE = 8 << 20
_LONGEST_LINE = 64 << 20
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}\n"))
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


@dataclass(frozen=True)
class _Block:
    """Whole lines of a file, and the number of the first."""

    file: File
    line: int
    data: bytes

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and text of each line that is not empty."""
        for number, text in enumerate(self.data.split(b"\n"), self.line):
            if text.strip():
                yield number, text

    def reject(self, fault: str, hint: str = "") -> NoReturn:
        """Raise the fault, or say at least where the block begins."""
        raise InputError(
            fault or f"not one object a line from line {self.line:,} on", where=self.file.uri, hint=hint
        )


def infer_jsonl(file: File, declared: Mapping[str, pa.DataType]) -> FileSchema:
    """Read a file once, and infer the type of each column that takes all its values."""
    known: dict[str, pa.DataType] = {}
    times: dict[str, TypeInference] = {}
    rows = 0
    for block in _blocks(file):
        table = _guess(block, known, declared)
        rows += table.num_rows
        for name, column in zip(table.column_names, table.columns, strict=True):
            before = known.get(name, pa.null())
            joined = wider(before, column.type)
            if joined is None:
                fault = _find_fault(block, pa.schema(list(known.items())))
                block.reject(
                    fault
                    or f"from line {block.line:,} on: column {name!r} is {column.type}, and {before} before"
                )
            known[name] = joined
            if joined == pa.string() and name not in declared:
                inference = times.setdefault(name, TypeInference(times_only=True))
                for chunk in column.cast(pa.string()).chunks:
                    inference.add(chunk)
    found = known | {name: inference.kind for name, inference in times.items()}
    found |= {name: kind for name, kind in declared.items() if name in known}
    schema = require_distinct(pa.schema(list(found.items())), file.uri)
    return FileSchema(uri=file.uri, schema=schema, guessed=True, rows=rows)


def read_names(file: File, wanted: Collection[str]) -> list[str]:
    """Return the keys of the lines of a file, up to the block that has the last of those that are wanted."""
    names: dict[str, None] = {}
    for block in _blocks(file):
        names |= dict.fromkeys(_guess(block, {}, {}).column_names)
        if names.keys() >= set(wanted):
            break
    return list(names)


def read_jsonl(file: File, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a file in order, with known columns and types, a few blocks at a time."""
    wanted = pa.schema([field.with_type(_as_parsed(field.type)) for field in schema])
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


def _as_parsed(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow parses a column: times, dates and decimals come as text."""
    exact = pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind)
    return pa.string() if exact else kind


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
            if len(rest) > _LONGEST_LINE:
                raise InputError(
                    f"line {line:,} is longer than {_LONGEST_LINE:,} bytes",
                    where=file.uri,
                    hint="A JSONL file has one object a line; a line break may be missing.",
                )
        yield _Block(file, line, rest)


@contextmanager
def _naming(file: File) -> Iterator[None]:
    """Translate Arrow's errors about a file into one that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"the JSONL file cannot be read: {error!s:.300}", where=file.uri) from None


def _guess(block: _Block, known: Mapping[str, pa.DataType], declared: Mapping[str, pa.DataType]) -> pa.Table:
    """Parse a block of unknown types. Arrow's times stay text: ours are inferred more strictly."""
    fixed = {name: kind for name, kind in known.items() if kind == pa.string()}
    fixed |= {name: _as_parsed(kind) for name, kind in declared.items()}
    table = _parse(block, pa.schema(list(fixed.items())), "infer")
    timeless = pa.schema([field.with_type(change_type(field.type, _as_parsed)) for field in table.schema])
    if timeless != table.schema:
        typed = [field for field in timeless if not pa.types.is_null(field.type)]
        table = _parse(block, pa.schema(typed), "infer").select(table.column_names)
    absent = [name for name in fixed if name not in known and table[name].null_count == table.num_rows]
    return table.drop_columns(absent)


def _parse(block: _Block, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse a block with Arrow; reject rows before that crash it, and after what it read wrongly."""
    if not block.data.strip():
        return schema.empty_table()
    if fault := _find_too_deep(block) or (
        _may_have_null_rows(block.data) and _find_fault(block, pa.schema([]))
    ):
        block.reject(fault)
    try:  # Arrow does not look, and a name or a value would fail much later
        block.data.decode()
    except UnicodeDecodeError as error:
        block.reject(_find_fault(block, pa.schema([])) or f"from line {block.line:,} on: {error!s:.300}")
    read = arrow_json.ReadOptions(block_size=len(block.data) + 1)
    parse = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    try:
        table = arrow_json.read_json(BytesIO(block.data), read_options=read, parse_options=parse)
    except (pa.ArrowException, ValueError) as error:
        block.reject(_find_fault(block, schema) or f"from line {block.line:,} on: {error!s:.300}")
    if table.num_rows != sum(map(bool, map(bytes.strip, block.data.split(b"\n")))):
        block.reject(_find_fault(block, schema))
    if any(_has_large_float(chunk) for column in table.columns for chunk in column.chunks) and (
        fault := _find_inexact(block, table.schema)
    ):
        block.reject(fault, "Write such numbers as text, in quotes: a float does not keep all their digits.")
    return table


def _find_fault(block: _Block, schema: pa.Schema) -> str:
    """Return the fault of the first faulty line, beside the known columns; empty if none is found."""
    seen = {field.name: (_kind_of_type(field.type), 0) for field in schema}
    for number, text in block.lines():
        try:
            row = json.loads(text, object_pairs_hook=_distinct)
        except RecursionError:
            return f"line {number:,} is nested too deeply"
        except ValueError as error:
            return f"line {number:,} is no JSON: {getattr(error, 'msg', error)}: {_shown(text)}"
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


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return row


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace"))[:80]


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


def _may_have_null_rows(data: bytes) -> bool:
    """Tell whether a line may have something else than one object: Arrow's parser crashes on a null."""
    ended = data if data.endswith(b"\n") else data + b"\n"
    starts = ended.count(b"\n{") + ended.startswith(b"{")
    return starts != ended.count(b"\n") or _NULL_ROW.search(data) is not None


def _find_too_deep(block: _Block) -> str:
    """Return the fault of the first line nested too deeply; only lines with many brackets are looked at."""
    brackets_of_lines = block.data.translate(None, _NO_BRACKETS).split(b"\n")
    if max(map(len, brackets_of_lines)) <= DEEPEST:
        return ""
    rows = zip(block.data.split(b"\n"), brackets_of_lines, strict=True)
    for number, (text, brackets) in enumerate(rows, block.line):
        if len(brackets) <= DEEPEST:
            continue
        depth = deepest = 0
        for bracket in re.findall(rb"[\[\]{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)):
            depth += 1 if bracket in b"[{" else -1
            deepest = max(deepest, depth)
        if deepest > DEEPEST:
            return f"line {number:,} is nested too deeply: more than {DEEPEST} levels: {_shown(text)}"
    return ""


def _has_large_float(array: pa.Array) -> bool:
    """Tell whether floats, at any depth, are so large that an integer among them may have lost digits."""
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.greater_equal(pc.abs(array), float(EXACT)), min_count=0).as_py())
    if pa.types.is_list(array.type):
        return _has_large_float(array.flatten())
    return pa.types.is_struct(array.type) and any(_has_large_float(field) for field in array.flatten())


def _find_inexact(block: _Block, schema: pa.Schema) -> str:
    """Return the fault of the first integer that loses digits as a float; empty if there is none."""
    for number, text in block.lines():
        if _MANY_DIGITS.search(text):
            try:
                row = json.loads(text)
            except ValueError as error:
                return f"line {number:,}: {error}"
            for name, value in row.items():
                kind = schema.field(name).type
                if found := next(_inexact_in(value, kind), None):
                    return f"line {number:,}: column {name!r} is {kind}, and loses digits of {found}"
    return ""


def _inexact_in(value: Any, kind: pa.DataType) -> Iterator[int]:
    if isinstance(value, int) and pa.types.is_floating(kind):
        if abs(value) > EXACT:
            yield value
    elif isinstance(value, list):
        for entry in value:
            yield from _inexact_in(entry, kind.value_type)
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from _inexact_in(entry, kind.field(name).type)
