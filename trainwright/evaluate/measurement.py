"""Measure predictions overall and by slice, and apply the rules."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from trainwright.evaluate.evaluation_data import (
    SERVED_THRESHOLD,
    EvaluationData,
    build_evaluation_data,
    grouped_columns,
    groupings_of,
)
from trainwright.evaluate.findings import (
    MIN_UNITS,
    ComparedBaseline,
    ComparedMetric,
    Disparity,
    Findings,
    Sample,
    Slice,
    Slicing,
)
from trainwright.evaluate.group_fairness import OPPORTUNITY, compare_groups
from trainwright.evaluate.groupings import Grouping, cross, group_rows
from trainwright.evaluate.metrics import (
    better_of,
    compare_with_constant,
    global_metrics,
    metrics_by_part,
    take_global_sums,
)
from trainwright.evaluate.partition import (
    WHOLE,
    Partition,
    RankRequest,
    build_partition,
    rank_parts,
    take_products,
    take_sums,
)
from trainwright.evaluate.plot_data import confusion, plot_data, take_plot_sums
from trainwright.evaluate.predictions import PredictionPair
from trainwright.evaluate.rows import Partial, Rows
from trainwright.evaluate.rules import apply_rules, constant_warning, require_defined
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import LOWER
from trainwright.significance import Estimate, independent_difference

_FIRST = ("auc", "macro_auc", "loss", "rmse")
"""The metrics that matter most, and are shown first."""

Columns = tuple[str, ...]


def measure(
    source: Rows,
    evaluation: Evaluation,
    *,
    fitted: Rows | None = None,
    baseline_version: str = "",
    warnings: tuple[str, ...] = (),
) -> Findings:
    """Measure predictions overall and slice by slice, and apply every rule.

    Args:
        source: The evaluated rows.
        evaluation: The section ``evaluation``.
        fitted: Predictions on the split that the model was fitted on; None where it was not scored.
        baseline_version: Number of the version in production; empty for none.
        warnings: What a person should look at.

    Raises:
        InputError: The rows cannot be judged, a rule is not for this kind of label, or a column cannot be
            cut into slices.
    """
    head = source.read(source.pieces[0]).candidate
    evaluation = require_defined(evaluation, head.kind, head.class_names)
    fairness = evaluation.fairness
    data = build_evaluation_data(source, evaluation)
    groupings = _groupings(data)
    parts, sums = _partitions(data, groupings)
    cuts = {columns: _cut(groupings[columns], parts[columns]) for columns in groupings}
    whole, baseline = parts[WHOLE], data.baseline
    overall = _overall(whole, sums)
    fitted_sample, known = _on_fitted(fitted, evaluation)
    findings = Findings(
        evaluation=evaluation,
        kind=data.kind,
        sample=replace(_sample(whole), digest=_digest_rows(data)),
        baseline=_baseline(data, baseline_version),
        unscored="" if baseline else baseline_version,
        threshold=data.candidate.threshold if data.kind == "binary" else None,
        overall=overall,
        constant=compare_with_constant(whole),
        confusion=confusion(sums, 0),
        baseline_confusion=confusion(sums, 1),
        curves=plot_data(data, 0, sums),
        baseline_curves=plot_data(data, 1, sums) if baseline else None,
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


Parts = dict[Columns, Partition]


@dataclass(frozen=True)
class _SumRequest:
    data: EvaluationData
    groupings: dict[Columns, Grouping]


def _partitions(data: EvaluationData, groupings: dict[Columns, Grouping]) -> tuple[Parts, Partial]:
    """Add up the rows in two passes, of sums and then of products of placements.

    Return the parts of every grouping, all rows among them, and the sums.
    """
    source = data.source
    sums = source.add_up(_take_sums, _SumRequest(data, groupings))
    rankings = rank_parts(data, groupings, sums)
    products = source.add_up(take_products, RankRequest(data, groupings, rankings)) if rankings else {}
    both: dict[Columns, Grouping | None] = {WHOLE: None, **groupings}
    return {
        columns: build_partition(data, columns, grouping, sums, rankings, products)
        for columns, grouping in both.items()
    }, sums


def _take_sums(pair: PredictionPair, piece: int, request: _SumRequest) -> Partial:
    data = request.data
    return {
        **take_sums(pair, piece, data, request.groupings),
        **take_global_sums(pair, piece, data),
        **take_plot_sums(pair, piece, data),
    }


def _threshold_warning(data: EvaluationData) -> tuple[str, ...]:
    """Warn where the threshold is each model's own, and that of production is only the default."""
    baseline = data.baseline
    own = data.evaluation.threshold == "model" and data.kind == "binary"
    if not own or baseline is None or baseline.predictions.threshold is not None:
        return ()
    return (
        f"the model in production carries no threshold, so it is measured at {SERVED_THRESHOLD}, as it is "
        f"served; the candidate at its own, {data.candidate.threshold:.4g}",
    )


