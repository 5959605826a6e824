"""Raw columns, the fitted transforms as a document, and their encoding in numpy."""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from trainwright.documents import Document
from trainwright.errors import DataRefused, InputError

Kind: TypeAlias = Literal["number", "category", "time"]

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""Codes of a category column: no value, a value that was not learned, and the first learned one."""

CLIP = 10.0
"""Standardised numbers are cut off at this many standard deviations, so that one wild value does no harm."""

CYCLES_S = (86_400, 604_800)
"""A day and a week, in seconds: a time becomes its sine and cosine in each."""

LARGEST = 1e150
"""Numbers beyond this size count as missing: their squares would not be finite."""

SINE = tuple(
    itertools.accumulate(
        range(1, 10),
        lambda last, term: -last * (2 * math.pi) * (2 * math.pi) / (2 * term * (2 * term + 1)),
        initial=2 * math.pi,
    )
)
"""Coefficients of u, u^3, u^5, ... in Taylor's series of sin(2 pi u): for u in [-1/4, 1/4] the rest is below
1e-15. They are products alone, which are the same everywhere; a library's sine is not."""

MISSING_TIME = int(np.iinfo(np.int64).min)
"""Stands for no value in a time column."""

MISSING_CATEGORY = int(np.iinfo(np.int64).min)
"""Stands for no value among the fingerprints of a category column."""


@dataclass(frozen=True, eq=False)
class Categories:
    """A category column: ``codes``, shape (rows,), index its distinct ``values``; -1 means no value."""

    codes: NDArray[np.int64]
    values: Sequence[str]


Values: TypeAlias = NDArray[np.float64] | NDArray[np.int64] | Categories
"""A raw column, shape (rows,): float64 for a number (not finite means missing), int64 microseconds since 1970
for a time (:data:`MISSING_TIME` means missing), or :class:`Categories`."""


@dataclass(frozen=True, eq=False)
class Marks:
    """A category column: ``places``, shape (rows,), index the ``distinct`` fingerprints of its values.

    The last of these, which -1 indexes, is :data:`MISSING_CATEGORY`.
    """

    places: NDArray[np.int64]
    distinct: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Raw:
    """Rows as the exported program takes them. In memory columns come first: each is contiguous.

    ``numbers`` are float64 of shape (rows, numeric columns), ``times`` int64 microseconds since 1970.
    """

    numbers: NDArray[np.float64]
    times: NDArray[np.int64]
    marks: tuple[Marks, ...]

    @classmethod
    def of(
        cls, numbers: Sequence[NDArray[Any]], times: Sequence[NDArray[Any]], categories: Sequence[Categories]
    ) -> "Raw":
        """Put columns of one length side by side."""
        sizes = {len(column) for column in (*numbers, *times, *(column.codes for column in categories))}
        if len(sizes) > 1:
            raise InputError(
                f"columns are not of one length: {sorted(sizes)} rows", where="input of the model"
            )
        rows = sizes.pop() if sizes else 0
        marks = tuple(
            Marks(
                column.codes, np.array([*map(fingerprint, column.values), MISSING_CATEGORY], dtype=np.int64)
            )
            for column in categories
        )
        return cls(_beside(numbers, rows, np.float64), _beside(times, rows, np.int64), marks)

    def __len__(self) -> int:
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


@lru_cache(65_536)
def fingerprint(text: str) -> int:
    """Return the first 8 bytes of the SHA-256 of a text's UTF-8, as a signed little-endian number."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def require_distinct(name: str, values: Sequence[str], marks: Sequence[int]) -> None:
    """Raise DataRefused if two learned values have one fingerprint; of 256, in one of 10^14 columns."""
    seen = {MISSING_CATEGORY: "no value"}
    for mark, value in zip(marks, values, strict=True):
        if mark in seen:
            raise DataRefused(
                f"values {seen[mark]!r} and {value!r} of column {name!r} have the same fingerprint, {mark}",
                where="fit of the transforms",
                hint="Rename one of them where the column is made.",
            )
        seen[mark] = value


def require(
    columns: Sequence[str] | Mapping[str, object], names: Sequence[str] | Mapping[str, object]
) -> None:
    """Raise InputError with all columns that a model reads and that are not there."""
    known = set(columns)
    if missing := [name for name in names if name not in known]:
        raise InputError(f"no columns {missing}, which the model reads", where="input of the model")


@dataclass(frozen=True, kw_only=True)
class Number:
    """A numeric column: ``(value - mean) * scale``, 0 where missing; ``scale`` is 0 for a constant."""

    name: str
    mean: float
    scale: float
    indicator: bool


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A numeric column as its place in the distribution of the training rows, 0 where missing.

    It is linear between the points, and constant beyond them. The level u of a value becomes ``(u - 1/2) *
    sqrt(12)``: on the training rows its mean is 0, and its variance at most 1.

    Attributes:
        points: Values, ascending.
        levels: Share of training rows below each, and half of those at it; in (0, 1), ascending.
    """

    name: str
    points: tuple[float, ...]
    levels: tuple[float, ...]
    indicator: bool


@dataclass(frozen=True, kw_only=True)
class TimeOf:
    """A time column: sine and cosine within the day and the week, 0 where missing."""

    name: str
    indicator: bool


