"""Figures that are taken over all rows alone: areas of classes, average precision, calibration."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri  # type: ignore[import-untyped]

from trainwright.evaluate.findings import Compared, Floats
from trainwright.evaluate.formulas import ratio
from trainwright.evaluate.shares import known_no_better, snapped
from trainwright.evaluate.subject import Integers, Subject
from trainwright.experiment.metrics import HIGHER, LOWER
from trainwright.significance import Estimate, Placements, Resampler, apart, intervals, placements, wilson

BINS = 10
"""Bins of equally many rows in which calibration is measured."""

_STEPS = 512
"""Most thresholds at which a drawn average precision is taken."""


def whole_figures(subject: Subject) -> dict[str, Compared]:
    """Return what only all rows together tell, by metric; empty for kinds that have nothing such."""
    kind = subject.candidate.predictions.kind
    if kind == "binary":
        return {"average_precision": precise(subject), "calibration_error": calibrated(subject)}
    if kind == "multiclass":
        return areas(subject) | {"calibration_error": calibrated(subject)}
    return {}


def areas(subject: Subject) -> dict[str, Compared]:
    """Return the area of every class against the rest, and their mean; a class without rows has none."""
    label, weight = subject.candidate.predictions.label, subject.candidate.predictions.weight
    found: dict[int, Placements] = {}
    for k in range(subject.classes):
        truth = (label == k).astype(np.int64)
        heavy = truth if weight is None else truth * weight
        if 0 < heavy.sum() < (len(truth) if weight is None else weight.sum()):
            scores = [entry.predictions.scores[:, k] for entry in subject.sides]
            found[k] = placements(truth, scores, weight=weight, clusters=subject.clusters)
    each = list(found.values())
    if not each:  # one class has all the weight
        return {"macro_auc": Compared("macro_auc", HIGHER, None)}
    mean = Placements(
        area=np.mean([entry.area for entry in each], axis=0),
        influence=np.mean([entry.influence for entry in each], axis=0),
        pairs=min(entry.pairs for entry in each),
        same=all(entry.same for entry in each),
    )
    named = {"macro_auc": mean} | {f"auc/{k}": entry for k, entry in found.items()}
    return {name: _area(subject, name, entry) for name, entry in named.items()}


def _area(subject: Subject, name: str, found: Placements) -> Compared:
    confidence = subject.evaluation.confidence
    each = [found.estimate(index, confidence) for index in range(len(subject.sides))]
    paired = len(each) > 1
    return Compared(
        metric=name,
        better=HIGHER,
        candidate=each[0],
        baseline=each[1] if paired else None,
        gain=found.difference(confidence) if paired else None,
        method="DeLong, mean of classes" if name == "macro_auc" else "DeLong",
    )


def average_precision(label: Integers, score: Floats, weight: Floats) -> float:
    """Return the mean of the precision over the positives found one by one, ties at once.

    The sum over thresholds of the step in recall times the precision there: an area under the curve without
    interpolation, which would be too high (Davis and Goadrich, ICML 2006).

    Args:
        label: 0 or 1, shape (rows,).
        score: Higher for a likelier 1, shape (rows,).
        weight: Of each row, shape (rows,).
    """
    step = np.unique(-score, return_inverse=True)[1].ravel()
    found = np.bincount(step, weights=weight)
    hits = np.bincount(step, weights=weight * label)
    return float(_average_precision(np.stack([found, hits], axis=-1)))


def _average_precision(sums: Floats) -> Floats:
    """Return it of sums by step, the highest scores first; shape (..., steps, 2): rows, and positives."""
    found, hits = np.cumsum(sums[..., 0], axis=-1), np.cumsum(sums[..., 1], axis=-1)
    precision = np.nan_to_num(ratio(hits, found))
    total: Floats = np.sum(sums[..., 1] * precision, axis=-1)
    return ratio(total, hits[..., -1])


def precise(subject: Subject) -> Compared:
    """Return the average precision, drawn again within each label: rows of a label stay as many.

    Beyond 512 distinct scores the draws are taken at 512 thresholds of as many rows, and moved by what that
    changes in the data themselves.
    """
    predictions = subject.candidate.predictions
    label, weight = predictions.label, predictions.weight
    heavy = np.ones(len(label)) if weight is None else weight
    sampler = subject.sampler
    if subject.clusters is None:
        asked = subject.evaluation
        sampler = Resampler.over(len(label), strata=label, resamples=asked.resamples, seed=asked.seed)
    values, draws = [], []
    for entry in subject.sides:
        score = entry.predictions.scores[:, 0]
        step = _steps(score, _STEPS)
        sums = sampler.add_up(step, int(step.max()) + 1, [heavy, heavy * label])
        value = float(snapped(np.array([average_precision(label, score, heavy)]))[0])
        drawn = _average_precision(sampler.draw(sums)) + value - _average_precision(sums.sum(axis=0))
        draws.append(snapped(drawn))
        values.append(value)
    found = heavy * label
    if subject.clusters is not None:
        found = np.bincount(subject.clusters, weights=found)
    squares = float(np.sum(found**2))
    alike = float(found.sum() ** 2) / squares if squares else 1.0  # positives of one weight: Kish, 1965
    return _drawn(subject, "average_precision", HIGHER, values, draws, alike)


def _steps(score: Floats, most: int) -> Integers:
    """Put rows into at most so many steps of about as many rows, the highest scores first; ties together."""
    distinct = np.unique(-score)
    if len(distinct) > most:
        distinct = np.unique(np.quantile(-score, np.linspace(0, 1, most + 1)[1:], method="higher"))
    return np.searchsorted(distinct, -score, side="left").astype(np.int64)


def _drawn(
    subject: Subject, name: str, better: str, values: list[float], draws: list[Floats], trials: float
) -> Compared:
    """Return a metric from its draws; certain ones have Wilson's interval of as many trials."""
    confidence = subject.evaluation.confidence

    def around(value: float, drawn: Floats) -> Estimate | None:
        low, high = intervals(np.array([value]), drawn[:, None], None, confidence)
        return None if np.isnan(low[0]) else Estimate(value, float(low[0]), float(high[0]))

    each = [around(value, np.clip(drawn, 0, 1)) for value, drawn in zip(values, draws, strict=True)]
    each = [
        wilson(e.value * trials, trials, confidence) if e and (e.low == e.high or e.value == 1) else e
        for e in each
    ]
    gain = None
    if len(each) > 1:
        sign = 1.0 if better == HIGHER else -1.0
        gain = around(sign * (values[0] - values[1]), sign * (draws[0] - draws[1]))
        gain = gain if subject.same else known_no_better(gain, *(each if sign > 0 else each[::-1]))
    return Compared(name, better, each[0], each[1] if len(each) > 1 else None, gain, "bootstrap")


