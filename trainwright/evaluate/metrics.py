"""Metrics with confidence intervals, for each part of a partition of the rows and over all rows."""

import math
from dataclasses import replace

import numpy as np

from trainwright.evaluate.evaluation_data import (
    CONSTANT_LOSS,
    COUNTS,
    MODEL_LOSS,
    EvaluationData,
    Formula,
    Sums,
    claims,
    ratio,
    sides,
    trials,
)
from trainwright.evaluate.findings import ComparedMetric, ConstantComparison, Floats
from trainwright.evaluate.partition import AGREEMENTS, ModelSums, Partition
from trainwright.evaluate.predictions import PredictionPair
from trainwright.evaluate.rows import Partial
from trainwright.experiment.evaluation import HIGHER, LOWER, find_metric
from trainwright.significance import (
    Estimate,
    Placements,
    Resampler,
    ValueDistribution,
    apart,
    effective_count,
    gamma_quantile,
    intervals,
    mcnemar,
    paired_difference,
    wilson,
)

_CLOSE = 1e-12


def is_fraction(name: str) -> bool:
    """Return True if a metric lies in [0, 1]."""
    metric = find_metric(name)
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


def metrics_by_part(partition: Partition, *, of_classes: bool = False) -> list[dict[str, ComparedMetric]]:
    """Return the metrics of each part by name; those of single classes too if ``of_classes``."""
    data = partition.data
    found: list[dict[str, ComparedMetric]] = [{} for _ in range(partition.parts)]
    if data.kind == "binary":
        for index in range(partition.parts):
            found[index]["auc"] = _part_auc(partition, index)
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
    kind = data.kind
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
    agreed = {} if partition.agreed is None else dict(zip(AGREEMENTS, partition.agreed, strict=False))
    binary = data.kind == "binary"
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
            both = agreed.get("accuracy" if name == "micro_f1" else name)
            if both is not None:
                metric = _paired(metric, float(both[index]), hits, rows[0], confidence)
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


def _part_auc(partition: Partition, part: int) -> ComparedMetric:
    counts, data = partition.counts[part], partition.data
    if np.isnan(partition.rankings[0][0].area[part]):
        return ComparedMetric("auc", HIGHER, None)
    method = "DeLong" if data.exact else "DeLong, of clusters" if data.clustered else "DeLong, weighted"
    method += _off_by(partition.rank_error(part))
    found = _of_placements(data, "auc", partition.placements(part), method)
    return replace(found, gain=None) if data.exact and min(counts) < 2 else found  # noqa: PLR2004


def _off_by(error: float) -> str:
    """Say by how much a metric may be off because scores share a step."""
    return f" (off by at most {math.ceil(error * 1e6) / 1e6:.6f}, as scores share steps)" if error else ""


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


def global_metrics(whole: Partition, sums: Partial) -> dict[str, ComparedMetric]:
    """Return what only all rows together tell, by metric; empty for kinds that have nothing such.

    ``sums`` are the merged results of :func:`take_global_sums`.
    """
    data = whole.data
    if data.kind == "binary":
        return {
            "average_precision": average_precision_metric(whole, sums),
            "calibration_error": calibration_metric(data, sums),
        }
    if data.kind == "multiclass":
        return class_aucs(whole) | {"calibration_error": calibration_metric(data, sums)}
    return {}


def take_global_sums(pair: PredictionPair, piece: int, data: EvaluationData) -> Partial:
    """Return the sums of some rows by bin of calibration and by threshold, for each unit that is drawn."""
    rows, found = pair.candidate, Partial()
    if data.kind not in ("binary", "multiclass"):
        return found
    unit, weight = data.unit(rows, piece), rows.weights
    of_label = unit
    if data.kind == "binary" and not data.clustered:
        of_label = np.empty(rows.rows, np.int64)
        for label in (0, 1):
            index = data.index(rows, piece, label)
            of_label[rows.label == label] = precision_sampler(data).unit_of(index, label)
    for side, model in enumerate(sides(pair)):
        truth, score = claims(model)
        cuts = calibration_cuts(claimed(data, side))
        bins = np.searchsorted(cuts, score, side="right").astype(np.int64)
        values = [weight, weight * truth, weight * score]
        found[f"calibration/{side}"] = data.sampler.add_up(unit, bins, len(cuts) + 1, values)
        if data.kind == "binary":
            ends = precision_steps(data.scores(side))
            step = np.searchsorted(-ends, -score, side="left")
            found[f"precision/{side}"] = precision_sampler(data).add_up(
                of_label, step, len(ends), [weight, weight * rows.label]
            )
    return found


def claimed(data: EvaluationData, side: int) -> ValueDistribution:
    """Return the distribution of how sure a model is of what it claims."""
    return data.scores(side) if data.kind == "binary" else data.survey[f"claims/{side}"]


def precision_sampler(data: EvaluationData) -> Resampler:
    """Return draws within each label, or of clusters."""
    if data.clustered:
        return data.sampler
    return Resampler(tuple(data.counts.tolist()), data.evaluation.resamples, data.evaluation.seed)


