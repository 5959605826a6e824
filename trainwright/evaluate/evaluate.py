"""Evaluate a model's predictions: write the verdict, the report, the summary and the metrics."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.documents import digest_text
from trainwright.errors import InputError
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.measurement import EvaluationContext, measure
from trainwright.evaluate.page import draw_report
from trainwright.evaluate.plot_data import thin
from trainwright.evaluate.predictions import (
    PredictionPair,
    Predictions,
    pair,
    read_predictions,
    require_held_out,
    require_varied,
    suspicious_columns,
)
from trainwright.evaluate.summary import summarize, write_model_card_inputs
from trainwright.experiment import Evaluation
from trainwright.report.page import MAX_BYTES, write_page
from trainwright.tracking import Stopwatch
from trainwright.verdicts import NotJudged, Verdict

CURVE_POINTS = 100
"""Most points of a ROC curve that Kubeflow's page is given."""


@dataclass(frozen=True)
class BaselinePredictions:
    """Predictions, as a step was given them.

    Attributes:
        folder: Folder of the snapshot; None, or any, where ``version`` is empty.
        version: The digest that it must have; empty for none.
        registered: Number of the registered version that made them; empty for none.
    """

    folder: Path | None = None
    version: str = ""
    registered: str = ""


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation, as the component returns it.

    Attributes:
        decision: PASS, HOLD, FAIL or INCONCLUSIVE.
        headline: Why, in one line.
        metrics: Finite overall figures by flat name, such as ``auc`` and ``gain/auc``.
        details: Those of slices and groups, and the ends of intervals, such as ``slice/origin/EWR/recall``.
        labels: Names of the classes in order; empty where there are none.
        confusion: Rows by true class (first) and predicted class; empty where there are none.
        roc: The ROC curve, thinned: false positive rates, true positive rates, thresholds, all finite; None
            unless there are two classes.
    """

    decision: str
    headline: str
    metrics: dict[str, float]
    details: dict[str, float]
    labels: list[str]
    confusion: list[list[int]]
    roc: tuple[list[float], list[float], list[float]] | None

    def draw(self, curve: Any) -> None:
        """Log the confusion matrix and the ROC curve, where there are any, to a ``ClassificationMetrics``."""
        if self.confusion:
            curve.log_confusion_matrix(self.labels, self.confusion)
        if self.roc:
            curve.log_roc_curve(*self.roc)


def evaluate_predictions(
    predictions: Path,
    version: str,
    evaluation: Evaluation,
    *,
    verdict: Path,
    report: Path,
    summary: Path,
    baseline: BaselinePredictions | None = None,
    most_bytes: int = MAX_BYTES,
) -> EvaluationResult:
    """Judge a model by its predictions on a split it has not learned from.

    Args:
        predictions: Folder of the predictions' snapshot.
        version: The digest it must have.
        evaluation: Split, slices, threshold and limits.
        verdict: Folder for ``verdict.json``, which is written last, and what lies beside it.
        report: File of the page, written whatever the decision.
        summary: File of the Markdown summary.
        baseline: What the model in production says of the same rows; None where there is none.
        most_bytes: Size that the page stays below.

    Raises:
        InputError: The predictions are gone or changed, or cannot be judged at all, or not compared, or are
            of rows that the model was made with: see
            :func:`trainwright.evaluate.predictions.read_predictions`,
            :func:`trainwright.evaluate.predictions.pair` and
            :func:`trainwright.evaluate.predictions.require_held_out`.
    """
    watch = Stopwatch()
    (verdict / Verdict.FILE).unlink(missing_ok=True)  # of an attempt that did not end
    snapshot = Snapshot.open(predictions, version)
    require_held_out(predictions, evaluation)
    baseline = baseline or BaselinePredictions()
    pairs = _read(predictions, snapshot, evaluation, baseline)
    beside = _context(predictions, pairs.candidate, evaluation, baseline)
    findings = measure(pairs, evaluation, beside)
    document = build_verdict(findings, snapshot, baseline.registered)
    write_page(draw_report(findings, document), report, most_bytes)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(summarize(findings, document))
    verdict.mkdir(parents=True, exist_ok=True)
    write_model_card_inputs(verdict, findings, document)
    watch.record(
        verdict,
        "evaluate",
        findings.headline,
        decision=document.decision,
        config=evaluation.model_dump(mode="json"),
        inputs={name: digest for name, digest in document.judged.items() if name in _INPUTS},
        outputs={"verdict": document.digest},
        parents=[predictions],
    )
    document.write(verdict)
    return _result(findings)


_INPUTS = ("predictions", "baseline")


def _read(
    folder: Path, snapshot: Snapshot, evaluation: Evaluation, baseline: BaselinePredictions
) -> PredictionPair:
    columns = evaluation.columns
    candidate = read_predictions(folder, snapshot, evaluation.split, columns)
    require_varied(candidate)
    if not baseline.version:
        return pair(candidate, None)
    if baseline.folder is None:
        raise InputError("a baseline has a version, and no folder", where="baseline")
    other = Snapshot.open(baseline.folder, baseline.version)
    there = {column.name for column in other.columns}
    shared = [name for name in columns if name in there]
    return pair(candidate, read_predictions(baseline.folder, other, evaluation.split, shared, "baseline"))


def _context(
    folder: Path, candidate: Predictions, evaluation: Evaluation, baseline: BaselinePredictions
) -> EvaluationContext:
    """Look at what lies beside the judged rows: the fitted split, and columns that give the label away."""
    snapshot, fitted = candidate.snapshot, None
    over = evaluation.overfitting
    if over and snapshot.splits.get(over.split):
        together = [evaluation.cluster] if evaluation.cluster else []
        fitted = read_predictions(folder, snapshot, over.split, together, "predictions")
    warnings: tuple[str, ...] = ()
    if candidate.kind == "binary":
        taken = {*snapshot.roles.values(), "score", candidate.label_name}
        warnings = suspicious_columns(folder, snapshot, evaluation.split, sorted(taken))
    return EvaluationContext(fitted, baseline.registered, warnings)


def build_verdict(findings: Findings, snapshot: Snapshot, registered: str = "") -> Verdict:
    """Write the verdict on some findings: its rules, what it is about, and what it does not cover."""
    said = [entry for ruling in findings.rulings for entry in ruling.undecided]
    told = {entry.name for entry in said}
    judged = {
        "predictions": snapshot.digest,
        "evaluation": digest_text(findings.evaluation.to_json()),
        **{f"predictions.{name}": digest for name, digest in snapshot.parents.items()},
    }
    if findings.baseline:
        judged["baseline"] = findings.baseline.predictions
        if findings.baseline.model:
            judged["baseline.model"] = findings.baseline.model
    return Verdict(
        decision=findings.decision,
        rules=tuple(rule for ruling in findings.rulings for rule in ruling.rules),
        judged=judged,
        not_judged=(*said, *(entry for entry in _unjudged(findings) if entry.name not in told)),
        baseline_version=registered,
    )


def _unjudged(findings: Findings) -> list[NotJudged]:
    """List the slices and the rows that no rule looked at."""
    left = [
        NotJudged(name=f"{cut.name} = {entry.name}", reason=entry.reason)
        for cut in findings.cuts
        for entry in cut.slices
        if entry.reason
    ]
    shown = {cut.columns for cut in findings.cuts}
    for columns, groups in (findings.fairness.groups if findings.fairness else {}).items():
        named = " and ".join(columns)
        small = [group for group in groups if group.reason and columns not in shown]
        left += [NotJudged(name=f"{named} = {group.name}", reason=group.reason) for group in small]
    sample = findings.sample
    if sample.unlabelled:
        reason = f"{sample.unlabelled:,} of {sample.rows + sample.unlabelled:,} rows of the split"
        left.append(NotJudged(name=f"rows without {sample.label_name}", reason=reason))
    if sample.unmatched:
        reason = f"{sample.unmatched:,} rows were scored by one of the two models"
        left.append(NotJudged(name="rows that only one model scored", reason=reason))
    return left


def _result(findings: Findings) -> EvaluationResult:
    roc = None
    if findings.kind == "binary" and (curve := findings.curves.roc.get("")):
        drawn = thin(curve, CURVE_POINTS)
        roc = (drawn.x.tolist(), drawn.y.tolist(), drawn.threshold.tolist())
    return EvaluationResult(
        decision=findings.decision,
        headline=findings.headline,
        metrics=findings.overall_metrics(),
        details=findings.detailed_metrics(),
        labels=list(findings.sample.classes),
        confusion=[list(row) for row in findings.confusion],
        roc=roc,
    )
