"""Evaluate a model's predictions: write the verdict, the report, the summary and the metrics."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainwright.artifacts import Snapshot
from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.measurement import measure
from trainwright.evaluate.page import draw_report
from trainwright.evaluate.predictions import require_held_out, roles_of, suspicious_columns
from trainwright.evaluate.rows import Rows, read_rows
from trainwright.evaluate.summary import summarize, write_model_card_inputs
from trainwright.experiment import Evaluation
from trainwright.report.page import MAX_BYTES, write_page
from trainwright.tracking import Stopwatch
from trainwright.verdicts import NotJudged, Verdict


@dataclass(frozen=True)
class BaselinePredictions:
    """The predictions of the model in production.

    Attributes:
        folder: Folder of the snapshot; None, or any, where ``version`` is empty.
        version: The digest that it must have; empty for none.
        registered: Number of the registered version that made them; empty for none.
        uri: Where an engine's workers reach the folder; empty for its path.
    """

    folder: Path | None = None
    version: str = ""
    registered: str = ""
    uri: str = ""


def evaluate_predictions(
    predictions: Path,
    version: str,
    evaluation: Evaluation,
    *,
    verdict: Path,
    report: Path,
    summary: Path,
    baseline: BaselinePredictions | None = None,
    uri: str = "",
    most_bytes: int = MAX_BYTES,
) -> Findings:
    """Judge a model by its predictions on a split it has not learned from.

    Args:
        predictions: Folder of the predictions' snapshot.
        version: The digest it must have.
        evaluation: Split, slices, threshold and limits.
        verdict: Folder for ``verdict.json``, which is written last, and what lies beside it.
        report: File of the page, written whatever the decision.
        summary: File of the Markdown summary.
        baseline: Predictions of the model in production for the same rows; None where there is none.
        uri: Where an engine's workers reach the folder of the predictions; empty for its path.
        most_bytes: Size that the page stays below.

    Raises:
        InputError: The predictions are missing or changed, or cannot be judged or compared, or are of rows
            that the model was made with: see :mod:`trainwright.evaluate.predictions`.
    """
    watch = Stopwatch()
    (verdict / Verdict.FILE).unlink(missing_ok=True)  # of an attempt that did not end
    snapshot = Snapshot.open(predictions, version)
    require_held_out(predictions, evaluation)
    baseline = baseline or BaselinePredictions()
    source = _read(predictions, snapshot, evaluation, baseline, uri)
    over, fitted = evaluation.overfitting, None
    if over and snapshot.splits.get(over.split):
        columns = [evaluation.cluster] if evaluation.cluster else []
        fitted = read_rows(predictions, snapshot, over.split, columns, engine=evaluation.engine, uris=[uri])
    warnings: tuple[str, ...] = ()
    roles = roles_of(snapshot)
    if roles.kind == "binary":
        known = {*snapshot.roles.values(), "score", roles.label}
        warnings = suspicious_columns(predictions, snapshot, evaluation.split, sorted(known))
    findings = measure(
        source, evaluation, fitted=fitted, baseline_version=baseline.registered, warnings=warnings
    )
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
        inputs={
            name: document.judged[name] for name in ("predictions", "baseline") if name in document.judged
        },
        outputs={"verdict": document.digest},
        parents=[predictions],
    )
    document.write(verdict)
    return findings


def _read(
    folder: Path, snapshot: Snapshot, evaluation: Evaluation, baseline: BaselinePredictions, uri: str
) -> Rows:
    read = partial(
        read_rows,
        folder,
        snapshot,
        evaluation.split,
        evaluation.columns,
        engine=evaluation.engine,
        uris=[uri, baseline.uri],
    )
    if not baseline.version:
        return read()
    if baseline.folder is None:
        raise InputError("a baseline has a version, and no folder", where="baseline")
    return read((baseline.folder, Snapshot.open(baseline.folder, baseline.version)))


def build_verdict(findings: Findings, snapshot: Snapshot, registered: str = "") -> Verdict:
    """Return the verdict: rules, digests of everything judged, and what was not judged."""
    undecided = [entry for ruling in findings.rulings for entry in ruling.undecided]
    named = {entry.name for entry in undecided}
    judged = {
        "predictions": snapshot.digest,
        "evaluation": digest_text(canonical(findings.evaluation.model_dump(mode="json", exclude={"engine"}))),
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
        not_judged=(*undecided, *(entry for entry in _left_out(findings) if entry.name not in named)),
        baseline_version=registered,
    )


def _left_out(findings: Findings) -> list[NotJudged]:
    """List the slices and the rows that no rule applies to."""
    left = [
        NotJudged(name=f"{cut.name} = {entry.name}", reason=entry.reason)
        for cut in findings.all_cuts
        for entry in cut.slices
        if entry.reason
    ]
    sample = findings.sample
    if sample.unlabelled:
        reason = f"{sample.unlabelled:,} of {sample.rows + sample.unlabelled:,} rows of the split"
        left.append(NotJudged(name=f"rows without {sample.label_name}", reason=reason))
    if sample.unmatched:
        reason = f"{sample.unmatched:,} rows were scored by one of the two models"
        left.append(NotJudged(name="rows that only one model scored", reason=reason))
    return left
