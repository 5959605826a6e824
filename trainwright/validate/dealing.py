"""In how many ways rows can fall to two samples, and what each way adds to a divergence.

Two pictures of nothing having moved: pooled rows are *dealt out* to the samples (hypergeometric), or the
current rows are *drawn* from bins that the other sample's rows bound (beta-binomial).
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_REACH = 12.0
"""Standard deviations to each side of the mean that a distribution is written out for."""

_POINTS = 4_000
"""Outcomes that are written out at most; of more, every so many stand for those between."""

DENSE = 20_000.0
"""Expected rows of a value in both samples from which on it is taken as normal."""


def all_current(size: float, n: float, m: float) -> float:
    """Return the probability that all rows of a value fall to the current sample."""
    if size > n:
        return 0.0
    if size > DENSE:
        return math.exp(size * math.log(n / (n + m)))
    steps = np.arange(size)
    return math.exp(float(np.sum(np.log((n - steps) / (n + m - steps)))))


@lru_cache(maxsize=512)
def rows_of(size: float, n: float, m: float) -> tuple[Floats, Floats]:
    """Return how many rows of a value can fall to the current sample, and how probably (hypergeometric)."""
    middle = size * n / (n + m)
    reach = _REACH * math.sqrt(_spread(size, n, m)) + _REACH
    low, high = max(0.0, size - m, math.floor(middle - reach)), min(size, n, math.ceil(middle + reach))
    rows = np.arange(low, high + 1)
    before = rows[:-1]
    ratio = np.log(size - before) + np.log(n - before) - np.log(before + 1) - np.log(m - size + before + 1)
    logs = np.concatenate([[0.0], np.cumsum(ratio)])
    weights = np.exp(logs - logs.max())
    return rows, weights / weights.sum()


def _spread(size: float, n: float, m: float) -> float:
    total = n + m
    return max(0.0, size * (n / total) * (m / total) * (total - size) / max(1.0, total - 1))


def dealt(size: float, n: float, m: float) -> tuple[float, float]:
    """Return mean and variance of what one value adds to the divergence, if the rows were dealt out.

    Args:
        size: Rows of the value in both samples.
        n: Rows of the current sample.
        m: Rows of the other.
    """
    share = size / (n + m)
    if min(n, m) * share > DENSE:
        unit = (1 / n + 1 / m) / (8 * math.log(2))
        return unit * (1 - share), 2 * unit**2
    rows, chances = rows_of(size, n, m)
    adds = terms(rows / n, (size - rows) / m)
    mean = float(np.sum(chances * adds))
    variance = float(np.sum(chances * (adds - mean) ** 2))
    return mean, variance / max(1 - share, 1e-9) ** 2


def terms(p: Floats, q: Floats) -> Floats:
    """Return what values with these shares of both samples add to the divergence, in bits."""
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(p > 0, p * np.log2(p / middle), 0.0)
        right = np.where(q > 0, q * np.log2(q / middle), 0.0)
    terms: Floats = (left + right) / 2
    return terms


def drawn(n: float, rows: float, m: float, gap: float, gaps: float) -> tuple[float, float]:
    """Return mean and variance of what one bin adds to the divergence, if its bounds are the other's rows.

    Args:
        n: Rows of the current sample.
        rows: Rows of the other sample in the bin.
        m: All rows of the other.
        gap: Gaps between neighbouring rows of the other sample that the bin holds.
        gaps: All gaps.
    """
    share = gap / gaps
    if min(n, m) * share > DENSE:
        unit = (1 / n + 1 / m) / (8 * math.log(2))
        return unit * (1 - share), 2 * unit**2
    found, chances = _drawn_rows(n, gap, gaps - gap)
    adds = terms(found / n, np.full(len(found), rows / m))
    mean = float(np.sum(chances * adds))
    variance = float(np.sum(chances * (adds - mean) ** 2))
    return mean, variance / max(1 - share, 1e-9) ** 2


@lru_cache(maxsize=512)
def _drawn_rows(n: float, own: float, others: float) -> tuple[Floats, Floats]:
    """Return how many of ``n`` rows can fall into a bin, and how probably (beta-binomial)."""
    total = own + others
    middle = n * own / total
    spread = n * own * others * (total + n) / (total**2 * (total + 1))
    reach = _REACH * math.sqrt(spread) + _REACH
    low, high = max(0.0, math.floor(middle - reach)), min(n, math.ceil(middle + reach))
    if high - low < _POINTS:
        rows = np.arange(low, high + 1)
        before = rows[:-1]
        ratio = np.log(n - before) - np.log(before + 1)
        ratio += np.log(before + own) - np.log(n - before - 1 + others)
        logs, width = np.concatenate([[0.0], np.cumsum(ratio)]), np.ones(len(rows))
    else:
        rows = np.unique(np.linspace(low, high, _POINTS).round())
        logs, width = np.array([_log_drawn(row, n, own, others) for row in rows.tolist()]), np.gradient(rows)
    weights = np.exp(logs - logs.max()) * width
    return rows, weights / weights.sum()


def _log_drawn(row: float, n: float, own: float, others: float) -> float:
    """Return the logarithm of a beta-binomial probability, but for a constant."""
    ways = -math.lgamma(row + 1) - math.lgamma(n - row + 1)
    return ways + math.lgamma(row + own) + math.lgamma(n - row + others)
