"""An estimate with its interval, quantiles of the normal and the gamma distribution, and the rows needed."""

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""Default confidence of intervals."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with the interval around it, ``low <= value <= high`` up to rounding."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write it as ``0.741 [0.738, 0.744]``."""
        return f"{_unsigned_zero(self.value)} {self.interval}"

    @property
    def interval(self) -> str:
        """The interval alone, as ``[0.738, 0.744]``."""
        return f"[{_unsigned_zero(self.low)}, {_unsigned_zero(self.high)}]"


def _unsigned_zero(value: float) -> str:
    """Write three decimals; of what rounds to zero without the minus."""
    return f"{round(value, 3) + 0.0:.3f}"


def independent_difference(first: Estimate, second: Estimate) -> Estimate:
    """Estimate ``first - second`` of independent samples: Zou and Donner, Statistics in Medicine 27, 2008."""
    value = first.value - second.value
    low = math.hypot(first.value - first.low, second.high - second.value)
    high = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, value - low, value + high)


def apart(found: Estimate, first: Estimate, second: Estimate) -> Estimate:
    """Widen the interval of ``first - second`` to what both have alone.

    A share of which all is right does not vary from draw to draw, and is not certain for that: the paired
    interval of a difference then knows the other's spread alone, or none. Both intervals are put together as
    those of independent figures are; what pairs have in common only makes a difference surer.
    """
    alone = independent_difference(first, second)
    return Estimate(found.value, min(found.low, max(-1.0, alone.low)), max(found.high, min(1.0, alone.high)))


def normal_quantile(confidence: float) -> float:
    """Return z such that a standard normal lies in [-z, z] with this probability, in (0, 1)."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


POWER = 0.8
_MAX_ROWS = 1e15


def beyond(estimate: Estimate, limit: float, confidence: float = CONFIDENCE) -> float:
    """Return the one-sided chance of a number this far from a limit, if the truth were at the limit.

    Normal, with the spread that the interval has on the side of the limit; so it is below
    ``(1 - confidence) / 2`` exactly where the limit lies outside the interval. 0 where there is no spread.
    """
    distance = abs(estimate.value - limit)
    spread = _standard_error(estimate, limit, confidence)
    if not spread > 0:
        return 0.5 if not distance else 0.0
    return 1 - NormalDist().cdf(distance / spread)


def rows_needed(
    estimate: Estimate, limit: float, rows: int, confidence: float = CONFIDENCE, *, tests: float = 1.0
) -> int:
    """Return how many rows like these would tell the number from the limit with a power of 80 %.

    The width of an interval shrinks with the root of the rows, so this is
    ``rows * ((z + z_power) * spread / distance) ** 2``, rounded up to two digits (Chow, Shao and Wang, Sample
    Size Calculations in Clinical Research, 2nd edition, section 3.1). 0 where no number of rows would.

    Args:
        estimate: The number with its interval.
        limit: What it is compared with.
        rows: Rows that it was taken over.
        confidence: Of the interval.
        tests: How many tests share the level, as Bonferroni and Holm do; at least 1.
    """
    distance = abs(estimate.value - limit)
    spread = _standard_error(estimate, limit, confidence)
    if not distance or not spread > 0:
        return 0
    reach = normal_quantile(1 - (1 - confidence) / tests) + NormalDist().inv_cdf(POWER)
    needed = rows * (reach * spread / distance) ** 2
    if needed > _MAX_ROWS:
        return 0
    unit = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
    return math.ceil(needed / unit) * unit


def _standard_error(estimate: Estimate, limit: float, confidence: float) -> float:
    end = estimate.high if limit > estimate.value else estimate.low
    return abs(end - estimate.value) / normal_quantile(confidence)


_BETS = tuple(1.5 / 4**index for index in range(6))
"""Sizes of the bets: a large one finds a large difference soon, a small one a small difference later."""

_MOST_AT_STAKE = 0.75
"""Largest share of the capital that one bet can lose; the paper's ``c``."""

_STEPS = 32


def mean_bounds(values: Floats, low_level: float, high_level: float) -> Estimate:
    """Bound the mean of values in [-1, 1] that came one after the other.

    With a probability of at most ``low_level`` the lower end is ever above the mean, after any number of
    values, and with at most ``high_level`` the upper end is ever below it.

    Diversified Kelly betting: Waudby-Smith and Ramdas, Estimating means of bounded random variables by
    betting, JRSS B 86 (2024), 1-27. Who bets that the next value is above ``m`` cannot expect to win while
    the mean is at most ``m``. So by Ville's inequality the capital ever exceeds ``1 / level`` with a
    probability of at most ``level``.
    """
    unit = (values + 1) / 2
    low, high = _lower_bound(unit, low_level), 1 - _lower_bound(1 - unit, high_level)
    mean = (
        float(unit.mean()) if len(unit) else 0.5
    )  # moved into the bounds, which earlier values may have set
    return Estimate(*(2 * end - 1 for end in (min(max(mean, low), high), low, high)))


def _lower_bound(values: Floats, level: float) -> float:
    """Return the largest mean at which one of the bettors, who share the level, ever won enough."""
    below, above, enough = 0.0, 1.0, math.log(len(_BETS) / level)
    for _ in range(_STEPS):  # the capital falls as the mean grows
        mean = (below + above) / 2
        capitals = (np.cumsum(np.log1p(min(bet, _MOST_AT_STAKE / mean) * (values - mean))) for bet in _BETS)
        if any(capital.max(initial=0.0) >= enough for capital in capitals):
            below = mean
        else:
            above = mean
    return below


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
