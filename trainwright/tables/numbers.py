"""Fingerprints of numbers and times: equal values have equal ones, however many bits hold them."""

import re
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.tables.mixing import INTEGER, LARGE, REAL, TIME, Words, of_words

_LIMIT = float(1 << 63)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UNIT = re.compile(r"\[(s|ms|us|ns)\b")
_DAY_S = 86_400


def fixed_width(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """View the values of a fixed-width array, with whatever lies where it is null."""
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype=dtype)
    return values[array.offset : array.offset + len(array)]


def booleans(array: pa.Array, seed: int) -> Words:
    """Hash true as 1 and false as 0."""
    return integers(array.cast(pa.uint8()), seed)


def integers(array: pa.Array, seed: int) -> Words:
    """Hash an integer by its 64 bits; one that only unsigned numbers reach is of its own domain."""
    values = fixed_width(array, np.dtype(str(array.type)))
    total = of_words(INTEGER, seed, values.astype(np.int64).view(np.uint64))
    if array.type == pa.uint64() and (large := values >> np.uint64(63) != 0).any():
        total[large] = of_words(LARGE, seed, values[large])
    return total


def reals(array: pa.Array, seed: int) -> Words:
    """Hash a whole number as an integer, and anything else by the bits of its double."""
    values = fixed_width(array, np.dtype(f"f{array.type.bit_width // 8}")).astype(np.float64)
    values[np.isnan(values)] = np.nan
    whole = (np.trunc(values) == values) & (values >= -_LIMIT) & (values < _LIMIT)
    words = np.where(whole, values, 0.0).astype(np.int64).view(np.uint64)
    if whole.all():
        return of_words(INTEGER, seed, words)
    total = of_words(REAL, seed, values.view(np.uint64))
    if whole.any():
        total[whole] = of_words(INTEGER, seed, words[whole])
    return total


def times(array: pa.Array, seed: int) -> Words:
    """Hash a moment, a time of day or a duration as whole seconds and the nanoseconds after them."""
    values = fixed_width(array, np.dtype(f"i{array.type.bit_width // 8}")).astype(np.int64)
    unit = _UNIT.search(str(array.type))
    if unit is None:  # a date32, which counts days
        seconds, rest = values * _DAY_S, np.zeros_like(values)
    else:
        ticks = _TICKS[unit.group(1)]
        seconds, rest = values // ticks, values % ticks * (_TICKS["ns"] // ticks)
    return of_words(TIME, seed, seconds.view(np.uint64), rest.view(np.uint64))
