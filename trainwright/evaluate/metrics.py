"""Metrics with confidence intervals, for each part of a partition of the rows and over all rows."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri  # type: ignore[import-untyped]

from trainwright.evaluate.evaluation_data import (
    COUNTS,
    EvaluationData,
    Formula,
    ModelFeatures,
    Sums,
    ratio,
    trials,
)
from trainwright.evaluate.findings import ComparedMetric, Floats, Integers
from trainwright.experiment.evaluation import HIGHER, LOWER, METRICS, find_metric
from trainwright.significance import (
    Estimate,
    Placements,
    Resampler,
    apart,
    delong,
    delong_difference,
    intervals,
    mcnemar,
    paired_difference,
    placements,
    wilson,
)

_CLOSE = 1e-12


def is_fraction(name: str) -> bool:
    """Return True if a metric lies in [0, 1]."""
    metric = METRICS.get(name) or find_metric(name)
    return metric is not None and metric.fraction


def snap_to_bounds(share: Floats) -> Floats:
    """Take shares for 0 or 1 that are so but for the rounding of sums of weights."""
    found: Floats = np.where(share > 1 - _CLOSE, 1.0, np.where(share < _CLOSE, 0.0, share))
    return found


def widen_gain(gain: Estimate | None, better: Estimate | None, worse: Estimate | None) -> Estimate | None:
    """Widen the gain's interval where one of the two shares is exactly 0 or 1."""
    if gain is None or better is None or worse is None or not {better.value, worse.value} & {0.0, 1.0}:
        return gain
    return apart(gain, better, worse)


def with_wilson_width(entry: Estimate | None, units: float, confidence: float) -> Estimate | None:
    """Replace an interval without width at 0 or 1 by Wilson's, of as many units."""
    if entry is None or entry.low < entry.high or 0 < entry.value < 1:
        return entry
    return wilson(entry.value * units, units, confidence)