def class_aucs(whole: Partition) -> dict[str, ComparedMetric]:
    """Return the area of every class against the rest, and their mean; a class without rows has none."""
    data, found = whole.data, {}
    for k, of_class in enumerate(data.candidate.predictions.class_names):
        if not np.isnan(whole.rankings[k][0].area[0]):
            method = f"DeLong{_off_by(whole.rank_error(0, k))}"
            found[f"auc/{of_class}"] = _of_placements(data, f"auc/{of_class}", whole.placements(0, k), method)
    if not found:  # one class has all the weight
        return {"macro_auc": ComparedMetric("macro_auc", HIGHER, None)}
    error = max(whole.rank_error(0, k) for k in range(data.classes))
    method = f"DeLong, mean of classes{_off_by(error)}"
    return {"macro_auc": _of_placements(data, "macro_auc", whole.placements(0, None), method), **found}


def _average_precision(sums: Floats) -> Floats:
    """Return it of sums by step, the highest scores first; shape (..., steps, 2): rows, and positives."""
    found, hits = np.cumsum(sums[..., 0], axis=-1), np.cumsum(sums[..., 1], axis=-1)
    precision = np.nan_to_num(ratio(hits, found))
    total: Floats = np.sum(sums[..., 1] * precision, axis=-1)
    return ratio(total, hits[..., -1])


def average_precision_metric(whole: Partition, sums: Partial) -> ComparedMetric:
    """Return the average precision, drawn again within each label: rows of a label stay as many.

    Beyond 512 distinct scores the draws are taken at 512 thresholds of as many rows, and moved by what that
    changes in the data themselves.
    """
    data = whole.data
    values, draws, off = [], [], 0.0
    for side, ranking in enumerate(whole.rankings[0]):
        added = sums[f"precision/{side}"]
        steps = ranking.by_step()
        value = float(snap_to_bounds(np.array([_average_precision(steps)]))[0])
        drawn = _average_precision(precision_sampler(data).draw(added))
        draws.append(snap_to_bounds(drawn + value - _average_precision(added.sum(axis=0))))
        values.append(value)
        off = max(off, precision_error(steps))
    found = _from_draws(data, "average_precision", HIGHER, values, draws, _alike_positives(whole))
    return replace(found, method=found.method + _off_by(off))


def _alike_positives(whole: Partition) -> float:
    """Return as how many positives of one weight they count: Kish, 1965."""
    total, squares = whole.weights[:, 0, 1]
    if whole.members is not None:
        positive = whole.members.ids // whole.data.units == 1
        squares = np.sum(whole.members.values[positive, 0] ** 2)
    return effective_count(float(total), float(squares))


def precision_error(sums: Floats) -> float:
    """Return by how much the average precision may be off because scores share a step.

    It is most where the positives of every step come first, and least where they come last; ``sums`` are
    those of :meth:`trainwright.significance.Ranking.by_step`.
    """
    rows, hits, unsure = sums.T
    before, hits_before = np.cumsum(rows) - rows, np.cumsum(hits) - hits
    most = np.nan_to_num(ratio(hits_before + hits, before + hits))
    least = np.nan_to_num(ratio(hits_before, before + rows - hits))
    tied = np.nan_to_num(ratio(hits_before + hits, before + rows))
    share = np.where(unsure, np.nan_to_num(ratio(hits, hits.sum())), 0.0)
    return float(max(np.sum(share * (most - tied)), np.sum(share * (tied - least))))


def precision_steps(scores: ValueDistribution) -> Floats:
    """Return the thresholds of at most 512 steps of about as many rows, the highest first."""
    if len(scores.values) <= _STEPS:
        return scores.values[::-1].astype(np.float64)
    at = np.ceil((scores.rows - 1) * np.linspace(0, 1, _STEPS + 1)[1:]).astype(np.int64)
    return np.unique(scores.ordered(scores.rows - 1 - at))[::-1].astype(np.float64)


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


def calibration_metric(data: EvaluationData, added: Partial) -> ComparedMetric:
    """Return the expected calibration error: the mean distance of scores from observed frequencies.

    Naeini, Cooper and Hauskrecht, AAAI 2015, over bins of equally many rows; of several classes, of the
    highest score and whether it is right (Guo and others, ICML 2017). Its interval is that of
    :func:`calibration_error`. A gain's is a bootstrap's, and at least what both intervals put together: noise
    enlarges a small error more than a large one, so draws alone bring the two models closer than they are.
    """
    confidence = data.evaluation.confidence
    each, values, draws = [], [], []
    for side in range(len(data.sides)):
        sums = added[f"calibration/{side}"]
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
        gain = _from_draws(data, "calibration_error", LOWER, values, draws, data.rows).gain
        gain = gain if gain is None or data.same else apart(gain, each[1], each[0])
        method = f"{method}; gain of both"
    other = each[1] if len(each) > 1 else None
    return ComparedMetric("calibration_error", LOWER, each[0], other, gain, method)


def calibration_cuts(scores: ValueDistribution) -> Floats:
    """Return the limits between at most :data:`BINS` bins of about as many rows, by their score."""
    found: Floats = np.unique(scores.quantiles(np.linspace(0, 1, BINS + 1)[1:-1]))
    return found


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
    chi_square = 2 * gamma_quantile(len(rows) / 2, 1 - confidence)
    reach = math.sqrt(float(np.sum((share * spread) ** 2) * chi_square))
    value = float(np.sum(share * np.abs(positives - score) / rows))
    return Estimate(value, max(0.0, value - reach), min(1.0, value + reach))
