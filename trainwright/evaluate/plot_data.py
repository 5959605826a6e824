"""Data of the plots: ROC, precision over recall, calibration, histograms of scores, and confusion."""

import numpy as np

from trainwright.evaluate.evaluation_data import EvaluationData, claims, is_class, sides
from trainwright.evaluate.findings import CalibrationBins, CurveLine, Floats, Histogram, Integers, PlotData
from trainwright.evaluate.metrics import BINS, calibration_cuts
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.evaluate.rows import Partial
from trainwright.significance import CONFIDENCE, Distribution, normal_quantile, wilson

POINTS = 200
"""Most points of a drawn curve; it looks the same, and stays small."""

MOST_CLASSES = 10
"""Classes of which curves are drawn: the first ones."""

_BUCKETS = 25


def _shown(data: EvaluationData) -> dict[str, int]:
    """Return the columns of the scores that curves are drawn of, by name."""
    if data.kind == "language_model":
        return {}
    if data.kind != "multiclass":
        return {"": 0}
    names = data.candidate.predictions.class_names[:MOST_CLASSES]
    return {name: k for k, name in enumerate(names) if 0 < data.counts[k] < data.rows}


def _edges(data: EvaluationData, side: int) -> Floats:
    """Return the edges of the histogram.

    Of errors, and losses, between their 0.5 % and 99.5 % quantiles; those beyond are in the outer buckets.
    """
    if data.classes:
        return np.linspace(0, 1, _BUCKETS + 1)
    values = data.survey[f"errors/{side}"] if data.kind == "regression" else data.scores(side)
    low, high = values.quantiles(np.array([0.005, 0.995]))
    return np.linspace(low, high if high > low else low + 1, _BUCKETS + 1)


def take_plot_sums(pair: PredictionPair, _: int, data: EvaluationData) -> Partial:
    """Return the sums of some rows that plots are drawn of; rows count alike here, whatever their weight."""
    found: Partial = {}
    for side, (model, rows) in enumerate(zip(data.sides, sides(pair), strict=True)):
        edges, score = _edges(data, side), rows.scores[:, 0]
        if data.kind == "binary":
            series = [score[rows.label == outcome] for outcome in (1, 0)]
        elif data.kind == "multiclass":
            right, top = claims(rows)
            series = [top[right == 1], top[right == 0]]
        else:
            series = [
                np.clip(score - rows.label if data.kind == "regression" else score, edges[0], edges[-1])
            ]
        found[f"histogram/{side}"] = np.stack([np.histogram(values, edges)[0] for values in series])
        if data.classes:
            found[f"confusion/{side}"] = _confusion(rows, model.threshold)
        for column in _shown(data).values():
            score = rows.scores[:, column]
            place = np.searchsorted(calibration_cuts(data.scores(side, column)), score, side="right")
            truth = is_class(rows, column) if data.classes else rows.label - data.center
            values = (np.ones(rows.rows), truth, truth**2, score)
            found[f"bins/{side}/{column}"] = np.stack(
                [np.bincount(place, weights=value, minlength=BINS) for value in values], axis=-1
            )
    return found


def plot_data(data: EvaluationData, side: int, sums: Partial) -> PlotData:
    """Return the plot data of a model from the merged results of :func:`take_plot_sums`."""
    rows = data.candidate.predictions
    series = {
        "binary": [f"{rows.label_name} = {name}" for name in rows.class_names[::-1]],
        "multiclass": ["right", "wrong"],
        "regression": ["error"],
        "language_model": ["loss"],
    }[data.kind]
    counts = dict(zip(series, sums[f"histogram/{side}"].astype(np.int64), strict=True))
    histogram, shown = Histogram(_edges(data, side), counts), _shown(data)
    drawn = {name: data.scores(side, column) for name, column in shown.items() if data.classes}
    bins = {name: sums[f"bins/{side}/{column}"] for name, column in shown.items()}
    return PlotData(
        roc={name: roc(scores).thin(POINTS) for name, scores in drawn.items()},
        precision_recall={name: precision_recall(scores).thin(POINTS) for name, scores in drawn.items()},
        calibration={
            name: (_frequencies(found) if data.classes else _means(found, data.center))
            for name, found in ((name, found[found[:, 0] > 0]) for name, found in bins.items())
        },
        histogram=histogram,
    )


def _by_threshold(scores: Distribution) -> tuple[Integers, Integers, Floats]:
    """Return positives and negatives of at least each distinct score, from the highest on."""
    counts = np.cumsum(scores.counts[::-1], axis=0)
    return counts[:, 1], counts[:, 0], scores.values[::-1].astype(np.float64)


def roc(scores: Distribution) -> CurveLine:
    """Return the ROC curve from (0, 0) to (1, 1), a point a distinct score; the first selects nothing."""
    hits, false, threshold = _by_threshold(scores)
    return CurveLine(
        x=np.append(0.0, false / false[-1]),
        y=np.append(0.0, hits / hits[-1]),
        threshold=np.append(max(1.0, float(threshold[0])), threshold),
    )


def precision_recall(scores: Distribution) -> CurveLine:
    """Return precision over recall, a point a distinct score."""
    hits, false, threshold = _by_threshold(scores)
    return CurveLine(x=hits / hits[-1], y=hits / (hits + false), threshold=threshold)


def _frequencies(sums: Floats) -> CalibrationBins:
    rows, hits, _, score = sums.T
    ends = [wilson(float(hit), float(count)) for hit, count in zip(hits, rows, strict=True)]
    low, high = np.array([end.low for end in ends]), np.array([end.high for end in ends])
    return CalibrationBins(score / rows, hits / rows, low, high)


def _means(sums: Floats, center: float) -> CalibrationBins:
    rows, label, squares, estimate = sums.T
    variance = np.maximum(squares - label**2 / rows, 0) / np.maximum(rows - 1, 1)
    mean, reach = center + label / rows, normal_quantile(CONFIDENCE) * np.sqrt(variance / rows)
    return CalibrationBins(estimate / rows, mean, mean - reach, mean + reach)


def _confusion(rows: Predictions, threshold: float) -> Integers:
    """Return rows by true class (first) and predicted class, shape (classes, classes)."""
    classes = max(2, rows.scores.shape[1])
    binary = rows.kind == "binary"
    chosen = (rows.scores[:, 0] >= threshold).astype(np.int64) if binary else rows.scores.argmax(axis=1)
    found = np.bincount(rows.label * classes + chosen, minlength=classes**2)
    return found.reshape(classes, classes).astype(np.int64)


def confusion(sums: Partial, side: int) -> tuple[tuple[int, ...], ...]:
    """Return rows by true class (first) and predicted class; empty without classes."""
    found = sums.get(f"confusion/{side}")
    return () if found is None else tuple(tuple(int(count) for count in row) for row in found)
