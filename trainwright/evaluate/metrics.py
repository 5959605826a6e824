"""How good the scores are over all rows: ranking, calibration, and the predictions at the threshold."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri  # type: ignore[import-untyped]

from trainwright.significance import CONFIDENCE, Estimate, delong, wilson

BINS = 10
"""Bins of equally many rows in which calibration is measured."""

CURVE_POINTS = 100
"""Most points of a ROC curve that is passed on; it looks the same, and stays small."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A ROC curve from (0, 0) to (1, 1); arrays of shape (points,).

    Attributes:
        false_positive_rate: Share of the negatives with a score of at least the threshold.
        true_positive_rate: Share of the positives with a score of at least the threshold.
        threshold: Descending, finite; the first selects nothing.
    """

    false_positive_rate: Floats
    true_positive_rate: Floats
    threshold: Floats


@dataclass(frozen=True)
class Calibration:
    """Whether scores are the frequencies they claim to be.

    Attributes:
        error: Expected calibration error, in [0, 1].
        score: Mean score of each bin, ascending, shape (bins,).
        observed: Share of label 1 in each bin, shape (bins,).
        rows: Rows of each bin, shape (bins,).
    """

    error: Estimate
    score: Floats
    observed: Floats
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Performance:
    """The figures over all judged rows.

    Attributes:
        auc: Area under the ROC curve.
        log_loss: Mean negative log likelihood, in nats; scores are kept 1e-15 away from 0 and 1.
        brier: Mean squared error of the scores.
        brier_of_base_rate: The same if every row were given the share of label 1.
        calibration: Scores against frequencies.
        accuracy: Share of right predictions at the threshold.
        precision: Share of label 1 among the predicted; None if nothing is predicted.
        recall: Share of the predicted among label 1.
        confusion: Counts as ((true negatives, false positives), (false negatives, true positives)).
        curve: The ROC curve, thinned.
    """

    auc: Estimate
    log_loss: float
    brier: float
    brier_of_base_rate: float
    calibration: Calibration
    accuracy: Estimate
    precision: Estimate | None
    recall: Estimate
    confusion: tuple[tuple[int, int], tuple[int, int]]
    curve: Curve


def measure(label: NDArray[np.int64], score: Floats, *, threshold: float) -> Performance:
    """Measure scores in [0, 1] against labels 0 and 1, both of shape (rows,); both labels occur.

    Args:
        label: The truth.
        score: The probability of label 1 that the model gave.
        threshold: A score of at least this predicts label 1.
    """
    selected = score >= threshold
    counts = np.bincount(2 * label + selected, minlength=4)
    negative, false, missed, hit = (int(count) for count in counts)
    share = float(label.mean())
    safe = np.clip(score, 1e-15, 1 - 1e-15)
    return Performance(
        auc=delong(label, score),
        log_loss=float(-np.mean(np.where(label == 1, np.log(safe), np.log1p(-safe)))),
        brier=float(np.mean((score - label) ** 2)),
        brier_of_base_rate=share * (1 - share),
        calibration=calibrate(label, score),
        accuracy=wilson(negative + hit, len(label)),
        precision=wilson(hit, false + hit) if false + hit else None,
        recall=wilson(hit, missed + hit),
        confusion=((negative, false), (missed, hit)),
        curve=thin(roc(label, score), CURVE_POINTS),
    )


def calibrate(label: NDArray[np.int64], score: Floats) -> Calibration:
    """Measure the expected calibration error: the mean distance of scores from observed frequencies.

    Naeini, Cooper and Hauskrecht, AAAI 2015, over bins of equally many rows. The interval holds with at
    least 95 %: in each bin the mean of ``label - score`` errs by about a normal, whose variance is at most
    p(1 - p)/n; by Cauchy-Schwarz the weighted sum of their sizes errs by at most the root of the weighted
    variances times the root of a chi-square of as many degrees as there are bins.
    """
    cuts = np.unique(np.quantile(score, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(cuts, score, side="right")
    rows = np.bincount(place)
    kept = rows > 0
    rows = rows[kept]
    positives = np.bincount(place, weights=label)[kept]
    mean = np.bincount(place, weights=score)[kept] / rows
    weight = rows / len(score)
    smooth = (positives + 1) / (rows + 2)  # keeps a bin of one class from claiming certainty
    spread = np.sqrt(np.sum(weight**2 * smooth * (1 - smooth) / rows))
    reach = float(spread * np.sqrt(chdtri(len(rows), 1 - CONFIDENCE)))
    value = float(np.sum(weight * np.abs(positives / rows - mean)))
    error = Estimate(value, max(0.0, value - reach), min(1.0, value + reach))
    return Calibration(error=error, score=mean, observed=positives / rows, rows=rows)


def roc(label: NDArray[np.int64], score: Floats) -> Curve:
    """Draw the ROC curve, one point a distinct score; arrays as for :func:`measure`."""
    order = np.argsort(-score, kind="stable")
    ranked, truth = score[order], label[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    hits = np.cumsum(truth)[last]
    false = 1 + last - hits
    return Curve(
        false_positive_rate=np.append(0.0, false / false[-1]),
        true_positive_rate=np.append(0.0, hits / hits[-1]),
        threshold=np.append(max(1.0, ranked[0]), ranked[last]),
    )


def thin(curve: Curve, points: int) -> Curve:
    """Keep at most ``points`` of a curve, evenly along its way, both ends included."""
    along = curve.false_positive_rate + curve.true_positive_rate
    kept = np.unique(np.searchsorted(along, np.linspace(along[0], along[-1], points)))
    kept[0], kept[-1] = 0, len(along) - 1
    return Curve(curve.false_positive_rate[kept], curve.true_positive_rate[kept], curve.threshold[kept])
