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

_KINDS = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.date32()),
    *(pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
)
_NAMES = {str(kind): kind for kind in _KINDS}
_NAMES |= {"float32": pa.float32(), "float64": pa.float64(), "date32": pa.date32()}
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(\d{1,2})\)")
_MOST_DIGITS = 38


def declared_types(types: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Parse the types of ``data.types``."""
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
EXACT = 2**53
"""Up to this every integer is exact as a float."""

_LONG = 16


class TypeInference:
    """Inference of the narrowest type that takes every value of a text column, batch by batch.

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
        possible = [
            kind
            for kind in _WIDER[self.kind]
            if kind != pa.null()
            and (kind in _TIMES or not self._times_only)
            and not (pa.types.is_floating(kind) and self._large)
        ]
        self.kind = next((kind for kind in possible if _fits(present, kind)), pa.string())
        if self.kind == pa.int64():
            self._large = self._large or pc.max(pc.binary_length(present)).as_py() >= _LONG


def convert(column: pa.Array, kind: pa.DataType, name: str, where: str, start: int) -> pa.Array:
    """Convert a text column to a type; name the first row of a file whose value the type does not take."""
    if kind == pa.string():
        return column
    try:
        return _cast_whole(column, kind)
    except pa.ArrowException:
        row, high = 0, len(column)
    while high - row > 1:  # the first misfit is in [row, high)
        middle = (row + high) // 2
        try:
            _cast_whole(column.slice(row, middle - row), kind)
        except pa.ArrowException:
            high = middle
        else:
            row = middle
    value = column[row].as_py()
    raise InputError(
        f"column {name!r} is {kind}, which does not take {value!r:.80} in row {start + row + 1:,}",
        where=where,
        hint=f"Correct the value, list it in data.missing, or declare another type: data.types.{name}.",
    )


def _fits(present: pa.Array, kind: pa.DataType) -> bool:
    try:
        _cast_whole(present, kind)
    except pa.ArrowException:
        return False
    if not (pa.types.is_int64(kind) or pa.types.is_floating(kind)):
        return True
    trimmed = pc.utf8_trim_whitespace(present)  # a cheap filter before an expensive one
    zero = pc.or_(pc.starts_with(trimmed, "0"), pc.starts_with(trimmed, "-0"))
    codes = trimmed.filter(pc.or_(zero, pc.starts_with(trimmed, "+")))
    return not _any(pc.match_substring_regex(codes, _CODE))


def _cast_whole(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text strictly, ignoring spaces around a value, and without losing digits of an integer."""
    try:
        converted = _cast_exactly(column, kind)
    except pa.ArrowException:
        converted = _cast_exactly(pc.utf8_trim_whitespace(column), kind)
    if pa.types.is_floating(kind) and _any(pc.greater_equal(pc.abs(converted), float(EXACT))):
        long = column.filter(pc.greater_equal(pc.binary_length(column), _LONG))
        whole = long.filter(pc.match_substring_regex(long, _MANY_DIGITS))
        if any(_exceeds(text) for text in whole.to_pylist()):
            raise pa.ArrowInvalid("an integer loses digits as a float")
    return converted


def _exceeds(integer: str) -> bool:
    """Tell whether a float loses digits of an integer, which may have more than Python converts."""
    digits = integer.strip().lstrip("+-0")
    return len(digits) > _LONG or int(digits or 0) > EXACT


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
