"""Intervals and tests that more than one verb needs, each with its source.

All intervals are two-sided. Nothing here draws at random but :func:`bootstrap`, which is seeded.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InternalError

CONFIDENCE = 0.95
"""How often an interval holds the true value, unless asked otherwise."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with the interval around it, ``low <= value <= high`` up to rounding."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write it as ``0.741 [0.738, 0.744]``."""
        return f"{self.value:.3f} {self.interval}"

    @property
    def interval(self) -> str:
        """The interval alone, as ``[0.738, 0.744]``."""
        return f"[{self.low:.3f}, {self.high:.3f}]"


def normal_quantile(confidence: float) -> float:
    """Return z such that a standard normal lies in [-z, z] with this probability, in (0, 1)."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(successes: float, trials: float, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate a proportion.

    The score interval: Wilson, JASA 22 (1927). It never leaves [0, 1], and says something even where all
    trials or none succeed.

    Args:
        successes: In [0, trials]; may be a fraction.
        trials: Greater than 0.
        confidence: In (0, 1).
    """
    if not 0 <= successes <= trials or trials <= 0:
        raise InternalError(f"{successes} successes of {trials} trials")
    low, high = _wilson_ends(np.float64(successes), np.float64(trials), normal_quantile(confidence))
    return Estimate(float(successes / trials), float(low), float(high))


def _wilson_ends(successes: Any, trials: Any, z: float) -> tuple[Any, Any]:
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return np.clip(middle - half, 0, share), np.clip(middle + half, share, 1)


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


def largest_gap(successes: Sequence[int], trials: Sequence[int], confidence: float = CONFIDENCE) -> Gap:
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
    low, high = _newcombe_ends(hits, total, normal_quantile(1 - (1 - confidence) / pairs))
    share = hits / total
    highest, lowest = int(share.argmax()), int(share.argmin())
    size = Estimate(float(share[highest] - share[lowest]), max(0.0, float(low.max())), float(high.max()))
    return Gap(highest, lowest, size)


def _newcombe_ends(hits: Floats, total: Floats, z: float) -> tuple[Floats, Floats]:
    """Bound every difference share[i] - share[j]; shape (groups, groups), the diagonal without meaning."""
    share = hits / total
    low, high = _wilson_ends(hits, total, z)
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
    lower, upper = _newcombe_ends(hits, total, normal_quantile(confidence))
    first, second = hits / total
    return Estimate(float(first - second), float(lower[0, 1]), float(upper[0, 1]))


def delong(label: NDArray[np.int64], score: Floats, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate the area under the ROC curve: the chance that a positive outscores a negative.

    Ties count one half. The variance is that of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988),
    by the fast algorithm of Sun and Xu (IEEE Signal Processing Letters 21, 2014). The interval is symmetric
    on the scale of log-odds (Pepe, The Statistical Evaluation of Medical Tests, 2003, section 5.2), because
    near 1 the plain one begins too high; with fewer than 30 rows of a class it still does. Where the variance
    says nothing, on perfect separation or a single row of a class, the interval is Wilson's for as many
    independent pairs of a positive and a negative as there are.

    Args:
        label: 0 or 1, shape (rows,); both occur.
        score: Higher for a likelier 1, shape (rows,).
        confidence: In (0, 1).
    """
    area, variance = _delong(label, [score])
    value, spread = float(area[0]), math.sqrt(max(0.0, float(variance[0, 0])))
    if not spread > 0:
        positives = int(label.sum())
        pairs = min(positives, len(label) - positives)
        bounds = wilson(value * pairs, pairs, confidence)
        return Estimate(value, bounds.low, bounds.high)
    half, odds = normal_quantile(confidence) * spread / (value * (1 - value)), value / (1 - value)
    return Estimate(value, odds / (odds + math.exp(half)), odds / (odds + math.exp(-half)))


