"""Measure predictions overall and by slice, and apply the rules."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.evaluate.evaluation_data import SERVED_THRESHOLD, EvaluationData, build_evaluation_data
from trainwright.evaluate.findings import (
    ComparedBaseline,
    ComparedMetric,
    Disparity,
    Findings,
    Sample,
    Slice,
    Slicing,
)
from trainwright.evaluate.group_fairness import OPPORTUNITY, compare_groups
from trainwright.evaluate.metrics import (
    Partition,
    better_of,
    compare_with_constant,
    global_metrics,
    metrics_by_part,
    partition_rows,
)
from trainwright.evaluate.plot_data import confusion, plot_data
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.evaluate.rules import apply_rules, constant_warning, require_defined
from trainwright.evaluate.slices import (
    Grouping,
    cross,
    group_rows,
    slice_too_small,
    units_by_class,
)
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import LOWER
from trainwright.significance import Estimate, independent_difference

_FIRST = ("auc", "macro_auc", "loss", "rmse")
"""The metrics that matter most, and are shown first."""

Columns = tuple[str, ...]


def measure(
    pairs: PredictionPair,
    evaluation: Evaluation,
    *,
    fitted: Predictions | None = None,
    baseline_version: str = "",
    warnings: tuple[str, ...] = (),
) -> Findings:
    """Measure predictions overall and slice by slice, and apply every rule.

    Args:
        pairs: The evaluated rows.
        evaluation: The section ``evaluation``.
        fitted: Predictions on the split that the model was fitted on; None where it was not scored.
        baseline_version: Number of the version in production; empty for none.
        warnings: What a person should look at.

    Raises:
        InputError: A rule is not for this kind of label, or a column cannot be cut into slices.
    """
    candidate = pairs.candidate
    evaluation = require_defined(evaluation, candidate.kind, candidate.class_names)
    fairness = evaluation.fairness
    data = build_evaluation_data(pairs, evaluation)
    groupings = _groupings(data)
    parts = {
        columns: partition_rows(data, found.place, len(found.names)) for columns, found in groupings.items()
    }
    cuts = {columns: _cut(data, groupings[columns], parts[columns]) for columns in groupings}
    whole = _all_rows(data)
    overall = _overall(whole)
    fitted_sample, known = _on_fitted(fitted, evaluation)
    baseline = data.baseline
    findings = Findings(
        evaluation=evaluation,
        kind=candidate.kind,
        sample=replace(_sample(pairs, data), digest=digest_rows(candidate)),
        baseline=_baseline(pairs, baseline_version),
        unscored="" if baseline else baseline_version,
        threshold=data.candidate.threshold if candidate.kind == "binary" else None,
        overall=overall,
        constant=compare_with_constant(whole),
        confusion=confusion(candidate, data.candidate.threshold),
        baseline_confusion=confusion(baseline.predictions, baseline.threshold) if baseline else (),
        curves=plot_data(candidate),
        baseline_curves=plot_data(baseline.predictions) if baseline else None,
        cuts=tuple(cut for columns, cut in cuts.items() if columns in evaluation.groupings),
        groups=tuple(cuts[columns] for columns in fairness.groupings) if fairness else (),
        disparities=_disparities(data, groupings, parts),
        gaps=_recall_gaps(evaluation, groupings, parts),
        fitted_sample=fitted_sample,
        fitted=known,
        overfitting=_overfitting(overall, known),
        warnings=warnings,
    )
    return replace(
        findings,
        rulings=tuple(apply_rules(findings)),
        warnings=(*warnings, *_threshold_warning(data), *constant_warning(findings)),
    )


def _threshold_warning(data: EvaluationData) -> tuple[str, ...]:
    """Warn where the threshold is each model's own, and that of production is only the default."""
    baseline = data.baseline
    own = data.evaluation.threshold == "model" and data.candidate.predictions.kind == "binary"
    if not own or baseline is None or baseline.predictions.threshold is not None:
        return ()
    return (
        f"the model in production carries no threshold, so it is measured at {SERVED_THRESHOLD}, as it is "
        f"served; the candidate at its own, {data.candidate.threshold:.4g}",
    )


def _groupings(data: EvaluationData) -> dict[Columns, Grouping]:
    evaluation = data.evaluation
    most, single = evaluation.max_slices, {}
    columns = data.candidate.predictions.columns
    frozen = data.baseline.predictions.columns if data.baseline else {}
    fair = evaluation.fairness.groupings if evaluation.fairness else ()
    configured = list(dict.fromkeys([*evaluation.groupings, *fair]))
    for name in dict.fromkeys(name for names in configured for name in names):
        single[name] = group_rows(columns[name], name, most=most, frozen=frozen.get(name))
    return {
        names: single[names[0]] if len(names) == 1 else cross(single[names[0]], single[names[1]], most=most)
        for names in configured
    }