def _groupings(data: EvaluationData) -> dict[Columns, Grouping]:
    most, configured, found = data.evaluation.max_slices, groupings_of(data.evaluation), data.survey
    single = {
        name: group_rows(found[f"column/{name}"], name, most=most)
        for name in grouped_columns(data.evaluation)
    }
    crossed = {names: (single[names[0]], single[names[1]]) for names in configured if len(names) > 1}
    met = data.source.add_up(_take_crossed, crossed) if crossed else {}
    return {
        names: cross(*crossed[names], met[str(names)], most=most) if names in crossed else single[names[0]]
        for names in configured
    }


def _take_crossed(pair: PredictionPair, _: int, crossed: dict[Columns, tuple[Grouping, Grouping]]) -> Partial:
    """Count rows by both slices of each pair of columns."""
    found = {}
    for names, both in crossed.items():
        sizes = [len(grouping.names) for grouping in both]
        one, two = (grouping.assign(pair.candidate.columns) for grouping in both)
        found[str(names)] = np.bincount(one * sizes[1] + two, minlength=sizes[0] * sizes[1]).reshape(sizes)
    return found


def _cut(grouping: Grouping, parts: Partition) -> Slicing:
    data = parts.data
    judged_by = {rule.metric for rule in data.evaluation.all_rules if rule.scope == "slice"}
    found = metrics_by_part(parts, of_classes=any("/" in name for name in judged_by))
    slices = []
    for index, rows in enumerate(parts.rows.tolist()):
        if rows:
            counts = tuple(parts.counts[index].tolist()) if data.classes else ()
            reason = _slice_too_small(parts, grouping, index)
            slices.append(Slice(grouping.names[index], rows, counts, found[index], reason))
    return Slicing(grouping.columns, tuple(slices), grouping.buckets)


def _slice_too_small(partition: Partition, grouping: Grouping, index: int) -> str:
    """Say why a slice is not judged; empty if it is."""
    data, section = partition.data, partition.data.evaluation
    rows, counts = int(partition.rows[index]), partition.counts[index].tolist()
    if grouping.names[index] == grouping.pooled:
        return "rare values together"
    if rows < section.min_rows:
        return f"{rows:,} of at least {section.min_rows:,} rows"

    def too_few_units(of_class: int | None = None, what: str = "") -> str:
        units = int(partition.units(of_class)[index]) if data.clustered else MIN_UNITS
        return (
            f"{units} of at least {MIN_UNITS} values of {section.cluster}{what}" if units < MIN_UNITS else ""
        )

    if reason := too_few_units():
        return reason
    of_classes = (1, "positives", section.min_positives), (0, "negatives", section.min_negatives)
    for value, what, least in of_classes if data.kind == "binary" else ():
        if counts[value] < least:
            return f"{counts[value]:,} of at least {least:,} {what}"
        if reason := too_few_units(value, f" with {what}"):
            return reason
    return ""


def _disparities(
    data: EvaluationData, groupings: dict[Columns, Grouping], parts: dict[Columns, Partition]
) -> tuple[Disparity, ...]:
    """Return the disparities between groups; of two classes only, because they are measures of these."""
    fairness = data.evaluation.fairness
    if fairness is None or data.kind != "binary":
        return ()
    found: list[Disparity] = []
    for columns in fairness.groupings:
        found += compare_groups(parts[columns], groupings[columns], fairness.against)
    return tuple(found)


def _on_fitted(fitted: Rows | None, evaluation: Evaluation) -> tuple[Sample | None, dict[str, Estimate]]:
    """Return the rows that the model was fitted on, and its metrics there; nothing where it scored none."""
    if fitted is None:
        return None, {}
    ungrouped = evaluation.model_copy(update={"slices": (), "crosses": (), "fairness": None})
    data = build_evaluation_data(fitted, ungrouped)
    parts, sums = _partitions(data, {})
    found = _overall(parts[WHOLE], sums)
    known = {name: entry.candidate for name, entry in found.items() if entry.candidate}
    return _sample(parts[WHOLE]), known


def _overall(whole: Partition, sums: Partial) -> dict[str, ComparedMetric]:
    found = metrics_by_part(whole, of_classes=True)[0] | global_metrics(whole, sums)
    first = {name: found[name] for name in _FIRST if name in found}
    return first | found


def _sample(whole: Partition) -> Sample:
    data = whole.data
    predictions, classes = data.candidate.predictions, range(data.classes)
    unlabelled, unmatched = data.survey["left out"].tolist()
    return Sample(
        split=data.evaluation.split,
        rows=data.rows,
        label_name=predictions.label_name,
        classes=tuple(f"{predictions.label_name} = {name}" for name in predictions.class_names),
        class_names=predictions.class_names,
        counts=tuple(data.counts.tolist()) if data.classes else (),
        unlabelled=unlabelled,
        unmatched=unmatched,
        weighted=data.weighted and data.kind != "language_model",
        clusters=data.units if data.clustered else 0,
        counts_in_clusters=tuple(int(whole.units(k)[0]) for k in classes) if data.clustered else (),
    )


def _digest_rows(data: EvaluationData) -> str:
    """Return a digest of keys and labels, whatever the order of the rows; without keys of labels."""
    return hashlib.sha256(data.survey["lines"].astype("<u8").tobytes()).hexdigest()


def _baseline(data: EvaluationData, version: str) -> ComparedBaseline | None:
    if data.baseline is None:
        return None
    snapshot = data.baseline.predictions.snapshot
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
