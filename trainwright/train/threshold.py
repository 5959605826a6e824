"""Where a score counts as label 1: chosen on a split that the model was not fitted on, and kept with it.

What is chosen on a split is the best of many on it, so what it reaches there is optimistic. Where a split of
its own ends the training early, the threshold is chosen on that one, and evaluation stays fair; otherwise it
is chosen on the split that is evaluated, and the card says so.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused
from trainwright.experiment import Training
from trainwright.serving.columns import numeric_labels
from trainwright.serving.outputs import Outputs, Threshold


def split_for(training: Training) -> str:
    """Return the split that the threshold is chosen on."""
    watched = training.guards.early_stopping
    return watched.split if watched else training.predict[0]


def choose(label: NDArray[np.int64], score: NDArray[np.float64], rule: str) -> tuple[float, float]:
    """Return the best threshold, and what it reaches.

    It lies halfway between two neighbouring scores, so that a difference in the last digits moves no row
    over it. Of several that are equally good it is the highest.

    Args:
        label: Shape (rows,), 0 or 1; both occur.
        score: Shape (rows,), in [0, 1].
        rule: ``f1``: the harmonic mean of precision and recall; ``youden``: the true positive rate less the
            false one (Youden, Cancer 1950).
    """
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], np.cumsum(label[order])
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    found, hit = last + 1, hits[last]
    positives = int(hits[-1])
    if rule == "f1":
        gain = 2 * hit / (found + positives)
    else:
        gain = hit / positives - (found - hit) / (len(label) - positives)
    best = int(np.argmax(gain))
    if best == len(last) - 1:
        return 0.0, float(gain[best])
    above, below = float(ranked[last[best]]), float(ranked[last[best] + 1])
    middle = (above + below) / 2
    return (middle if middle > below else above), float(gain[best])


def choose_on(
    folder: Path,
    snapshot: Snapshot,
    training: Training,
    outputs: Outputs,
    predict: Callable[[pa.RecordBatch], NDArray[np.float64]],
) -> Threshold | None:
    """Choose the threshold that a training asks for; None if it asks for 0.5, or there are not two classes.

    Args:
        folder: Folder of the training set.
        snapshot: Its manifest.
        training: The rule, and the splits.
        outputs: What the model gives.
        predict: From rows to the probability of label 1.

    Raises:
        DataRefused: The split has no rows of both labels.
    """
    rule, split, name = training.objective.threshold, split_for(training), snapshot.roles["label"]
    if rule == "half" or outputs.kind != "binary":
        return None
    labels, scores = [], []
    for batch in tables.iter_batches(folder, snapshot, [split]):
        found = numeric_labels(batch.column(name), classes=True)
        labels.append(found.drop_null().to_numpy())
        scores.append(predict(batch.filter(found.is_valid())))
    label = np.concatenate(labels) if labels else np.empty(0, dtype=np.int64)
    if len(np.unique(label)) != 2:  # noqa: PLR2004 - 0 and 1
        raise DataRefused(
            f"label {name!r} has {int((label == 1).sum()):,} ones and {int((label == 0).sum()):,} zeros: no "
            f"threshold can be chosen by {rule}",
            where=f"split {split!r}",
        )
    value, gain = choose(label, np.concatenate(scores), rule)
    return Threshold(value, rule, split, gain)