def delong_difference(
    label: NDArray[np.int64], first: Floats, second: Floats, confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate by how much the first score's area exceeds the second's, on the same rows.

    Paired: what both scores find easy or hard cancels. Sources as for :func:`delong`. All arrays have
    shape (rows,); each class has at least two rows.
    """
    area, variance = _delong(label, [first, second])
    spread = float(variance[0, 0] + variance[1, 1] - 2 * variance[0, 1])
    value, half = float(area[0] - area[1]), normal_quantile(confidence) * math.sqrt(max(0.0, spread))
    return Estimate(value, max(-1.0, value - half), min(1.0, value + half))


def _delong(label: NDArray[np.int64], scores: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return the areas, shape (scores,), and their covariances, shape (scores, scores)."""
    positive = label == 1
    m, n = int(positive.sum()), int((~positive).sum())
    if not (m and n):
        raise InternalError(f"an area needs both classes, got {m} positives and {n} negatives")
    above, below = np.empty((len(scores), m)), np.empty((len(scores), n))
    for index, score in enumerate(scores):
        rank = _midranks(score)
        above[index] = (rank[positive] - _midranks(score[positive])) / n
        below[index] = 1 - (rank[~positive] - _midranks(score[~positive])) / m
    area = above.mean(axis=1)
    if min(m, n) < 2:  # noqa: PLR2004
        return area, np.zeros((len(scores), len(scores)))
    return area, np.atleast_2d(np.cov(above)) / m + np.atleast_2d(np.cov(below)) / n


def _midranks(values: Floats) -> Floats:
    """Rank from 1; equal values share the mean of their ranks."""
    ordered = np.sort(values)
    left, right = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    ranks: Floats = (left + right + 1) / 2
    return ranks


def bootstrap(
    statistic: Callable[..., float],
    columns: Sequence[NDArray[Any]],
    *,
    strata: NDArray[Any] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Estimate any statistic by drawing rows again: for what has no exact interval.

    Percentile interval: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. All
    columns are drawn together, so a comparison of two models is paired. The same seed gives the same
    interval. Costs ``resamples`` passes over all rows.

    Args:
        statistic: Takes the columns, returns a number.
        columns: Each of shape (rows,).
        strata: Groups whose sizes stay as they are, shape (rows,); None for one group.
        resamples: Greater than 0.
        seed: Of the draws.
        confidence: In (0, 1).
    """
    rows = len(columns[0])
    groups = [np.arange(rows)] if strata is None else [np.flatnonzero(strata == s) for s in np.unique(strata)]
    draw = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for index in range(resamples):
        chosen = np.concatenate([draw.choice(group, len(group)) for group in groups])
        drawn[index] = statistic(*(column[chosen] for column in columns))
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(float(statistic(*columns)), float(low), float(high))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several tests, so that any false alarm at all stays as rare as one was.

    Holm, Scandinavian Journal of Statistics 6 (1979). Returned in the order given, each in [0, 1].
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    raised = ((len(p_values) - rank) * p_values[index] for rank, index in enumerate(order))
    adjusted = dict(zip(order, itertools.accumulate(raised, max), strict=True))
    return [min(1.0, adjusted[index]) for index in range(len(p_values))]


def gamma_tail(shape: float, x: float) -> float:
    """Return the probability that a gamma variable of this shape and scale 1 exceeds ``x``.

    The regularised upper incomplete gamma function: by its series left of the mean, by Lentz's continued
    fraction right of it (Press et al., Numerical Recipes, 3rd edition, section 6.2). Half of a chi-squared
    variable with k degrees of freedom is gamma with shape k / 2.

    Args:
        shape: Greater than 0.
        x: At least 0.
    """
    if x <= 0:
        return 1.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return max(0.0, 1.0 - front * _gamma_series(shape, x))
    return min(1.0, front * _gamma_fraction(shape, x))


_CLOSE = 1e-15
_TINY = 1e-300


def _gamma_series(shape: float, x: float) -> float:
    term = total = 1 / shape
    place = shape
    while term > total * _CLOSE:
        place += 1
        term *= x / place
        total += term
    return total


def _gamma_fraction(shape: float, x: float) -> float:
    step = x + 1 - shape
    upper, lower = 1 / _TINY, 1 / step
    total = lower
    for index in itertools.count(1):
        factor = -index * (index - shape)
        step += 2
        lower = 1 / _away_from_zero(factor * lower + step)
        upper = _away_from_zero(step + factor / upper)
        total *= lower * upper
        if abs(lower * upper - 1) < 4e-16 * 8:
            break
    return total


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def gamma_quantile(shape: float, level: float) -> float:
    """Return what a gamma variable of this shape and scale 1 exceeds with probability ``level``.

    Args:
        shape: Greater than 0.
        level: In (0, 1).
    """
    low, high = 0.0, shape + 1.0
    while gamma_tail(shape, high) > level:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gamma_tail(shape, middle) > level else (low, middle)
    return high
