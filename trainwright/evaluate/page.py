"""The report of an evaluation: decision, rules, metrics, slices, fairness, and what was not judged."""

from collections.abc import Iterator
from dataclasses import replace

from trainwright.evaluate import formatting as words
from trainwright.evaluate.findings import Disparity, Findings, GroupComparison, GroupRates, Ruling
from trainwright.evaluate.page_figures import (
    confusion_section,
    curves_section,
    figures_section,
    interval_methods,
    overfitting_section,
    slice_sections,
)
from trainwright.evaluate.rules import metric_title
from trainwright.evaluate.summary import next_steps
from trainwright.report import charts
from trainwright.report.page import Block, DenseTable, Figure, Paragraph, ReportPage, ReportSection, Table
from trainwright.verdicts import Rule, Verdict, worst

_MORE, _NEEDED = 3, 5
"""Slices of a rule with a line beside the worst; place of the rows needed, left out where none are."""

_KINDS = {
    "non_inferiority": "not worse than production",
    "superiority": "better than production",
    "worsening": "not less fair than production",
}


def rules_section(findings: Findings, steps: list[str]) -> ReportSection:
    """Draw every rule, the worst of its slices first, and what to do next."""
    lines = [line for ruling in findings.rulings_by_severity for line in _lines(ruling)]
    flagged = [index for index, (decision, _) in enumerate(lines) if decision != "PASS"]
    interval = f"{words.level(findings.evaluation)} interval"
    header = ["rule", "value", interval, "limit", "result", "rows needed", "about"]
    kept = [at for at in range(len(header)) if at != _NEEDED or any(cells[at] for _, cells in lines)]
    rows = [[cells[at] for at in kept] for _, cells in lines]
    numeric = (1, 2, 3, *([_NEEDED] if _NEEDED in kept else []))
    blocks: list[Block] = [Table([header[at] for at in kept], rows, numeric=numeric, flagged=flagged)]
    blocks += [Paragraph(step) for step in steps]
    blocks += [Paragraph(f"Look at this: {warning}") for warning in findings.warnings]
    return ReportSection("Rules", blocks)


def _lines(ruling: Ruling) -> Iterator[tuple[str, list[object]]]:
    """Write the lines of a rule: one, or of slices the worst and some more that do not pass."""
    if not ruling.rules:
        yield ruling.decision, _unjudged(ruling)
        return
    first, *rest = ruling.rules
    broken = [rule for rule in rest if rule.outcome() != "PASS"]
    yield ruling.decision, _rule_cells(ruling, first, _about(ruling, first, len(broken)))
    for rule in broken[:_MORE]:
        yield rule.outcome(), _rule_cells(ruling, rule, "; ".join(["also", *_beside(rule)]))
    measured = {rule.name for rule in ruling.rules}
    unmeasured = [entry for entry in ruling.undecided if entry.decision and entry.name not in measured]
    for entry in unmeasured[:_MORE]:
        yield entry.decision, _empty_cells(entry.name, entry.decision, entry.needed, entry.reason)


def _rule_cells(ruling: Ruling, rule: Rule, about: str) -> list[object]:
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
    return [*(["open, and reported only"] if openly else []), *told]


def _unjudged(ruling: Ruling) -> list[object]:
    reason = ruling.undecided[0].reason if ruling.undecided else ruling.fact
    return _empty_cells(ruling.name, ruling.decision, ruling.needed, reason)


def _empty_cells(name: str, decision: str, needed: int, reason: str) -> list[object]:
    return [name, words.NONE, words.NONE, words.NONE, decision, _needed(needed), reason]


def _needed(rows: int) -> str:
    return f"{rows:,}" if rows else ""


def rule_on_disparity(findings: Findings, kind: str, measure: str, columns: tuple[str, ...]) -> Rule | None:
    """Return the rule on a measure of fairness over some columns; None where there is no limit on it."""
    name = f"{metric_title(measure)} by {' and '.join(columns)}"
    wanted = name if kind == "fairness" else f"worsening of {name}"
    named = (ruling for ruling in findings.rulings if ruling.kind == kind and ruling.name == wanted)
    return next((ruling.rules[0] for ruling in named if ruling.rules), None)


