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
    """The difference of two means, with its exact two-sided test and interval.

    ``confidence`` is below 1 - level where so few runs cannot give as much; ``least_p`` is the smallest
    p-value that this number of runs can give at all.
    """

    value: float
    low: float
    high: float
    confidence: float
    p: float
    least_p: float


def paired_test(differences: Sequence[float], level: float = 0.05) -> RunDifference:
    """Compare two sides run by run: the exact sign-flip test on the mean (Fisher 1935).

    If the sides do not differ, each difference is as likely to have had the other sign. Flipping the signs of
    a subset leads to a larger mean exactly where the subset's own mean is negative, so the test is a count of
    subset means, and the differences it does not reject lie between two of them (Hartigan, JASA 64, 1969).

    The interval has confidence 1 - level where that can be reached.
    """
    values = np.asarray(differences, np.float64)
    count = len(values)
    if not count:
        raise InternalError("a paired comparison without a pair")
    ways = 2**count
    if ways <= MAX_EXACT:
        subsets = ((np.arange(1, ways)[:, None] >> np.arange(count)) & 1).astype(np.bool_)
    else:
        subsets = np.random.default_rng(0).integers(0, 2, (MAX_EXACT - 1, count)).astype(np.bool_)
        subsets = subsets[subsets.any(axis=1)]
    return _invert_test(subsets @ values / subsets.sum(axis=1), float(values.mean()), ways, level)


def unpaired_test(first: Sequence[float], second: Sequence[float], level: float = 0.05) -> RunDifference:
    """Compare two sides whose runs have nothing in common: the exact permutation test on the means.

    Exchanging some runs of the first side for as many of the second leads to a larger difference exactly
    where the exchanged ones of the first have the smaller mean; from there on as for :func:`paired_test`.
    The difference is first minus second.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if not (len(a) and len(b)):
        raise InternalError("an unpaired comparison with an empty side")
    ways = math.comb(len(a) + len(b), len(a))
    exchanged = _exchanges(a, b) if ways <= MAX_EXACT else _drawn_exchanges(a, b)
    return _invert_test(exchanged, float(a.mean() - b.mean()), ways, level)


def _exchanges(a: Floats, b: Floats) -> Floats:
    """Return the mean difference of the exchanged runs, for every exchange."""
    found = [
        np.mean(ours) - np.mean(theirs)
        for size in range(1, min(len(a), len(b)) + 1)
        for ours in itertools.combinations(a, size)
        for theirs in itertools.combinations(b, size)
    ]
    return np.asarray(found, np.float64)


def _drawn_exchanges(a: Floats, b: Floats) -> Floats:
    """Return the same of random exchanges."""
    draw, both, count = np.random.default_rng(0), np.concatenate([a, b]), len(a)
    order = np.argsort(draw.random((MAX_EXACT - 1, len(both))), axis=1)
    from_second, from_first = order[:, :count] >= count, order[:, count:] < count
    size = from_second.sum(axis=1)
    moved = size > 0
    left = np.where(from_first, both[order[:, count:]], 0).sum(axis=1)[moved]
    joined = np.where(from_second, both[order[:, :count]], 0).sum(axis=1)[moved]
    return np.asarray((left - joined) / size[moved], np.float64)


def _invert_test(typical: Floats, value: float, possible: int, level: float) -> RunDifference:
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
        least_p=min(1.0, 2 / min(possible, MAX_EXACT)),
    )


def pairs_required(level: float, tests: int = 1) -> int:
    """Return the fewest pairs that can show a difference at a level, shared by Holm among some tests."""
    return next(count for count in itertools.count(1) if tests * 2.0 ** (1 - count) <= level)
