"""Fit transforms in one pass over batches, in bounded memory.

The distribution of a numeric column is counted so that the result does not depend on how the rows were cut. A
float64 becomes a whole number that orders like it. These numbers are counted, at first each on its own; once
there are more than :data:`MOST` different ones, their lowest bits are left out, as few as it takes. How many
that are depends on all the values together, and on nothing else, so parts that are counted apart and merged
in any order end with the same counts.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.transforms.encoding import LARGEST, Category, Kind, Number, Ranked, TimeOf, Transforms
from trainwright.transforms.raw import (
    MISSING_TIME,
    Values,
    as_categories,
    as_numbers,
    as_times,
    fingerprint,
    require_distinct,
)

MOST = 16_384
"""Different numbers that are counted."""

STEPS = 256
"""Parts into which quantiles cut a distribution."""

_SIGN = np.int64(np.iinfo(np.int64).max)


@dataclass
class Distribution:
    """Counts of the values of a numeric column.

    Attributes:
        number: What is left of the ordered numbers, ascending and distinct; shape (counted,).
        count: Rows of each; shape (counted,).
    """

    shift: int
    number: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Distribution":
        """Count finite values."""
        number, count = np.unique(_ordered(values + 0.0), return_counts=True)  # -0.0 becomes 0.0
        return cls(0, number, count.astype(np.int64))._bounded()

    def merged(self, other: "Distribution") -> "Distribution":
        """Return the counts of both."""
        shift = max(self.shift, other.shift)
        number = np.concatenate([self.number >> (shift - self.shift), other.number >> (shift - other.shift)])
        return _counted(shift, number, np.concatenate([self.count, other.count]))._bounded()

    @property
    def state(self) -> dict[str, Any]:
        """The counts, as plain data and arrays by field name."""
        return dict(vars(self))

    def quantiles(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return points of the cumulative distribution: values, ascending, and their levels.

        The level of a value is the share of rows below it, and half of those at it. There are at most
        ``STEPS + 1`` points, the smallest and the largest value among them, spread evenly over the rows;
        where there are no more different values, each is a point.
        """
        total = int(self.count.sum())
        until = np.cumsum(self.count)
        chosen = np.arange(until.size)
        if until.size > STEPS + 1:
            wanted = np.linspace(0, total, STEPS + 1)
            chosen = np.unique(np.clip(np.searchsorted(until, wanted), 0, until.size - 1))
        levels = (until - self.count / 2) / total
        # The middle of what the left-out bits could have been.
        middle = (self.number[chosen] << self.shift) + ((1 << self.shift) >> 1)
        return tuple(_value(middle).tolist()), tuple(levels[chosen].tolist())

    def _bounded(self) -> "Distribution":
        found = self
        while found.number.size > MOST:
            found = _counted(found.shift + 1, found.number >> 1, found.count)
        return found


def _counted(shift: int, number: NDArray[np.int64], count: NDArray[np.int64]) -> Distribution:
    distinct, place = np.unique(number, return_inverse=True)
    total = np.zeros(distinct.size, dtype=np.int64)
    np.add.at(total, place, count)
    return Distribution(shift, distinct, total)


