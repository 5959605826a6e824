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

from trainwright.errors import InternalError
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
    Estimation, 2nd edition, chapter 2).

    Attributes:
        unit: The unit of each row, shape (rows,).
        units: How many there are.
        strata: The stratum of each unit, shape (units,): as many of each are drawn as there are.
        resamples: How many draws.
        seed: Of the draws; the same gives the same.
    """

    unit: NDArray[np.int64]
    units: int
    strata: NDArray[np.int64]
    resamples: int
    seed: int

    @classmethod
    def over(
        cls,
        rows: int,
        *,
        clusters: NDArray[np.int64] | None = None,
        strata: NDArray[np.int64] | None = None,
        resamples: int = 2000,
        seed: int = 0,
    ) -> "Resampler":
        """Make units of rows.

        Args:
            rows: Number of rows.
            clusters: The cluster of each row, from 0 on without gaps, shape (rows,); None for none.
            strata: Groups of rows whose sizes stay as they are, from 0 on, shape (rows,); not with clusters.
            resamples: Number of draws.
            seed: Of the draws, and of the blocks.
        """
        if clusters is not None and strata is not None:
            raise InternalError("a cluster may lie in several strata: give clusters or strata")
        single = np.arange(rows) if clusters is None else clusters
        count = rows if clusters is None else int(clusters.max()) + 1
        of = np.zeros(count, np.int64) if strata is None else strata
        blocks, of_block = _blocks(of, seed)
        return cls(blocks[single], len(of_block), of_block, resamples, seed)

    def add_up(self, place: NDArray[np.int64], places: int, values: Sequence[Floats]) -> Floats:
        """Return the sums over each unit and place, such as a slice, shape (units, places, values).

        ``place`` and each of ``values`` have shape (rows,).
        """
        cell, cells = self.unit * places + place, self.units * places
        sums = [np.bincount(cell, weights=column, minlength=cells) for column in values]
        found: Floats = np.stack(sums, axis=-1, dtype=np.float64).reshape(self.units, places, len(values))
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
        members = [np.flatnonzero(self.strata == stratum) for stratum in np.unique(self.strata)]
        step = max(1, _AT_A_TIME // self.units)
        for start in range(0, self.resamples, step):
            draws = min(step, self.resamples - start)
            counts = np.zeros((draws, self.units), np.int16)
            for units in members:
                chosen = random.integers(0, len(units), (draws, len(units)))
                chosen += np.arange(draws)[:, None] * len(units)
                found = np.bincount(chosen.ravel(), minlength=draws * len(units))
                counts[:, units] = found.reshape(draws, len(units))
            yield counts


def _blocks(strata: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Put units into blocks of one stratum each; return each unit's block, and each block's stratum."""
    share = min(1.0, MOST_UNITS / len(strata))
    block = np.empty(len(strata), np.int64)
    of_block: list[int] = []
    random = np.random.default_rng([seed, 1])
    for stratum in np.unique(strata):
        units = np.flatnonzero(strata == stratum)
        count = max(1, round(len(units) * share)) if share < 1 else len(units)
        dealt = np.arange(len(units)) * count // len(units)
        block[units if share == 1 else random.permutation(units)] = dealt + len(of_block)
        of_block += [int(stratum)] * count
    return block, np.asarray(of_block, np.int64)


def intervals(
    value: Floats, drawn: Floats, left_out: Floats | None = None, confidence: float = CONFIDENCE
) -> tuple[Floats, Floats]:
    """Return the ends of bootstrap intervals of many statistics at once, each of shape (statistics,).

    BCa, corrected for bias and skew (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section
    14.3), where ``left_out`` is given; else percentiles. An end is NaN where more than a twentieth of the
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
