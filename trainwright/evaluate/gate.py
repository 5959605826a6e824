"""The gate: predictions in; a verdict, a page, a summary and the figures out."""

from dataclasses import dataclass
from pathlib import Path

from trainwright.artifacts import NotJudged, Snapshot, Verdict
from trainwright.documents import digest_text
from trainwright.evaluate.findings import Findings, examine
from trainwright.evaluate.page import draw
from trainwright.evaluate.scores import read_scores
from trainwright.evaluate.summary import summarize
from trainwright.experiment import Evaluation
from trainwright.report.page import write_page
from trainwright.tracking import Stopwatch


@dataclass(frozen=True)
class Judgement:
    """What the step hands on.

    Attributes:
        decision: PASS, HOLD, FAIL or INCONCLUSIVE.
        headline: Why, in one line.
        metrics: Finite figures by flat name, such as ``slice/origin/EWR/recall``.
        labels: Names of the two classes, 0 first.
        confusion: Counts as [[true negatives, false positives], [false negatives, true positives]].
        roc: The ROC curve, thinned: false positive rates, true positive rates, thresholds, all finite.
    """

    decision: str
    headline: str
    metrics: dict[str, float]
    labels: list[str]
    confusion: list[list[int]]
    roc: tuple[list[float], list[float], list[float]]


def judge_predictions(
    predictions: Path, version: str, evaluation: Evaluation, *, verdict: Path, report: Path, summary: Path
) -> Judgement:
    """Judge a model by its predictions on a split it has not learned from.

    Args:
        predictions: Folder of the predictions' snapshot.
        version: The digest it must have.
        evaluation: Split, slices, threshold and limits.
        verdict: Folder for ``verdict.json``, which is written last, and ``record.json``.
        report: File of the page, written whatever the decision.
        summary: File of the Markdown summary.

    Raises:
        InputError: The predictions are gone or changed, or cannot be judged at all: see
            :func:`trainwright.evaluate.scores.read_scores`.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(predictions, version)
    scores = read_scores(predictions, snapshot, evaluation.split, evaluation.slices)
    findings = examine(scores, evaluation)
    document = decide(findings, snapshot)
    write_page(draw(findings, document), report)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(summarize(findings, document))
    verdict.mkdir(parents=True, exist_ok=True)
    watch.record(
        verdict,
        "evaluate",
        findings.headline,
        decision=document.decision,
        config=evaluation.model_dump(mode="json"),
        inputs={"predictions": version},
        outputs={"verdict": document.digest},
        parents=[predictions],
    )
    document.write(verdict)
    return _judgement(findings)


def decide(findings: Findings, snapshot: Snapshot) -> Verdict:
    """Write the verdict on some findings: its rules, what it is about, and what it does not cover."""
    left_out = [
        NotJudged(name=f"{cut.column} = {entry.name}", reason=entry.reason)
        for cut in findings.cuts
        for entry in cut.slices
        if entry.reason
    ]
    scores = findings.scores
    if scores.unlabelled:
        reason = f"{scores.unlabelled:,} of {scores.rows + scores.unlabelled:,} rows of the split"
        left_out.append(NotJudged(name=f"rows without {scores.label_name}", reason=reason))
    undecided = [entry for ruling in findings.rulings if (entry := ruling.not_judged())]
    return Verdict(
        decision=findings.decision,
        rules=tuple(rule for ruling in findings.rulings if (rule := ruling.rule())),
        judged={
            "predictions": snapshot.digest,
            "evaluation": digest_text(findings.evaluation.to_json()),
            **{f"predictions.{name}": digest for name, digest in snapshot.parents.items()},
        },
        not_judged=(*undecided, *left_out),
    )


def _judgement(findings: Findings) -> Judgement:
    curve, label = findings.performance.curve, findings.scores.label_name
    rates = curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist()
    return Judgement(
        decision=findings.decision,
        headline=findings.headline,
        metrics=findings.flatten(),
        labels=[f"{label} = 0", f"{label} = 1"],
        confusion=[list(row) for row in findings.performance.confusion],
        roc=(*rates, curve.threshold.tolist()),
    )
