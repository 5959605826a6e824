"""Data of the plots: ROC, precision over recall, calibration, histograms of scores, and confusion."""

import numpy as np

from trainwright.evaluate.findings import CalibrationBins, CurveLine, Floats, Histogram, Integers, PlotData
from trainwright.evaluate.metrics import calibration_bins
from trainwright.evaluate.predictions import Predictions
from trainwright.significance import CONFIDENCE, normal_quantile, wilson

POINTS = 200
"""Most points of a drawn curve; it looks the same, and stays small."""

MOST_CLASSES = 10
"""Classes of which curves are drawn: the first ones."""

_BUCKETS = 25


def plot_data(predictions: Predictions) -> PlotData:
    """Return the plot data of a model's predictions; rows count alike here, whatever their weight."""
    label, scores = predictions.label, predictions.scores
    edges = np.linspace(0, 1, _BUCKETS + 1)
    if predictions.kind == "binary":
        series = {
            f"{predictions.label_name} = {predictions.class_names[outcome]}": _counts(
                scores[label == outcome, 0], edges
            )
            for outcome in (1, 0)
        }
        return _of_classes({"": (label.astype(np.int64), scores[:, 0])}, Histogram(edges, series))
    if predictions.kind == "multiclass":
        top, right = scores.max(axis=1), scores.argmax(axis=1) == label
        series = {"right": _counts(top[right], edges), "wrong": _counts(top[~right], edges)}
        shown = range(min(MOST_CLASSES, scores.shape[1]))
        parts = {predictions.class_names[k]: ((label == k).astype(np.int64), scores[:, k]) for k in shown}
        present = {name: part for name, part in parts.items() if 0 < part[0].sum() < len(label)}
        return _of_classes(present, Histogram(edges, series))
    if predictions.kind == "language_model":
        return PlotData(histogram=_spread("loss", scores[:, 0]))
    return PlotData(
        calibration={"": _means(label, scores[:, 0])}, histogram=_spread("error", scores[:, 0] - label)
    )


def _counts(values: Floats, edges: Floats) -> Integers:
    return np.histogram(values, edges)[0].astype(np.int64)


def _spread(name: str, values: Floats) -> Histogram:
    """Count values between their 0.5 % and 99.5 % quantiles; those beyond are in the outer buckets."""
    low, high = np.quantile(values, [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1, _BUCKETS + 1)
    return Histogram(edges, {name: _counts(np.clip(values, edges[0], edges[-1]), edges)})


def _of_classes(parts: dict[str, tuple[Integers, Floats]], histogram: Histogram) -> PlotData:
    return PlotData(
        roc={name: roc(*part).thin(POINTS) for name, part in parts.items()},
        precision_recall={name: precision_recall(*part).thin(POINTS) for name, part in parts.items()},
        calibration={name: _frequencies(*part) for name, part in parts.items()},
        histogram=histogram,
    )


def _by_threshold(label: Integers, score: Floats) -> tuple[Integers, Integers, Floats]:
    """Return positives and negatives of at least each distinct score, from the highest on."""
    order = np.argsort(-score, kind="stable")
    ranked, truth = score[order], label[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    hits = np.cumsum(truth)[last]
    return hits, 1 + last - hits, ranked[last]


def roc(label: Integers, score: Floats) -> CurveLine:
    """Return the ROC curve from (0, 0) to (1, 1), a point a distinct score; the first selects nothing."""
    hits, false, threshold = _by_threshold(label, score)
    return CurveLine(
        x=np.append(0.0, false / false[-1]),
        y=np.append(0.0, hits / hits[-1]),
        threshold=np.append(max(1.0, float(threshold[0])), threshold),
    )


def precision_recall(label: Integers, score: Floats) -> CurveLine:
    """Return precision over recall, a point a distinct score."""
    hits, false, threshold = _by_threshold(label, score)
    return CurveLine(x=hits / hits[-1], y=hits / (hits + false), threshold=threshold)


def _frequencies(label: Integers, score: Floats) -> CalibrationBins:
    place = calibration_bins(score)
    rows = np.bincount(place)
    hits = np.bincount(place, weights=label)
    ends = [wilson(float(hit), float(count)) for hit, count in zip(hits, rows, strict=True)]
    low, high = np.array([end.low for end in ends]), np.array([end.high for end in ends])
    return CalibrationBins(np.bincount(place, weights=score) / rows, hits / rows, low, high)


def _means(label: Floats, estimate: Floats) -> CalibrationBins:
    place = calibration_bins(estimate)
    rows = np.bincount(place)
    mean = np.bincount(place, weights=label) / rows
    square = np.bincount(place, weights=(label - mean[place]) ** 2) / np.maximum(rows - 1, 1)
    reach = normal_quantile(CONFIDENCE) * np.sqrt(square / rows)
    return CalibrationBins(np.bincount(place, weights=estimate) / rows, mean, mean - reach, mean + reach)


def confusion(predictions: Predictions, threshold: float) -> tuple[tuple[int, ...], ...]:
    """Return rows by true class (first) and predicted class; empty without classes."""
    if predictions.kind not in ("binary", "multiclass"):
        return ()
    classes = max(2, predictions.scores.shape[1])
    binary = predictions.kind == "binary"
    scores = predictions.scores
    chosen = (scores[:, 0] >= threshold).astype(np.int64) if binary else scores.argmax(axis=1)
    found = np.bincount(predictions.label * classes + chosen, minlength=classes**2)
    return tuple(tuple(int(count) for count in row) for row in found.reshape(classes, classes))