def calibrated(subject: Subject) -> Compared:
    """Return the expected calibration error: the mean distance of scores from observed frequencies.

    Naeini, Cooper and Hauskrecht, AAAI 2015, over bins of equally many rows; of several classes, of the
    highest score and whether it is right (Guo and others, ICML 2017). Its interval is that of
    :func:`calibration_error`. A gain's is a bootstrap's, and at least what both intervals put together: noise
    enlarges a small error more than a large one, so draws alone bring the two models closer than they are.
    """
    confidence = subject.evaluation.confidence
    weight = subject.candidate.predictions.weight
    each, values, draws = [], [], []
    for entry in subject.sides:
        truth, score = _claims(entry.predictions.label, entry.predictions.scores)
        heavy = np.ones(len(score)) if weight is None else weight
        place = calibration_bins(score)
        parts = int(place.max()) + 1
        sums = subject.sampler.add_up(place, parts, [heavy, heavy * truth, heavy * score])
        drawn = subject.sampler.draw(sums)
        total, spread = sums.sum(axis=0), None
        total, kept = total[total[:, 0] > 0], drawn[:, total[:, 0] > 0]  # rows of a bin may have no weight
        if not subject.exact:
            spread = np.nanstd(ratio(kept[..., 1] - kept[..., 2], kept[..., 0]), axis=0)
        error = calibration_error(total, confidence, spread)
        each.append(error)
        values.append(error.value)
        draws.append(_error(drawn))
    gain, method = None, "normal, of every bin at once"
    if len(each) > 1:
        rows = len(subject.candidate.predictions.label)
        gain = _drawn(subject, "calibration_error", LOWER, values, draws, rows).gain
        gain = gain if gain is None or subject.same else apart(gain, each[1], each[0])
        method = f"{method}; gain of both"
    other = each[1] if len(each) > 1 else None
    return Compared("calibration_error", LOWER, each[0], other, gain, method)


def _claims(label: NDArray[np.int64], scores: Floats) -> tuple[Floats, Floats]:
    """Return whether what is claimed is so, and how sure the model is of it; both of shape (rows,)."""
    if scores.shape[1] == 1:
        return label.astype(np.float64), scores[:, 0]
    chosen = scores.argmax(axis=1)
    return (chosen == label).astype(np.float64), scores[np.arange(len(label)), chosen]


def calibration_bins(score: Floats) -> Integers:
    """Put rows into at most :data:`BINS` bins of about as many, by their score; none is empty."""
    cuts = np.unique(np.quantile(score, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(cuts, score, side="right")
    return np.unique(place, return_inverse=True)[1].ravel().astype(np.int64)


def _error(sums: Floats) -> Floats:
    found: Floats = np.sum(np.abs(sums[..., 1] - sums[..., 2]), axis=-1)
    return ratio(found, np.sum(sums[..., 0], axis=-1))


def calibration_error(sums: Floats, confidence: float, spread: Floats | None = None) -> Estimate:
    """Return the error with an interval that holds with at least ``confidence``.

    In each bin the mean of ``label - score`` errs by about a normal, whose variance is at most p(1 - p)/n; by
    Cauchy-Schwarz the weighted sum of their sizes errs by at most the root of the weighted variances times
    the root of a chi-square of as many degrees as there are bins.

    Args:
        sums: Rows, positives and scores of each bin, shape (bins, 3).
        confidence: In (0, 1).
        spread: Standard deviation of each bin's mean, shape (bins,), where rows do not count alike and alone.
    """
    rows, positives, score = sums[:, 0], sums[:, 1], sums[:, 2]
    share = rows / rows.sum()
    if spread is None:
        smooth = (positives + 1) / (rows + 2)  # keeps a bin of one class from claiming certainty
        spread = np.sqrt(smooth * (1 - smooth) / rows)
    reach = math.sqrt(float(np.sum((share * spread) ** 2) * chdtri(len(rows), 1 - confidence)))
    value = float(np.sum(share * np.abs(positives - score) / rows))
    return Estimate(value, max(0.0, value - reach), min(1.0, value + reach))
