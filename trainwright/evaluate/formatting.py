"""Format estimates, intervals, limits and names for the report and the summaries."""

import math

from trainwright.evaluate.findings import Findings
from trainwright.report.markdown import escape
from trainwright.significance import Estimate
from trainwright.verdicts import ABOVE, BELOW, RATIO, SIZE, UP_TO, Rule

NONE = "-"
_SIGNS = {ABOVE: ">", BELOW: "<", UP_TO: "≤", SIZE: "≤", RATIO: "≥"}
_MOST_DECIMALS = 7

AGAINST_BASELINE = ("non_inferiority", "superiority", "worsening", "constant")
"""Kinds of rules whose number is a difference, and is written with its sign."""


def decimals(width: float, value: float = 0.0) -> int:
    """Return how many decimals to write: two digits of the interval's width, but 3 of a number below 10."""
    least = 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0  # noqa: PLR2004
    if not (math.isfinite(width) and width > 0):
        return least
    return min(_MOST_DECIMALS, max(least, 1 - math.floor(math.log10(width))))


def estimate(found: Estimate | None, *, signed: bool = False) -> str:
    """Write an estimate with its interval, ``0.711 [0.702, 0.719]``; ``-`` where there is none."""
    return " ".join(value_and_interval(found, signed=signed)) if found else NONE


def value_and_interval(found: Estimate | None, *, signed: bool = False) -> tuple[str, str]:
    """Write an estimate and its interval, with as many decimals as the interval deserves."""
    if found is None:
        return NONE, NONE
    digits, sign = decimals(found.high - found.low, found.value), "+" if signed else ""
    # Zero is added so that no zero has a minus.
    numbers = (round(number, digits) + 0.0 for number in (found.value, found.low, found.high))
    value, low, high = (f"{number:{sign},.{digits}f}" for number in numbers)
    return value, f"[{low}, {high}]"


def rule_cells(rule: Rule, kind: str) -> list[object]:
    """Write name, value, interval and limit of a rule: ``> 0.65``, ``≤ 0.05``, ``> -0.01``.

    A rule without a number, as of a baseline that is missing, has ``-``.
    """
    number = Estimate(rule.value, *rule.interval) if rule.interval else None
    return [rule.name, *value_and_interval(number, signed=kind in AGAINST_BASELINE), limit(rule, kind)]


def limit(rule: Rule | None, kind: str) -> str:
    """Write the limit of a rule with the side on which it holds; ``-`` where there is none."""
    if rule is None or not rule.interval:
        return NONE
    text = f"{rule.limit:{'+' if kind in AGAINST_BASELINE and rule.limit else ''}.6g}"
    return f"{_SIGNS[rule.test]} {text}"


def count(rows: int) -> str:
    """Write a number of rows; nothing for 0."""
    return f"{rows:,}" if rows else ""


def level(findings: Findings) -> str:
    """Write the confidence of all intervals: ``95 %``."""
    return f"{100 * findings.evaluation.confidence:g} %"


def threshold_text(findings: Findings) -> str:
    """Write the sentence on the threshold, after a space; nothing for kinds without one."""
    if findings.threshold is None:
        return ""
    return f" A score of at least {findings.threshold:.4g} predicts {findings.sample.class_names[1]}."


def bullet(name: str, text: str) -> str:
    """Write an item of a Markdown list."""
    return f"- {escape(name)}: {escape(text)}"
