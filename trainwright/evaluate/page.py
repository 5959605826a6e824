"""The report of an evaluation: decision, rules, metrics, slices, fairness, and what was not judged."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from trainwright.evaluate import formatting
from trainwright.evaluate.findings import CurveLine, Disparity, Findings, PlotData, Ruling, Slice, Slicing
from trainwright.evaluate.page_slices import CANDIDATE, DEFAULTS, NAMES, PRODUCTION, slice_sections
from trainwright.evaluate.rules import CONSTANT_NAMES, metric_title
from trainwright.evaluate.summary import class_rows, metric_rows, next_steps
from trainwright.report import charts
from trainwright.report.page import Block, DenseTable, Figure, Paragraph, ReportPage, ReportSection, Table
from trainwright.report.svg import percent
from trainwright.verdicts import Rule, Verdict, worst

_QUESTIONS = {
    "binary": "Does the model predict {label!r} well enough?",
    "multiclass": "Does the model tell the classes of {label!r} apart well enough?",
    "regression": "Does the model estimate {label!r} well enough?",
    "language_model": "Does the model predict text well enough?",
}


def draw_report(findings: Findings, verdict: Verdict) -> ReportPage:
    """Draw the page: the decision, its rules, the metrics, every slice, and the inputs."""
    fact = findings.headline.removeprefix(f"{verdict.decision}: ")
    sections = [
        _rules_section(findings, verdict),
        _metrics_section(findings),
        _classes_section(findings),
        *slice_sections(findings),
        _curves_section(findings),
        _confusion_section(findings),
        _fairness_section(findings),
        _overfitting_section(findings),
        _inapplicable_section(findings),
        _unjudged_section(verdict),
        _judged_section(verdict),
        ReportSection("How it was judged", [Paragraph(text) for text in _method(findings)]),
    ]
    return ReportPage(
        title=_QUESTIONS[findings.kind].format(label=findings.sample.label_name),
        subtitle=f"{fact[:1].upper()}{fact[1:].rstrip('.')}.",
        decision=verdict.decision,
        facts=_facts(findings),
        sections=[section for section in sections if section.blocks],
    )


def _facts(findings: Findings) -> list[tuple[str, object]]:
    sample, baseline, facts = findings.sample, findings.baseline, list[tuple[str, object]]()
    for name, found in list(findings.overall.items())[:1]:
        title = metric_title(name)
        facts.append(
            (f"{title}, {formatting.level(findings)} interval", formatting.estimate(found.candidate))
        )
        if found.gain:
            facts.append((f"Gain in {title}", formatting.estimate(found.gain, signed=True)))
    compared = "nothing: no model in production"
    if baseline:
        compared = f"model {baseline.model[:12]}"
        compared = f"production, version {baseline.version}" if baseline.version else compared
    facts += [("Compared with", compared), ("Rows judged", f"{sample.rows:,} of {sample.split}")]
    if len(sample.classes) == 2 and sample.rows:  # noqa: PLR2004
        facts.append((sample.classes[1], f"{sample.counts[1]:,} ({sample.counts[1] / sample.rows:.1%})"))
    elif sample.classes:
        facts.append(("Classes", f"{len(sample.classes):,}"))
    if findings.threshold is not None:
        facts.append(("Threshold", f"{findings.threshold:.4g}, from the {findings.threshold_from}"))
    counts = {
        "Rows without a label": sample.unlabelled,
        "Rows of one model only": sample.unmatched,
        "Groups drawn together": sample.clusters,
    }
    facts += [(name, f"{count:,}") for name, count in counts.items() if count]
    return [*facts, ("Weights", "rows count by their weight")] if sample.weighted else facts


_MOST_LINES, _NEEDED = 3, 5
"""Slices of a rule with a line beside the worst; place of the rows needed, left out where none are."""

_KINDS = {
    "non_inferiority": "not worse than production",
    "superiority": "better than production",
    "worsening": "not less fair than production",
    "constant": "the model has learned something",
}


def _rules_section(findings: Findings, verdict: Verdict) -> ReportSection:
    """Draw every rule, the worst of its slices first, and what to do next."""
    interval = f"{formatting.level(findings)} interval"
    header = ["rule", "value", interval, "limit", "result", "rows needed", "about"]
    rows = [cells for ruling in findings.rulings_by_severity for cells in _lines(ruling)]
    flagged = [index for index, cells in enumerate(rows) if cells[4] != "PASS"]
    needed = any(cells[_NEEDED] for cells in rows)
    if not needed:
        del header[_NEEDED]
        for cells in rows:
            del cells[_NEEDED]
    texts = [*next_steps(findings, verdict), *(f"Look at this: {warning}" for warning in findings.warnings)]
    numeric = (1, 2, 3, _NEEDED) if needed else (1, 2, 3)
    table = Table(header, rows, numeric, flagged)
    return ReportSection("Rules", [table, *map(Paragraph, texts)])


def _lines(ruling: Ruling) -> Iterator[list[object]]:
    """Write the lines of a rule: one, or of slices the worst and some more that do not pass."""
    none = [formatting.NONE] * 3
    if not ruling.rules:
        reason = ruling.undecided[0].reason if ruling.undecided else ruling.fact
        yield [ruling.name, *none, ruling.decision, formatting.count(ruling.needed), reason]
        return
    first, *rest = ruling.rules
    broken = [rule for rule in rest if rule.outcome() != "PASS"]
    about = [_KINDS[ruling.kind]] if ruling.kind in _KINDS else []
    if ruling.scope == "slice" and rest:
        more = f", {len(broken)} more do not pass" if broken else ""
        about.append(f"the worst of {len(ruling.rules):,} slices{more}")
    yield _rule_line(ruling, first, about)
    for rule in broken[:_MOST_LINES]:
        yield _rule_line(ruling, rule, ["also"])
    measured = {rule.name for rule in ruling.rules}
    unmeasured = [entry for entry in ruling.undecided if entry.decision and entry.name not in measured]
    for entry in unmeasured[:_MOST_LINES]:
        yield [entry.name, *none, entry.decision, formatting.count(entry.needed), entry.reason]


def _rule_line(ruling: Ruling, rule: Rule, about: list[str]) -> list[object]:
    decision = rule.outcome()
    if decision == "PASS" and replace(rule, unsure="INCONCLUSIVE").outcome() != "PASS":
        about = [*about, "open, and reported only"]
    # Decision and interval have columns of their own.
    details = rule.detail.split("; ") if rule.detail else []
    about = [*about, *(part for part in details if part != decision and " interval " not in part)]
    needed = formatting.count(0 if decision == "PASS" else rule.needed)
    return [*formatting.rule_cells(rule, ruling.kind), decision, needed, "; ".join(about)]


def _metrics_section(findings: Findings) -> ReportSection:
    header, rows = ["figure", "candidate"], metric_rows(findings)
    intro = f"Over all rows, with {formatting.level(findings)} intervals."
    if findings.baseline:
        header, intro = [*header, "production", "gain", "p"], f"{intro} {_PAIRED}"
        whole = (found for name, found in findings.overall.items() if "/" not in name)
        for row, found in zip(rows, whole, strict=True):
            row.append(formatting.NONE if found.p_value is None else f"{found.p_value:.2g}")
    return ReportSection("Figures", [Table(header, rows, numeric=range(1, len(header)))], intro=intro)


_PAIRED = "A gain is paired, row by row, and positive where the candidate is better, whatever the figure."

_CLASSES_DRAWN = 6
_CLASSES_TABLED = 12
_CONFUSED = 30


def _curves_section(findings: Findings) -> ReportSection:
    now, before = findings.curves, findings.baseline_curves or PlotData()
    figures: list[Figure] = []
    for group in list(now.roc)[:_CLASSES_DRAWN]:
        caption = f"Ranking{_of_group(group, now.roc)}: the dashed line is chance."
        figures.append(
            _curve(group, now.roc, before.roc, ("false positive rate", "true positive rate"), caption)
        )
    for group in list(now.precision_recall)[:_CLASSES_DRAWN]:
        caption = f"What is found{_of_group(group, now.precision_recall)}, and how much of it is right."
        figures.append(
            _curve(group, now.precision_recall, before.precision_recall, ("recall", "precision"), caption)
        )
    unit = findings.kind in {"binary", "multiclass"}
    figures += [
        _calibration(group, now, before, unit=unit) for group in list(now.calibration)[:_CLASSES_DRAWN]
    ]
    figures += _histograms(findings)
    intro = "Candidate in front, production behind." if findings.baseline_curves else ""
    return ReportSection("Curves", figures, intro=intro)


def _of_group(group: str, groups: Mapping[str, object]) -> str:
    return f" of {group}" if len(groups) > 1 else ""


def _curve(
    group: str,
    now: Mapping[str, CurveLine],
    before: Mapping[str, CurveLine],
    axes: tuple[str, str],
    caption: str,
) -> Figure:
    both = zip(NAMES, (now, before), strict=True)
    found = {name: lines[group] for name, lines in both if group in lines}
    series = {name: (line.x.tolist(), line.y.tolist()) for name, line in found.items()}
    chance = axes[0] == "false positive rate"
    return Figure(
        charts.lines(series, x_label=axes[0], y_label=axes[1], square=True, diagonal=chance), caption
    )


def _calibration(group: str, now: PlotData, before: PlotData, *, unit: bool) -> Figure:
    both = zip(NAMES, (now.calibration, before.calibration), strict=True)
    found = {name: bins[group] for name, bins in both if group in bins}
    series = {name: (bins.score.tolist(), bins.observed.tolist()) for name, bins in found.items()}
    bounds = {name: (bins.low.tolist(), bins.high.tolist()) for name, bins in found.items()}
    score, observed = ("mean score", "share observed") if unit else ("mean estimate", "mean observed")
    score = f"{score} of the bin"
    svg = charts.lines(series, x_label=score, y_label=observed, square=unit, diagonal=True, bounds=bounds)
    of = _of_group(group, now.calibration)
    return Figure(
        svg, f"Calibration{of}: on the dashed line what is said is what is seen, within the whiskers."
    )


def _histograms(findings: Findings) -> Iterator[Figure]:
    now, before = findings.curves.histogram, (findings.baseline_curves or PlotData()).histogram
    if now is None:
        return
    edges, series = now.edges.tolist(), {name: counts.tolist() for name, counts in now.series.items()}
    if len(series) == 2:  # noqa: PLR2004
        (zero, without), (one, having) = series.items()
        svg = charts.paired_histogram(edges, having, without, names=(one, zero))
        yield Figure(svg, f"Scores by outcome, as shares of each.{formatting.threshold_text(findings)}")
        return
    for name, counts in series.items():
        other = before.series.get(name) if before and before.edges.tolist() == edges else None
        previous = None if other is None else other.tolist()
        svg = charts.paired_histogram(edges, counts, previous, names=NAMES if previous else (name, name))
        yield Figure(svg, f"{name[:1].upper()}{name[1:]}, as shares of the rows.")


_CLASSES_OPENED = 12


def _classes_section(findings: Findings) -> ReportSection:
    """Draw one line per class: its rows, and every metric that one class has."""
    header, rows = class_rows(findings)
    title = f"All {len(rows):,} classes"
    table = Table(header, rows, numeric=range(1, len(header)))
    blocks: list[Block] = [table] if len(rows) <= _CLASSES_OPENED else [DenseTable(title, header, rows)]
    gain = " A gain is the candidate's, paired, and positive where it is better." if findings.baseline else ""
    intro = f"Each class against all others, with {formatting.level(findings)} intervals.{gain}"
    return ReportSection("By class", blocks if rows else [], intro=intro)


def _confusion_section(findings: Findings) -> ReportSection:
    """Draw how classes are taken for each other; of many classes the commonest mistakes."""
    blocks: list[Block] = []
    for name, matrix in ((CANDIDATE, findings.confusion), (PRODUCTION, findings.baseline_confusion)):
        classes = findings.sample.classes
        shares = [[percent(count / max(1, sum(row))) for count in row] for row in matrix]
        if 0 < len(matrix) <= _CLASSES_TABLED:
            rows = [
                [classes[i], *(f"{count:,} ({shares[i][j]})" for j, count in enumerate(row))]
                for i, row in enumerate(matrix)
            ]
            header = [f"{name}: true", *(f"predicted {other}" for other in classes)]
            blocks.append(Table(header, rows, numeric=range(1, len(header))))
        elif matrix:
            pairs = [(i, j) for i, j in itertools.permutations(range(len(matrix)), 2) if matrix[i][j]]
            commonest = sorted(pairs, key=lambda pair: -matrix[pair[0]][pair[1]])[:_CONFUSED]
            mistakes = [[classes[i], classes[j], f"{matrix[i][j]:,}", shares[i][j]] for i, j in commonest]
            title = f"{name}: the {len(mistakes)} commonest mistakes of {len(pairs):,} kinds"
            header = ["true", "predicted", "rows", "of the true class"]
            blocks.append(DenseTable(title, header, mistakes, opened=True))
    intro = "Rows by true class, and the share of each true class that is predicted to be what."
    return ReportSection("Confusion", blocks, intro=f"{intro}{formatting.threshold_text(findings)}")


_DISPARITIES_OF_TWO = (
    "selection rates, equal opportunity, equalized odds and the calibration gap are measures of two classes; "
    "a rule with scope: slice, or fairness.group_minimum, limits a metric in every group"
)
_RATES = {"selection_rate": "selection rate", "recall": "true positive rate",
          "false_positive_rate": "false positive rate"}  # fmt: skip
_GROUPS_DRAWN = 24
_GROUP_FIGURES = 4
_GROUPS_LISTED = 1_000


def _fairness_section(findings: Findings) -> ReportSection:
    if not findings.groups:
        return ReportSection("Fairness", [])
    figures = itertools.chain.from_iterable(map(_group_figures, findings.groups))
    most = _GROUPS_LISTED // len(findings.groups)
    tables = [_group_table(cut, most) for cut in findings.groups]
    first: Block = Paragraph(f"Not applicable: {_DISPARITIES_OF_TWO}.")
    if findings.kind == "binary":
        first = _disparities(findings)
    blocks: list[Block] = [first, *itertools.islice(figures, _GROUP_FIGURES), *tables]
    fairness = findings.evaluation.fairness
    whole = fairness is not None and fairness.against == "overall"
    intro = f"Groups are compared with {'the whole' if whole else 'each other'}."
    return ReportSection("Fairness", blocks, intro=intro)


def _disparities(findings: Findings) -> Table:
    header = ["measure", "result", "value", "limit"]
    header += ["worse by", "limit", "production"] if findings.baseline else []
    rows = [_disparity_cells(findings, entry) for entry in findings.disparities]
    flagged = [index for index, row in enumerate(rows) if row[1] not in ("PASS", "no limit")]
    return Table([*header, "between"], rows, numeric=range(2, len(header)), flagged=flagged)


def _disparity_cells(findings: Findings, entry: Disparity) -> list[object]:
    title = f"{metric_title(entry.measure)} by {' and '.join(entry.columns)}"
    rules = {(r.kind, r.name): r.rules[0] for r in findings.rulings if r.rules}
    largest = rules.get(("fairness", title))
    worse = rules.get(("worsening", f"worsening of {title}"))
    decisions = [rule.outcome() for rule in (largest, worse) if rule]
    cells: list[object] = [
        title,
        worst(decisions) if decisions else "no limit",
        formatting.estimate(entry.value),
        formatting.limit(largest, "fairness"),
    ]
    if findings.baseline:
        cells += [
            formatting.estimate(entry.worsening, signed=True),
            formatting.limit(worse, "worsening"),
            formatting.estimate(entry.baseline),
        ]
    ends = f"{entry.lowest} and {entry.highest}" if entry.lowest and entry.highest else formatting.NONE
    return [*cells, entry.reason or ends]


def _known_rates(groups: tuple[Slice, ...]) -> list[str]:
    """Return the rates of two classes, or the metrics that slices of other kinds are shown by."""
    names = [*_RATES, *itertools.chain.from_iterable(DEFAULTS.values())]
    measured = [name for name in dict.fromkeys(names) if any(name in group.figures for group in groups)]
    return [name for name in measured if name in _RATES] or measured


def _rate_title(name: str) -> str:
    return _RATES.get(name) or metric_title(name)


def _group_figures(cut: Slicing) -> Iterator[Figure]:
    """Draw the first two rates of the groups; of many groups the lowest and the highest."""
    for rate in _known_rates(cut.slices)[:2]:
        found = [(group, group.figures[rate].candidate) for group in cut.slices]
        known = sorted(
            (charts.Interval(group.name, entry.value, entry.low, entry.high, f"{group.rows:,}")
             for group, entry in found if entry),
            key=lambda row: row.value or 0.0,
        )  # fmt: skip
        half = _GROUPS_DRAWN // 2
        rows = known if len(known) <= _GROUPS_DRAWN else [*known[:half], *known[-half:]]
        if len(rows) > 1:
            ends = f"; the {len(rows)} at the ends of {len(known):,}" if len(rows) < len(known) else ""
            caption = f"{_rate_title(rate)} by {cut.name}, to the right the rows{ends}."
            yield Figure(charts.intervals(rows, axis=_rate_title(rate)), caption)


def _group_table(cut: Slicing, most: int) -> DenseTable:
    rates = _known_rates(cut.slices)
    groups = sorted(cut.slices, key=lambda group: -group.rows)[:most]
    rows = [
        [
            group.name,
            f"{group.rows:,}",
            *(formatting.estimate(group.figures[rate].candidate) for rate in rates),
        ]
        for group in groups
    ]
    largest = f", the {len(rows):,} largest" if len(rows) < len(cut.slices) else ""
    title = f"{len(cut.slices):,} groups by {cut.name}{largest}"
    return DenseTable(title, ["group", "rows", *map(_rate_title, rates)], rows)


def _overfitting_section(findings: Findings) -> ReportSection:
    section = findings.evaluation.overfitting
    rows = []
    for name, gap in findings.overfitting.items():
        limit = f"≤ {section.at_most:g}" if section and section.metric == name else formatting.NONE
        both = findings.fitted.get(name), findings.overall[name].candidate
        row = [
            metric_title(name),
            *map(formatting.estimate, both),
            formatting.estimate(gap, signed=True),
            limit,
        ]
        rows.append(row)
    split = section.split if section else "the split it was fitted on"
    header = ["figure", f"on {split}", f"on {findings.sample.split}", "better where fitted by", "limit"]
    blocks = [Table(header, rows, numeric=(1, 2, 3, 4))] if rows else []
    return ReportSection(
        "Overfitting", blocks, intro="What a model knows of rows only because it has seen them."
    )


_TWO_CLASSES = "compares a score with a threshold, so it needs two classes"
_OF_CLASSES = "needs classes"
_INAPPLICABLE = {
    "binary": {},
    "multiclass": {
        "threshold": "the class with the highest score is predicted",
        "average precision, false positive rate": _TWO_CLASSES,
        "recall gap between slices": f"{_TWO_CLASSES}; use a rule on macro_recall with scope: slice",
    },
    "regression": {
        "confusion, ROC, precision and recall": _OF_CLASSES,
        "threshold": "a number is predicted, not a class",
        "calibration error": f"{_OF_CLASSES}; the chart shows the mean observed at each estimate",
        "recall gap between slices": f"{_OF_CLASSES}; use a rule on rmse or mae with scope: slice",
    },
    "language_model": {
        "confusion, ROC, precision and recall": "there is no label",
        "threshold": "tokens are predicted, not a class",
        "calibration": "there is no label",
        "recall gap between slices": "there is no label; use a rule on loss with scope: slice",
    },
}
"""What a page of two classes has and others do not, by kind, with the reason."""


def _inapplicable_section(findings: Findings) -> ReportSection:
    """List what this kind of target does not have, so that nothing is absent without a reason."""
    entries = dict(_INAPPLICABLE[findings.kind])
    if findings.kind != "binary":
        entries["differences between groups"] = _DISPARITIES_OF_TWO
    blocks = [Table(["what", "why not"], list(entries.items()))] if entries else []
    return ReportSection("Not applicable", blocks, intro="Defined for other targets only.")


_LISTED, _OPENED = 500, 12
"""Most lines of what was not judged, and with how many the list is open from the start."""


def _unjudged_section(verdict: Verdict) -> ReportSection:
    entries = sorted(verdict.not_judged, key=lambda entry: not entry.decision)
    rows = [[entry.name, entry.decision or "reported only", entry.reason] for entry in entries[:_LISTED]]
    blocks: list[Block] = []
    if rows:
        title = f"{len(entries):,} {'thing was' if len(entries) == 1 else 'things were'} not judged"
        header = ["what", "decides", "why"]
        blocks.append(DenseTable(title, header, rows, noted=True, opened=len(rows) <= _OPENED))
    if len(entries) > len(rows):
        blocks.append(Paragraph(f"{len(entries) - len(rows):,} more are in verdict.json."))
    intro = "Asked for, or part of the data, and left out of the rules. What could not be judged is no pass."
    return ReportSection("Not judged", blocks, intro=intro)


def _judged_section(verdict: Verdict) -> ReportSection:
    rows = [*verdict.judged.items(), ("verdict", verdict.digest)]
    if verdict.baseline_version:
        rows.append(("baseline, registered version", verdict.baseline_version))
    intro = "SHA-256 of everything that this verdict is about. Another content has another digest."
    return ReportSection("What was judged", [Table(["what", "digest"], rows)], intro=intro)


def _method(findings: Findings) -> Iterator[str]:
    section = findings.evaluation
    yield (
        "A rule holds where its whole interval lies on the good side of the limit, is broken where the whole "
        "interval lies on the bad side, and is inconclusive between: then the rows cannot tell, and the rows "
        "that probably could (power 80 %) are named. Sizes that noise only enlarges, such as a gap between "
        "slices, hold up to their limit and are broken where their interval lies beyond it."
    )
    yield (
        "Not worse than production: the paired gain lies above minus the margin. Better than production: it "
        "lies above the smallest gain that was asked for."
    )
    yield (
        f"The mean loss is compared with that of {CONSTANT_NAMES[findings.kind]}, "
        "chosen on these rows: none that was known before is better."
    )
    alpha = f"{50 * (1 - section.confidence):.3g} %"
    yield f"Rules on slices: the chance that any slice is called broken that is not is {alpha} (Holm 1979)."
    yield "The decision is the worst of all rules: FAIL, then HOLD, then INCONCLUSIVE. Only PASS is a pass."
    methods: dict[str, list[str]] = {}
    for name, found in findings.overall.items():
        methods.setdefault(found.method, []).append(metric_title(name))
    for method, names in methods.items():
        if method:
            yield f"Intervals of {', '.join(names)}: {method}."
    if clusters := findings.sample.clusters:
        groups = f"{clusters:,} groups"
        yield f"Rows of one {section.cluster} were drawn together: {groups}, not rows, carry the intervals."