@dataclass(frozen=True, kw_only=True)
class Category:
    """A category column with the learned values, the most frequent first."""

    name: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of codes: of the values, of no value, and of a value that was not learned."""
        return len(self.values) + FIRST


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded rows, the input of the network.

    Attributes:
        numeric: Shape (rows, ``Transforms.width``), float32, finite.
        categories: Shape (rows, category columns), int64, codes in one vocabulary for all columns.
    """

    numeric: NDArray[np.float32]
    categories: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Transforms(Document):
    """The fitted transforms of all input columns, each kind in the order of its features or codes.

    An indicator of missing values exists only where values were missing in training: its weight would
    otherwise never have been learned. Features of ``ranked`` columns, which are scaled by quantiles, lie
    between those of ``numbers`` and ``times``. ``unused`` has the reason why a column is useless.
    """

    FILE: ClassVar[str] = "transforms.json"
    numbers: tuple[Number, ...]
    times: tuple[TimeOf, ...]
    categories: tuple[Category, ...]
    unused: dict[str, str] = field(default_factory=dict)
    ranked: tuple[Ranked, ...] = ()

    @property
    def inputs(self) -> dict[str, Kind]:
        """The raw columns that are read, and what each is."""
        numbers: dict[str, Kind] = {column.name: "number" for column in self.scaled}
        times: dict[str, Kind] = {column.name: "time" for column in self.times}
        return numbers | times | {column.name: "category" for column in self.categories}

    @property
    def scaled(self) -> tuple[Number | Ranked, ...]:
        """Numeric columns however they are scaled, in the order of their features."""
        return (*self.numbers, *self.ranked)

    @property
    def width(self) -> int:
        """Number of numeric features."""
        return sum(1 + column.indicator for column in self.scaled) + sum(
            2 * len(CYCLES_S) + column.indicator for column in self.times
        )

    @property
    def vocabulary(self) -> int:
        """Number of codes of all category columns together."""
        return sum(column.size for column in self.categories)

    def raw(self, columns: Mapping[str, Values]) -> Raw:
        """Return the columns of ``inputs`` as the arrays that the exported program takes."""
        require(columns, self.inputs)
        return Raw.of(
            [cast("NDArray[Any]", columns[column.name]) for column in self.scaled],
            [cast("NDArray[Any]", columns[column.name]) for column in self.times],
            [cast("Categories", columns[column.name]) for column in self.categories],
        )

    def encode(self, columns: Mapping[str, Values]) -> Encoded:
        """Encode the columns of ``inputs``."""
        return self.encode_raw(self.raw(columns))

    def encode_raw(self, raw: Raw) -> Encoded:
        """Encode raw rows, to the same bits as the exported ``encoder.Encoder``."""
        numeric = np.empty((len(raw), self.width), dtype=np.float32)
        with np.errstate(over="ignore"):  # it is clipped afterwards
            for index, feature in enumerate(_features(self, raw)):
                numeric[:, index] = feature
        codes = np.empty((len(raw), len(self.categories)), dtype=np.int64)
        offset = 0
        for index, (category, marks) in enumerate(zip(self.categories, raw.marks, strict=True)):
            known = {fingerprint(value): code for code, value in enumerate(category.values, start=FIRST)}
            known[MISSING_CATEGORY] = MISSING
            table = [known.get(mark, UNKNOWN) for mark in marks.distinct.tolist()]
            codes[:, index] = np.array(table, dtype=np.int64)[marks.places] + offset
            offset += category.size
        return Encoded(numeric, codes)


def _features(transforms: Transforms, raw: Raw) -> Iterator[NDArray[np.generic]]:
    for column, values in zip(transforms.scaled, raw.numbers.T, strict=True):
        known = np.abs(values) <= LARGEST  # false for NaN
        if isinstance(column, Number):
            centred = np.where(known, values, column.mean) - column.mean
            yield np.clip(centred * column.scale, -CLIP, CLIP)
        else:
            yield _place(values, known, column)
        if column.indicator:
            yield ~known
    for time, moments in zip(transforms.times, raw.times.T, strict=True):
        dated = moments != MISSING_TIME
        for wave in _waves(moments):
            yield np.where(dated, wave, 0.0)
        if time.indicator:
            yield ~dated


def _place(values: NDArray[np.float64], known: NDArray[np.bool_], column: Ranked) -> NDArray[np.float64]:
    points, heights = np.array(column.points), (np.array(column.levels) - 0.5) * math.sqrt(12)
    steep = np.minimum(np.diff(heights) / np.diff(points), np.finfo(np.float64).max)
    usable = np.where(known, values, 0.0)
    place = np.searchsorted(points[1:], usable, side="right")
    beyond = np.maximum(usable - points[place], 0.0)
    return np.where(known, beyond * np.append(steep, 0.0)[place] + heights[place], 0.0)


def _waves(moments: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
    """Yield sine and cosine within each cycle, as ``encoder.Cycles`` computes them."""
    for cycle_s in CYCLES_S:
        cycle_us = cycle_s * 1_000_000
        turn = np.mod(moments, cycle_us).astype(np.float64) * (1 / cycle_us)
        for folded in (np.minimum(turn, np.maximum(0.5 - turn, turn - 1)), np.abs(turn - 0.5) - 0.25):
            square = folded * folded
            total = square * SINE[-1] + SINE[-2]
            for coefficient in SINE[-3::-1]:
                total = total * square + coefficient
            yield total * folded