_GROUPS_DRAWN = 24
_FIGURES = 4
_GROUPS_LISTED = 1_000


def fairness_section(findings: Findings) -> ReportSection:
    """Draw every disparity against its limits, then the groups."""
    fairness = findings.fairness
    if fairness is None:
        return ReportSection("Fairness", [])
    blocks: list[Block] = [_disparities(findings, fairness)]
    blocks += list(_fairness_figures(fairness))[:_FIGURES]
    blocks += _group_tables(fairness)
    against = findings.evaluation.fairness.against if findings.evaluation.fairness else "groups"
    intro = "Groups are compared " + ("with each other." if against == "groups" else "with the whole.")
    return ReportSection("Fairness", blocks, intro=intro)


def _disparities(findings: Findings, fairness: GroupComparison) -> Table:
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
        f"{metric_title(entry.measure)} by {' and '.join(entry.columns)}",
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


def _fairness_figures(fairness: GroupComparison) -> Iterator[Figure]:
    for columns, groups in fairness.groups.items():
        for rate in _rates(groups)[:2]:
            known = [group for group in groups if rate in group.rates]
            ordered = sorted(known, key=lambda group: group.rates[rate].value)
            rows = [_group_row(group, rate) for group in _ends(ordered)]
            if len(rows) > 1:
                cut = f"; the {len(rows)} at the ends of {len(ordered):,}" if len(rows) < len(ordered) else ""
                caption = f"{metric_title(rate)} by {' and '.join(columns)}, to the right the rows{cut}."
                yield Figure(charts.intervals(rows, axis=metric_title(rate)), caption)


def _ends(groups: list[GroupRates]) -> list[GroupRates]:
    """Keep the lowest and the highest of many groups."""
    half = _GROUPS_DRAWN // 2
    return groups if len(groups) <= _GROUPS_DRAWN else [*groups[:half], *groups[-half:]]


def _rates(groups: tuple[GroupRates, ...]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.rates))


def _group_row(group: GroupRates, rate: str) -> charts.Interval:
    found = group.rates[rate]
    return charts.Interval(group.name, found.value, found.low, found.high, f"{group.rows:,}")


def _group_tables(fairness: GroupComparison) -> Iterator[DenseTable]:
    room = _GROUPS_LISTED // max(1, len(fairness.groups))
    for columns, groups in fairness.groups.items():
        rates = _rates(groups)
        rows = [
            [group.name, f"{group.rows:,}", *(words.estimate(group.rates.get(rate)) for rate in rates)]
            for group in sorted(groups, key=lambda group: -group.rows)[:room]
        ]
        title = f"{len(groups):,} groups by {' and '.join(columns)}"
        title += f", the {len(rows):,} largest" if len(rows) < len(groups) else ""
        yield DenseTable(title, ["group", "rows", *(metric_title(rate) for rate in rates)], rows)


_LISTED = 500
"""Most lines of what was not judged."""

_QUESTIONS = {
    "binary": "Does the model predict {label!r} well enough?",
    "multiclass": "Does the model tell the classes of {label!r} apart well enough?",
    "regression": "Does the model estimate {label!r} well enough?",
    "language_model": "Does the model predict text well enough?",
}


