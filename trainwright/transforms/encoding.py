"""The fitted transforms, and how they turn raw columns into what a network reads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.documents import Document
from trainwright.errors import InputError, InternalError

Kind: TypeAlias = Literal["number", "category", "time"]

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""Codes of a category column: no value, a value that was not learned, and the first that was."""

CLIP = 10.0
"""Standardised numbers are cut off at this many standard deviations, so that one wild value does no harm."""

_CYCLES_S = (86_400, 604_800)
"""A day and a week, in seconds: a time becomes its sine and cosine in each."""

LARGEST = 1e150
"""Numbers beyond this size count as missing: their squares would not be finite."""

MISSING_TIME = int(np.iinfo(np.int64).min)
"""Stands for no value in a time column."""


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
    """What the network reads.

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
        times: Time columns, whose features follow.
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
        numbers: dict[str, Kind] = {column.name: "number" for column in self._scaled}
        times: dict[str, Kind] = {column.name: "time" for column in self.times}
        return numbers | times | {column.name: "category" for column in self.categories}

    @property
    def _scaled(self) -> tuple[Number | Ranked, ...]:
        return (*self.numbers, *self.ranked)

    @property
    def width(self) -> int:
        """Number of numeric features."""
        return sum(1 + column.indicator for column in self._scaled) + sum(
            2 * len(_CYCLES_S) + column.indicator for column in self.times
        )

    @property
    def vocabulary(self) -> int:
        """Number of codes of all category columns together."""
        return sum(column.size for column in self.categories)

    def encode(self, columns: Mapping[str, Values]) -> Encoded:
        """Turn raw columns into what the network reads.

        Args:
            columns: Every column of ``inputs``, all of one length; others are ignored.

        Raises:
            InputError: A column is missing.
        """
        if missing := [name for name in self.inputs if name not in columns]:
            raise InputError(f"no columns {missing}, which the model reads", where="input of the model")
        features: list[NDArray[np.float64]] = []
        for number in self.numbers:
            features += _number_features(as_numbers(columns[number.name]), number)
        for ranked in self.ranked:
            features += _ranked_features(as_numbers(columns[ranked.name]), ranked)
        for time in self.times:
            features += _time_features(as_times(columns[time.name]), time)
        rows = _rows(columns)
        numeric = np.empty((rows, self.width), dtype=np.float32)
        for index, feature in enumerate(features):
            numeric[:, index] = feature
        return Encoded(numeric, self._codes(columns, rows))

    def _codes(self, columns: Mapping[str, Values], rows: int) -> NDArray[np.int64]:
        codes = np.empty((rows, len(self.categories)), dtype=np.int64)
        offset = 0
        for index, category in enumerate(self.categories):
            codes[:, index] = _category_codes(as_categories(columns[category.name]), category) + offset
            offset += category.size
        return codes


def _rows(columns: Mapping[str, Values]) -> int:
    sizes = {
        name: len(values.codes if isinstance(values, Categories) else values)
        for name, values in columns.items()
    }
    if len(set(sizes.values())) != 1:
        raise InputError(f"columns are not of one length: {sizes}", where="input of the model")
    return next(iter(sizes.values()))


def present(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Say where a numeric column has a value that can be used."""
    return np.abs(values) <= LARGEST  # false for NaN


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


def _number_features(values: NDArray[np.float64], column: Number) -> list[NDArray[np.float64]]:
    there = present(values)
    standard = np.clip((np.where(there, values, column.mean) - column.mean) * column.scale, -CLIP, CLIP)
    return [standard, (~there).astype(np.float64)] if column.indicator else [standard]


def _ranked_features(values: NDArray[np.float64], column: Ranked) -> list[NDArray[np.float64]]:
    there = present(values)
    level = np.interp(np.where(there, values, 0.0), column.points, column.levels)
    scaled = np.where(there, (level - 0.5) * math.sqrt(12), 0.0)
    return [scaled, (~there).astype(np.float64)] if column.indicator else [scaled]


def _time_features(values: NDArray[np.int64], column: TimeOf) -> list[NDArray[np.float64]]:
    there = values != MISSING_TIME
    features = []
    for cycle_s in _CYCLES_S:
        cycle_us = cycle_s * 1_000_000
        angle = np.mod(values, cycle_us) * (2 * math.pi / cycle_us)
        features += [np.where(there, np.sin(angle), 0.0), np.where(there, np.cos(angle), 0.0)]
    return [*features, (~there).astype(np.float64)] if column.indicator else features


def _category_codes(values: Categories, column: Category) -> NDArray[np.int64]:
    known = {value: code for code, value in enumerate(column.values, start=FIRST)}
    table = [known.get(value, UNKNOWN) for value in values.values]
    # The last entry is what index -1, no value, finds.
    return np.array([*table, MISSING], dtype=np.int64)[values.codes]