def _ordered(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers that order as the values do: the bits, turned round where they are negative."""
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ _SIGN, bits)


def _value(ordered: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(ordered < 0, ordered ^ _SIGN, ordered).view(np.float64)


Scaling: TypeAlias = Literal["standard", "quantile"]
"""How numbers are scaled: by mean and standard deviation, or by their place in the distribution."""


MOST_VALUES = 1 << 24
"""Different values of a category; at 100 to 200 bytes each, they are held while they are counted."""


@dataclass
class _Moments:
    """Count, mean and sum of squared deviations of a numeric column; merged as Chan et al. (1979) do."""

    rows: int = 0
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Self:
        there = values[_present(values)]
        if not len(there):
            return cls(rows=len(values))
        mean = float(there.mean())
        squares = float(np.square(there - mean).sum())
        return cls(len(values), len(there), mean, squares, float(there.min()), float(there.max()))

    def merge(self, other: Self) -> None:
        self.rows += other.rows
        if not other.count:
            return
        count = self.count + other.count
        step = other.mean - self.mean
        self.mean += step * other.count / count
        self.squares += other.squares + step * step * self.count * other.count / count
        self.count = count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def missing(self) -> int:
        return self.rows - self.count

    @property
    def distinct(self) -> int:
        """Number of distinct values; 2 stands for more."""
        return 0 if not self.count else 1 if self.low == self.high else 2

    def to_number(self, name: str) -> Number:
        deviation = math.sqrt(self.squares / self.count)
        scale = 1 / deviation if deviation and self.low < self.high else 0.0
        return Number(name=name, mean=self.mean, scale=scale, indicator=self.missing > 0)


class Fit:
    """Fits transforms in one pass; parts of the data are fitted apart and merged in a fixed order.

    Args:
        kinds: What each input column is, by name, in the order of the features.
    """

    def __init__(
        self, kinds: Mapping[str, Kind], scaling: Scaling = "standard", most: int = MOST_VALUES
    ) -> None:
        self._kinds, self._most = dict(kinds), most
        counted = kinds if scaling == "quantile" else {}
        self._distributions = {
            name: Distribution.of(np.empty(0)) for name, kind in counted.items() if kind == "number"
        }
        self._moments = {name: _Moments() for name, kind in kinds.items() if kind != "category"}
        self._counts: dict[str, Counter[str]] = {
            name: Counter() for name, kind in kinds.items() if kind == "category"
        }
        self._missing = dict.fromkeys(self._counts, 0)

    def add(self, columns: Mapping[str, Values]) -> None:
        """Add a batch: every column of ``kinds``, all of one length.

        Raises:
            InputError: A category has too many different values.
        """
        for name in self._moments:
            values = columns[name]
            if self._kinds[name] == "time":
                times = as_times(values)
                values = np.where(times == MISSING_TIME, np.nan, times.astype(np.float64))
            numbers = as_numbers(values)
            self._moments[name].merge(_Moments.of(numbers))
            if name in self._distributions:
                part = Distribution.of(numbers[_present(numbers)])
                self._distributions[name] = self._distributions[name].merged(part)
        for name, counter in self._counts.items():
            column = as_categories(columns[name])
            counts = np.bincount(column.codes + 1, minlength=len(column.values) + 1)
            self._missing[name] += int(counts[0])
            for value, count in zip(column.values, counts[1:], strict=True):
                if count:
                    counter[value] += int(count)
            self._require_few(name)

    def merge(self, part: Mapping[str, Any]) -> None:
        """Add what another fit, of the same columns, has found: its ``state``, or some of it.

        Raises:
            InputError: A category has too many different values.
        """
        for name, moments in part.get("moments", {}).items():
            self._moments[name].merge(_Moments(**moments))
        for name, found in part.get("distributions", {}).items():
            self._distributions[name] = self._distributions[name].merged(Distribution(**found))
        for name, counts in part.get("counts", {}).items():
            self._counts[name].update(counts)
            self._missing[name] += part["missing"][name]
            self._require_few(name)

    def _require_few(self, name: str) -> None:
        """Keep memory bounded; whoever adds up the rows, and in whatever parts, comes to the same answer."""
        if len(self._counts[name]) > self._most:
            raise InputError(
                f"column {name!r} has more than {self._most:,} different values",
                where="training set",
                hint="It names rows, not groups of them. Leave it out where the training set is made, or cut "
                "it to what rows share.",
            )

    def count(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Add what of another fit's ``state`` comes to the same in any order: all that is large.

        Returns:
            The rest, which is to be merged in the order of the parts, as its sums are rounded.
        """
        self.merge({name: found for name, found in part.items() if name != "moments"})
        return {"moments": part["moments"]}

    @property
    def state(self) -> dict[str, Any]:
        """The state so far, as plain data and arrays."""
        return {"moments": {name: vars(moments) for name, moments in self._moments.items()}, **self.counts}

    @property
    def counts(self) -> dict[str, Any]:
        """The part of the state that does not depend on the order of merges."""
        return {
            "distributions": {name: found.state for name, found in self._distributions.items()},
            "counts": {name: dict(counter) for name, counter in self._counts.items()},
            "missing": dict(self._missing),
        }

    def finish(self, *, max_categories: int, min_rows: int = 1) -> Transforms:
        """Return the transforms.

        Args:
            max_categories: Values learned a column, the most frequent ones; the rest share one code.

        Raises:
            DataRefused: Two learned values of a column have the same fingerprint.
        """
        unused = {name: reason for name in self._kinds if (reason := self._tells_nothing(name))}
        names = [name for name in self._kinds if name not in unused]
        moments = self._moments
        return Transforms(
            numbers=tuple(
                moments[name].to_number(name)
                for name in names
                if self._kinds[name] == "number" and name not in self._distributions
            ),
            ranked=tuple(self._ranked(name) for name in names if name in self._distributions),
            times=tuple(
                TimeOf(name=name, indicator=moments[name].missing > 0)
                for name in names
                if self._kinds[name] == "time"
            ),
            categories=tuple(
                _category(name, _learned(self._counts[name], max_categories, min_rows))
                for name in names
                if self._kinds[name] == "category"
            ),
            unused=unused,
        )

    def _ranked(self, name: str) -> Ranked:
        points, levels = self._distributions[name].quantiles()
        return Ranked(name=name, points=points, levels=levels, indicator=self._moments[name].missing > 0)

    def _tells_nothing(self, name: str) -> str:
        """Return why a column is useless for learning; empty if it is useful."""
        if name in self._moments:
            distinct, missing = self._moments[name].distinct, self._moments[name].missing
        else:
            distinct, missing = len(self._counts[name]), self._missing[name]
        if not distinct:
            return "no value in any row"
        return "the same value in every row" if distinct == 1 and not missing else ""


def _category(name: str, values: tuple[str, ...]) -> Category:
    require_distinct(name, values, [fingerprint(value) for value in values])
    return Category(name=name, values=values)


def _present(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the usable values of a numeric column."""
    return np.abs(values) <= LARGEST  # false for NaN


def _learned(counts: Counter[str], most: int, min_rows: int) -> tuple[str, ...]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(value for value, count in ordered[:most] if count >= min_rows)
