"""The distribution of a distance between two samples when nothing has moved.

All is judged by permutation: if nothing moved, any ``n`` of the pooled ``n + m`` rows could have been the
current ones. Given how often a value occurs in both samples together, its rows in the current sample then
follow the hypergeometric distribution, whatever the data is. That is exact where values are rare, and becomes
the usual chi-squared and normal bounds where they are not; those alone raise false alarms on columns with
many rare values (docs/statistics.md has the figures). Bins that the reference's own quantiles bound follow a
beta-binomial distribution instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainwright.significance import gamma_quantile, gamma_tail

Floats = NDArray[np.float64]

_REACH = 12.0
"""Standard deviations to each side of the mean that a distribution is written out for."""

_POINTS = 4_000
"""Outcomes that are written out at most; of more, every so many stand for those between."""

DENSE = 20_000.0
"""Expected rows of a value in both samples from which on it is taken as normal."""


def chance_of_all_current(size: float, n: float, m: float) -> float:
    """Return the probability that all rows of a value fall to the current sample."""
    if size > n:
        return 0.0
    if size > DENSE:
        return math.exp(size * math.log(n / (n + m)))
    steps = np.arange(size)
    return math.exp(float(np.sum(np.log((n - steps) / (n + m - steps)))))


@lru_cache(maxsize=512)
def hypergeometric(size: float, n: float, m: float) -> tuple[Floats, Floats]:
    """Return how many rows of a value can fall to the current sample, and how probably (hypergeometric)."""
    total = n + m
    middle = size * n / total
    spread = max(0.0, size * (n / total) * (m / total) * (total - size) / max(1.0, total - 1))
    reach = _REACH * math.sqrt(spread) + _REACH
    low, high = max(0.0, size - m, math.floor(middle - reach)), min(size, n, math.ceil(middle + reach))
    rows = np.arange(low, high + 1)
    before = rows[:-1]
    ratio = np.log(size - before) + np.log(n - before) - np.log(before + 1) - np.log(m - size + before + 1)
    logs = np.concatenate([[0.0], np.cumsum(ratio)])
    weights = np.exp(logs - logs.max())
    return rows, weights / weights.sum()


def _moments(
    n: float, m: float, share: float, distribution: Callable[[], tuple[Floats, Floats, Floats]]
) -> tuple[float, float]:
    """Return mean and variance of what a value or bin with this share adds to the divergence.

    Args:
        distribution: Gives the shares of both samples that it can have, and their probabilities.
    """
    if min(n, m) * share > DENSE:  # as good as normal
        unit = (1 / n + 1 / m) / (8 * math.log(2))
        return unit * (1 - share), 2 * unit**2
    p, q, chances = distribution()
    adds = divergence_terms(p, q)
    mean = float(np.sum(chances * adds))
    variance = float(np.sum(chances * (adds - mean) ** 2))
    return mean, variance / max(1 - share, 1e-9) ** 2


def hypergeometric_moments(size: float, n: float, m: float) -> tuple[float, float]:
    """Return mean and variance of what one value adds to the divergence, if rows were drawn by chance."""

    def shares() -> tuple[Floats, Floats, Floats]:
        rows, chances = hypergeometric(size, n, m)
        return rows / n, (size - rows) / m, chances

    return _moments(n, m, size / (n + m), shares)


def beta_binomial_moments(n: float, rows: float, m: float, gap: float, gaps: float) -> tuple[float, float]:
    """Return mean and variance of what one bin adds to the divergence, if its bounds are the other's rows.

    Args:
        gap: Gaps between neighbouring rows of the other sample that the bin holds.
    """

    def shares() -> tuple[Floats, Floats, Floats]:
        found, chances = _beta_binomial(n, gap, gaps - gap)
        return found / n, np.full(len(found), rows / m), chances

    return _moments(n, m, gap / gaps, shares)


def divergence_terms(p: Floats, q: Floats) -> Floats:
    """Return what values with these shares of both samples add to the divergence, in bits."""
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(p > 0, p * np.log2(p / middle), 0.0)
        right = np.where(q > 0, q * np.log2(q / middle), 0.0)
    terms: Floats = (left + right) / 2
    return terms


@lru_cache(maxsize=512)
def _beta_binomial(n: float, own: float, others: float) -> tuple[Floats, Floats]:
    """Return how many of ``n`` rows can fall into a bin, and how probably (beta-binomial)."""

    def log_weight(row: float) -> float:
        ways = -math.lgamma(row + 1) - math.lgamma(n - row + 1)
        return ways + math.lgamma(row + own) + math.lgamma(n - row + others)

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
        logs, width = np.array([log_weight(row) for row in rows.tolist()]), np.gradient(rows)
    weights = np.exp(logs - logs.max()) * width
    return rows, weights / weights.sum()


_ROUNDING = 1e-9
"""Shares that differ by no more than this part of themselves are one."""

_STEEPEST = 700.0


class NullDistribution(Protocol):
    """The distribution of a distance when nothing has moved."""

    def tail(self, value: float) -> float:
        """Bound the probability of a distance this large or larger."""

    def floor(self, level: float) -> float:
        """Return what the distance stays at or below, but for a probability of ``level``."""


@dataclass(frozen=True)
class NoChance:
    """A distance that cannot be anything but 0 by chance, because there is nothing that could vary."""

    def tail(self, value: float) -> float:
        """1 at a distance of 0, and 0 beyond."""
        return 1.0 if value <= 0 else 0.0

    def floor(self, level: float) -> float:  # noqa: ARG002 - as the others take it
        """Zero."""
        return 0.0


@dataclass(frozen=True)
class Divergence:
    """The Jensen-Shannon divergence, in bits: a gamma distribution with the exact mean.

    With many rows of every value this is the known result, 8 ln 2 nm / (n + m) times the divergence ~
    chi-squared with one degree of freedom less than there are values: a gamma distribution with the same
    two moments.
    """

    mean: float
    variance: float

    def tail(self, value: float) -> float:
        """Return the probability of a divergence this large or larger."""
        return gamma_tail(self.mean**2 / self.variance, max(0.0, value) * self.mean / self.variance)

    def floor(self, level: float) -> float:
        """Return the upper quantile."""
        return gamma_quantile(self.mean**2 / self.variance, level) * self.variance / self.mean


@dataclass(frozen=True)
class DiscreteTail:
    """A distance that can only take certain values, such as the largest difference of any value's share.

    That one is bounded by the union of the values' own exact tails.

    Attributes:
        steps: Reachable distances of every value, the largest first; shape (steps,).
        tails: Probability that some value is that far or further, summed over values; shape (steps,).
        widths: Standard deviations of the values that are common enough to be normal; shape (common,).
    """

    steps: Floats
    tails: Floats
    widths: Floats

    def tail(self, value: float) -> float:
        """Bound the probability of a distance this large or larger."""
        at = int(np.searchsorted(-self.steps, -value * (1 - _ROUNDING), side="right"))
        rare = float(self.tails[at - 1]) if at else 0.0
        common = sum(math.erfc(value / width / math.sqrt(2)) for width in self.widths)
        return min(1.0, rare + common)

    def floor(self, level: float) -> float:
        """Return the smallest distance beyond which the bound is at most ``level``."""

        def rare(value: float) -> bool:
            return (self.tail(value * (1 + 2 * _ROUNDING)) if value else 1.0) <= level

        return _crossing(rare, 1.0) * (1 + _ROUNDING)  # what lies on it is not beyond it


@dataclass(frozen=True)
class Unseen:
    """The share of current rows whose value the reference never had.

    Chernoff's bound on a sum over values: a value that stands ``K`` times in both samples is unseen if all
    ``K`` rows fall to the current one.

    Attributes:
        sizes: Every distinct ``K``; shape (sizes,).
        values: Values of that size; shape (sizes,).
        chances: Probability that such a value is unseen; shape (sizes,).
    """

    rows: float
    sizes: Floats
    values: Floats
    chances: Floats

    @cached_property
    def _some(self) -> float:
        """Bound the probability that any value at all is unseen."""
        return float(np.sum(self.values * self.chances))

    def tail(self, value: float) -> float:
        """Bound the probability of a share this large or larger."""
        if value <= 0:
            return 1.0
        aim = value * self.rows
        slope = _crossing(lambda s: self._tilted(s)[1] >= aim, _STEEPEST)
        height, mean = self._tilted(slope)
        return min(1.0, self._some, math.exp(min(0.0, height - slope * min(aim, mean))))

    def floor(self, level: float) -> float:
        """Return the share beyond which the bound is at most ``level``."""
        if self._some <= level:
            return 0.0

        def rare(slope: float) -> bool:
            height, mean = self._tilted(slope)
            return height - slope * mean <= math.log(level)

        return min(1.0, self._tilted(_crossing(rare, _STEEPEST))[1] / self.rows)

    def _tilted(self, slope: float) -> tuple[float, float]:
        """Return the logarithm of the sum's moment-generating function, and its derivative."""
        with np.errstate(divide="ignore"):
            unseen, seen = np.log(self.chances) + slope * self.sizes, np.log1p(-self.chances)
        both = np.logaddexp(unseen, seen)
        mean = np.sum(self.values * self.sizes * np.exp(unseen - both))
        return float(np.sum(self.values * both)), float(mean)


