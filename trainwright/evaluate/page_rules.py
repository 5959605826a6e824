"""The rules on the evaluation's page: each number against its limit, and what every slice's rule said."""

from collections.abc import Iterator
from dataclasses import replace

from trainwright.evaluate import page_words as words
from trainwright.evaluate.findings import Findings, Ruling
from trainwright.evaluate.outcomes import spoken
from trainwright.report.page import Block, Section, Table, Text
from trainwright.verdicts import SEVERITY, Rule, worst

_MORE, _NEEDED = 3, 5
"""Slices of a rule with a line beside the worst; place of the rows needed, left out where none are."""

_KINDS = {
    "non_inferiority": "not worse than production",
    "superiority": "better than production",
    "worsening": "not less fair than production",
}


def rules_section(findings: Findings, steps: list[str]) -> Section:
    """Draw every rule, the worst of its slices first, and what to do next."""
    lines = [line for ruling in gravest_first(findings) for line in _lines(ruling)]
    flagged = [index for index, (decision, _) in enumerate(lines) if decision != "PASS"]
    interval = f"{words.level(findings.evaluation)} interval"
    header = ["rule", "value", interval, "limit", "result", "rows needed", "about"]
    kept = [at for at in range(len(header)) if at != _NEEDED or any(cells[at] for _, cells in lines)]
    rows = [[cells[at] for at in kept] for _, cells in lines]
    numeric = (1, 2, 3, *([_NEEDED] if _NEEDED in kept else []))
    blocks: list[Block] = [Table([header[at] for at in kept], rows, numeric=numeric, flagged=flagged)]
    blocks += [Text(step) for step in steps]
    blocks += [Text(f"Look at this: {warning}") for warning in findings.warnings]
    return Section("Rules", blocks)


def gravest_first(findings: Findings) -> list[Ruling]:
    """Return the rulings that decided first; those that decided alike in their order."""
    return sorted(findings.rulings, key=lambda ruling: -SEVERITY.index(ruling.decision))


def _lines(ruling: Ruling) -> Iterator[tuple[str, list[object]]]:
    """Write the lines of a rule: one, or of slices the worst and some more that do not pass."""
    if not ruling.rules:
        yield ruling.decision, _unjudged(ruling)
        return
    first, *rest = ruling.rules
    broken = [rule for rule in rest if rule.outcome() != "PASS"]
    yield ruling.decision, _cells(ruling, first, _about(ruling, first, len(broken)))
    for rule in broken[:_MORE]:
        yield rule.outcome(), _cells(ruling, rule, "; ".join(["also", *_beside(rule)]))
    measured = {rule.name for rule in ruling.rules}
    unmeasured = [entry for entry in ruling.undecided if entry.decision and entry.name not in measured]
    for entry in unmeasured[:_MORE]:
        yield entry.decision, _missing(entry.name, entry.decision, entry.needed, entry.reason)


def _cells(ruling: Ruling, rule: Rule, about: str) -> list[object]:
    signed = ruling.kind in words.AGAINST_BASELINE
    number = words.of_rule(rule)
    return [
        rule.name,
        words.value(number, signed=signed),
        words.interval(number, signed=signed),
        words.limit(rule, ruling.kind),
        rule.outcome(),
        _needed(rule.needed if rule.outcome() != "PASS" else 0),
        about,
    ]


def _about(ruling: Ruling, rule: Rule, broken: int) -> str:
    parts = [_KINDS[ruling.kind]] if ruling.kind in _KINDS else []
    if ruling.scope == "slice" and len(ruling.rules) > 1:
        more = f", {broken} more do not pass" if broken else ""
        parts.append(f"the worst of {len(ruling.rules):,} slices{more}")
    return "; ".join([*parts, *_beside(rule)])


def _beside(rule: Rule) -> list[str]:
    """Return what a rule's detail tells beyond its decision and its interval, which have columns."""
    parts = rule.detail.split("; ") if rule.detail else []
    told = [part for part in parts if part != rule.decision and " interval " not in part]
    openly = rule.outcome() == "PASS" and replace(rule, unsure="INCONCLUSIVE").outcome() != "PASS"
    return [*(["open, and only told"] if openly else []), *told]


def _unjudged(ruling: Ruling) -> list[object]:
    reason = ruling.undecided[0].reason if ruling.undecided else ruling.fact
    return _missing(ruling.name, ruling.decision, ruling.needed, reason)


def _missing(name: str, decision: str, needed: int, reason: str) -> list[object]:
    return [name, words.NONE, words.NONE, words.NONE, decision, _needed(needed), reason]


def _needed(rows: int) -> str:
    return f"{rows:,}" if rows else ""


def decisions_by_slice(findings: Findings) -> dict[str, str]:
    """Return what rules said of slices that they could not pass, by column and slice: ``origin EWR``."""
    found: dict[str, str] = {}
    for ruling in findings.rulings:
        metric = ruling.name.partition(" by ")[0].removesuffix(" of every group")
        for rule in ruling.rules if ruling.scope == "slice" else ():
            if (said := rule.outcome()) != "PASS":
                place = rule.name.removeprefix(f"{metric} of ")
                found[place] = worst([said, *([found[place]] if place in found else [])])
    return found


def rule_on_disparity(findings: Findings, kind: str, measure: str, columns: tuple[str, ...]) -> Rule | None:
    """Return the rule on a measure of fairness over some columns; None where there is no limit on it."""
    name = f"{spoken(measure)} by {' and '.join(columns)}"
    wanted = name if kind == "fairness" else f"worsening of {name}"
    named = (ruling for ruling in findings.rulings if ruling.kind == kind and ruling.name == wanted)
    return next((ruling.rules[0] for ruling in named if ruling.rules), None)
