"""Metrics with confidence intervals, for each part of a partition of the rows and over all rows."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri  # type: ignore[import-untyped]

from trainwright.evaluate.evaluation_data import (
    CONSTANT_LOSS,
    COUNTS,
    MODEL_LOSS,
    EvaluationData,
    Formula,
    ModelFeatures,
    Sums,
    ratio,
    trials,
)
from trainwright.evaluate.findings import ComparedMetric, ConstantComparison, Floats, Integers
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


def better_of(name: str) -> str:
    """Return which side of a metric is better, or nothing."""
    metric = find_metric(name)
    return metric.better if metric else ""


def snap_to_bounds(share: Floats) -> Floats:
    """Take shares for 0 or 1 that are so but for the rounding of sums of weights."""
    found: Floats = np.where(share > 1 - _CLOSE, 1.0, np.where(share < _CLOSE, 0.0, share))
    return found


def widen_gain(gain: Estimate | None, better: Estimate | None, worse: Estimate | None) -> Estimate | None:
    """Widen the gain's interval where one of the two shares is exactly 0 or 1."""
    if gain is None or better is None or worse is None or not {better.value, worse.value} & {0.0, 1.0}:
        return gain
    return apart(gain, better, worse)


@dataclass(frozen=True)
class ModelSums:
    """The sums of one model by part: in the data, in every draw, and with one unit left out in turn.

    ``left_out`` is None where blocks of rows are drawn; ``units`` is the number of rows, or clusters.
    """

    total: Sums
    drawn: Sums
    left_out: Sums | None
    units: int

    def effective(self, total: Floats, drawn: Floats) -> Floats:
        """Return as how many units alike a sum of weights counts, shape (parts,).

        Where rows have weights, or come in clusters, the sum of few of them varies from draw to draw as much
        as that of so many alike (Kish, Survey Sampling, 1965, section 11.7). ``total`` is the sum in the
        data, ``drawn`` in every draw, shape (draws, parts).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            varied = np.var(drawn, axis=0) / total**2
        found: Floats = np.maximum(1 / (np.where(total > 0, varied, 1.0) + 1 / self.units), 1.0)
        return found


@dataclass(frozen=True)
class Partition:
    """Rows put into parts: the part of each row, and the sums of each model; ``rows`` has shape (parts,)."""

    data: EvaluationData
    place: Integers
    parts: int
    tallies: tuple[ModelSums, ...]
    rows: Integers

    def members(self) -> list[Integers]:
        """Return the rows of each part."""
        order = np.argsort(self.place, kind="stable")
        return np.split(order, np.cumsum(self.rows)[:-1])


def partition_rows(data: EvaluationData, place: Integers, parts: int) -> Partition:
    """Add up every feature of every part, in the data and in each draw."""
    tallies = []
    for entry in data.sides:
        names = tuple(entry.columns)
        sums = data.sampler.add_up(place, parts, list(entry.columns.values()))
        total = sums.sum(axis=0)
        left_out = Sums(names, total, sums) if data.skewed else None
        drawn = Sums(names, data.sampler.draw(sums))
        tallies.append(ModelSums(Sums(names, total), drawn, left_out, data.units))
    return Partition(data, place, parts, tuple(tallies), np.bincount(place, minlength=parts))


def metrics_by_part(partition: Partition, *, of_classes: bool = False) -> list[dict[str, ComparedMetric]]:
    """Return the metrics of each part by name; those of single classes too if ``of_classes``."""
    data = partition.data
    found: list[dict[str, ComparedMetric]] = [{} for _ in range(partition.parts)]
    if data.candidate.predictions.kind == "binary":
        for index, rows in enumerate(partition.members()):
            found[index]["auc"] = _part_auc(data, rows)
    exact = _exact(partition) if data.exact and data.classes else {}
    for name, formula in data.formulas.items():
        if "/" in name and not of_classes:
            continue
        for index, drawn in enumerate(_resampled(partition, name, formula)):
            found[index][name] = _merge(drawn, exact.get(name, {}).get(index))
    return found


def compare_with_constant(whole: Partition) -> ConstantComparison:
    """Compare the model's mean loss with that of the best constant prediction, over one part of all rows.

    The constant is chosen anew in every draw, so that the interval of the gain allows for its choice.
    """
    data, tally = whole.data, whole.tallies[0]
    kind = data.candidate.predictions.kind
    metric = {"regression": "rmse", "language_model": "loss"}.get(kind, "log_loss")
    model = float(MODEL_LOSS[kind](tally.total)[0])
    if kind == "language_model" and "constant_loss" not in tally.total.names:
        reason = "the predictions have no column of tokens or text, so their frequencies are not known"
        return ConstantComparison(metric, model, math.nan, None, reason)

    def gain(sums: Sums) -> Floats:
        found: Floats = CONSTANT_LOSS[kind](sums) - MODEL_LOSS[kind](sums)
        return found

    left = None if tally.left_out is None else gain(tally.left_out)
    (found,) = _estimates(gain(tally.total), gain(tally.drawn), left, data.evaluation.confidence)
    constant = float(CONSTANT_LOSS[kind](tally.total)[0])
    if kind == "regression":
        model, constant = math.sqrt(model), math.sqrt(constant)
    return ConstantComparison(metric, model, constant, found, "" if found else "it is not defined here")


def _merge(drawn: ComparedMetric, exact: ComparedMetric | None) -> ComparedMetric:
    """Take the exact intervals where there are any."""
    if exact is None:
        return drawn
    if exact.gain or not drawn.gain:
        return exact
    return replace(exact, gain=drawn.gain, method=f"{exact.method}; gain {drawn.method}")


def _resampled(partition: Partition, name: str, formula: Formula) -> list[ComparedMetric]:
    fraction, data = is_fraction(name), partition.data

    def of(sums: Sums) -> Floats:
        return snap_to_bounds(formula(sums)) if fraction else formula(sums)

    each, measured = [], []
    for tally in partition.tallies:
        left = None if tally.left_out is None else of(tally.left_out)
        measured.append((of(tally.total), of(tally.drawn), left))
        found = _estimates(*measured[-1], data.evaluation.confidence)
        each.append(_shares(data, tally, name, measured[-1][0], found) if fraction else found)
    gains: list[Estimate | None] = [None] * partition.parts
    baseline = each[1] if len(each) > 1 else gains
    if len(measured) > 1:
        sign = -1.0 if better_of(name) == LOWER else 1.0
        (value, drawn, left), (other, drawn_other, left_other) = measured
        away = None if left is None or left_other is None else sign * (left - left_other)
        gains = _estimates(
            sign * (value - other), sign * (drawn - drawn_other), away, data.evaluation.confidence
        )
        if not data.same:
            better, worse = each if sign > 0 else each[::-1]
            gains = [widen_gain(*entry) for entry in zip(gains, better, worse, strict=True)]
    parts = zip(each[0], baseline, gains, strict=True)
    return [ComparedMetric(name, better_of(name), one, two, gain, "bootstrap") for one, two, gain in parts]


def _estimates(value: Floats, drawn: Floats, left: Floats | None, confidence: float) -> list[Estimate | None]:
    ends = intervals(value, drawn, left, confidence)
    return [
        None if np.isnan(number) or np.isnan(low) else Estimate(float(number), float(low), float(high))
        for number, low, high in zip(value, *ends, strict=True)
    ]


def _shares(
    data: EvaluationData, tally: ModelSums, name: str, values: Floats, found: list[Estimate | None]
) -> list[Estimate | None]:
    """Correct the intervals of shares whose draws do not show how uncertain they are."""
    classes = data.candidate.predictions.class_names
    counted = tally.effective(trials(name, tally.total, classes), trials(name, tally.drawn, classes))
    shares = []
    for entry, value, units in zip(found, values.tolist(), counted.tolist(), strict=True):
        if entry is None:
            # Where too many draws are not defined, nothing is known but that it is a share.
            shares.append(None if math.isnan(value) else Estimate(value, 0.0, 1.0))
        elif entry.low == entry.high and entry.value in (0, 1):
            shares.append(wilson(entry.value * units, units, data.evaluation.confidence))
        else:
            shares.append(entry)
    return shares


def _exact(partition: Partition) -> dict[str, dict[int, ComparedMetric]]:
    """Return the proportions of every part: Wilson's intervals, and Newcombe's of paired differences."""
    data, confidence = partition.data, partition.data.evaluation.confidence
    agreed = _agreements(partition) if data.baseline else {}
    binary = data.candidate.predictions.kind == "binary"
    found: dict[str, dict[int, ComparedMetric]] = {}
    for name in COUNTS if binary else ("accuracy", "micro_f1"):
        counts = COUNTS[name] if binary else _right_of_all
        counted = [counts(tally.total) for tally in partition.tallies]
        found[name] = {}
        for index in range(partition.parts):
            rows = [float(entry[1][index]) for entry in counted]
            if not min(rows) > 0:
                continue
            hits = [float(entry[0][index]) for entry in counted]
            each = [wilson(hit, trial, confidence) for hit, trial in zip(hits, rows, strict=True)]
            other = each[1] if len(each) > 1 else None
            metric = ComparedMetric(name, better_of(name), each[0], other, method="Wilson")
            if name in agreed:
                metric = _paired(metric, float(agreed[name][index]), hits, rows[0], confidence)
            found[name][index] = metric
    return found


def _right_of_all(total: Sums) -> tuple[Floats, Floats]:
    right: Floats = np.sum([total[name] for name in total.names if name.startswith("hits/")], axis=0)
    return right, total["rows"]


def _paired(
    metric: ComparedMetric, both: float, hits: list[float], rows: float, confidence: float
) -> ComparedMetric:
    """Add the paired gain and McNemar's test; both models succeed in ``both`` rows."""
    only = [hits[0] - both, hits[1] - both]
    p_value = mcnemar(round(only[0]), round(only[1]))
    if metric.better == LOWER:
        only.reverse()
    gain = paired_difference(both, only[0], only[1], rows - both - sum(only), confidence)
    return replace(metric, gain=gain, method="Wilson; gain Newcombe, McNemar mid-p", p_value=p_value)


