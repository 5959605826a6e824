"""The gamma distribution's tail, without a library."""

import itertools
import math


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
