"""Fit transforms in one pass over batches, in bounded memory.

The distribution of a numeric column is counted so that the result does not depend on how the rows were cut. A
float64 becomes a whole number that orders like it. Once there are more than :data:`MOST` different ones,
their lowest bits are dropped, as few as it takes. How many depends on all the values together, so parts that
are counted apart and merged in any order end with the same counts.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.transforms.encoding import (
    LARGEST,
    MISSING_TIME,
    Categories,
    Category,
    Kind,
    Number,
    Ranked,
    TimeOf,
    Transforms,
    Values,
    fingerprint,
    require_distinct,
)

MOST = 16_384
"""Limit of different numbers that are counted."""

STEPS = 256
"""Parts that quantiles cut a distribution into."""

_SIGN = np.int64(np.iinfo(np.int64).max)


@dataclass
class Distribution:
    """Counts of the values of a numeric column.

    ``number`` are the ordered numbers without their lowest ``shift`` bits, ascending and distinct;
    ``count`` are the rows of each.
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

    def quantiles(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return points of the cumulative distribution: values, ascending, and their levels.

        The level of a value is the share of rows below it, and half of those at it. At most ``STEPS + 1``
        points, the smallest and the largest value among them, are spread evenly over the rows.
        """
        total = int(self.count.sum())
        until = np.cumsum(self.count)
        chosen = np.arange(until.size)
        if until.size > STEPS + 1:
            wanted = np.linspace(0, total, STEPS + 1)
            chosen = np.unique(np.clip(np.searchsorted(until, wanted), 0, until.size - 1))
        levels = (until - self.count / 2) / total
        # The middle of the values that the dropped bits could make.
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
    """Return whole numbers that order as the values do: the bits, flipped where they are negative."""
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ _SIGN, bits)


def _value(ordered: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(ordered < 0, ordered ^ _SIGN, ordered).view(np.float64)


Scaling: TypeAlias = Literal["standard", "quantile"]
"""Scaling of numbers: by mean and standard deviation, or by their place in the distribution."""

MOST_VALUES = 1 << 24
"""Limit of different values of a category; counting them takes 100 to 200 bytes each."""


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
    def of(cls, present: NDArray[np.float64], rows: int) -> Self:
        if not len(present):
            return cls(rows=rows)
        mean = float(present.mean())
        squares = float(np.square(present - mean).sum())
        return cls(rows, len(present), mean, squares, float(present.min()), float(present.max()))

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


class Fit:
    """Fits transforms in one pass; parts of the data are fitted apart and merged in a fixed order.

    ``kinds`` has the kind of each input column in the order of the features. A category with more than
    ``most`` different values raises InputError.
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
        """Add a batch: every column of ``kinds``, all of one length."""
        for name in self._moments:
            values = cast("NDArray[Any]", columns[name])
            if self._kinds[name] == "time":
                values = np.where(values == MISSING_TIME, np.nan, values.astype(np.float64))
            present = values[np.abs(values) <= LARGEST]  # drops NaN, too
            self._moments[name].merge(_Moments.of(present, len(values)))
            if name in self._distributions:
                self._distributions[name] = self._distributions[name].merged(Distribution.of(present))
        for name, counter in self._counts.items():
            column = cast("Categories", columns[name])
            counts = np.bincount(column.codes + 1, minlength=len(column.values) + 1)
            self._missing[name] += int(counts[0])
            for value, count in zip(column.values, counts[1:], strict=True):
                if count:
                    counter[value] += int(count)
            self._require_few(name)

    def merge(self, part: Mapping[str, Any]) -> None:
        """Add the ``state`` of another fit of the same columns, or some of it."""
        for name, moments in part.get("moments", {}).items():
            self._moments[name].merge(_Moments(**moments))
        for name, found in part.get("distributions", {}).items():
            self._distributions[name] = self._distributions[name].merged(Distribution(**found))
        for name, counts in part.get("counts", {}).items():
            self._counts[name].update(counts)
            self._missing[name] += part["missing"][name]
            self._require_few(name)

    def _require_few(self, name: str) -> None:
        """Keep memory bounded; the answer is the same however the rows were cut."""
        if len(self._counts[name]) > self._most:
            raise InputError(
                f"column {name!r} has more than {self._most:,} different values",
                where="training set",
                hint="It names rows, not groups of them. Leave it out where the training set is made, or cut "
                "it to what rows share.",
            )

    def count(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Add all of another fit's ``state`` that may be added in any order, which is all that is large.

        Return the rest, which is to be merged in the order of the parts, as its sums are rounded.
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
            "distributions": {name: dict(vars(found)) for name, found in self._distributions.items()},
            "counts": {name: dict(counter) for name, counter in self._counts.items()},
            "missing": dict(self._missing),
        }

    def finish(self, *, max_categories: int, min_rows: int = 1) -> Transforms:
        """Return the transforms, with the most frequent values that occur in ``min_rows`` of each category.

        Raises:
            DataRefused: Two learned values of a column have the same fingerprint.
        """
        unused = {name: reason for name in self._kinds if (reason := self._tells_nothing(name))}
        used = {name: kind for name, kind in self._kinds.items() if name not in unused}
        numbers, ranked, times, categories = [], [], [], []
        for name, kind in used.items():
            if kind == "category":
                ordered = sorted(self._counts[name].items(), key=lambda item: (-item[1], item[0]))
                values = tuple(value for value, count in ordered[:max_categories] if count >= min_rows)
                require_distinct(name, values, [fingerprint(value) for value in values])
                categories.append(Category(name=name, values=values))
                continue
            moments = self._moments[name]
            indicator = moments.missing > 0
            if kind == "time":
                times.append(TimeOf(name=name, indicator=indicator))
            elif name in self._distributions:
                points, levels = self._distributions[name].quantiles()
                ranked.append(Ranked(name=name, points=points, levels=levels, indicator=indicator))
            else:
                deviation = math.sqrt(moments.squares / moments.count)
                scale = 1 / deviation if deviation and moments.low < moments.high else 0.0
                numbers.append(Number(name=name, mean=moments.mean, scale=scale, indicator=indicator))
        return Transforms(
            numbers=tuple(numbers),
            ranked=tuple(ranked),
            times=tuple(times),
            categories=tuple(categories),
            unused=unused,
        )

    def _tells_nothing(self, name: str) -> str:
        """Return why a column is useless for learning; empty if it is useful."""
        if name in self._moments:
            moments = self._moments[name]
            missing, empty, constant = moments.missing, not moments.count, moments.low == moments.high
        else:
            counter = self._counts[name]
            missing, empty, constant = self._missing[name], not counter, len(counter) == 1
        if empty:
            return "no value in any row"
        return "the same value in every row" if constant and not missing else ""
