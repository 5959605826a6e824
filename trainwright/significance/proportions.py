"""Intervals and tests of proportions: single, differences, paired, and across groups."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.errors import InternalError
from trainwright.significance.estimate import CONFIDENCE, Estimate, Floats, normal_quantile

_ROUNDING = 1e-9
"""Tolerance for sums of weights added up in another order."""


def wilson(successes: float, trials: float, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate a proportion.

    The score interval: Wilson, JASA 22 (1927). It never leaves [0, 1], and says something even where all
    trials or none succeed.

    Args:
        successes: In [0, trials], up to the rounding of sums of weights; may be a fraction.
        trials: Greater than 0.
        confidence: In (0, 1).
    """
    if not (trials > 0 and -_ROUNDING * trials <= successes <= (1 + _ROUNDING) * trials):
        raise InternalError(f"{successes} successes of {trials} trials")
    successes = min(max(successes, 0.0), trials)
    low, high = wilson_ends(np.float64(successes), np.float64(trials), normal_quantile(confidence))
    return Estimate(float(successes / trials), float(low), float(high))


def wilson_ends(successes: Any, trials: Any, z: float) -> tuple[Any, Any]:
    """Return the ends of :func:`wilson` for numbers or arrays, at a quantile of the normal."""
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return np.clip(middle - half, 0, share), np.clip(middle + half, share, 1)


def newcombe_ends(hits: Floats, total: Floats, z: float) -> tuple[Floats, Floats]:
    """Bound every difference share[i] - share[j]; shape (groups, groups), the diagonal without meaning."""
    share = hits / total
    low, high = wilson_ends(hits, total, z)
    below, above = (share - low) ** 2, (high - share) ** 2
    difference = share[:, None] - share[None, :]
    lower = difference - np.sqrt(below[:, None] + above[None, :])
    upper = difference + np.sqrt(above[:, None] + below[None, :])
    np.fill_diagonal(lower, -1.0)
    np.fill_diagonal(upper, -1.0)
    return lower, upper


def newcombe(successes: tuple[int, int], trials: tuple[int, int], confidence: float = CONFIDENCE) -> Estimate:
    """Estimate the difference of two independent proportions, the first minus the second.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998), 873-890.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    lower, upper = newcombe_ends(hits, total, normal_quantile(confidence))
    first, second = hits / total
    return Estimate(float(first - second), float(lower[0, 1]), float(upper[0, 1]))


def paired_difference(
    both: float, first: float, second: float, neither: float, confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate the difference of two proportions of the same rows, the first minus the second.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998), 2635-2650: Wilson's intervals of both, put
    together with the correlation of the two.

    Args:
        both: Rows in which both succeed.
        first: Rows in which only the first does.
        second: Rows in which only the second does.
        neither: Rows in which neither does.
        confidence: In (0, 1).
    """
    rows = both + first + second + neither
    if min(both, first, second, neither) < 0 or rows <= 0:
        raise InternalError(f"pairs of {both}, {first}, {second}, {neither} rows")
    one, two = wilson(both + first, rows, confidence), wilson(both + second, rows, confidence)
    tied = _correlation(both, first, second, neither)
    value = (first - second) / rows
    low = _combined(one.value - one.low, two.high - two.value, tied)
    high = _combined(two.value - two.low, one.high - one.value, tied)
    return Estimate(value, max(-1.0, value - low), min(1.0, value + high))


def _combined(below: float, above: float, tied: float) -> float:
    return math.sqrt(max(0.0, below**2 - 2 * tied * below * above + above**2))


def _correlation(both: float, first: float, second: float, neither: float) -> float:
    """Return phi, with Newcombe's correction for continuity; 0 where a margin is empty."""
    rows = both + first + second + neither
    spread = (both + first) * (second + neither) * (both + second) * (first + neither)
    if not spread:
        return 0.0
    excess = both * neither - first * second
    if excess > 0:
        excess = max(excess - rows / 2, 0.0)
    return excess / math.sqrt(spread)


