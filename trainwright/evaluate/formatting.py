"""Format estimates, intervals and limits for the report and the summaries."""

import math

from trainwright.experiment import Evaluation
from trainwright.significance import Estimate
from trainwright.verdicts import ABOVE, BELOW, RATIO, SIZE, UP_TO, Rule

NONE = "-"
_SIGNS = {ABOVE: ">", BELOW: "<", UP_TO: "≤", SIZE: "≤", RATIO: "≥"}
_MOST_DECIMALS = 7

AGAINST_BASELINE = ("non_inferiority", "superiority", "worsening")
"""Kinds of rules whose number is a difference, and is written with its sign."""


def decimals(width: float, value: float = 0.0) -> int:
    """Return how many decimals to write: two digits of the interval's width, but 3 of a number below 10."""
    least = 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0  # noqa: PLR2004
    if not (math.isfinite(width) and width > 0):
        return least
    return min(_MOST_DECIMALS, max(least, 1 - math.floor(math.log10(width))))


def estimate(found: Estimate | None, *, signed: bool = False) -> str:
    """Write an estimate with its interval, ``0.711 [0.702, 0.719]``; ``-`` where there is none."""
    if found is None:
        return NONE
    return f"{value(found, signed=signed)} {interval(found, signed=signed)}"


def value(found: Estimate | None, *, signed: bool = False) -> str:
    """Write an estimate alone, with as many decimals as its interval deserves."""
    if found is None:
        return NONE
    return _number(found.value, decimals(found.high - found.low, found.value), signed=signed)


def interval(found: Estimate | None, *, signed: bool = False) -> str:
    """Write an interval alone."""
    if found is None:
        return NONE
    digits = decimals(found.high - found.low, found.value)
    low, high = (_number(end, digits, signed=signed) for end in (found.low, found.high))
    return f"[{low}, {high}]"


def _number(number: float, digits: int, *, signed: bool) -> str:
    number = round(number, digits) + 0.0  # no zero with a minus
    return f"{number:{'+' if signed else ''},.{digits}f}"


def of_rule(rule: Rule) -> Estimate | None:
    """Return the number of a rule with its interval; None where it has no interval."""
    return Estimate(rule.value, *rule.interval) if rule.interval else None


def limit(rule: Rule, kind: str) -> str:
    """Write the limit of a rule with the side on which it holds: ``> 0.65``, ``≤ 0.05``, ``> -0.01``.

    A rule without a number, as of a baseline that is missing, has ``-``.
    """
    if not rule.test:
        return NONE
    text = f"{rule.limit:{'+' if kind in AGAINST_BASELINE and rule.limit else ''}.6g}"
    return f"{_SIGNS[rule.test]} {text}"


def level(evaluation: Evaluation) -> str:
    """Write the confidence of all intervals: ``95 %``."""
    return f"{100 * evaluation.confidence:g} %"
