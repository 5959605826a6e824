"""Raw columns: as they come from Arrow, and as the arrays that the exported program takes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import DataRefused, InputError, InternalError

MISSING_TIME = int(np.iinfo(np.int64).min)
"""Stands for no value in a time column."""

MISSING_CATEGORY = int(np.iinfo(np.int64).min)
"""Stands for no value among the fingerprints of a category column."""

_REMEMBERED = 65_536


@dataclass(frozen=True, eq=False)
class Categories:
    """A category column as codes into its distinct values.

    Attributes:
        codes: Shape (rows,); an index into ``values``, or -1 for no value.
        values: The distinct values, in any order.
    """

    codes: NDArray[np.int64]
    values: Sequence[str]


Values: TypeAlias = NDArray[np.float64] | NDArray[np.int64] | Categories
"""A raw column, shape (rows,): float64 for a number (not finite means missing), int64 microseconds since 1970
for a time (:data:`MISSING_TIME` means missing), or :class:`Categories`."""


@dataclass(frozen=True, eq=False)
class Marks:
    """A category column as places into the fingerprints of its distinct values.

    Attributes:
        places: Shape (rows,); an index into ``distinct``, or -1 for its last entry.
        distinct: Shape (distinct values + 1,), int64; the last is :data:`MISSING_CATEGORY`.
    """

    places: NDArray[np.int64]
    distinct: NDArray[np.int64]

    @classmethod
    def of(cls, column: Categories) -> "Marks":
        """Take the fingerprints of a column's distinct values."""
        marks = [fingerprint(value) for value in column.values]
        return cls(column.codes, np.array([*marks, MISSING_CATEGORY], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Raw:
    """Rows as the exported program takes them. In memory columns come first: each is contiguous.

    Attributes:
        numbers: Shape (rows, numeric columns), float64; what is not finite means missing.
        times: Shape (rows, time columns), int64 microseconds since 1970; :data:`MISSING_TIME` means missing.
    """

    numbers: NDArray[np.float64]
    times: NDArray[np.int64]
    marks: tuple[Marks, ...]

    @classmethod
    def of(
        cls, numbers: Sequence[NDArray[Any]], times: Sequence[NDArray[Any]], categories: Sequence[Categories]
    ) -> "Raw":
        """Put columns side by side.

        Raises:
            InputError: They are not of one length.
        """
        sizes = {len(column) for column in (*numbers, *times, *(column.codes for column in categories))}
        if len(sizes) > 1:
            raise InputError(
                f"columns are not of one length: {sorted(sizes)} rows", where="input of the model"
            )
        rows = sizes.pop() if sizes else 0
        marks = tuple(Marks.of(column) for column in categories)
        return cls(_beside(numbers, rows, np.float64), _beside(times, rows, np.int64), marks)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.numbers)

    @cached_property
    def categories(self) -> NDArray[np.int64]:
        """Shape (rows, category columns), int64 fingerprints; :data:`MISSING_CATEGORY` means missing."""
        return _beside([column.distinct[column.places] for column in self.marks], len(self), np.int64)


def _beside(columns: Sequence[NDArray[Any]], rows: int, kind: type[np.generic]) -> NDArray[Any]:
    beside = np.empty((len(columns), rows), dtype=kind)
    for index, column in enumerate(columns):
        beside[index] = column
    return beside.T


@lru_cache(_REMEMBERED)
def fingerprint(text: str) -> int:
    """Return the first 8 bytes of the SHA-256 of a text's UTF-8, as a signed little-endian number."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def require_distinct(name: str, values: Sequence[str], marks: Sequence[int]) -> None:
    """Check that the learned values of a category column have distinct fingerprints.

    Raises:
        DataRefused: Two cannot; of 256 values that happens in one of 10^14 columns.
    """
    seen = {MISSING_CATEGORY: "no value"}
    for mark, value in zip(marks, values, strict=True):
        if mark in seen:
            raise DataRefused(
                f"values {seen[mark]!r} and {value!r} of column {name!r} have the same fingerprint, {mark}",
                where="fit of the transforms",
                hint="Rename one of them where the column is made.",
            )
        seen[mark] = value


def require(columns: Mapping[str, object], names: Sequence[str] | Mapping[str, object]) -> None:
    """Check that columns are there.

    Raises:
        InputError: Some are not; all are named.
    """
    if missing := [name for name in names if name not in columns]:
        raise InputError(f"no columns {missing}, which the model reads", where="input of the model")


def as_numbers(values: Values) -> NDArray[np.float64]:
    """Return a numeric column as float64."""
    if isinstance(values, Categories):
        raise InternalError("a category column was given where a number is read")
    return values.astype(np.float64, copy=False)


def as_times(values: Values) -> NDArray[np.int64]:
    """Return a time column as int64."""
    if isinstance(values, Categories):
        raise InternalError("a category column was given where a time is read")
    return values.astype(np.int64, copy=False)


def as_categories(values: Values) -> Categories:
    """Return a category column."""
    if not isinstance(values, Categories):
        raise InternalError(f"a column of {values.dtype} was given where a category is read")
    return values
