"""Measure predictions overall and by slice, and apply the rules."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.evaluate.evaluation_data import EvaluationData, build_evaluation_data
from trainwright.evaluate.findings import (
    ComparedBaseline,
    ComparedMetric,
    Disparity,
    Findings,
    GroupComparison,
    GroupRates,
    Ruling,
    Sample,
    Slice,
    Slicing,
)
from trainwright.evaluate.group_fairness import OPPORTUNITY, GroupMinimums, compare_groups
from trainwright.evaluate.metrics import Partition, better_of, global_metrics, metrics_by_part, partition_rows
from trainwright.evaluate.plot_data import confusion, plot_data
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.evaluate.rules import MeasuredEvaluation, rules_of, rulings
from trainwright.evaluate.slices import (
    MIN_UNITS,
    Grouping,
    count_units,
    cross,
    group_rows,
    slice_too_small,
    units_by_class,
)
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import LOWER
from trainwright.significance import Estimate

_FIRST = ("auc", "macro_auc", "loss", "rmse")
"""The metrics that matter most, and are shown first."""

_RATES = {"selection_rate": "selection rate", "recall": "true positive rate",
          "false_positive_rate": "false positive rate"}  # fmt: skip


@dataclass(frozen=True)
class EvaluationContext:
    """Context of an evaluation beside the evaluated rows.

    Attributes:
        fitted: Predictions on the split that the model was fitted on; None where it was not scored.
        baseline_version: Number of the version in production; empty for none.
        warnings: What a person should look at.
    """

    fitted: Predictions | None = None
    baseline_version: str = ""
    warnings: tuple[str, ...] = ()


def measure(
    pairs: PredictionPair, evaluation: Evaluation, beside: EvaluationContext | None = None
) -> Findings:
    """Measure predictions overall and slice by slice, and apply every rule.

    Raises:
        InputError: A rule is not for this kind of label, or a column cannot be cut into slices.
    """
    beside = beside or EvaluationContext()
    candidate = pairs.candidate
    rules = rules_of(evaluation, candidate.kind)
    if evaluation.fairness and candidate.kind != "binary":
        _require_binary(evaluation, candidate.kind)
    subject = build_evaluation_data(pairs, evaluation)
    groupings = _groupings(subject)
    parts = {
        columns: partition_rows(subject, found.place, len(found.names))
        for columns, found in groupings.items()
    }
    cuts = {columns: _cut(subject, groupings[columns], parts[columns]) for columns in groupings}
    overall = _overall(subject)
    learned = build_evaluation_data(PredictionPair(beside.fitted), evaluation) if beside.fitted else None
    fitted = _candidates(_overall(learned)) if learned else {}
    over = _overfitting(overall, fitted)
    fairness = _fairness(evaluation, groupings, parts, cuts) if evaluation.fairness else None
    sample = _sample(pairs, subject)
    held = MeasuredEvaluation(
        evaluation=evaluation,
        kind=candidate.kind,
        sample=sample,
        compared=subject.baseline is not None,
        overall=overall,
        cuts=tuple(cuts.values()),
        fairness=fairness,
        gaps=_gaps(evaluation, groupings, parts),
        overfitting=over,
        fitted=_learned(sample, learned) if learned else None,
        unscored="" if subject.baseline else beside.baseline_version,
    )
    shown = tuple(cut for columns, cut in cuts.items() if columns in evaluation.groupings)
    return _findings(pairs, beside, subject, held, shown, fitted, rulings(held, rules))


def _findings(
    pairs: PredictionPair,
    beside: EvaluationContext,
    subject: EvaluationData,
    held: MeasuredEvaluation,
    cuts: tuple[Slicing, ...],
    fitted: dict[str, Estimate],
    ruled: tuple[Ruling, ...],
) -> Findings:
    candidate, baseline, evaluation = pairs.candidate, subject.baseline, held.evaluation
    return Findings(
        evaluation=evaluation,
        kind=held.kind,
        sample=held.sample,
        baseline=_baseline(pairs, beside),
        threshold=subject.candidate.threshold if candidate.kind == "binary" else None,
        threshold_from="model" if evaluation.threshold == "model" else "section",
        overall=held.overall,
        confusion=confusion(candidate, subject.candidate.threshold),
        baseline_confusion=confusion(baseline.predictions, baseline.threshold) if baseline else (),
        curves=plot_data(candidate),
        baseline_curves=plot_data(baseline.predictions) if baseline else None,
        cuts=cuts,
        fairness=held.fairness,
        fitted=fitted,
        overfitting=held.overfitting,
        warnings=beside.warnings,
        rulings=ruled,
    )


def _require_binary(evaluation: Evaluation, kind: str) -> None:
    fairness = evaluation.fairness
    if fairness and (fairness.limits or fairness.worsening):
        raise InputError(
            f"measures of fairness are of two classes; these are predictions of kind {kind}",
            where="evaluation.fairness",
            hint="Take group_minimum, or a rule with scope: slice.",
        )


def _groupings(subject: EvaluationData) -> dict[tuple[str, ...], Grouping]:
    """Return every grouping that is asked for, for slices or for fairness."""
    evaluation = subject.evaluation
    fair = evaluation.fairness.groupings if evaluation.fairness else ()
    most, single = evaluation.max_slices, {}
    columns = subject.candidate.predictions.columns
    frozen = subject.baseline.predictions.columns if subject.baseline else {}
    wanted = list(dict.fromkeys([*evaluation.groupings, *fair]))
    for name in dict.fromkeys(name for columns_ in wanted for name in columns_):
        single[name] = group_rows(columns[name], name, most=most, frozen=frozen.get(name))
    return {
        names: single[names[0]] if len(names) == 1 else cross(single[names[0]], single[names[1]], most=most)
        for names in wanted
    }


def _counts(subject: EvaluationData, rows: Any) -> tuple[int, ...]:
    if not subject.classes:
        return ()
    label = subject.candidate.predictions.label[rows]
    return tuple(int(count) for count in np.bincount(label, minlength=subject.classes))


def _cut(subject: EvaluationData, grouping: Grouping, partition: Partition) -> Slicing:
    asked = {rule.metric for rule in subject.evaluation.all_rules if rule.scope == "slice"}
    found = metrics_by_part(partition, of_classes=any("/" in name for name in asked))
    slices = []
    for index, rows in enumerate(partition.members()):
        counts = _counts(subject, rows)
        if len(rows):
            reason = slice_too_small(subject, grouping, index, rows, counts)
            slices.append(Slice(grouping.names[index], len(rows), counts, found[index], reason))
    whose = "baseline" if subject.baseline else "these rows"
    return Slicing(grouping.columns, tuple(slices), grouping.edges, whose if grouping.edges else "")


def _overall(subject: EvaluationData) -> dict[str, ComparedMetric]:
    whole = partition_rows(subject, np.zeros(subject.rows, np.int64), 1)
    found = metrics_by_part(whole, of_classes=True)[0] | global_metrics(subject)
    first = {name: found[name] for name in _FIRST if name in found}
    return first | found


def _sample(pairs: PredictionPair, subject: EvaluationData) -> Sample:
    predictions = pairs.candidate
    classes = tuple(f"{predictions.label_name} = {k}" for k in range(subject.classes))
    return Sample(
        split=subject.evaluation.split,
        rows=predictions.rows,
        label_name=predictions.label_name,
        classes=classes,
        counts=_counts(subject, slice(None)),
        unlabelled=predictions.unlabelled,
        unmatched=pairs.unmatched,
        weighted=predictions.weight is not None and predictions.kind != "language_model",
        clusters=0 if subject.clusters is None else subject.units,
        counts_in_clusters=units_by_class(subject),
        digest=digest_rows(predictions),
    )


def _learned(sample: Sample, subject: EvaluationData) -> Sample:
    """Count the rows that the model was fitted on as those that are judged are counted."""
    clusters = 0 if subject.clusters is None else subject.units
    return replace(
        sample,
        rows=subject.rows,
        counts=_counts(subject, slice(None)),
        clusters=clusters,
        counts_in_clusters=units_by_class(subject),
    )


def digest_rows(predictions: Predictions) -> str:
    """Return the SHA-256 of keys and labels, whatever the order of the rows; without keys of labels."""
    label = [repr(value) for value in predictions.label.tolist()]
    keys = [""] * len(label) if predictions.key is None else [str(key) for key in predictions.key.to_pylist()]
    lines = sorted(f"{key}\t{value}\n" for key, value in zip(keys, label, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _baseline(pairs: PredictionPair, beside: EvaluationContext) -> ComparedBaseline | None:
    if pairs.baseline is None:
        return None
    snapshot = pairs.baseline.snapshot
    return ComparedBaseline(beside.baseline_version, snapshot.digest, snapshot.parents.get("model", ""))


def _candidates(overall: dict[str, ComparedMetric]) -> dict[str, Estimate]:
    return {name: entry.candidate for name, entry in overall.items() if entry.candidate}


def _overfitting(overall: dict[str, ComparedMetric], fitted: dict[str, Estimate]) -> dict[str, Estimate]:
    """Return by how much the model is better on the rows it was fitted on; the two samples are independent.

    The ends are put together from both intervals (Zou and Donner, Statistics in Medicine 27, 2008).
    """
    found = {}
    for name, first in fitted.items():
        second = overall[name].candidate if name in overall else None
        if second is None or not better_of(name):
            continue
        more, less = (second, first) if better_of(name) == LOWER else (first, second)
        value = more.value - less.value
        low = math.hypot(more.value - more.low, less.high - less.value)
        high = math.hypot(more.high - more.value, less.value - less.low)
        found[name] = Estimate(value, value - low, value + high)
    return found


def _gaps(
    evaluation: Evaluation,
    groupings: dict[tuple[str, ...], Grouping],
    parts: dict[tuple[str, ...], Partition],
) -> dict[str, Disparity]:
    """Return the gap of recall between the slices of each column that has a limit on it."""
    limited = [name for name in evaluation.slices if evaluation.recall_gap(name) is not None]
    needs = GroupMinimums(evaluation.min_rows, evaluation.min_positives, 0)
    found = {}
    for name in limited:
        compared = _compare(parts[(name,)], groupings[(name,)], needs, "groups")
        gap = next(entry for entry in compared if entry.measure == OPPORTUNITY)
        if gap.value is None:
            reason = f"a gap needs 2 slices with at least {needs.positives} positives: {gap.reason}"
            gap = replace(gap, reason=reason)
        found[name] = gap
    return found


def _compare(partition: Partition, grouping: Grouping, needs: GroupMinimums, against: str) -> list[Disparity]:
    """Compare the groups of a grouping, without the one of rare values."""
    if grouping.pooled:
        # The rarest values are no group: their own members may differ as much as any.
        kept = partition.place != list(grouping.names).index(grouping.pooled)
        rows = np.where(kept, 1, 0)
        partition = replace(
            partition,
            rows=np.bincount(partition.place, weights=rows, minlength=partition.parts).astype(np.int64),
        )
    if partition.subject.clusters is not None:
        units = count_units(partition.subject, partition.place, partition.parts)
        partition = replace(partition, rows=np.where(units < MIN_UNITS, 0, partition.rows))
    return compare_groups(partition, grouping.columns, grouping.names, needs, against)


def _fairness(
    evaluation: Evaluation,
    groupings: dict[tuple[str, ...], Grouping],
    parts: dict[tuple[str, ...], Partition],
    cuts: dict[tuple[str, ...], Slicing],
) -> GroupComparison:
    asked = evaluation.fairness
    wanted: Iterable[tuple[str, ...]] = asked.groupings if asked else ()
    needs = GroupMinimums(evaluation.min_rows, evaluation.min_positives, evaluation.min_negatives)
    binary = bool(cuts) and "selection_rate" in next(iter(cuts.values())).slices[0].figures
    disparities: list[Disparity] = []
    for columns in wanted if binary and asked else ():
        disparities += _compare(parts[columns], groupings[columns], needs, asked.against if asked else "")
    groups = {columns: tuple(_group(entry) for entry in cuts[columns].slices) for columns in wanted}
    return GroupComparison(groups, tuple(disparities))


def _group(entry: Slice) -> GroupRates:
    rates = {
        shown: found
        for name, shown in _RATES.items()
        if name in entry.figures and (found := entry.figures[name].candidate)
    }
    return GroupRates(entry.name, entry.rows, rates, entry.reason)