def _agreements(partition: Partition) -> dict[str, Floats]:
    """Return in how many rows both models succeed, by metric; each of shape (parts,)."""
    ours, theirs = partition.data.sides

    def count(both: Floats) -> Floats:
        return np.bincount(partition.place, weights=both, minlength=partition.parts).astype(np.float64)

    right = count(_correct(ours) * _correct(theirs))
    if "selected" not in ours.columns:
        return {"accuracy": right, "micro_f1": right}
    label, selected = ours.columns["positives"], ours.columns["selected"] * theirs.columns["selected"]
    return {
        "accuracy": right,
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


def _part_auc(data: EvaluationData, rows: NDArray[np.int64]) -> ComparedMetric:
    confidence = data.evaluation.confidence
    label = data.candidate.predictions.label[rows]
    scores = [entry.predictions.scores[rows, 0] for entry in data.sides]
    counts = int(label.sum()), int(len(label) - label.sum())
    none = ComparedMetric("auc", HIGHER, None)
    if not min(counts):
        return none
    if data.exact:
        each = [delong(label, score, confidence) for score in scores]
        paired = len(scores) > 1 and min(counts) > 1
        gain = delong_difference(label, scores[0], scores[1], confidence) if paired else None
        return ComparedMetric("auc", HIGHER, each[0], each[1] if len(each) > 1 else None, gain, "DeLong")
    weight, clusters = data.candidate.predictions.weight, None
    heavy = None if weight is None else weight[rows]
    if heavy is not None and not (heavy[label == 1].sum() > 0 and heavy[label == 0].sum() > 0):
        return none
    if data.clusters is not None:
        _, clusters = np.unique(data.clusters[rows], return_inverse=True)
    found = placements(label, scores, weight=heavy, clusters=clusters)
    method = "DeLong, weighted" if clusters is None else "DeLong, of clusters"
    return _of_placements(data, "auc", found, method)


def _of_placements(data: EvaluationData, name: str, found: Placements, method: str) -> ComparedMetric:
    confidence, both = data.evaluation.confidence, data.baseline is not None
    return ComparedMetric(
        metric=name,
        better=HIGHER,
        candidate=found.estimate(0, confidence),
        baseline=found.estimate(1, confidence) if both else None,
        gain=found.difference(confidence) if both else None,
        method=method,
    )


BINS = 10
"""Bins of equally many rows in which calibration is measured."""

_STEPS = 512
"""Most thresholds at which a drawn average precision is taken."""


def global_metrics(data: EvaluationData) -> dict[str, ComparedMetric]:
    """Return what only all rows together tell, by metric; empty for kinds that have nothing such."""
    kind = data.candidate.predictions.kind
    if kind == "binary":
        return {
            "average_precision": average_precision_metric(data),
            "calibration_error": calibration_metric(data),
        }
    if kind == "multiclass":
        return class_aucs(data) | {"calibration_error": calibration_metric(data)}
    return {}


def class_aucs(data: EvaluationData) -> dict[str, ComparedMetric]:
    """Return the area of every class against the rest, and their mean; a class without rows has none."""
    label, weight = data.candidate.predictions.label, data.candidate.predictions.weight
    found: dict[str, Placements] = {}
    for k, of_class in enumerate(data.candidate.predictions.class_names):
        truth = (label == k).astype(np.int64)
        heavy = truth if weight is None else truth * weight
        if 0 < heavy.sum() < (len(truth) if weight is None else weight.sum()):
            scores = [entry.predictions.scores[:, k] for entry in data.sides]
            found[of_class] = placements(truth, scores, weight=weight, clusters=data.clusters)
    each = list(found.values())
    if not each:  # one class has all the weight
        return {"macro_auc": ComparedMetric("macro_auc", HIGHER, None)}
    mean = Placements(
        area=np.mean([entry.area for entry in each], axis=0),
        influence=np.mean([entry.influence for entry in each], axis=0),
        pairs=min(entry.pairs for entry in each),
        same=all(entry.same for entry in each),
    )
    named = {"macro_auc": mean} | {f"auc/{of_class}": entry for of_class, entry in found.items()}
    methods = {"macro_auc": "DeLong, mean of classes"}
    return {
        name: _of_placements(data, name, entry, methods.get(name, "DeLong")) for name, entry in named.items()
    }


def average_precision(label: Integers, score: Floats, weight: Floats) -> float:
    """Return the mean of the precision over the positives found one by one, ties at once.

    The sum over thresholds of the step in recall times the precision there: an area under the curve without
    interpolation, which would be too high (Davis and Goadrich, ICML 2006). All arrays have shape (rows,).
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


def average_precision_metric(data: EvaluationData) -> ComparedMetric:
    """Return the average precision, drawn again within each label: rows of a label stay as many.

    Beyond 512 distinct scores the draws are taken at 512 thresholds of as many rows, and moved by what that
    changes in the data themselves.
    """
    predictions = data.candidate.predictions
    label, weight = predictions.label, predictions.weight
    heavy = np.ones(len(label)) if weight is None else weight
    sampler = data.sampler
    if data.clusters is None:
        resamples, seed = data.evaluation.resamples, data.evaluation.seed
        sampler = Resampler.over(len(label), strata=label, resamples=resamples, seed=seed)
    values, draws = [], []
    for entry in data.sides:
        score = entry.predictions.scores[:, 0]
        step = _steps(score, _STEPS)
        sums = sampler.add_up(step, int(step.max()) + 1, [heavy, heavy * label])
        value = float(snap_to_bounds(np.array([average_precision(label, score, heavy)]))[0])
        drawn = _average_precision(sampler.draw(sums)) + value - _average_precision(sums.sum(axis=0))
        draws.append(snap_to_bounds(drawn))
        values.append(value)
    found = heavy * label
    if data.clusters is not None:
        found = np.bincount(data.clusters, weights=found)
    squares = float(np.sum(found**2))
    alike = float(found.sum() ** 2) / squares if squares else 1.0  # positives of one weight: Kish, 1965
    return _from_draws(data, "average_precision", HIGHER, values, draws, alike)


def _steps(score: Floats, most: int) -> Integers:
    """Put rows into at most so many steps of about as many rows, the highest scores first; ties together."""
    distinct = np.unique(-score)
    if len(distinct) > most:
        distinct = np.unique(np.quantile(-score, np.linspace(0, 1, most + 1)[1:], method="higher"))
    return np.searchsorted(distinct, -score, side="left").astype(np.int64)


def _from_draws(
    data: EvaluationData, name: str, better: str, values: list[float], draws: list[Floats], trials: float
) -> ComparedMetric:
    """Return a metric from its draws; certain ones have Wilson's interval of as many trials."""
    confidence = data.evaluation.confidence

    def around(value: float, drawn: Floats) -> Estimate | None:
        return _estimates(np.array([value]), drawn[:, None], None, confidence)[0]

    each = [around(value, np.clip(drawn, 0, 1)) for value, drawn in zip(values, draws, strict=True)]
    each = [
        wilson(e.value * trials, trials, confidence) if e and (e.low == e.high or e.value == 1) else e
        for e in each
    ]
    gain = None
    if len(each) > 1:
        sign = 1.0 if better == HIGHER else -1.0
        gain = around(sign * (values[0] - values[1]), sign * (draws[0] - draws[1]))
        gain = gain if data.same else widen_gain(gain, *(each if sign > 0 else each[::-1]))
    return ComparedMetric(name, better, each[0], each[1] if len(each) > 1 else None, gain, "bootstrap")


def calibration_metric(data: EvaluationData) -> ComparedMetric:
    """Return the expected calibration error: the mean distance of scores from observed frequencies.

    Naeini, Cooper and Hauskrecht, AAAI 2015, over bins of equally many rows; of several classes, of the
    highest score and whether it is right (Guo and others, ICML 2017). Its interval is that of
    :func:`calibration_error`. A gain's is a bootstrap's, and at least what both intervals put together: noise
    enlarges a small error more than a large one, so draws alone bring the two models closer than they are.
    """
    confidence = data.evaluation.confidence
    weight = data.candidate.predictions.weight
    each, values, draws = [], [], []
    for entry in data.sides:
        truth, score = _claims(entry.predictions.label, entry.predictions.scores)
        heavy = np.ones(len(score)) if weight is None else weight
        place = calibration_bins(score)
        parts = int(place.max()) + 1
        sums = data.sampler.add_up(place, parts, [heavy, heavy * truth, heavy * score])
        drawn = data.sampler.draw(sums)
        total, spread = sums.sum(axis=0), None
        total, kept = total[total[:, 0] > 0], drawn[:, total[:, 0] > 0]  # rows of a bin may have no weight
        if not data.exact:
            spread = np.nanstd(ratio(kept[..., 1] - kept[..., 2], kept[..., 0]), axis=0)
        error = calibration_error(total, confidence, spread)
        each.append(error)
        values.append(error.value)
        distance: Floats = np.sum(np.abs(drawn[..., 1] - drawn[..., 2]), axis=-1)
        draws.append(ratio(distance, np.sum(drawn[..., 0], axis=-1)))
    gain, method = None, "normal, of every bin at once"
    if len(each) > 1:
        rows = len(data.candidate.predictions.label)
        gain = _from_draws(data, "calibration_error", LOWER, values, draws, rows).gain
        gain = gain if gain is None or data.same else apart(gain, each[1], each[0])
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


def calibration_error(sums: Floats, confidence: float, spread: Floats | None = None) -> Estimate:
    """Return the error with an interval that holds with at least ``confidence``.

    In each bin the mean of ``label - score`` errs by about a normal, whose variance is at most p(1 - p)/n; by
    Cauchy-Schwarz the weighted sum of their sizes errs by at most the root of the weighted variances times
    the root of a chi-square of as many degrees as there are bins.

    ``sums`` has rows, positives and scores of each bin, shape (bins, 3); ``spread`` the standard deviation of
    each bin's mean, shape (bins,), where rows do not count alike and alone.
    """
    rows, positives, score = sums[:, 0], sums[:, 1], sums[:, 2]
    share = rows / rows.sum()
    if spread is None:
        smooth = (positives + 1) / (rows + 2)  # keeps a bin of one class from claiming certainty
        spread = np.sqrt(smooth * (1 - smooth) / rows)
    reach = math.sqrt(float(np.sum((share * spread) ** 2) * chdtri(len(rows), 1 - confidence)))
    value = float(np.sum(share * np.abs(positives - score) / rows))
    return Estimate(value, max(0.0, value - reach), min(1.0, value + reach))