def draw_report(findings: Findings, verdict: Verdict) -> ReportPage:
    """Draw the page: the decision, its rules, the figures, every slice, and the inputs."""
    sections = [
        rules_section(findings, next_steps(findings, verdict)),
        figures_section(findings),
        *slice_sections(findings),
        curves_section(findings),
        confusion_section(findings),
        fairness_section(findings),
        overfitting_section(findings),
        _unjudged_section(verdict),
        _judged_section(verdict),
        ReportSection("How it was judged", [Paragraph(text) for text in _method(findings)]),
    ]
    return ReportPage(
        title=_QUESTIONS[findings.kind].format(label=findings.sample.label_name),
        subtitle=_sentence(findings.headline.removeprefix(f"{verdict.decision}: ")),
        decision=verdict.decision,
        facts=_facts(findings),
        sections=[section for section in sections if section.blocks],
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _facts(findings: Findings) -> list[tuple[str, object]]:
    sample = findings.sample
    facts: list[tuple[str, object]] = []
    for name, found in list(findings.overall.items())[:1]:
        facts.append(
            (
                f"{metric_title(name)}, {words.level(findings.evaluation)} interval",
                words.estimate(found.candidate),
            )
        )
        if found.gain:
            facts.append((f"Gain in {metric_title(name)}", words.estimate(found.gain, signed=True)))
    facts.append(("Compared with", _baseline_name(findings)))
    facts.append(("Rows judged", f"{sample.rows:,} of {sample.split}"))
    if len(sample.classes) == 2 and sample.rows:  # noqa: PLR2004
        facts.append((sample.classes[1], f"{sample.counts[1]:,} ({sample.counts[1] / sample.rows:.1%})"))
    elif sample.classes:
        facts.append(("Classes", f"{len(sample.classes):,}"))
    if findings.threshold is not None:
        facts.append(("Threshold", f"{findings.threshold:.4g}, from the {findings.threshold_from}"))
    left = {
        "Rows without a label": sample.unlabelled,
        "Rows of one model only": sample.unmatched,
        "Groups drawn together": sample.clusters,
    }
    facts += [(name, f"{count:,}") for name, count in left.items() if count]
    if sample.weighted:
        facts.append(("Weights", "rows count by their weight"))
    return facts


def _baseline_name(findings: Findings) -> str:
    baseline = findings.baseline
    if baseline is None:
        return "nothing: no model in production"
    return f"production, version {baseline.version}" if baseline.version else f"model {baseline.model[:12]}"


def _unjudged_section(verdict: Verdict) -> ReportSection:
    entries = sorted(verdict.not_judged, key=lambda entry: not entry.decision)
    rows = [[entry.name, entry.decision or "reported only", entry.reason] for entry in entries[:_LISTED]]
    more = len(entries) - len(rows)
    blocks: list[Block] = []
    if rows:
        title = f"{len(entries):,} {'thing was' if len(entries) == 1 else 'things were'} not judged"
        blocks.append(DenseTable(title, ["what", "decides", "why"], rows, noted=True, opened=len(rows) <= 12))  # noqa: PLR2004
    if more > 0:
        blocks.append(Paragraph(f"{more:,} more are in verdict.json."))
    intro = "Asked for, or part of the data, and left out of the rules. What could not be judged is no pass."
    return ReportSection("Not judged", blocks, intro=intro)


def _judged_section(verdict: Verdict) -> ReportSection:
    rows = [[name, digest] for name, digest in verdict.judged.items()]
    rows.append(["verdict", verdict.digest])
    if verdict.baseline_version:
        rows.append(["baseline, registered version", verdict.baseline_version])
    intro = "SHA-256 of everything that this verdict is about. Another content has another digest."
    return ReportSection("What was judged", [Table(["what", "digest"], rows)], intro=intro)


def _method(findings: Findings) -> list[str]:
    asked = findings.evaluation
    alpha = f"{50 * (1 - asked.confidence):.3g} %"
    texts = [
        "A rule holds where its whole interval lies on the good side of the limit, is broken where the whole "
        "interval lies on the bad side, and is inconclusive between: then the rows cannot tell, and the rows "
        "that probably could (power 80 %) are named. Sizes that noise only enlarges, such as a gap between "
        "slices, hold up to their limit and are broken where their interval lies beyond it.",
        "Not worse than production: the paired gain lies above minus the margin. Better than production: it "
        "lies above the smallest gain that was asked for.",
        f"Rules on slices: the chance that any slice is called broken that is not is {alpha} (Holm 1979).",
        "The decision is the worst of all rules: FAIL, then HOLD, then INCONCLUSIVE. Only PASS is a pass.",
    ]
    texts += interval_methods(findings)
    if findings.sample.clusters:
        clusters = f"{findings.sample.clusters:,} groups"
        texts.append(
            f"Rows of one {asked.cluster} were drawn together: {clusters}, not rows, carry the intervals."
        )
    return texts