@dataclass(frozen=True)
class ModelSums:
    """The sums of one model.

    Attributes:
        total: Of each part.
        drawn: Of each part in every draw.
        left_out: Of each part with one unit left out in turn; None where blocks of rows are drawn.
        units: As many rows, or clusters, were drawn.
    """

    total: Sums
    drawn: Sums
    left_out: Sums | None
    units: int

    def effective(self, total: Floats, drawn: Floats) -> Floats:
        """Return as how many units alike a sum of weights counts, shape (parts,).

        Where rows have weights, or come in clusters, the sum of few of them varies from draw to draw as much
        as that of so many alike (Kish, Survey Sampling, 1965, section 11.7).

        Args:
            total: The sum in the data, shape (parts,).
            drawn: The sum in every draw, shape (draws, parts).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            varied = np.var(drawn, axis=0) / total**2
        found: Floats = np.maximum(1 / (np.where(total > 0, varied, 1.0) + 1 / self.units), 1.0)
        return found


@dataclass(frozen=True)
class Partition:
    """Rows put into parts.

    Attributes:
        subject: What is measured.
        place: The part of each row, shape (rows,).
        parts: How many there are.
        tallies: Of the candidate, and of the baseline where there is one.
        rows: Rows of each part, shape (parts,).
    """

    subject: EvaluationData
    place: Integers
    parts: int
    tallies: tuple[ModelSums, ...]
    rows: Integers

    def members(self) -> list[Integers]:
        """Return the rows of each part."""
        order = np.argsort(self.place, kind="stable")
        return np.split(order, np.cumsum(self.rows)[:-1])


def partition_rows(subject: EvaluationData, place: Integers, parts: int) -> Partition:
    """Add up every feature of every part, in the data and in each draw."""
    tallies = tuple(_model_sums(subject, entry, place, parts) for entry in subject.sides)
    return Partition(subject, place, parts, tallies, np.bincount(place, minlength=parts))


def _model_sums(subject: EvaluationData, entry: ModelFeatures, place: Integers, parts: int) -> ModelSums:
    names = tuple(entry.columns)
    sums = subject.sampler.add_up(place, parts, list(entry.columns.values()))
    total = sums.sum(axis=0)
    left_out = Sums(names, total, sums) if subject.skewed else None
    return ModelSums(Sums(names, total), Sums(names, subject.sampler.draw(sums)), left_out, subject.units)


def metrics_by_part(partition: Partition, *, of_classes: bool = False) -> list[dict[str, ComparedMetric]]:
    """Return the figures of each part by metric; those of single classes too if ``of_classes``."""
    subject = partition.subject
    found: list[dict[str, ComparedMetric]] = [{} for _ in range(partition.parts)]
    if subject.candidate.predictions.kind == "binary":
        for index, rows in enumerate(partition.members()):
            found[index]["auc"] = _part_auc(subject, rows)
    exact = _exact(partition) if subject.exact and subject.classes else {}
    for name, formula in subject.formulas.items():
        if "/" in name and not of_classes:
            continue
        measured = _resampled(partition, name, formula)
        for index in range(partition.parts):
            found[index][name] = _merge(measured[index], exact.get(name, {}).get(index))
    return found


def _merge(drawn: ComparedMetric, exact: ComparedMetric | None) -> ComparedMetric:
    """Take the exact intervals where there are any."""
    if exact is None:
        return drawn
    gain = exact.gain or drawn.gain
    method = exact.method if exact.gain or not drawn.gain else f"{exact.method}; gain {drawn.method}"
    return ComparedMetric(
        drawn.metric, drawn.better, exact.candidate, exact.baseline, gain, method, exact.p_value
    )


def better_of(name: str) -> str:
    """Return which side of a metric is better, or nothing."""
    metric = find_metric(name)
    return metric.better if metric else ""


def _resampled(partition: Partition, name: str, formula: Formula) -> list[ComparedMetric]:
    """Return a metric of every part with bootstrap intervals."""
    measured = [_applied(tally, formula, fraction=is_fraction(name)) for tally in partition.tallies]
    each = [
        _estimates(partition, tally, name, *entry)
        for tally, entry in zip(partition.tallies, measured, strict=True)
    ]
    gains: list[Estimate | None] = [None] * partition.parts
    sign = -1.0 if better_of(name) == LOWER else 1.0
    if len(measured) > 1:
        (value, drawn, left), (other, drawn_other, left_other) = measured
        away = None if left is None or left_other is None else sign * (left - left_other)
        ends = intervals(
            sign * (value - other),
            sign * (drawn - drawn_other),
            away,
            partition.subject.evaluation.confidence,
        )
        gains = [_estimate(*entry) for entry in zip(sign * (value - other), *ends, strict=True)]
        if not partition.subject.same:
            better, worse = each if sign > 0 else each[::-1]
            gains = [widen_gain(*entry) for entry in zip(gains, better, worse, strict=True)]
    baseline = each[1] if len(each) > 1 else [None] * partition.parts
    parts = zip(each[0], baseline, gains, strict=True)
    return [ComparedMetric(name, better_of(name), one, two, gain, "bootstrap") for one, two, gain in parts]


def _applied(tally: ModelSums, formula: Formula, *, fraction: bool) -> tuple[Floats, Floats, Floats | None]:
    def of(sums: Sums) -> Floats:
        return snap_to_bounds(formula(sums)) if fraction else formula(sums)

    return of(tally.total), of(tally.drawn), None if tally.left_out is None else of(tally.left_out)


def _estimate(value: float, low: float, high: float) -> Estimate | None:
    if np.isnan(value) or np.isnan(low):
        return None
    return Estimate(float(value), float(low), float(high))


def _estimates(
    partition: Partition, tally: ModelSums, name: str, value: Floats, drawn: Floats, left: Floats | None
) -> list[Estimate | None]:
    confidence = partition.subject.evaluation.confidence
    low, high = intervals(value, drawn, left, confidence)
    found = [_estimate(*entry) for entry in zip(value, low, high, strict=True)]
    if not is_fraction(name):
        return found
    # Where too many draws are not defined, nothing is known but that it is a share.
    found = [
        entry or (None if np.isnan(number) else Estimate(float(number), 0.0, 1.0))
        for entry, number in zip(found, value, strict=True)
    ]
    counted = tally.effective(trials(name, tally.total), trials(name, tally.drawn))
    return [with_wilson_width(*entry, confidence) for entry in zip(found, counted.tolist(), strict=True)]


def _exact(partition: Partition) -> dict[str, dict[int, ComparedMetric]]:
    """Return the proportions of every part: Wilson's intervals, and Newcombe's of paired differences."""
    subject, confidence = partition.subject, partition.subject.evaluation.confidence
    agreed = _agreements(partition) if subject.baseline else {}
    found: dict[str, dict[int, ComparedMetric]] = {}
    for name in COUNTS if subject.classes == 2 else ("accuracy", "micro_f1"):  # noqa: PLR2004
        counted = [_counts(tally.total, name, subject.classes) for tally in partition.tallies]
        found[name] = {}
        for index in range(partition.parts):
            rows = [float(entry[1][index]) for entry in counted]
            if not min(rows) > 0:
                continue
            hits = [float(entry[0][index]) for entry in counted]
            each = [wilson(hit, trial, confidence) for hit, trial in zip(hits, rows, strict=True)]
            gain, p_value = None, None
            if name in agreed:
                both = float(agreed[name][index])
                gain, p_value = _paired(name, both, hits, rows[0], confidence)
            method = "Wilson; gain Newcombe, McNemar mid-p" if gain else "Wilson"
            other = each[1] if len(each) > 1 else None
            found[name][index] = ComparedMetric(name, better_of(name), each[0], other, gain, method, p_value)
    return found


def _counts(total: Sums, name: str, classes: int) -> tuple[Floats, Floats]:
    if classes == 2 and name in COUNTS and "hits" in total.names:  # noqa: PLR2004
        return COUNTS[name](total)
    right: Floats = np.sum([total[f"hits/{k}"] for k in range(classes)], axis=0)
    return right, total["rows"]


def _paired(
    name: str, both: float, hits: list[float], rows: float, confidence: float
) -> tuple[Estimate, float]:
    only = [hits[0] - both, hits[1] - both]
    p_value = mcnemar(round(only[0]), round(only[1]))
    if better_of(name) == LOWER:
        only.reverse()
    return paired_difference(both, only[0], only[1], rows - both - sum(only), confidence), p_value


def _agreements(partition: Partition) -> dict[str, Floats]:
    """Return in how many rows both models succeed, by metric; each of shape (parts,)."""
    sides, place, parts = partition.subject.sides, partition.place, partition.parts

    def count(both: Floats) -> Floats:
        return np.bincount(place, weights=both, minlength=parts).astype(np.float64)

    ours, theirs = (_correct(entry) for entry in sides)
    found = {"accuracy": count(ours * theirs), "micro_f1": count(ours * theirs)}
    if "selected" not in sides[0].columns:
        return found
    label = sides[0].columns["positives"]
    selected = sides[0].columns["selected"] * sides[1].columns["selected"]
    return found | {
        "recall": count(selected * label),
        "false_positive_rate": count(selected * (1 - label)),
        "selection_rate": count(selected),
    }


def _correct(entry: ModelFeatures) -> Floats:
    columns = entry.columns
    if "selected" in columns:
        right: Floats = (columns["selected"] == columns["positives"]).astype(np.float64)
        return right
    hits = [column for name, column in columns.items() if name.startswith("hits/")]
    return np.asarray(np.sum(hits, axis=0), np.float64)


def _part_auc(subject: EvaluationData, rows: NDArray[np.int64]) -> ComparedMetric:
    """Return the area under the ROC curve over some rows."""
    confidence = subject.evaluation.confidence
    label = subject.candidate.predictions.label[rows]
    scores = [entry.predictions.scores[rows, 0] for entry in subject.sides]
    counts = int(label.sum()), int(len(label) - label.sum())
    none = ComparedMetric("auc", HIGHER, None)
    if not min(counts):
        return none
    if subject.exact:
        each = [delong(label, score, confidence) for score in scores]
        paired = len(scores) > 1 and min(counts) > 1
        gain = delong_difference(label, scores[0], scores[1], confidence) if paired else None
        method = "DeLong"
    else:
        weight = subject.candidate.predictions.weight
        heavy = None if weight is None else weight[rows]
        if heavy is not None and not (heavy[label == 1].sum() > 0 and heavy[label == 0].sum() > 0):
            return none
        clusters = None
        if subject.clusters is not None:
            _, clusters = np.unique(subject.clusters[rows], return_inverse=True)
        found = placements(label, scores, weight=heavy, clusters=clusters)
        each = [found.estimate(index, confidence) for index in range(len(scores))]
        gain = found.difference(confidence) if len(scores) > 1 else None
        method = "DeLong, of clusters" if subject.clusters is not None else "DeLong, weighted"
    return ComparedMetric("auc", HIGHER, each[0], each[1] if len(each) > 1 else None, gain, method)


BINS = 10
"""Bins of equally many rows in which calibration is measured."""

_STEPS = 512
"""Most thresholds at which a drawn average precision is taken."""


def global_metrics(subject: EvaluationData) -> dict[str, ComparedMetric]:
    """Return what only all rows together tell, by metric; empty for kinds that have nothing such."""
    kind = subject.candidate.predictions.kind
    if kind == "binary":
        return {
            "average_precision": average_precision_metric(subject),
            "calibration_error": calibration_metric(subject),
        }
    if kind == "multiclass":
        return class_aucs(subject) | {"calibration_error": calibration_metric(subject)}
    return {}


def class_aucs(subject: EvaluationData) -> dict[str, ComparedMetric]:
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
        return {"macro_auc": ComparedMetric("macro_auc", HIGHER, None)}
    mean = Placements(
        area=np.mean([entry.area for entry in each], axis=0),
        influence=np.mean([entry.influence for entry in each], axis=0),
        pairs=min(entry.pairs for entry in each),
        same=all(entry.same for entry in each),
    )
    named = {"macro_auc": mean} | {f"auc/{k}": entry for k, entry in found.items()}
    return {name: _class_auc(subject, name, entry) for name, entry in named.items()}


def _class_auc(subject: EvaluationData, name: str, found: Placements) -> ComparedMetric:
    confidence = subject.evaluation.confidence
    each = [found.estimate(index, confidence) for index in range(len(subject.sides))]
    paired = len(each) > 1
    return ComparedMetric(
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


def average_precision_metric(subject: EvaluationData) -> ComparedMetric:
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
        value = float(snap_to_bounds(np.array([average_precision(label, score, heavy)]))[0])
        drawn = _average_precision(sampler.draw(sums)) + value - _average_precision(sums.sum(axis=0))
        draws.append(snap_to_bounds(drawn))
        values.append(value)
    found = heavy * label
    if subject.clusters is not None:
        found = np.bincount(subject.clusters, weights=found)
    squares = float(np.sum(found**2))
    alike = float(found.sum() ** 2) / squares if squares else 1.0  # positives of one weight: Kish, 1965
    return _from_draws(subject, "average_precision", HIGHER, values, draws, alike)


def _steps(score: Floats, most: int) -> Integers:
    """Put rows into at most so many steps of about as many rows, the highest scores first; ties together."""
    distinct = np.unique(-score)
    if len(distinct) > most:
        distinct = np.unique(np.quantile(-score, np.linspace(0, 1, most + 1)[1:], method="higher"))
    return np.searchsorted(distinct, -score, side="left").astype(np.int64)


def _from_draws(
    subject: EvaluationData, name: str, better: str, values: list[float], draws: list[Floats], trials: float
) -> ComparedMetric:
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
        gain = gain if subject.same else widen_gain(gain, *(each if sign > 0 else each[::-1]))
    return ComparedMetric(name, better, each[0], each[1] if len(each) > 1 else None, gain, "bootstrap")


def calibration_metric(subject: EvaluationData) -> ComparedMetric:
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
        gain = _from_draws(subject, "calibration_error", LOWER, values, draws, rows).gain
        gain = gain if gain is None or subject.same else apart(gain, each[1], each[0])
        method = f"{method}; gain of both"
    other = each[1] if len(each) > 1 else None
    return ComparedMetric("calibration_error", LOWER, each[0], other, gain, method)


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
