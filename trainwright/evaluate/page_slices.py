"""Sections of the report with the slices of each column and crossing, the worst first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import escape

from trainwright.evaluate import formatting
from trainwright.evaluate.findings import Findings, Slice, Slicing
from trainwright.evaluate.rules import metric_title
from trainwright.experiment.evaluation import LOWER
from trainwright.report import charts
from trainwright.report.page import Block, DenseTable, Figure, Paragraph, ReportSection
from trainwright.significance import Estimate
from trainwright.verdicts import worst

CANDIDATE, PRODUCTION = "candidate", "production"
NAMES = (CANDIDATE, PRODUCTION)

MAX_DRAWN = 200
"""Rows of all figures of slices together; of the others there is a line in a table."""

DRAWN_OF_ONE = 24
"""Rows of one figure."""

TABLE_BYTES = 1_100_000
"""Bytes of all slice tables together, so that the page stays below its limit."""

_FIGURES, _COLUMNS = 2, 3
DEFAULTS = {
    "binary": ("recall", "auc"),
    "multiclass": ("accuracy", "macro_recall"),
    "regression": ("rmse", "mae"),
    "language_model": ("loss",),
}
"""Metrics that slices are shown by, by kind, where no rule judges slices by another."""


@dataclass(frozen=True)
class _Section:
    """One slicing, its slices in order, and what rules decided on them, by column and slice."""

    findings: Findings
    cut: Slicing
    slices: list[Slice]
    decided: dict[str, str]

    def decision(self, entry: Slice, default: str = "") -> str:
        return self.decided.get(f"{self.cut.name} {entry.name}", default)


def slice_sections(findings: Findings) -> Iterator[ReportSection]:
    """Draw the slices of every column and crossing."""
    metrics, decided = shown_metrics(findings), decisions_by_slice(findings)
    drawn = metrics[:_FIGURES]
    # Small cuts take what they need, large ones the rest.
    rows = _divide_evenly(
        [min(DRAWN_OF_ONE, len(cut.slices)) for cut in findings.cuts], MAX_DRAWN // max(1, len(drawn))
    )
    sizes = _divide_evenly([400 * len(cut.slices) for cut in findings.cuts], TABLE_BYTES)
    for cut, most_rows, most_bytes in zip(findings.cuts, rows, sizes, strict=True):
        section = _Section(findings, cut, worst_first(cut, metrics), decided)
        figures = [_figure(section, metric, section.slices[:most_rows]) for metric in drawn if most_rows]
        blocks: list[Block] = [*figures, *_table(section, metrics[:_COLUMNS], most_bytes)]
        yield ReportSection(f"By {cut.name}", blocks, intro=_intro(cut))


def shown_metrics(findings: Findings) -> list[str]:
    """Return the metrics that slices are shown by: those that rules judge them by, then the usual ones."""
    judged = [rule.metric for rule in findings.evaluation.all_rules if rule.scope == "slice"]
    if findings.evaluation.max_recall_gap is not None or findings.evaluation.recall_gaps:
        judged.append("recall")
    known = {name for cut in findings.cuts for entry in cut.slices for name in entry.figures}
    names = [name for name in dict.fromkeys([*judged, *DEFAULTS[findings.kind]]) if name in known]
    return names or sorted(known)[:1]


def worst_first(cut: Slicing, metrics: Sequence[str]) -> list[Slice]:
    """Order slices: judged ones by their first metric, the worst first, then those that are only listed."""

    def goodness(entry: Slice) -> float:
        found = entry.figures.get(metrics[0]) if metrics else None
        if found is None or found.candidate is None:
            return float("inf")
        return -found.candidate.value if found.better == LOWER else found.candidate.value

    return sorted(cut.slices, key=lambda entry: (bool(entry.reason), goodness(entry), -entry.rows))


def decisions_by_slice(findings: Findings) -> dict[str, str]:
    """Return the decisions on slices that did not pass a rule, by column and slice: ``origin EWR``."""
    found: dict[str, str] = {}
    for ruling in findings.rulings:
        metric = ruling.name.partition(" by ")[0].removesuffix(" of every group")
        for rule in ruling.rules if ruling.scope == "slice" else ():
            if (decision := rule.outcome()) != "PASS":
                place = rule.name.removeprefix(f"{metric} of ")
                found[place] = worst([decision, *([found[place]] if place in found else [])])
    return found


def _divide_evenly(wanted: Sequence[int], total: int) -> list[int]:
    shares, left = [0] * len(wanted), total
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for rank, index in enumerate(order):
        shares[index] = min(wanted[index], left // (len(order) - rank))
        left -= shares[index]
    return shares


def _intro(cut: Slicing) -> str:
    small = len(cut.slices) - len(cut.judged)
    parts = ["1 slice" if len(cut.slices) == 1 else f"{len(cut.slices):,} slices, the worst first"]
    if small:
        parts.append(f"{small:,} of them too small to be judged, and shown with their size")
    if cut.buckets:
        parts.append("buckets by quantiles")
    return f"{'; '.join(parts)}."


def _figure(section: _Section, metric: str, slices: Sequence[Slice]) -> Figure:
    rows = [_row(section, entry, metric) for entry in slices]
    limits = (
        rule.limit
        for rule in section.findings.evaluation.all_rules
        if (rule.scope, rule.metric, rule.kind) == ("slice", metric, "absolute")
        and (not rule.by or set(section.cut.columns) <= set(rule.by))
    )
    svg = charts.intervals(rows, axis=metric_title(metric), limit=next(limits, None), names=NAMES)
    count = len(section.slices)
    of = f"the {len(rows)} worst of {count:,}; " if len(rows) < count else ""
    hollow = " Hollow: nothing was decided on it." if any(row.faint for row in rows) else ""
    level = formatting.level(section.findings)
    return Figure(svg, f"{metric_title(metric)}: {of}{level} intervals, to the right the rows.{hollow}")


def _row(section: _Section, entry: Slice, metric: str) -> charts.Interval:
    candidate, baseline, _ = _estimates(entry, metric)
    decision, small = section.decision(entry), bool(entry.reason)
    before = None
    if baseline:
        before = charts.Interval(entry.name, baseline.value, baseline.low, baseline.high)
    return charts.Interval(
        label=entry.name,
        value=candidate.value if candidate else None,
        low=candidate.low if candidate else 0,
        high=candidate.high if candidate else 1,
        note=f"{entry.rows:,}{' small' if small else ''}",
        flagged=decision in {"FAIL", "HOLD"},
        faint=small or decision == "INCONCLUSIVE",
        before=before,
    )


def _estimates(entry: Slice, metric: str) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    found = entry.figures.get(metric)
    return (found.candidate, found.baseline, found.gain) if found else (None, None, None)


def _table(section: _Section, metrics: Sequence[str], most_bytes: int) -> Iterator[Block]:
    """Write all slices with as many metrics as there is room for; with one the worst, as many as fit."""
    findings, count = section.findings, len(section.slices)
    rows: list[list[str]] = []
    header: list[str] = []
    while metrics and len(rows) < count:
        cells = (_cells(section, entry, metrics) for entry in section.slices)
        rows, header = list(_fitting(cells, most_bytes)), _header(findings, metrics)
        metrics = metrics[:-1]
    title = f"The {len(rows):,} worst of {count:,} slices"
    if len(rows) == count:
        title = "In numbers" if count == 1 else f"All {count:,} slices"
    if rows:
        yield DenseTable(title, header, rows, noted=True, opened=count <= DRAWN_OF_ONE)
    if len(rows) < count:
        yield Paragraph(
            f"{count - len(rows):,} more slices have no place here; every one is in measured.json beside the "
            "verdict, and none of them is worse than those above."
        )


def _header(findings: Findings, metrics: Sequence[str]) -> list[str]:
    header = ["slice", "rows", *([findings.sample.classes[1]] if findings.kind == "binary" else [])]
    for metric in metrics:
        header += [metric_title(metric), *(["production", "gain"] if findings.baseline else [])]
    return [*header, "judged"]


def _cells(section: _Section, entry: Slice, metrics: Sequence[str]) -> list[str]:
    cells = [entry.name, f"{entry.rows:,}"]
    if section.findings.kind == "binary":
        cells.append(f"{entry.counts[-1]:,}" if entry.counts else formatting.NONE)
    for metric in metrics:
        candidate, baseline, gain = _estimates(entry, metric)
        cells.append(formatting.estimate(candidate))
        if section.findings.baseline:
            cells += [formatting.estimate(baseline), formatting.estimate(gain, signed=True)]
    return [*cells, entry.reason or section.decision(entry, "yes")]


def _fitting(rows: Iterable[list[str]], most_bytes: int) -> Iterator[list[str]]:
    for cells in rows:
        most_bytes -= sum(len(escape(cell).encode()) + len("<td></td>") for cell in cells) + len(
            "<tr></tr>\n"
        )
        if most_bytes < 0:
            return
        yield cells
