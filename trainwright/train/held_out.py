"""Metrics of a trial on the held-out rows: those that end a training early, and that no trial trains on."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.train.feeding.hold_out import HoldOut
from trainwright.train.feeding.target import score_rows
from trainwright.train.fit import TrainingRun
from trainwright.train.loop import FitResult


def loss_metrics(result: FitResult) -> dict[str, float]:
    """Return the training loss, and the held-out loss of the weights that are used."""
    metrics = {"train_loss": result.losses[-1]}
    if result.comparison:
        metrics["held_out_loss"] = result.comparison.losses[result.comparison.kept]
    elif result.watched_loss is not None:
        metrics["held_out_loss"] = result.watched_loss
    return metrics


def held_out_metrics(
    run: TrainingRun, kind: str, predict: Callable[[pa.RecordBatch], NDArray[np.float64]]
) -> dict[str, float]:
    """Return the metrics that a kind of target defines; empty if no rows are held out."""
    training = run.training
    early = training.guards.early_stopping
    if early is None:
        return {}
    hold_out, split = HoldOut.of(training, inside=True), early.split or training.split
    labels, scores = score_rows(run.training_set, run.snapshot, split, hold_out, predict)
    if kind == "regression":
        return {"held_out_rmse": float(np.sqrt(np.square(scores - labels).mean()))}
    if kind == "multiclass":
        return {"held_out_accuracy": float((scores.argmax(axis=1) == labels).mean())}
    return {
        "held_out_accuracy": float(((scores >= 0.5) == labels).mean()),  # noqa: PLR2004 - the usual threshold
        "held_out_auc": area_under_curve(labels, scores),
    }


def area_under_curve(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """Return the ROC AUC as the Mann-Whitney statistic, ties counted half; 0.5 with one class alone."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    ones = int((labels == 1).sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        return 0.5
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))
