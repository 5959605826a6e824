"""Sections of the report with metrics, curves, confusion and slices."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import escape

from trainwright.evaluate import formatting as words
from trainwright.evaluate.findings import (
    CalibrationBins,
    ComparedMetric,
    CurveLine,
    Findings,
    Histogram,
    PlotData,
    Slice,
    Slicing,
)
from trainwright.evaluate.rules import metric_title
from trainwright.report import charts
from trainwright.report.page import Block, DenseTable, Figure, Paragraph, ReportSection, Table
from trainwright.report.svg import percent
from trainwright.significance import Estimate
from trainwright.verdicts import worst

CANDIDATE, BASELINE = "candidate", "production"
NAMES = (CANDIDATE, BASELINE)

_CLASSES_DRAWN = 6
_CLASSES_TABLED = 12
_CONFUSED = 30


def figures_section(findings: Findings) -> ReportSection:
    """Draw the table of all figures over all rows, candidate beside baseline."""
    both = findings.baseline is not None
    header = ["figure", "candidate", *(["production", "gain", "p"] if both else [])]
    rows = []
    for name, found in findings.overall.items():
        pair: list[object] = []
        if both:
            p = words.NONE if found.p_value is None else f"{found.p_value:.2g}"
            pair = [words.estimate(found.baseline), words.estimate(found.gain, signed=True), p]
        rows.append([metric_title(name), words.estimate(found.candidate), *pair])
    intro = f"Over all rows, with {words.level(findings.evaluation)} intervals."
    if both:
        intro += (
            " A gain is paired, row by row, and positive where the candidate is better, whatever the figure."
        )
    return ReportSection("Figures", [Table(header, rows, numeric=range(1, len(header)))], intro=intro)


def interval_methods(findings: Findings) -> list[str]:
    """Say where the intervals of the figures come from, one sentence a method."""
    methods: dict[str, list[str]] = {}
    for name, found in findings.overall.items():
        if found.method:
            methods.setdefault(found.method, []).append(metric_title(name))
    return [f"Intervals of {', '.join(names)}: {method}." for method, names in methods.items()]


def curves_section(findings: Findings) -> ReportSection:
    """Draw ranking, calibration, scores by outcome and confusion."""
    now, before = findings.curves, findings.baseline_curves or PlotData()
    unit = findings.kind in {"binary", "multiclass"}
    figures: list[Figure] = []
    for group in list(now.roc)[:_CLASSES_DRAWN]:
        caption = f"Ranking{_of_group(group, now.roc)}: the dashed line is chance."
        figures.append(
            _curve(group, now.roc, before.roc, ("false positive rate", "true positive rate"), caption)
        )
    for group in list(now.precision_recall)[:_CLASSES_DRAWN]:
        caption = f"What is found{_of_group(group, now.precision_recall)}, and how much of it is right."
        axes = ("recall", "precision")
        figures.append(_curve(group, now.precision_recall, before.precision_recall, axes, caption))
    for group in list(now.calibration)[:_CLASSES_DRAWN]:
        figures += _calibration(group, now, before, unit=unit)
    figures += _histogram(now.histogram, before.histogram, findings)
    return ReportSection(
        "Curves", figures, intro="Candidate in front, production behind." if findings.baseline_curves else ""
    )


def _of_group(group: str, groups: Mapping[str, object]) -> str:
    return f" of {group}" if len(groups) > 1 else ""


def _curve(
    group: str,
    now: Mapping[str, CurveLine],
    before: Mapping[str, CurveLine],
    axes: tuple[str, str],
    caption: str,
) -> Figure:
    found = {CANDIDATE: now[group]} | ({BASELINE: before[group]} if group in before else {})
    series = {name: (line.x.tolist(), line.y.tolist()) for name, line in found.items()}
    chance = axes[0] == "false positive rate"
    svg = charts.lines(series, x_label=axes[0], y_label=axes[1], diagonal=chance, unit=True)
    return Figure(svg, caption)


def _calibration(group: str, now: PlotData, before: PlotData, *, unit: bool) -> Iterator[Figure]:
    found = {CANDIDATE: now.calibration[group]}
    if group in before.calibration:
        found[BASELINE] = before.calibration[group]
    series = {name: _binned(bins) for name, bins in found.items() if len(bins.score)}
    if not series:
        return
    said, seen = ("mean score", "share observed") if unit else ("mean estimate", "mean observed")
    svg = charts.binned(series, x_label=f"{said} of the bin", y_label=seen, unit=unit)
    of = _of_group(group, now.calibration)
    yield Figure(
        svg, f"Calibration{of}: on the dashed line what is said is what is seen, within the whiskers."
    )


def _binned(bins: CalibrationBins) -> charts.Binned:
    return charts.Binned(bins.score.tolist(), bins.observed.tolist(), bins.low.tolist(), bins.high.tolist())


def _histogram(now: Histogram | None, before: Histogram | None, findings: Findings) -> Iterator[Figure]:
    if now is None or len(now.edges) < 2:  # noqa: PLR2004
        return
    edges, series = now.edges.tolist(), {name: counts.tolist() for name, counts in now.series.items()}
    if len(series) == 2:  # noqa: PLR2004
        (zero, without), (one, having) = series.items()
        svg = charts.paired_histogram(edges, having, without, names=(one, zero))
        at = "" if findings.threshold is None else f" A score of at least {findings.threshold:g} predicts 1."
        yield Figure(svg, f"Scores by outcome, as shares of each.{at}")
        return
    for name, counts in list(series.items())[:_CLASSES_DRAWN]:
        other = before.series.get(name) if before and before.edges.tolist() == edges else None
        previous = None if other is None else other.tolist()
        names = NAMES if previous else (name, name)
        svg = charts.paired_histogram(edges, counts, previous, names=names)
        yield Figure(svg, f"{name[:1].upper()}{name[1:]}, as shares of the rows.")


def confusion_section(findings: Findings) -> ReportSection:
    """Draw how classes are taken for each other; of many classes the commonest mistakes."""
    if not findings.confusion:
        return ReportSection("Confusion", [])
    blocks: list[Block] = []
    matrices = [(CANDIDATE, findings.confusion), (BASELINE, findings.baseline_confusion)]
    for name, matrix in matrices:
        if matrix:
            small = len(matrix) <= _CLASSES_TABLED
            blocks.append(_matrix(name, matrix, findings) if small else _mistakes(name, matrix, findings))
    at = "" if findings.threshold is None else f" A score of at least {findings.threshold:g} predicts 1."
    intro = f"Rows by true class, and the share of each true class that is predicted to be what.{at}"
    return ReportSection("Confusion", blocks, intro=intro)


def _class_names(findings: Findings, count: int) -> list[str]:
    names = findings.sample.classes
    return list(names) if len(names) == count else [str(index) for index in range(count)]


def _matrix(name: str, matrix: tuple[tuple[int, ...], ...], findings: Findings) -> Table:
    classes = _class_names(findings, len(matrix))
    rows = [
        [classes[index], *(f"{count:,} ({percent(count / max(1, sum(row)))})" for count in row)]
        for index, row in enumerate(matrix)
    ]
    header = [f"{name}: true", *(f"predicted {other}" for other in classes)]
    return Table(header, rows, numeric=range(1, len(classes) + 1))


def _mistakes(name: str, matrix: tuple[tuple[int, ...], ...], findings: Findings) -> DenseTable:
    classes = _class_names(findings, len(matrix))
    cells = [(matrix[i][j], i, j) for i, j in itertools.permutations(range(len(matrix)), 2) if matrix[i][j]]
    worst = sorted(cells, key=lambda cell: -cell[0])[:_CONFUSED]
    rows = [
        [classes[i], classes[j], f"{count:,}", percent(count / max(1, sum(matrix[i])))]
        for count, i, j in worst
    ]
    title = f"{name}: the {len(rows)} commonest mistakes of {len(cells):,} kinds"
    return DenseTable(title, ["true", "predicted", "rows", "of the true class"], rows, opened=True)


def overfitting_section(findings: Findings) -> ReportSection:
    """Draw by how much the model is better on the rows that it was fitted on."""
    asked = findings.evaluation.overfitting
    rows = [
        [
            metric_title(name),
            words.estimate(findings.fitted.get(name)),
            words.estimate(findings.overall[name].candidate if name in findings.overall else None),
            words.estimate(gap, signed=True),
            f"≤ {asked.at_most:g}" if asked and asked.metric == name else words.NONE,
        ]
        for name, gap in findings.overfitting.items()
    ]
    split = asked.split if asked else "the split it was fitted on"
    header = ["figure", f"on {split}", f"on {findings.sample.split}", "better where fitted by", "limit"]
    blocks = [Table(header, rows, numeric=(1, 2, 3, 4))] if rows else []
    return ReportSection(
        "Overfitting", blocks, intro="What a model knows of rows only because it has seen them."
    )


MAX_DRAWN = 200
"""Rows of all figures of slices together; of the others there is a line in a table."""

DRAWN_OF_ONE = 24
"""Rows of one figure."""

TABLE_BYTES = 1_100_000
"""Bytes of all slice tables together, so that the page stays below its limit."""

_FIGURES, _COLUMNS = 2, 3
_DEFAULTS = {
    "binary": ("recall", "auc"),
    "multiclass": ("accuracy", "macro_recall"),
    "regression": ("rmse", "mae"),
    "language_model": ("loss",),
}
_BELOW_ALL = float("inf")


@dataclass(frozen=True)
class SliceBudget:
    """Budget of one slicing: rows to draw, and bytes of its table."""

    rows: int
    bytes: int


def slice_sections(findings: Findings) -> Iterator[ReportSection]:
    """Draw the slices of every column and crossing."""
    metrics, decided = shown_metrics(findings), decisions_by_slice(findings)
    rooms = _budgets(findings.cuts, min(len(metrics), _FIGURES))
    for cut, room in zip(findings.cuts, rooms, strict=True):
        ordered = worst_first(cut, metrics)
        blocks: list[Block] = list(_drawn(cut, ordered[: room.rows], metrics[:_FIGURES], findings, decided))
        blocks += _slice_table(cut, ordered, metrics[:_COLUMNS], findings, decided, room.bytes)
        yield ReportSection(f"By {cut.name}", blocks, intro=_intro(cut))


def shown_metrics(findings: Findings) -> list[str]:
    """Return the metrics that slices are shown by: those that rules judge them by, then the usual ones."""
    asked = [rule.metric for rule in findings.evaluation.all_rules if rule.scope == "slice"]
    if findings.evaluation.max_recall_gap is not None or findings.evaluation.recall_gaps:
        asked.append("recall")
    known = {name for cut in findings.cuts for entry in cut.slices for name in entry.figures}
    names = [name for name in dict.fromkeys([*asked, *_DEFAULTS[findings.kind]]) if name in known]
    return names or sorted(known)[:1]


def worst_first(cut: Slicing, metrics: Sequence[str]) -> list[Slice]:
    """Order slices: judged ones by their first metric, the worst first, then those that are only listed."""
    return sorted(cut.slices, key=lambda entry: (bool(entry.reason), _goodness(entry, metrics), -entry.rows))


def _goodness(entry: Slice, metrics: Sequence[str]) -> float:
    found = entry.figures.get(metrics[0]) if metrics else None
    if found is None or found.candidate is None:
        return _BELOW_ALL
    return -found.candidate.value if found.better == "lower" else found.candidate.value


def _budgets(cuts: Sequence[Slicing], figures: int) -> list[SliceBudget]:
    """Share out what may be drawn and written: small cuts take what they need, large ones the rest."""
    rows = _divide_evenly([min(DRAWN_OF_ONE, len(cut.slices)) for cut in cuts], MAX_DRAWN // max(1, figures))
    sizes = _divide_evenly([400 * len(cut.slices) for cut in cuts], TABLE_BYTES)
    return [SliceBudget(row, size) for row, size in zip(rows, sizes, strict=True)]


def _divide_evenly(wanted: Sequence[int], total: int) -> list[int]:
    given, left = [0] * len(wanted), total
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for rank, index in enumerate(order):
        given[index] = min(wanted[index], left // (len(order) - rank))
        left -= given[index]
    return given


def _intro(cut: Slicing) -> str:
    small = len(cut.slices) - len(cut.judged)
    parts = ["1 slice" if len(cut.slices) == 1 else f"{len(cut.slices):,} slices, the worst first"]
    if small:
        parts.append(f"{small:,} of them too small to be judged, and shown with their size")
    if cut.edges_from:
        whose = "the baseline's rows" if cut.edges_from == "baseline" else cut.edges_from
        parts.append(f"buckets by quantiles of {whose}")
    return f"{'; '.join(parts)}."


def _drawn(
    cut: Slicing, slices: Sequence[Slice], metrics: Sequence[str], findings: Findings, decided: dict[str, str]
) -> Iterator[Figure]:
    for metric in metrics if slices else ():
        rows = [_pair(cut, entry, metric, decided) for entry in slices]
        limit = _slice_limit(cut, metric, findings)
        svg = charts.paired_intervals(rows, axis=metric_title(metric), limit=limit, names=NAMES)
        hollow = any(row.faint for row in rows)
        yield Figure(svg, _caption(cut, len(slices), metric, findings, hollow=hollow))


def _pair(cut: Slicing, entry: Slice, metric: str, decided: dict[str, str]) -> charts.IntervalPair:
    found = entry.figures.get(metric) or ComparedMetric(metric, "", None)
    small, said = bool(entry.reason), decided.get(f"{cut.name} {entry.name}", "")
    note = f"{entry.rows:,}" + (" small" if small else "")
    now = _interval(entry.name, found.candidate, note, flagged=said in {"FAIL", "HOLD"})
    before = _interval(entry.name, found.baseline, "", flagged=False) if found.baseline else None
    return charts.IntervalPair(now, before, faint=small or said == "INCONCLUSIVE")


def _interval(name: str, found: Estimate | None, note: str, *, flagged: bool) -> charts.Interval:
    if found is None:
        return charts.Interval(name, None, 0, 1, note)
    return charts.Interval(name, found.value, found.low, found.high, note, flagged)


def _slice_limit(cut: Slicing, metric: str, findings: Findings) -> float | None:
    for rule in findings.evaluation.all_rules:
        on_these = not rule.by or set(cut.columns) <= set(rule.by)
        if rule.scope == "slice" and rule.metric == metric and rule.kind == "absolute" and on_these:
            return rule.limit
    return None


def _caption(cut: Slicing, drawn: int, metric: str, findings: Findings, *, hollow: bool) -> str:
    of = f"the {drawn} worst of {len(cut.slices):,}; " if drawn < len(cut.slices) else ""
    faint = " Hollow: nothing was decided on it." if hollow else ""
    level = words.level(findings.evaluation)
    return f"{metric_title(metric)}: {of}{level} intervals, to the right the rows.{faint}"


def _slice_table(
    cut: Slicing,
    slices: Sequence[Slice],
    metrics: Sequence[str],
    findings: Findings,
    decided: dict[str, str],
    room: int,
) -> Iterator[Block]:
    """Write all slices with as many metrics as there is room for; with one the worst, as many as fit."""
    rows: list[list[str]] = []
    while metrics and len(rows) < len(slices):
        shown, metrics = metrics, metrics[:-1]
        rows = list(_fitting((_slice_cells(cut, entry, shown, findings, decided) for entry in slices), room))
    count = len(slices)
    title = f"The {len(rows):,} worst of {count:,} slices"
    if len(rows) == count:
        title = "In numbers" if count == 1 else f"All {count:,} slices"
    if rows:
        yield DenseTable(
            title, _slice_header(shown, findings), rows, noted=True, opened=count <= DRAWN_OF_ONE
        )
    if len(rows) < count:
        yield Paragraph(
            f"{count - len(rows):,} more slices have no place here; every one is in measured.json beside the "
            "verdict, and none of them is worse than those above."
        )


def _slice_header(metrics: Sequence[str], findings: Findings) -> list[str]:
    header = ["slice", "rows", *(["of label 1"] if findings.kind == "binary" else [])]
    for metric in metrics:
        header += [metric_title(metric), *(["production", "gain"] if findings.baseline else [])]
    return [*header, "judged"]


def _slice_cells(
    cut: Slicing, entry: Slice, metrics: Sequence[str], findings: Findings, decided: dict[str, str]
) -> list[str]:
    cells = [entry.name, f"{entry.rows:,}"]
    if findings.kind == "binary":
        cells.append(f"{entry.counts[-1]:,}" if entry.counts else words.NONE)
    for metric in metrics:
        found = entry.figures.get(metric) or ComparedMetric(metric, "", None)
        cells.append(words.estimate(found.candidate))
        if findings.baseline:
            cells += [words.estimate(found.baseline), words.estimate(found.gain, signed=True)]
    said = decided.get(f"{cut.name} {entry.name}", "yes")
    return [*cells, entry.reason or said]


def _fitting(rows: Iterable[list[str]], room: int) -> Iterator[list[str]]:
    """Return rows as long as they fit into so many bytes of a page."""
    for cells in rows:
        room -= sum(len(escape(cell).encode()) + len("<td></td>") for cell in cells) + len("<tr></tr>\n")
        if room < 0:
            return
        yield cells


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
