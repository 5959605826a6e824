"""Beyond its interval: the chance of a number, and the rows that would tell."""

import math
from statistics import NormalDist

from trainwright.significance.estimate import CONFIDENCE, Estimate, normal_quantile

POWER = 0.8
"""How often the rows that are asked for would tell, if the number were the true one."""

_MOST = 1e15


def beyond(estimate: Estimate, limit: float, confidence: float = CONFIDENCE) -> float:
    """Return the one-sided chance of a number this far from a limit, if the truth were at the limit.

    Normal, with the spread that the interval has on the side of the limit; so it is below
    ``(1 - confidence) / 2`` exactly where the limit lies outside the interval. 0 where there is no spread.

    Args:
        estimate: The number with its interval.
        limit: What it is held against.
        confidence: Of the interval.
    """
    distance = abs(estimate.value - limit)
    spread = _spread(estimate, limit, confidence)
    if not spread > 0:
        return 0.5 if not distance else 0.0
    return 1 - NormalDist().cdf(distance / spread)


def rows_needed(
    estimate: Estimate,
    limit: float,
    rows: int,
    confidence: float = CONFIDENCE,
    power: float = POWER,
    *,
    tests: float = 1.0,
) -> int:
    """Return how many rows like these would tell the number from the limit; 0 where none would.

    The width of an interval shrinks with the root of the rows, so this is
    ``rows * ((z + z_power) * spread / distance) ** 2``, rounded up to two digits (Chow, Shao and Wang, Sample
    Size Calculations in Clinical Research, 2nd edition, section 3.1).

    Args:
        estimate: The number with its interval.
        limit: What it is held against.
        rows: Rows that it was taken over.
        confidence: Of the interval.
        power: How often they would tell.
        tests: How many tests share the level, as Bonferroni and Holm do; at least 1.
    """
    distance = abs(estimate.value - limit)
    spread = _spread(estimate, limit, confidence)
    if not distance or not spread > 0:
        return 0
    reach = normal_quantile(1 - (1 - confidence) / tests) + NormalDist().inv_cdf(power)
    needed = rows * (reach * spread / distance) ** 2
    if needed > _MOST:
        return 0
    unit = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
    return math.ceil(needed / unit) * unit


def _spread(estimate: Estimate, limit: float, confidence: float) -> float:
    end = estimate.high if limit > estimate.value else estimate.low
    return abs(end - estimate.value) / normal_quantile(confidence)
