"""The figures over all rows on the evaluation's page: tables, curves candidate over baseline, confusion."""

import itertools
from collections.abc import Iterator, Mapping

from trainwright.evaluate import page_words as words
from trainwright.evaluate.findings import Bins, Curves, Findings, Histogram, Line
from trainwright.evaluate.outcomes import spoken
from trainwright.report import charts
from trainwright.report.page import Block, Dense, Figure, Section, Table
from trainwright.report.svg import percent

CANDIDATE, BASELINE = "candidate", "production"
NAMES = (CANDIDATE, BASELINE)

_CLASSES_DRAWN = 6
_CLASSES_TABLED = 12
_CONFUSED = 30


def figures_section(findings: Findings) -> Section:
    """Draw the table of all figures over all rows, candidate beside baseline."""
    both = findings.baseline is not None
    header = ["figure", "candidate", *(["production", "gain", "p"] if both else [])]
    rows = []
    for name, found in findings.overall.items():
        pair: list[object] = []
        if both:
            p = words.NONE if found.p_value is None else f"{found.p_value:.2g}"
            pair = [words.estimate(found.baseline), words.estimate(found.gain, signed=True), p]
        rows.append([spoken(name), words.estimate(found.candidate), *pair])
    intro = f"Over all rows, with {words.level(findings.evaluation)} intervals."
    if both:
        intro += (
            " A gain is paired, row by row, and positive where the candidate is better, whatever the figure."
        )
    return Section("Figures", [Table(header, rows, numeric=range(1, len(header)))], intro=intro)


def interval_methods(findings: Findings) -> list[str]:
    """Say where the intervals of the figures come from, one sentence a method."""
    methods: dict[str, list[str]] = {}
    for name, found in findings.overall.items():
        if found.method:
            methods.setdefault(found.method, []).append(spoken(name))
    return [f"Intervals of {', '.join(names)}: {method}." for method, names in methods.items()]


def curves_section(findings: Findings) -> Section:
    """Draw ranking, calibration, scores by outcome and confusion."""
    now, before = findings.curves, findings.baseline_curves or Curves()
    unit = findings.kind in {"binary", "multiclass"}
    figures: list[Figure] = []
    for group in list(now.roc)[:_CLASSES_DRAWN]:
        caption = f"Ranking{_of(group, now.roc)}: the dashed line is chance."
        figures.append(
            _curve(group, now.roc, before.roc, ("false positive rate", "true positive rate"), caption)
        )
    for group in list(now.precision_recall)[:_CLASSES_DRAWN]:
        caption = f"What is found{_of(group, now.precision_recall)}, and how much of it is right."
        axes = ("recall", "precision")
        figures.append(_curve(group, now.precision_recall, before.precision_recall, axes, caption))
    for group in list(now.calibration)[:_CLASSES_DRAWN]:
        figures += _calibration(group, now, before, unit=unit)
    figures += _histogram(now.histogram, before.histogram, findings)
    return Section(
        "Curves", figures, intro="Candidate in front, production behind." if findings.baseline_curves else ""
    )


def _of(group: str, groups: Mapping[str, object]) -> str:
    return f" of {group}" if len(groups) > 1 else ""


def _curve(
    group: str, now: Mapping[str, Line], before: Mapping[str, Line], axes: tuple[str, str], caption: str
) -> Figure:
    found = {CANDIDATE: now[group]} | ({BASELINE: before[group]} if group in before else {})
    series = {name: (line.x.tolist(), line.y.tolist()) for name, line in found.items()}
    chance = axes[0] == "false positive rate"
    svg = charts.lines(series, x_label=axes[0], y_label=axes[1], diagonal=chance, unit=True)
    return Figure(svg, caption)


def _calibration(group: str, now: Curves, before: Curves, *, unit: bool) -> Iterator[Figure]:
    found = {CANDIDATE: now.calibration[group]}
    if group in before.calibration:
        found[BASELINE] = before.calibration[group]
    series = {name: _binned(bins) for name, bins in found.items() if len(bins.score)}
    if not series:
        return
    said, seen = ("mean score", "share observed") if unit else ("mean estimate", "mean observed")
    svg = charts.binned(series, x_label=f"{said} of the bin", y_label=seen, unit=unit)
    of = _of(group, now.calibration)
    yield Figure(
        svg, f"Calibration{of}: on the dashed line what is said is what is seen, within the whiskers."
    )


def _binned(bins: Bins) -> charts.Binned:
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


def confusion_section(findings: Findings) -> Section:
    """Draw how classes are taken for each other; of many classes the commonest mistakes."""
    if not findings.confusion:
        return Section("Confusion", [])
    blocks: list[Block] = []
    matrices = [(CANDIDATE, findings.confusion), (BASELINE, findings.baseline_confusion)]
    for name, matrix in matrices:
        if matrix:
            small = len(matrix) <= _CLASSES_TABLED
            blocks.append(_matrix(name, matrix, findings) if small else _mistakes(name, matrix, findings))
    at = "" if findings.threshold is None else f" A score of at least {findings.threshold:g} predicts 1."
    intro = f"Rows by true class, and the share of each true class that is predicted to be what.{at}"
    return Section("Confusion", blocks, intro=intro)


def _classes(findings: Findings, count: int) -> list[str]:
    names = findings.sample.classes
    return list(names) if len(names) == count else [str(index) for index in range(count)]


def _matrix(name: str, matrix: tuple[tuple[int, ...], ...], findings: Findings) -> Table:
    classes = _classes(findings, len(matrix))
    rows = [
        [classes[index], *(f"{count:,} ({percent(count / max(1, sum(row)))})" for count in row)]
        for index, row in enumerate(matrix)
    ]
    header = [f"{name}: true", *(f"predicted {other}" for other in classes)]
    return Table(header, rows, numeric=range(1, len(classes) + 1))


def _mistakes(name: str, matrix: tuple[tuple[int, ...], ...], findings: Findings) -> Dense:
    classes = _classes(findings, len(matrix))
    cells = [(matrix[i][j], i, j) for i, j in itertools.permutations(range(len(matrix)), 2) if matrix[i][j]]
    worst = sorted(cells, key=lambda cell: -cell[0])[:_CONFUSED]
    rows = [
        [classes[i], classes[j], f"{count:,}", percent(count / max(1, sum(matrix[i])))]
        for count, i, j in worst
    ]
    title = f"{name}: the {len(rows)} commonest mistakes of {len(cells):,} kinds"
    return Dense(title, ["true", "predicted", "rows", "of the true class"], rows, opened=True)


def overfitting_section(findings: Findings) -> Section:
    """Draw by how much the model is better on the rows that it was fitted on."""
    asked = findings.evaluation.overfitting
    rows = [
        [
            spoken(name),
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
    return Section("Overfitting", blocks, intro="What a model knows of rows only because it has seen them.")
