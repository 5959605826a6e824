"""Bootstrap intervals of statistics of sums, such as a rate or a mean loss, for what has no exact interval.

All draws of all statistics are one product of matrices.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainwright.significance.estimate import CONFIDENCE, Floats

MOST_UNITS = 4096
"""Rows, or clusters, beyond this are drawn in random blocks."""

ENDS: Final = "weibull"
"""Ends are the (B + 1) p-th of B draws in order, beyond which p lies at every B (Davison and Hinkley, 1997,
section 2.4); numpy's own choice leaves 3.0 % instead of 2.5 % beyond each end of 200 draws."""

_AT_A_TIME = 1 << 20
_MOST_CACHED = 1 << 24


@dataclass(frozen=True)
class Resampler:
    """Draws of units with replacement: the same draws for every statistic, so that all are paired.

    A unit is a row, or all rows of a cluster (Davison and Hinkley, Bootstrap Methods and their Application,
    1997, section 3.8). Beyond :data:`MOST_UNITS` units it is a block of them, put together at random: a sum
    over blocks that were drawn at random has in the mean the variance of one over rows that were, known to
    1.1 % of a standard error, less than what 2,000 draws add (random groups: Wolter, Introduction to Variance
    Estimation, 2nd edition, chapter 2). The block of a row depends on its place among all rows alone, so the
    sums over units can be added up from parts of the rows.

    Attributes:
        sizes: Rows, or clusters, of each stratum: as many of each are drawn as there are.
        resamples: How many draws.
        seed: Of the draws and the blocks; the same gives the same.
    """

    sizes: tuple[int, ...]
    resamples: int = 2000
    seed: int = 0

    @cached_property
    def _counts_of_units(self) -> list[int]:
        """Units of each stratum."""
        share = min(1.0, MOST_UNITS / max(1, sum(self.sizes)))
        return [max(1, round(size * share)) if share < 1 else size for size in self.sizes]

    @property
    def units(self) -> int:
        """Units of all strata."""
        return sum(self._counts_of_units)

    def unit_of(self, index: NDArray[np.int64], stratum: int = 0) -> NDArray[np.int64]:
        """Return the units of rows, or clusters, by their place among all of the stratum, from 0."""
        size, count = self.sizes[stratum], self._counts_of_units[stratum]
        block = index if count == size else shuffled(index, size, self.seed + stratum) * count // size
        return block + sum(self._counts_of_units[:stratum])

    def add_up(
        self, unit: NDArray[np.int64], part: NDArray[np.int64], parts: int, values: Sequence[Floats]
    ) -> Floats:
        """Return the sums over each unit and part, such as a slice, shape (units, parts, values).

        ``unit``, ``part`` and each of ``values`` have shape (rows,).
        """
        cell, cells = unit * parts + part, self.units * parts
        sums = [np.bincount(cell, weights=column, minlength=cells) for column in values]
        found: Floats = np.stack(sums, axis=-1, dtype=np.float64).reshape(self.units, parts, len(values))
        return found

    def draw(self, sums: Floats) -> Floats:
        """Return the totals of every draw, shape (resamples, ...), of sums of shape (units, ...)."""
        flat = sums.reshape(self.units, -1)
        drawn = np.empty((self.resamples, flat.shape[1]))
        start = 0
        for counts in self._cached or self._counts():
            drawn[start : start + len(counts)] = counts.astype(np.float64) @ flat
            start += len(counts)
        return drawn.reshape(self.resamples, *sums.shape[1:])

    @cached_property
    def _cached(self) -> list[NDArray[np.int16]]:
        """The draws, where they are few enough to be kept; they are made again each time otherwise."""
        return list(self._counts()) if self.resamples * self.units <= _MOST_CACHED else []

    def _counts(self) -> Iterator[NDArray[np.int16]]:
        """Yield how often each unit is drawn, some draws at a time, shape (draws, units)."""
        random = np.random.default_rng(self.seed)
        step = max(1, _AT_A_TIME // self.units)
        for start in range(0, self.resamples, step):
            draws = min(step, self.resamples - start)
            counts = []
            for units in self._counts_of_units:
                chosen = (
                    random.integers(0, units, (draws, units)) if units else np.empty((draws, 0), np.int64)
                )
                chosen += np.arange(draws)[:, None] * units
                found = np.bincount(chosen.ravel(), minlength=draws * units)
                counts.append(found.reshape(draws, units).astype(np.int16))
            yield np.concatenate(counts, axis=1)


_ROUNDS = 4


def shuffled(index: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return the places of rows in a random order of ``size`` rows, without making the order.

    A Feistel network of four rounds is a permutation of the numbers of 2k bits; what falls beyond ``size``
    is permuted again until it does not (Black and Rogaway, CT-RSA 2002).
    """
    bits = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(bits)) - 1)
    keys = np.random.default_rng([seed, 1]).integers(0, 1 << 63, _ROUNDS, np.uint64)

    def permuted(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = number >> bits, number & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((mixed >> np.uint64(31)) & mask)
        return (left << bits) | right

    found = permuted(index.astype(np.uint64))
    while len(beyond := np.flatnonzero(found >= size)):
        found[beyond] = permuted(found[beyond])
    return found.astype(np.int64)


def intervals(
    value: Floats, drawn: Floats, left_out: Floats | None = None, confidence: float = CONFIDENCE
) -> tuple[Floats, Floats]:
    """Return the ends of bootstrap intervals of many statistics at once, each of shape (statistics,).

    BCa, corrected for bias and skew (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section
    14.3), where ``left_out`` is passed; else percentiles. An end is NaN where more than a twentieth of the
    draws are. Ends are rounded to 12 digits, so that the order in which a machine adds up does not show.

    Args:
        value: The statistics, shape (statistics,).
        drawn: Of every draw, shape (draws, statistics); NaN where it is not defined.
        left_out: With one unit left out in turn, shape (units, statistics).
        confidence: In (0, 1).
    """
    levels = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = np.empty(len(value)), np.empty(len(value))
    for index in range(len(value)):
        column = drawn[:, index]
        defined = np.sort(column[~np.isnan(column)])
        if len(defined) < 0.95 * len(column) or np.isnan(value[index]):
            low[index] = high[index] = np.nan
            continue
        at = levels if left_out is None else _corrected(levels, value[index], defined, left_out[:, index])
        low[index], high[index] = np.quantile(defined, at, method=ENDS)
    return _rounded(np.minimum(low, value)), _rounded(np.maximum(high, value))


def _corrected(levels: Floats, value: float, drawn: Floats, left_out: Floats) -> Floats:
    """Return the levels of BCa; as they were where nothing varies."""
    below = np.mean(drawn < value) + np.mean(drawn == value) / 2
    spread = left_out[~np.isnan(left_out)]
    away = spread.mean() - spread if len(spread) else spread
    scale = float(np.sum(away**2)) ** 1.5
    if not 0 < below < 1 or not scale > 0:
        return levels
    normal = NormalDist()
    bias, skew = normal.inv_cdf(float(below)), float(np.sum(away**3)) / (6 * scale)
    points = [bias + normal.inv_cdf(float(level)) for level in levels]
    moved = [bias + point / (1 - skew * point) if skew * point < 1 else math.inf for point in points]
    return np.array([normal.cdf(point) for point in moved])


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.12g}") for value in values])
