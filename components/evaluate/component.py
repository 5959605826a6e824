"""The ``evaluate`` component: predictions become a verdict, and a report that says why."""

from kfp import dsl

from trainwright.authoring import images


@dsl.component(base_image=images.TABULAR, install_kfp_package=False)
def evaluate(
    predictions: dsl.Input[dsl.Dataset],
    predictions_version: str,
    evaluation: dict,
    verdict: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    slices: dsl.Output[dsl.Metrics],
    curve: dsl.Output[dsl.ClassificationMetrics],
    baseline: dsl.Input[dsl.Dataset] = None,
    baseline_version: str = "",
    baseline_registered: str = "",
) -> str:
    """Judge a model by its predictions on rows it has not learned from, overall and slice by slice.

    Args:
        predictions: Snapshot with a label, what the model said of it, and the columns to slice by.
        predictions_version: Digest of its manifest; another content is refused.
        evaluation: Split, slices, threshold, rules: the section ``evaluation``.
        verdict: ``verdict.json``: the decision, every rule with its number and limit, what was not judged.
        report: One self-contained page, whatever the decision; a short ``summary.md`` is in ``verdict``.
        metrics: The overall figures, such as ``auc`` and ``gain/auc``.
        slices: Those of every slice and group, such as ``slice/origin/EWR/recall``, and the ends of the
            overall figures' intervals, such as ``auc_low``.
        curve: Confusion matrix, and of two classes the ROC curve; empty for numbers and for text.
        baseline: What the model in production said of the same rows: a snapshot of the same form.
        baseline_version: Digest of its manifest; '' for no baseline.
        baseline_registered: Number of the registered version that made it; '' for none.

    Returns:
        PASS, HOLD, FAIL or INCONCLUSIVE; the pipeline decides what follows.
    """
    from pathlib import Path

    from trainwright.artifacts.metadata import describe
    from trainwright.errors import reported
    from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions
    from trainwright.experiment import Evaluation

    with reported("evaluate"):
        made = evaluate_predictions(
            Path(predictions.path),
            predictions_version,
            Evaluation.parse(evaluation, "parameter evaluation"),
            verdict=Path(verdict.path),
            report=Path(report.path),
            summary=Path(verdict.path, "summary.md"),
            baseline=BaselinePredictions(
                baseline and Path(baseline.path),
                baseline_version,
                baseline_registered,
                baseline.uri if baseline else "",
            ),
            uri=predictions.uri,
        )
        metrics.metadata.update(made.metrics)
        slices.metadata.update(made.details)
        describe("evaluate", verdict, report, metrics, slices, curve)
        made.draw(curve)
    return made.decision