def mcnemar(first: int, second: int) -> float:
    """Return the mid-p value of McNemar's test, two-sided: are two classifiers right equally often?

    Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13:91 (2013), who find that it keeps its
    level at every number of rows, which the exact test is far below and the asymptotic one at times above.

    Args:
        first: Rows in which only the first is right.
        second: Rows in which only the second is right.
    """
    from scipy.special import bdtr  # type: ignore[import-untyped]

    trials, fewer = first + second, min(first, second)
    if first == second:
        return 1.0
    # 2 P(X < k) + P(X = k) = P(X <= k) + P(X <= k - 1)
    below = bdtr(fewer - 1, trials, 0.5) if fewer else 0.0
    return float(min(1.0, bdtr(fewer, trials, 0.5) + below))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several tests, so that any false alarm at all stays as rare as one was.

    Holm, Scandinavian Journal of Statistics 6 (1979). Returned in the order given, each in [0, 1].
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    raised = ((len(p_values) - rank) * p_values[index] for rank, index in enumerate(order))
    adjusted = dict(zip(order, itertools.accumulate(raised, max), strict=True))
    return [min(1.0, adjusted[index]) for index in range(len(p_values))]


@dataclass(frozen=True)
class Gap:
    """The largest difference between the proportions of several groups.

    Attributes:
        highest: Index of the group with the largest proportion.
        lowest: Index of the group with the smallest.
        size: The difference, with an interval that is right whichever groups are truly extreme.
    """

    highest: int
    lowest: int
    size: Estimate


def largest_gap(successes: Sequence[float], trials: Sequence[float], confidence: float = CONFIDENCE) -> Gap:
    """Estimate the largest difference between the proportions of two or more groups.

    The extremes of many groups lie apart by chance alone, so every pair is given the hybrid score interval
    of Newcombe (Statistics in Medicine 17, 1998, method 10) at Bonferroni's confidence. All hold at once
    with ``confidence``; then the largest true difference lies between the largest of their lower ends and
    the largest of their upper ends.

    Args:
        successes: By group.
        trials: By group, each greater than 0.
        confidence: In (0, 1).
    """
    count = len(trials)
    if count < 2 or len(successes) != count or min(trials) <= 0:  # noqa: PLR2004
        raise InternalError(f"a gap needs two groups with trials, got {list(successes)} of {list(trials)}")
    pairs = count * (count - 1) / 2
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    low, high = newcombe_ends(hits, total, normal_quantile(1 - (1 - confidence) / pairs))
    share = hits / total
    highest, lowest = int(share.argmax()), int(share.argmin())
    size = Estimate(float(share[highest] - share[lowest]), max(0.0, float(low.max())), float(high.max()))
    return Gap(highest, lowest, size)


