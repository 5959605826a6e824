"""Columns of text: which type takes every value, and the values in that type.

A number that would not come back as it was written stays text: one with leading zeros or a plus, and an
integer beyond 64 bits, or beyond 53 beside floats. So a code such as 007 is never taken for 7.
"""

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError

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
"""What a column that fits one type so far may still be, the narrowest first; text takes all."""

_TIMES = frozenset({_DAY, _TIME, _ZONED})
_CODE = r"^(\+|-?0[0-9])"
_MANY_DIGITS = r"^-?[0-9]{16,}$"
_FINE = r"([.,][0-9]{6})[0-9]+"
_WORDS = pa.array(["true", "false"])
_EXACT = 2**53
_LONG = 16


class KindFinder:
    """Finds the narrowest type that takes every value of a text column, batch by batch.

    Args:
        times_only: Look for dates and times alone; text that is written as a number stays text.

    Attributes:
        kind: The type so far; ``null`` while there is no value.
        digits: Whether all values so far are digits alone, so that the text may be codes.
    """

    def __init__(self, *, times_only: bool = False) -> None:
        self.kind, self.digits = pa.null(), True
        self._times_only, self._large = times_only, False

    def add(self, column: pa.Array) -> None:
        """Take more values.

        Args:
            column: Text, without a value where it is null.
        """
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
    """Return a text column in a type.

    Args:
        column: Text, without a value where it is null.
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
        hint=f"Mend the value, say it means none (data.missing), or another type: data.types.{name}.",
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
    """Return the values that could be codes; a cheap look before a dear one."""
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
    """Tell whether an integer among floats has more digits than they keep."""
    if not _has_large(floats):
        return False
    long = present.filter(pc.greater_equal(pc.binary_length(present), _LONG))
    whole = long.filter(pc.match_substring_regex(long, _MANY_DIGITS))
    return any(abs(int(text)) > _EXACT for text in whole.to_pylist())


def _has_large(floats: pa.Array) -> bool:
    return _any(pc.greater_equal(pc.abs(floats), float(_EXACT)))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text strictly; spaces around a value do not count."""
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
