"""Types of text columns: declared or inferred, and conversion to them.

A number that would not be written the same again stays text: one with leading zeros or a plus, and an integer
beyond 64 bits, or beyond 53 beside floats. So a code such as 007 is never read as 7.
"""

import difflib
import re
from collections.abc import Mapping

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError

_NAMES = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "date32": pa.date32(),
    "date32[day]": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", tz="UTC"),
}
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(\d{1,2})\)")
_MOST_DIGITS = 38


def declared_types(types: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Parse the types of ``data.types``.

    Raises:
        InputError: One is unknown; all of them are named.
    """
    found, wrong = {}, []
    for column, text in types.items():
        decimal = _DECIMAL.fullmatch(text)
        if text in _NAMES:
            found[column] = _NAMES[text]
        elif decimal and 1 <= int(decimal[1]) <= _MOST_DIGITS and int(decimal[2]) <= int(decimal[1]):
            found[column] = pa.decimal128(int(decimal[1]), int(decimal[2]))
        else:
            close = difflib.get_close_matches(text, _NAMES, n=1)
            wrong.append(f"{column}: {text!r:.80}" + (f", did you mean {close[0]}?" if close else ""))
    if wrong:
        raise InputError(
            f"no such type: {'; '.join(wrong)}",
            where="data.types",
            hint=f"Known are {', '.join(_NAMES)}, and decimal128(digits, decimals).",
        )
    return found


_DAY, _TIME, _ZONED = pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.null(): (pa.null(), pa.int64(), pa.float64(), pa.bool_(), _DAY, _TIME, _ZONED),
    pa.int64(): (pa.int64(), pa.float64()),
    pa.float64(): (pa.float64(),),
    pa.bool_(): (pa.bool_(),),
    _DAY: (_DAY, _TIME),
    _TIME: (_TIME,),
    _ZONED: (_ZONED,),
    pa.string(): (),
}
"""The types that a column of one type so far may still have, the narrowest first; text takes all."""

_TIMES = frozenset({_DAY, _TIME, _ZONED})
_CODE = r"^(\+|-?0[0-9])"
_MANY_DIGITS = r"^-?[0-9]{16,}$"
_FINE = r"([.,][0-9]{6})[0-9]+"
_WORDS = pa.array(["true", "false"])
_EXACT = 2**53
_LONG = 16


class TypeInference:
    """Inference of the narrowest type that takes every value of a text column, batch by batch.

    Args:
        times_only: Infer only dates and times; numbers stay text.

    Attributes:
        kind: The type so far; ``null`` while there is no value.
        digits: Whether all values so far have digits only, so that the text may be codes.
    """

    def __init__(self, *, times_only: bool = False) -> None:
        self.kind, self.digits = pa.null(), True
        self._times_only, self._large = times_only, False

    def add(self, column: pa.Array) -> None:
        """Add values."""
        if self.kind == pa.string() and not self.digits:
            return
        present = column.drop_null()
        if not len(present):
            return
        if self.digits:
            self.digits = bool(pc.all(pc.match_substring_regex(present, r"^-?[0-9]+$")).as_py())
        fitting = (kind for kind in _WIDER[self.kind] if self._possible(kind) and _fits(present, kind))
        self.kind = next(fitting, pa.string())
        if self.kind == pa.int64():
            self._large = self._large or pc.max(pc.binary_length(present)).as_py() >= _LONG

    def _possible(self, kind: pa.DataType) -> bool:
        if pa.types.is_floating(kind) and self._large:
            return False
        return kind != pa.null() and (not self._times_only or kind in _TIMES)


def convert(column: pa.Array, kind: pa.DataType, name: str, where: str, start: int) -> pa.Array:
    """Convert a text column to a type.

    Args:
        column: Text, with nulls.
        kind: The type.
        name: The column's name.
        where: The file.
        start: Rows before it in that file.

    Raises:
        InputError: The type does not take a value; names the first such row.
    """
    if kind == pa.string():
        return column
    try:
        return _cast_whole(column, kind)
    except pa.ArrowException:
        row = _first_misfit(column, kind)
    value = column[row].as_py()
    raise InputError(
        f"column {name!r} is {kind}, which does not take {value!r:.80} in row {start + row + 1:,}",
        where=where,
        hint=f"Correct the value, list it in data.missing, or declare another type: data.types.{name}.",
    )


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast_whole(column.slice(low, middle - low), kind)
        except pa.ArrowException:
            high = middle
        else:
            low = middle
    return low


def _fits(present: pa.Array, kind: pa.DataType) -> bool:
    try:
        _cast_whole(present, kind)
    except pa.ArrowException:
        return False
    number = pa.types.is_int64(kind) or pa.types.is_floating(kind)
    return not (number and _any(pc.match_substring_regex(_suspects(present), _CODE)))


def _suspects(present: pa.Array) -> pa.Array:
    """Return the values that could be codes: a cheap filter before an expensive one."""
    trimmed = pc.utf8_trim_whitespace(present)
    zero = pc.or_(pc.starts_with(trimmed, "0"), pc.starts_with(trimmed, "-0"))
    return trimmed.filter(pc.or_(zero, pc.starts_with(trimmed, "+")))


def _cast_whole(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text strictly, and without losing digits of an integer."""
    converted = _cast(column, kind)
    if pa.types.is_floating(kind) and _loses_digits(column, converted):
        raise pa.ArrowInvalid("an integer loses digits as a float")
    return converted


def _loses_digits(present: pa.Array, floats: pa.Array) -> bool:
    """Tell whether an integer among floats has more digits than they have."""
    if not _has_large(floats):
        return False
    long = present.filter(pc.greater_equal(pc.binary_length(present), _LONG))
    whole = long.filter(pc.match_substring_regex(long, _MANY_DIGITS))
    return any(abs(int(text)) > _EXACT for text in whole.to_pylist())


def _has_large(floats: pa.Array) -> bool:
    return _any(pc.greater_equal(pc.abs(floats), float(_EXACT)))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text strictly, ignoring spaces around a value."""
    try:
        return _cast_exactly(column, kind)
    except pa.ArrowException:
        return _cast_exactly(pc.utf8_trim_whitespace(column), kind)


def _cast_exactly(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(kind):
        if column.null_count < len(column):
            raise pa.ArrowInvalid("there is a value")
        return pa.nulls(len(column))
    if pa.types.is_boolean(kind):
        lowered = pc.utf8_lower(column)
        if not pc.all(pc.is_in(lowered.drop_null(), value_set=_WORDS), min_count=0).as_py():
            raise pa.ArrowInvalid("neither true nor false")
        return pc.equal(lowered, "true")
    if not pa.types.is_timestamp(kind):
        return column.cast(kind)
    try:
        return column.cast(kind)
    except pa.ArrowException:
        return pc.replace_substring_regex(column, _FINE, r"\1").cast(kind)


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags, min_count=0).as_py())
