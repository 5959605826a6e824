"""Exact permutation tests of the difference between a few runs, with matching intervals."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InternalError

Floats = NDArray[np.float64]

MAX_EXACT = 1 << 16
"""Most ways to shuffle that are gone through one by one; of more, as many are drawn with a fixed seed."""


@dataclass(frozen=True)
class RunDifference:
    """The difference of two sides, with its test and interval.

    Attributes:
        value: Difference of the means.
        low: Lower end of the interval.
        high: Upper end.
        confidence: How often such an interval holds the true difference; below what was asked where so few
            runs cannot give as much.
        p: Two-sided p-value of no difference.
        least_p: The smallest p-value that this number of runs can give at all.
        standardised: ``value`` in standard deviations: of the pairs' differences, or of the runs within
            their sides; infinite where nothing varies.
    """

    value: float
    low: float
    high: float
    confidence: float
    p: float
    least_p: float
    standardised: float


def paired_test(differences: Sequence[float], level: float = 0.05) -> RunDifference:
    """Compare two sides run by run: the exact sign-flip test on the mean (Fisher 1935).

    If the sides do not differ, each difference is as likely to have had the other sign. Flipping the signs of
    a subset leads to a larger mean exactly where the subset's own mean is negative, so the test is a count of
    subset means, and the differences it does not refuse lie between two of them (Hartigan, JASA 64, 1969).

    Args:
        differences: One a pair, at least one.
        level: Of the test, in (0, 1); the interval has confidence 1 - level where that can be reached.
    """
    values = np.asarray(differences, np.float64)
    count = len(values)
    if not count:
        raise InternalError("a paired comparison without a pair")
    ways = 2**count
    chosen = _subsets(count) if ways <= MAX_EXACT else _drawn_subsets(count)
    chosen = chosen[chosen.any(axis=1)]
    means = chosen @ values / chosen.sum(axis=1)
    spread = float(values.std(ddof=1)) if count > 1 else 0.0
    return _invert_test(means, float(values.mean()), spread, 2 / min(ways, MAX_EXACT), level)


def _subsets(count: int) -> NDArray[np.bool_]:
    """Every subset but the empty one, shape (2**count - 1, count)."""
    numbers = np.arange(1, 2**count)
    return ((numbers[:, None] >> np.arange(count)) & 1).astype(np.bool_)


def _drawn_subsets(count: int) -> NDArray[np.bool_]:
    return np.random.default_rng(0).integers(0, 2, (MAX_EXACT - 1, count)).astype(np.bool_)


def unpaired_test(first: Sequence[float], second: Sequence[float], level: float = 0.05) -> RunDifference:
    """Compare two sides whose runs have nothing in common: the exact permutation test on the means.

    Exchanging some runs of the first side for as many of the second leads to a larger difference exactly
    where the exchanged ones of the first have the smaller mean; from there on as for :func:`paired_test`.

    Args:
        first: One number a run, at least one.
        second: The same of the other side; the difference is first minus second.
        level: As for :func:`paired_test`.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if not (len(a) and len(b)):
        raise InternalError("an unpaired comparison with an empty side")
    ways = math.comb(len(a) + len(b), len(a))
    exchanged = _exchanges(a, b) if ways <= MAX_EXACT else _drawn_exchanges(a, b)
    freedom = len(a) + len(b) - 2
    squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
    spread = math.sqrt(squares / freedom) if freedom else 0.0
    return _invert_test(exchanged, float(a.mean() - b.mean()), spread, 2 / min(ways, MAX_EXACT), level)


def _exchanges(a: Floats, b: Floats) -> Floats:
    """Return the mean difference of the exchanged runs, for every exchange."""
    found = [
        np.mean(mine) - np.mean(yours)
        for size in range(1, min(len(a), len(b)) + 1)
        for mine in itertools.combinations(a, size)
        for yours in itertools.combinations(b, size)
    ]
    return np.asarray(found, np.float64)


def _drawn_exchanges(a: Floats, b: Floats) -> Floats:
    draw, both, count = np.random.default_rng(0), np.concatenate([a, b]), len(a)
    order = np.argsort(draw.random((MAX_EXACT - 1, len(both))), axis=1)
    left = order[:, :count] >= count  # what came over from the second side
    right = order[:, count:] < count  # what went there
    size = left.sum(axis=1)
    moved = size > 0
    gone = np.where(right, both[order[:, count:]], 0).sum(axis=1)[moved]
    come = np.where(left, both[order[:, :count]], 0).sum(axis=1)[moved]
    return np.asarray((gone - come) / size[moved], np.float64)


def _invert_test(typical: Floats, value: float, spread: float, least_p: float, level: float) -> RunDifference:
    """Read test and interval off the values between which the true difference lies equally likely."""
    ways = len(typical) + 1
    close = 1e-9 * float(np.abs(typical).max())
    below = 1 + int((typical <= close).sum())
    above = 1 + int((typical >= -close).sum())
    place = max(1, math.floor(level * ways / 2 + 1e-9))
    ordered = np.sort(typical)
    return RunDifference(
        value=value,
        low=float(ordered[place - 1]),
        high=float(ordered[-place]),
        confidence=1 - 2 * place / ways,
        p=min(1.0, 2 * min(below, above) / ways),
        least_p=min(1.0, least_p),
        standardised=value / spread if spread else math.copysign(math.inf, value) if value else 0.0,
    )


def pairs_required(level: float, tests: int = 1) -> int:
    """Return the fewest pairs that can show a difference at a level, shared by Holm among some tests."""
    count = 1
    while tests * 2.0 ** (1 - count) > level:
        count += 1
    return count