def _counts(data: EvaluationData, rows: Any) -> tuple[int, ...]:
    if not data.classes:
        return ()
    label = data.candidate.predictions.label[rows]
    return tuple(int(count) for count in np.bincount(label, minlength=data.classes))


def _cut(data: EvaluationData, grouping: Grouping, partition: Partition) -> Slicing:
    judged_by = {rule.metric for rule in data.evaluation.all_rules if rule.scope == "slice"}
    found = metrics_by_part(partition, of_classes=any("/" in name for name in judged_by))
    slices = []
    for index, rows in enumerate(partition.members()):
        counts = _counts(data, rows)
        if len(rows):
            reason = slice_too_small(data, grouping, index, rows, counts)
            slices.append(Slice(grouping.names[index], len(rows), counts, found[index], reason))
    edges_from = ("baseline" if data.baseline else "these rows") if grouping.buckets else ""
    return Slicing(grouping.columns, tuple(slices), edges_from)


def _disparities(
    data: EvaluationData, groupings: dict[Columns, Grouping], parts: dict[Columns, Partition]
) -> tuple[Disparity, ...]:
    """Return the disparities between groups; of two classes only, because they are measures of these."""
    fairness = data.evaluation.fairness
    if fairness is None or data.candidate.predictions.kind != "binary":
        return ()
    found: list[Disparity] = []
    for columns in fairness.groupings:
        found += compare_groups(parts[columns], groupings[columns], fairness.against)
    return tuple(found)


def _on_fitted(
    fitted: Predictions | None, evaluation: Evaluation
) -> tuple[Sample | None, dict[str, Estimate]]:
    """Return the rows that the model was fitted on, and its metrics there; nothing where it scored none."""
    if fitted is None:
        return None, {}
    pairs = PredictionPair(fitted)
    data = build_evaluation_data(pairs, evaluation)
    found = _overall(_all_rows(data))
    return _sample(pairs, data), {name: entry.candidate for name, entry in found.items() if entry.candidate}


def _all_rows(data: EvaluationData) -> Partition:
    return partition_rows(data, np.zeros(data.rows, np.int64), 1)


def _overall(whole: Partition) -> dict[str, ComparedMetric]:
    found = metrics_by_part(whole, of_classes=True)[0] | global_metrics(whole.data)
    first = {name: found[name] for name in _FIRST if name in found}
    return first | found


def _sample(pairs: PredictionPair, data: EvaluationData) -> Sample:
    predictions = pairs.candidate
    return Sample(
        split=data.evaluation.split,
        rows=predictions.rows,
        label_name=predictions.label_name,
        classes=tuple(f"{predictions.label_name} = {name}" for name in predictions.class_names),
        class_names=predictions.class_names,
        counts=_counts(data, slice(None)),
        unlabelled=predictions.unlabelled,
        unmatched=pairs.unmatched,
        weighted=predictions.weight is not None and predictions.kind != "language_model",
        clusters=0 if data.clusters is None else data.units,
        counts_in_clusters=units_by_class(data),
    )


def digest_rows(predictions: Predictions) -> str:
    """Return the SHA-256 of keys and labels, whatever the order of the rows; without keys of labels."""
    label = [repr(value) for value in predictions.label.tolist()]
    keys = [""] * len(label) if predictions.key is None else [str(key) for key in predictions.key.to_pylist()]
    lines = sorted(f"{key}\t{value}\n" for key, value in zip(keys, label, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _baseline(pairs: PredictionPair, version: str) -> ComparedBaseline | None:
    if pairs.baseline is None:
        return None
    snapshot = pairs.baseline.snapshot
    return ComparedBaseline(version, snapshot.digest, snapshot.parents.get("model", ""))


def _overfitting(overall: dict[str, ComparedMetric], fitted: dict[str, Estimate]) -> dict[str, Estimate]:
    """Return by how much the model is better on the rows it was fitted on: independent samples."""
    found = {}
    for name, first in fitted.items():
        second = overall[name].candidate if name in overall else None
        if second and better_of(name):
            both = (second, first) if better_of(name) == LOWER else (first, second)
            found[name] = independent_difference(*both)
    return found


def _recall_gaps(
    evaluation: Evaluation, groupings: dict[Columns, Grouping], parts: dict[Columns, Partition]
) -> dict[str, Disparity]:
    """Return the gap of recall between the slices of each column that has a limit on it."""
    found = {}
    for name in evaluation.slices:
        if evaluation.recall_gap(name) is None:
            continue
        (gap,) = compare_groups(parts[(name,)], groupings[(name,)], "groups", (OPPORTUNITY,))
        if gap.value is None:
            needed = f"a gap needs 2 slices with at least {evaluation.min_positives} positives"
            gap = replace(gap, reason=f"{needed}: {gap.reason}")
        found[name] = gap
    return found
