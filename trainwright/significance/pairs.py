"""Two classifiers on the same rows: what the rows on which they differ can tell."""

import math

import numpy as np

from trainwright.errors import InternalError
from trainwright.significance.estimate import CONFIDENCE, Estimate
from trainwright.significance.proportions import wilson


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
    low = _reach(one.value - one.low, two.high - two.value, tied)
    high = _reach(two.value - two.low, one.high - one.value, tied)
    return Estimate(value, max(-1.0, value - low), min(1.0, value + high))


def _reach(below: float, above: float, tied: float) -> float:
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
    trials, fewer = first + second, min(first, second)
    if first == second:
        return 1.0
    steps = np.arange(1, fewer + 1, dtype=np.float64)
    logs = np.concatenate([[0.0], np.cumsum(np.log((trials - steps + 1) / steps))]) - trials * math.log(2)
    chances = np.exp(logs)
    return float(min(1.0, 2 * (chances.sum() - chances[-1] / 2)))
