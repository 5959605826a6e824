"""Fairness on the evaluation's page: how unequal groups are, against the limits, and who they are."""

from collections.abc import Iterator

from trainwright.evaluate import page_words as words
from trainwright.evaluate.findings import Disparity, Fairness, Findings, Group
from trainwright.evaluate.outcomes import spoken
from trainwright.evaluate.page_rules import rule_on_disparity
from trainwright.report import charts
from trainwright.report.page import Block, Dense, Figure, Section, Table
from trainwright.verdicts import worst

_GROUPS_DRAWN = 24
_FIGURES = 4
_GROUPS_LISTED = 1_000


def fairness_section(findings: Findings) -> Section:
    """Draw every disparity against its limits, then the groups."""
    fairness = findings.fairness
    if fairness is None:
        return Section("Fairness", [])
    blocks: list[Block] = [_disparities(findings, fairness)]
    blocks += list(_figures(fairness))[:_FIGURES]
    blocks += _groups(fairness)
    against = findings.evaluation.fairness.against if findings.evaluation.fairness else "groups"
    intro = "Groups are compared " + ("with each other." if against == "groups" else "with the whole.")
    return Section("Fairness", blocks, intro=intro)


def _disparities(findings: Findings, fairness: Fairness) -> Table:
    both = findings.baseline is not None
    header = ["measure", "result", "value", "limit", *(["worse by", "limit", "production"] if both else [])]
    rows, flagged = [], []
    for index, entry in enumerate(fairness.disparities):
        row, said = _disparity(findings, entry, both=both)
        rows.append(row)
        if said - {"PASS"}:
            flagged.append(index)
    return Table([*header, "between"], rows, numeric=range(2, len(header)), flagged=flagged)


def _disparity(findings: Findings, entry: Disparity, *, both: bool) -> tuple[list[object], set[str]]:
    value = rule_on_disparity(findings, "fairness", entry.measure, entry.columns)
    worse = rule_on_disparity(findings, "worsening", entry.measure, entry.columns)
    said = [rule.outcome() for rule in (value, worse) if rule]
    cells: list[object] = [
        f"{spoken(entry.measure)} by {' and '.join(entry.columns)}",
        worst(said) if said else "no limit",
        words.estimate(entry.value),
        words.limit(value, "fairness") if value else words.NONE,
    ]
    if both:
        cells += [
            words.estimate(entry.worsening, signed=True),
            words.limit(worse, "worsening") if worse else words.NONE,
            words.estimate(entry.baseline),
        ]
    ends = f"{entry.lowest} and {entry.highest}" if entry.lowest and entry.highest else words.NONE
    return [*cells, entry.reason or ends], set(said)


def _figures(fairness: Fairness) -> Iterator[Figure]:
    for columns, groups in fairness.groups.items():
        for rate in _rates(groups)[:2]:
            known = [group for group in groups if rate in group.rates]
            ordered = sorted(known, key=lambda group: group.rates[rate].value)
            rows = [_row(group, rate) for group in _ends(ordered)]
            if len(rows) > 1:
                cut = f"; the {len(rows)} at the ends of {len(ordered):,}" if len(rows) < len(ordered) else ""
                caption = f"{spoken(rate)} by {' and '.join(columns)}, to the right the rows{cut}."
                yield Figure(charts.intervals(rows, axis=spoken(rate)), caption)


def _ends(groups: list[Group]) -> list[Group]:
    """Keep the lowest and the highest of many groups."""
    half = _GROUPS_DRAWN // 2
    return groups if len(groups) <= _GROUPS_DRAWN else [*groups[:half], *groups[-half:]]


def _rates(groups: tuple[Group, ...]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.rates))


def _row(group: Group, rate: str) -> charts.Interval:
    found = group.rates[rate]
    return charts.Interval(group.name, found.value, found.low, found.high, f"{group.rows:,}")


def _groups(fairness: Fairness) -> Iterator[Dense]:
    room = _GROUPS_LISTED // max(1, len(fairness.groups))
    for columns, groups in fairness.groups.items():
        rates = _rates(groups)
        rows = [
            [group.name, f"{group.rows:,}", *(words.estimate(group.rates.get(rate)) for rate in rates)]
            for group in sorted(groups, key=lambda group: -group.rows)[:room]
        ]
        title = f"{len(groups):,} groups by {' and '.join(columns)}"
        title += f", the {len(rows):,} largest" if len(rows) < len(groups) else ""
        yield Dense(title, ["group", "rows", *(spoken(rate) for rate in rates)], rows)