def _crossing(reached: Callable[[float], bool], high: float) -> float:
    """Return where a condition that holds from some number on begins to; ``high`` if it never does."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def of_divergence(current: Sequence[float], previous: Sequence[float]) -> NullDistribution:
    """Return the null distribution of the Jensen-Shannon divergence of two samples.

    The mean is exact, value by value. The variance takes values as independent but for their common sum,
    which costs one degree of freedom. With two values of few rows, every outcome is written out.
    """
    pooled, n, m = _pooled(current, previous)
    if len(pooled) < 2 or not n or not m:  # noqa: PLR2004
        return NoChance()
    if len(pooled) == 2 and min(n, m) * pooled.min() <= DENSE * (n + m):  # noqa: PLR2004
        return _of_two(pooled, n, m)
    sizes, values = np.unique(pooled, return_counts=True)
    return _divergence([hypergeometric_moments(size, n, m) for size in sizes], values)


def of_bins(rows: float, reference: Sequence[float]) -> NullDistribution:
    """Return the null distribution of the divergence over bins that the reference's own quantiles bound.

    Then its counts were fixed beforehand, and what varies is how much of a distribution lies between its
    quantiles: of ``m`` rows, each gap between two that follow each other holds the same share on average, and
    the shares of bins follow a Dirichlet distribution. Below the smallest row and above the largest there is
    one gap each: a share of 1/m in the mean and not at all rarely more, where the reference has none.
    """
    before = np.asarray(reference, np.float64)
    n, m = float(rows), float(before.sum())
    if len(before) < 2 or not n or not m:  # noqa: PLR2004
        return NoChance()
    gaps = np.maximum(before - (np.arange(len(before)) == 1), 1.0)  # the first bin begins with a row
    kinds, bins = np.unique(np.stack([before, gaps]), axis=1, return_counts=True)
    return _divergence(
        [beta_binomial_moments(n, rows, m, gap, float(gaps.sum())) for rows, gap in kinds.T], bins
    )


def _divergence(moments: Sequence[tuple[float, float]], values: NDArray[np.int64]) -> NullDistribution:
    """Add up what values contribute: mean and variance of each kind, and how many there are of it."""
    means, variances = np.asarray(moments, np.float64).T
    count = int(values.sum())
    mean = float(np.sum(values * means))
    variance = float(np.sum(values * variances)) * (count - 1) / count
    return Divergence(mean, variance) if mean > 0 and variance > 0 else NoChance()


def of_largest_share(current: Sequence[float], previous: Sequence[float]) -> NullDistribution:
    """Return the null distribution of the L-infinity distance of two samples."""
    pooled, n, m = _pooled(current, previous)
    if len(pooled) < 2 or not n or not m:  # noqa: PLR2004
        return NoChance()
    judged = pooled[:1] if len(pooled) == 2 else pooled  # noqa: PLR2004 - of two, one moves as far as the other
    return _largest(judged, n, m)


def of_share(hits: tuple[float, float], rows: tuple[float, float]) -> NullDistribution:
    """Return the null distribution of the difference of one share between two samples.

    The two-proportion z-test where hits are many, Fisher's exact test where they are few.
    """
    pooled = sum(hits)
    if pooled in (0, sum(rows)):
        return NoChance()
    return _largest(np.array([float(pooled)]), float(rows[0]), float(rows[1]))


def of_unseen(current: Sequence[float], previous: Sequence[float]) -> NullDistribution:
    """Return the null distribution of the share of rows whose value the other sample never had."""
    pooled, n, m = _pooled(current, previous)
    if not n or not m:
        return NoChance()
    sizes, values = np.unique(pooled, return_counts=True)
    chances = np.array([chance_of_all_current(size, n, m) for size in sizes])
    kept = chances > 1e-300  # noqa: PLR2004 - below it, never
    if not kept.any():
        return NoChance()
    return Unseen(n, sizes[kept], values[kept].astype(np.float64), chances[kept])


def _pooled(current: Sequence[float], previous: Sequence[float]) -> tuple[Floats, float, float]:
    now, before = np.asarray(current, np.float64), np.asarray(previous, np.float64)
    pooled = (now + before).round()
    return pooled[pooled > 0], float(now.sum().round()), float(before.sum().round())


def _of_two(pooled: Floats, n: float, m: float) -> DiscreteTail:
    """Write out every divergence that two values can have, and its probability."""
    rows, chances = hypergeometric(float(pooled[0]), n, m)
    one = divergence_terms(rows / n, (pooled[0] - rows) / m)
    steps = one + divergence_terms((n - rows) / n, (m - pooled[0] + rows) / m)
    return _discrete(steps, chances, [])


def _largest(pooled: Floats, n: float, m: float) -> DiscreteTail:
    sizes, values = np.unique(pooled, return_counts=True)
    steps, chances, widths = [np.empty(0)], [np.empty(0)], []
    for size, count in zip(sizes, values, strict=True):
        share = size / (n + m)
        if min(n, m) * min(share, 1 - share) > DENSE:
            widths += [math.sqrt(share * (1 - share) * (1 / n + 1 / m))] * int(count)
        else:
            rows, chance = hypergeometric(float(size), n, m)
            steps.append(np.abs(rows / n - (size - rows) / m))
            chances.append(chance * count)
    return _discrete(np.concatenate(steps), np.concatenate(chances), widths)


def _discrete(steps: Floats, chances: Floats, widths: Sequence[float]) -> DiscreteTail:
    order = np.argsort(-steps, kind="stable")
    return DiscreteTail(steps[order], np.cumsum(chances[order]), np.asarray(widths, np.float64))
