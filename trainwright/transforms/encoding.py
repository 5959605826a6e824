"""The fitted transforms as a document, and their encoder in numpy for models served without torch."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.documents import Document
from trainwright.transforms.raw import (
    MISSING_CATEGORY,
    MISSING_TIME,
    Marks,
    Raw,
    Values,
    as_categories,
    as_numbers,
    as_times,
    fingerprint,
    require,
)

if TYPE_CHECKING:
    from trainwright.transforms.encoder import Encoder

Kind: TypeAlias = Literal["number", "category", "time"]

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""Codes of a category column: no value, a value that was not learned, and the first that was."""

CLIP = 10.0
"""Standardised numbers are cut off at this many standard deviations, so that one wild value does no harm."""

CYCLES_S = (86_400, 604_800)
"""A day and a week, in seconds: a time becomes its sine and cosine in each."""

LARGEST = 1e150
"""Numbers beyond this size count as missing: their squares would not be finite."""

_TERMS = 10


def _taylor() -> tuple[float, ...]:
    found = [2 * math.pi]
    for term in range(1, _TERMS):
        found.append(-found[-1] * (2 * math.pi) * (2 * math.pi) / (2 * term * (2 * term + 1)))
    return tuple(found)


SINE = _taylor()
"""Coefficients of u, u^3, u^5, ... in Taylor's series of sin(2 pi u): for u in [-1/4, 1/4] what is left out
is below 1e-15. They are made of products alone, which are the same everywhere; a library's sine is not."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A numeric column: ``(value - mean) * scale``, 0 where missing.

    ``scale`` is 0 for a column with one value only, which is kept for its indicator's sake.
    """

    name: str
    mean: float
    scale: float
    indicator: bool


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A numeric column as its place in the distribution of the training rows, 0 where missing.

    Between the points it is a straight line; below the first and above the last it is theirs. The level u of
    a value becomes ``(u - 1/2) * sqrt(12)``: on the training rows its mean is 0, and its variance at most 1.

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
    """A category column; ``values`` are what was learned, most frequent first."""

    name: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of codes: those of the values, of no value, and of a value that was not learned."""
        return len(self.values) + FIRST


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded rows, the input of the network.

    Attributes:
        numeric: Shape (rows, ``Transforms.width``), float32, finite.
        categories: Shape (rows, number of category columns), int64; the columns' codes lie one after
            another in one vocabulary of ``Transforms.vocabulary`` entries.
    """

    numeric: NDArray[np.float32]
    categories: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Transforms(Document):
    """The fitted transforms of all input columns.

    An indicator of missing values exists only where values were missing in training: its weight would
    otherwise never have been learned.

    Attributes:
        numbers: Numeric columns, in the order of their features.
        categories: Category columns, in the order of their codes.
        unused: Input columns that tell nothing, such as one with a single value; by name, with the reason.
        ranked: Numeric columns that are scaled by quantiles; their features lie between those of ``numbers``
            and ``times``.
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
        """Return raw columns as the arrays that the exported program takes.

        Args:
            columns: Every column of ``inputs``, all of one length; others are ignored.

        Raises:
            InputError: A column is missing, or the columns are not of one length.
        """
        require(columns, self.inputs)
        return Raw.of(
            [as_numbers(columns[column.name]) for column in self.scaled],
            [as_times(columns[column.name]) for column in self.times],
            [as_categories(columns[column.name]) for column in self.categories],
        )

    def encode(self, columns: Mapping[str, Values]) -> Encoded:
        """Turn raw columns into what the network reads, by the code that is exported with it; needs torch.

        Args:
            columns: Every column of ``inputs``, all of one length; others are ignored.

        Raises:
            InputError: A column is missing, or the columns are not of one length.
        """
        numeric, categories = self.encoder.encode(self.raw(columns))
        return Encoded(numeric, categories)

    @cached_property
    def encoder(self) -> "Encoder":
        """The transforms as a torch module."""
        from trainwright.transforms.encoder import Encoder

        return Encoder(self)


def encode(transforms: Transforms, raw: Raw) -> Encoded:
    """Turn raw rows into what a model reads, as ``Transforms.encode`` does."""
    numeric = np.empty((len(raw), transforms.width), dtype=np.float32)
    with np.errstate(over="ignore"):  # what is cut off afterwards
        for index, feature in enumerate(_features(transforms, raw)):
            numeric[:, index] = feature
    codes = np.empty((len(raw), len(transforms.categories)), dtype=np.int64)
    offset = 0
    for index, (category, marks) in enumerate(zip(transforms.categories, raw.marks, strict=True)):
        codes[:, index] = _codes(category, marks) + offset
        offset += category.size
    return Encoded(numeric, codes)


def _features(transforms: Transforms, raw: Raw) -> Iterator[NDArray[np.generic]]:
    for number, values in zip(transforms.scaled, raw.numbers.T, strict=True):
        known = np.abs(values) <= LARGEST  # false for NaN
        yield (
            _standard(values, known, number) if isinstance(number, Number) else _place(values, known, number)
        )
        if number.indicator:
            yield ~known
    for time, moments in zip(transforms.times, raw.times.T, strict=True):
        dated = moments != MISSING_TIME
        for wave in _waves(moments):
            yield np.where(dated, wave, 0.0)
        if time.indicator:
            yield ~dated


def _standard(values: NDArray[np.float64], known: NDArray[np.bool_], column: Number) -> NDArray[np.float64]:
    centred = np.where(known, values, column.mean) - column.mean
    return np.clip(centred * column.scale, -CLIP, CLIP)


def _place(values: NDArray[np.float64], known: NDArray[np.bool_], column: Ranked) -> NDArray[np.float64]:
    points, heights = np.array(column.points), (np.array(column.levels) - 0.5) * math.sqrt(12)
    steep = np.minimum(np.diff(heights) / np.diff(points), np.finfo(np.float64).max)
    usable = np.where(known, values, 0.0)
    place = np.searchsorted(points[1:], usable, side="right")
    beyond = np.maximum(usable - points[place], 0.0)
    return np.where(known, beyond * np.append(steep, 0.0)[place] + heights[place], 0.0)


def _waves(moments: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
    """Yield sine and cosine within each cycle."""
    for cycle_s in CYCLES_S:
        cycle_us = cycle_s * 1_000_000
        turn = np.mod(moments, cycle_us).astype(np.float64) * (1 / cycle_us)
        yield _sine(np.minimum(turn, np.maximum(0.5 - turn, turn - 1)))
        yield _sine(np.abs(turn - 0.5) - 0.25)


def _sine(turn: NDArray[np.float64]) -> NDArray[np.float64]:
    square = turn * turn
    total = square * SINE[-1] + SINE[-2]
    for coefficient in SINE[-3::-1]:
        total = total * square + coefficient
    return total * turn


def _codes(column: Category, marks: Marks) -> NDArray[np.int64]:
    known = {fingerprint(value): code for code, value in enumerate(column.values, start=FIRST)}
    known[MISSING_CATEGORY] = MISSING
    table = [known.get(mark, UNKNOWN) for mark in marks.distinct.tolist()]
    return np.array(table, dtype=np.int64)[marks.places]