def smallest_ratio(
    successes: Sequence[float], trials: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate | None:
    """Estimate the smallest of several proportions divided by the largest; None if none has a success.

    Every pair has the interval of Donner and Zou (Statistical Methods in Medical Research 21, 2012: MOVER of
    a ratio, from Wilson's intervals) at Bonferroni's confidence, as in :func:`largest_gap`; the smallest true
    ratio lies between the smallest of their lower and the smallest of their upper ends.

    Args:
        successes: By group.
        trials: By group, each greater than 0; two groups at least.
        confidence: In (0, 1).
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    share = hits / total
    if not share.max() > 0:
        return None
    pairs = len(share) * (len(share) - 1) / 2
    low, high = wilson_ends(hits, total, normal_quantile(1 - (1 - confidence) / pairs))
    lower, upper = _ratio_ends(share, low, high)
    np.fill_diagonal(lower, 1.0)
    np.fill_diagonal(upper, 1.0)
    value = float(share.min() / share.max())
    return Estimate(value, min(value, float(lower.min())), max(value, min(1.0, float(upper.min()))))


def _ratio_ends(share: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Bound every ratio share[i] / share[j]; shape (groups, groups)."""
    over, under = np.meshgrid(np.arange(len(share)), np.arange(len(share)), indexing="ij")
    product = share[over] * share[under]
    below = low[over] * high[under] * (2 * share[over] - low[over]) * (2 * share[under] - high[under])
    above = high[over] * low[under] * (2 * share[over] - high[over]) * (2 * share[under] - low[under])
    widest = high[under] * (2 * share[under] - high[under])
    closest = low[under] * (2 * share[under] - low[under])
    root = np.sqrt(np.maximum(product**2 - below, 0)), np.sqrt(np.maximum(product**2 - above, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = np.where(widest > 0, (product - root[0]) / widest, 0.0)
        upper = np.where(closest > 0, (product + root[1]) / closest, np.inf)
    return lower, upper


@dataclass(frozen=True)
class Rest:
    """The complement of each group, and each group's share of the whole.

    Attributes:
        successes: Outside of each group.
        trials: Outside of each group, each greater than 0.
        own: Each group's share of the whole, in (0, 1).
    """

    successes: Sequence[float]
    trials: Sequence[float]
    own: Sequence[float]

    @classmethod
    def of(cls, hits: Floats, total: Floats) -> "Rest":
        """Return the other groups together, where there is nothing else."""
        others = hits.sum() - hits, total.sum() - total
        return cls(others[0].tolist(), others[1].tolist(), (total / total.sum()).tolist())


def gap_to_whole(
    successes: Sequence[float],
    trials: Sequence[float],
    confidence: float = CONFIDENCE,
    rest: Rest | None = None,
) -> Gap:
    """Estimate the largest distance of a group's proportion from that of the whole.

    A group is part of the whole, so its distance is its difference from the rest times the rest's share of
    the whole; that difference has Newcombe's interval at Bonferroni's confidence.

    Args:
        successes: By group.
        trials: By group, each greater than 0; two groups at least.
        confidence: In (0, 1).
        rest: What is outside of each group; the other groups if None.

    Returns:
        The gap; ``highest`` and ``lowest`` are the groups farthest above and below the whole.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    rest = rest or Rest.of(hits, total)
    z = normal_quantile(1 - (1 - confidence) / len(total))
    away, low, high = np.empty(len(total)), np.empty(len(total)), np.empty(len(total))
    for index in range(len(total)):
        pair = np.array([hits[index], rest.successes[index]])
        of = np.array([total[index], rest.trials[index]])
        lower, upper = newcombe_ends(pair, of, z)
        other = 1 - rest.own[index]
        away[index] = other * (pair[0] / of[0] - pair[1] / of[1])
        low[index], high[index] = other * lower[0, 1], other * upper[0, 1]
    least, most = np.maximum(np.maximum(low, -high), 0), np.maximum(high, -low)
    size = Estimate(float(np.abs(away).max()), float(least.max()), float(most.max()))
    return Gap(int(away.argmax()), int(away.argmin()), size)


def ratio_to_whole(
    successes: Sequence[float],
    trials: Sequence[float],
    confidence: float = CONFIDENCE,
    rest: Rest | None = None,
) -> Estimate | None:
    """Estimate the smallest ratio of a group's proportion and the whole's, or the whole's and a group's.

    As :func:`gap_to_whole`, with Donner and Zou's interval of the ratio to the rest; None where no group
    has a success. Arguments as there.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    rest = rest or Rest.of(hits, total)
    if not hits.sum() > 0:
        return None
    z = normal_quantile(1 - (1 - confidence) / len(total))
    values, lows, highs = [], [], []
    for index, own in enumerate(rest.own):
        of = np.array([total[index], rest.trials[index]])
        share = np.array([hits[index], rest.successes[index]]) / of
        low, high = wilson_ends(share * of, of, z)
        lower, upper = _ratio_ends(share, low, high)
        values.append(float(share[0] / (own * share[0] + (1 - own) * share[1])))
        ends = _to_whole(float(lower[0, 1]), own), _to_whole(float(upper[0, 1]), own)
        lows.append(min(ends[0], 1 / ends[1] if ends[1] > 0 else 0.0))
        highs.append(1.0 if ends[0] <= 1 <= ends[1] else max(min(end, 1 / end) for end in ends if end > 0))
    value = min(min(entry, 1 / entry) if entry > 0 else 0.0 for entry in values)
    return Estimate(value, min(value, *lows), max(value, min(highs)))


def _to_whole(to_rest: float, own: float) -> float:
    """Turn a ratio to the rest into one to the whole, of which the group is this share."""
    return 1 / own if np.isinf(to_rest) else to_rest / (own * to_rest + 1 - own)
