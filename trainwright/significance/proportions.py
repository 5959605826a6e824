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


def newcombe_ends(
    hits: Floats, total: Floats, other_hits: Floats, other_total: Floats, z: float
) -> tuple[Floats, Floats]:
    """Bound the difference of two independent proportions, the first less the second; arrays of any shape.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998), 873-890.
    """
    (low, high), (other_low, other_high) = (
        wilson_ends(hits, total, z),
        wilson_ends(other_hits, other_total, z),
    )
    first, second = hits / total, other_hits / other_total
    lower: Floats = first - second - np.sqrt((first - low) ** 2 + (other_high - second) ** 2)
    upper: Floats = first - second + np.sqrt((high - first) ** 2 + (second - other_low) ** 2)
    return lower, upper


def paired_difference(
    both: float, first: float, second: float, neither: float, confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate the difference of two proportions of the same rows, the first minus the second.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998), 2635-2650: Wilson's intervals of both, put
    together with the correlation of the two, corrected for continuity.

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
    spread = (both + first) * (second + neither) * (both + second) * (first + neither)
    excess = both * neither - first * second
    if excess > 0:
        excess = max(excess - rows / 2, 0.0)
    correlation = excess / math.sqrt(spread) if spread else 0.0

    def combined(below: float, above: float) -> float:
        return math.sqrt(max(0.0, below**2 - 2 * correlation * below * above + above**2))

    value = (first - second) / rows
    low = combined(one.value - one.low, two.high - two.value)
    high = combined(two.value - two.low, one.high - one.value)
    return Estimate(value, max(-1.0, value - low), min(1.0, value + high))


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


def largest_gap(
    successes: Sequence[float], trials: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate the largest difference between the proportions of two or more groups.

    The extremes of many groups lie apart by chance alone, so every pair has the interval of
    :func:`newcombe_ends` at Bonferroni's confidence. All hold at once with ``confidence``; then the largest
    true difference lies between the largest of their lower ends and the largest of their upper ends.
    """
    count = len(trials)
    if count < 2 or len(successes) != count or min(trials) <= 0:  # noqa: PLR2004
        raise InternalError(f"a gap needs two groups with trials, got {list(successes)} of {list(trials)}")
    pairs = count * (count - 1) / 2
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    z = normal_quantile(1 - (1 - confidence) / pairs)
    low, high = newcombe_ends(hits[:, None], total[:, None], hits, total, z)
    np.fill_diagonal(low, -1.0)
    np.fill_diagonal(high, -1.0)
    share = hits / total
    return Estimate(float(share.max() - share.min()), max(0.0, float(low.max())), float(high.max()))


def smallest_ratio(
    successes: Sequence[float], trials: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate | None:
    """Estimate the smallest of several proportions divided by the largest; None if none has a success.

    Every pair has the interval of Donner and Zou (Statistical Methods in Medical Research 21, 2012: MOVER of
    a ratio, from Wilson's intervals) at Bonferroni's confidence, as in :func:`largest_gap`; the smallest true
    ratio lies between the smallest of their lower and the smallest of their upper ends.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    share = hits / total
    if not share.max() > 0:
        return None
    pairs = len(share) * (len(share) - 1) / 2
    z = normal_quantile(1 - (1 - confidence) / pairs)
    lower, upper = _ratio_ends(hits[:, None], total[:, None], hits, total, z)
    np.fill_diagonal(lower, 1.0)
    np.fill_diagonal(upper, 1.0)
    value = float(share.min() / share.max())
    return Estimate(value, min(value, float(lower.min())), max(value, min(1.0, float(upper.min()))))


def _ratio_ends(
    hits: Floats, total: Floats, other_hits: Floats, other_total: Floats, z: float
) -> tuple[Floats, Floats]:
    """Bound the ratio of two proportions, the first by the second; arrays of any shape."""
    first, second = hits / total, other_hits / other_total
    (low, high), (other_low, other_high) = (
        wilson_ends(hits, total, z),
        wilson_ends(other_hits, other_total, z),
    )
    product = first * second
    below = low * other_high * (2 * first - low) * (2 * second - other_high)
    above = high * other_low * (2 * first - high) * (2 * second - other_low)
    widest = other_high * (2 * second - other_high)
    closest = other_low * (2 * second - other_low)
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = np.where(widest > 0, (product - np.sqrt(np.maximum(product**2 - below, 0))) / widest, 0.0)
        upper = np.where(
            closest > 0, (product + np.sqrt(np.maximum(product**2 - above, 0))) / closest, np.inf
        )
    return lower, upper


@dataclass(frozen=True)
class Rest:
    """The complement of each group in the whole; arrays of shape (groups,).

    Attributes:
        successes: Outside of each group.
        trials: Outside of each group, each greater than 0.
        own: Each group's share of the whole, in (0, 1).
    """

    successes: Floats
    trials: Floats
    own: Floats


def gap_to_whole(
    successes: Sequence[float], trials: Sequence[float], rest: Rest, confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate the largest distance of a group's proportion from that of the whole.

    A group is part of the whole, so its distance is its difference from the rest times the rest's share of
    the whole; that difference has Newcombe's interval at Bonferroni's confidence.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    z = normal_quantile(1 - (1 - confidence) / len(total))
    lower, upper = newcombe_ends(hits, total, rest.successes, rest.trials, z)
    other = 1 - rest.own
    away, low, high = other * (hits / total - rest.successes / rest.trials), other * lower, other * upper
    least, most = np.maximum(np.maximum(low, -high), 0), np.maximum(high, -low)
    return Estimate(float(np.abs(away).max()), float(least.max()), float(most.max()))


def ratio_to_whole(
    successes: Sequence[float], trials: Sequence[float], rest: Rest, confidence: float = CONFIDENCE
) -> Estimate | None:
    """Estimate the smallest ratio of a group's proportion and the whole's, or the whole's and a group's.

    As :func:`gap_to_whole`, with Donner and Zou's interval of the ratio to the rest; None where no group
    has a success.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    if not hits.sum() > 0:
        return None
    z = normal_quantile(1 - (1 - confidence) / len(total))
    ends = zip(*_ratio_ends(hits, total, rest.successes, rest.trials, z), strict=True)
    shares = zip(hits / total, rest.successes / rest.trials, rest.own, strict=True)
    values, lows, highs = [], [], []
    for (share, other, own), (lower, upper) in zip(shares, ends, strict=True):
        ratio = float(share / (own * share + (1 - own) * other))
        values.append(min(ratio, 1 / ratio) if ratio > 0 else 0.0)
        low, high = _to_whole(float(lower), own), _to_whole(float(upper), own)
        lows.append(min(low, 1 / high if high > 0 else 0.0))
        highs.append(1.0 if low <= 1 <= high else max(min(end, 1 / end) for end in (low, high) if end > 0))
    return Estimate(min(values), min(*values, *lows), max(min(values), min(highs)))


def _to_whole(to_rest: float, own: float) -> float:
    """Convert a ratio to the rest into one to the whole, of which the group is this share."""
    return float(1 / own if np.isinf(to_rest) else to_rest / (own * to_rest + 1 - own))
