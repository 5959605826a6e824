"""Where a JSONL file is wrong: a second, slow look at a block that Arrow could not read."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.sources.jsonl_types import EXACT

DEEPEST = 64
"""Lists and objects within each other; Arrow's parser ends the process at a few thousand."""

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
    """Say what is wrong with the first line that is not as it should be; empty if none is found.

    Args:
        data: Whole lines.
        line: The number of the first.
        schema: Columns that are known already.
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
    """Tell whether a line may hold something else than one object: Arrow's parser dies of a null there."""
    ended = data if data.endswith(b"\n") else data + b"\n"
    starts = ended.count(b"\n{") + ended.startswith(b"{")
    return starts != ended.count(b"\n") or _NULL_ROW.search(data) is not None


def count_rows(data: bytes) -> int:
    """Count the lines that are not empty."""
    if b"\n\n" not in data and b"\n\r" not in data and data[:1] == b"{":
        return data.count(b"\n") + (not data.endswith(b"\n"))
    return sum(1 for _ in _lines(data, 1))


def find_too_deep(data: bytes, line: int) -> str:
    """Name the first line that is nested deeper than :data:`DEEPEST`; empty if there is none.

    Brackets are taken away pair by pair, innermost first, so that flat rows cost next to nothing; only
    lines of which many are left are looked at closely, since brackets in text count as well.
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
    """Return how deep a line is nested, at most; text in quotes does not count."""
    deepest = depth = 0
    for bracket in re.findall(rb"[\[\]{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def find_inexact(data: bytes, line: int, schema: pa.Schema) -> str:
    """Name the first integer that is to be a float and loses digits as one; empty if there is none."""
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
