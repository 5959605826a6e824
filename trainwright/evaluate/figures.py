"""The figures and tables of the evaluation's page."""

import itertools
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from trainwright.evaluate.findings import Findings
from trainwright.evaluate.metrics import Performance
from trainwright.evaluate.slices import Cut, Slice
from trainwright.experiment import Evaluation
from trainwright.report import charts
from trainwright.report.page import Block, Figure, Table
from trainwright.significance import Estimate

MAX_DRAWN = 300
"""Slices of a page that are drawn; columns beyond have a table only, so that the page stays small enough."""

_SCORE_BUCKETS = 25


def draw_scores(findings: Findings) -> list[Block]:
    """Draw ranking, calibration, the scores by outcome, other thresholds, and the figures at this one."""
    performance, threshold = findings.performance, findings.evaluation.threshold
    return [
        Figure(
            _roc(performance), f"Ranking: the area below is {performance.auc}. The dashed line is chance."
        ),
        Figure(
            _frequencies(findings),
            "Calibration: on the dashed line a score is a frequency. "
            f"The error is {performance.calibration.error}.",
        ),
        Figure(
            _by_outcome(findings),
            f"Scores by outcome, as shares of each. A score of at least {threshold:g} predicts 1.",
        ),
        Figure(_by_threshold(performance), "What other thresholds find, and how much of it is right."),
        _at_threshold(performance, threshold),
    ]


def _roc(performance: Performance) -> Markup:
    curve = performance.curve
    points = (curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist())
    x_label, y_label = "false positive rate", "true positive rate"
    return charts.lines({"ROC": points}, x_label=x_label, y_label=y_label, diagonal=True)


def _frequencies(findings: Findings) -> Markup:
    calibration = findings.performance.calibration
    points = (calibration.score.tolist(), calibration.observed.tolist())
    x_label, y_label = "mean score of the bin", f"share of {findings.scores.label_name} = 1"
    return charts.lines({"observed": points}, x_label=x_label, y_label=y_label, diagonal=True, dots=True)


def _by_outcome(findings: Findings) -> Markup:
    label, score, name = findings.scores.label, findings.scores.score, findings.scores.label_name
    edges = np.linspace(0, 1, _SCORE_BUCKETS + 1)
    zero, one = (np.histogram(score[label == outcome], edges)[0].tolist() for outcome in (0, 1))
    return charts.paired_histogram(edges.tolist(), one, zero, names=(f"{name} = 1", f"{name} = 0"))


def _by_threshold(performance: Performance) -> Markup:
    curve = performance.curve
    (negative, false), (missed, hit) = performance.confusion
    hits = curve.true_positive_rate * (missed + hit)
    found = hits + curve.false_positive_rate * (negative + false)
    some = found > 0
    threshold = curve.threshold[some].tolist()
    recall, precision = curve.true_positive_rate[some], hits[some] / found[some]
    series = {"recall": (threshold, recall.tolist()), "precision": (threshold, precision.tolist())}
    return charts.lines(series, x_label="threshold", y_label="share")


def _at_threshold(performance: Performance, threshold: float) -> Table:
    (negative, false), (missed, hit) = performance.confusion
    figures = [
        ("accuracy", performance.accuracy, negative + hit, negative + false + missed + hit),
        ("precision", performance.precision, hit, hit + false),
        ("recall", performance.recall, hit, hit + missed),
    ]
    rows = [
        [name, f"{estimate.value:.3f}", estimate.interval, f"{part:,} of {whole:,}"]
        if estimate
        else [name, "-", "-", "none predicted"]
        for name, estimate, part, whole in figures
    ]
    return Table([f"at {threshold:g}", "value", "95 % interval", "rows"], rows, numeric=(1, 2, 3))


def drawn_columns(cuts: Sequence[Cut]) -> set[str]:
    """Return the columns whose slices are drawn: in their order, as long as there is room."""
    counts = itertools.accumulate(len(cut.slices) for cut in cuts)
    return {cut.column for cut, count in zip(cuts, counts, strict=True) if count <= MAX_DRAWN}


def draw_slices(cut: Cut, evaluation: Evaluation, *, drawn: bool) -> list[Block]:
    """Draw recall and ranking of the judged slices, and a table of all; slices beyond the gap are flagged.

    Args:
        cut: The slices of one column.
        evaluation: Its limit.
        drawn: Whether there is room for the figures.
    """
    floor = _floor(cut, evaluation.recall_gap(cut.column))
    below = {entry.name for entry in cut.judged if entry.recall and entry.recall.value < floor}
    header = ["slice", "rows", "positives", "predicted", "precision", "recall", "AUC", "judged"]
    flagged = [index for index, entry in enumerate(cut.slices) if entry.name in below]
    table = Table(header, [_row(entry) for entry in cut.slices], numeric=range(1, 7), flagged=flagged)
    return [_recall(cut, floor, below), _ranking(cut), table] if drawn and cut.judged else [table]


def _floor(cut: Cut, max_gap: float) -> float:
    """Return the smallest recall that the limit accepts; 0 if it accepts any."""
    best = cut.highest.recall if cut.highest else None
    return max(0.0, best.value - max_gap) if best else 0.0


def _recall(cut: Cut, floor: float, below: set[str]) -> Figure:
    rows = [
        _interval(entry.name, entry.recall, f"{entry.positives:,}", flagged=entry.name in below)
        for entry in cut.judged
    ]
    caption = "Recall with 95 % intervals; to the right the rows of label 1."
    if not floor:
        return Figure(charts.intervals(rows, axis="recall"), caption)
    line = " The dashed line is the best slice less the accepted gap."
    return Figure(charts.intervals(rows, limit=floor, axis="recall"), caption + line)


def _ranking(cut: Cut) -> Figure:
    rows = [_interval(entry.name, entry.auc, f"{entry.rows:,}", flagged=False) for entry in cut.judged]
    return Figure(charts.intervals(rows, axis="AUC"), "AUC with 95 % intervals; to the right the rows.")


def _interval(name: str, estimate: Estimate | None, note: str, *, flagged: bool) -> charts.Interval:
    if estimate is None:
        return charts.Interval(name, None, 0, 1, note)
    return charts.Interval(name, estimate.value, estimate.low, estimate.high, note, flagged)


def _row(entry: Slice) -> list[object]:
    shares = [f"{share.value:.3f}" if share else "-" for share in (entry.selection_rate, entry.precision)]
    counts = f"{entry.rows:,}", f"{entry.positives:,}"
    return [
        entry.name,
        *counts,
        *shares,
        entry.recall or "-",
        entry.auc or "-",
        "no" if entry.reason else "yes",
    ]
