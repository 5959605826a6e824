"""Scores of the splits that are kept for evaluation, by the program that will be served."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import tables
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DataRefused, Diverged
from trainwright.serving.labels import known
from trainwright.serving.outputs import Outputs


class Predictor(Protocol):
    """A loaded model, whatever it is made of."""

    model: Model

    def predict(self, rows: Any) -> NDArray[np.float64]:
        """Return scores, shape (rows,) or (rows, classes)."""
        ...


def write_predictions(
    folder: Path,
    training_set: Path,
    snapshot: Snapshot,
    splits: Sequence[str],
    predictor: Predictor,
    outputs: Outputs | None = None,
) -> Snapshot:
    """Write the rows of some splits that have a label, with their scores, as a snapshot.

    Args:
        folder: Folder of the new snapshot.
        training_set: Folder of the snapshot that holds the splits.
        snapshot: Its manifest.
        splits: Names of the splits to score.
        predictor: The model, loaded from its folder.
        outputs: What it gives; the probability of label 1 if absent.

    Raises:
        DataRefused: No row of a split has a label.
        Diverged: A score is not finite.
    """
    outputs = outputs or Outputs("binary", snapshot.roles["label"])
    written = tables.write_snapshot(
        folder,
        {split: _scored(training_set, snapshot, split, predictor, outputs) for split in splits},
        parents={"training_set": snapshot.digest, "model": predictor.model.digest},
        roles={**snapshot.roles, **outputs.roles},
        quality={"threshold": outputs.threshold.value} if outputs.threshold else None,
    )
    if empty := [split for split in splits if not written.splits.get(split)]:
        raise unjudged(empty, snapshot)
    return written


def unjudged(splits: Sequence[str], snapshot: Snapshot) -> DataRefused:
    """Say that splits have no label to judge by."""
    return DataRefused(
        f"no row of split {', '.join(map(repr, splits))} has a label, so nothing can be judged on it",
        where=f"label {snapshot.roles['label']!r} of the training set",
    )


def _scored(
    folder: Path, snapshot: Snapshot, split: str, predictor: Predictor, outputs: Outputs
) -> Iterator[pa.RecordBatch]:
    label = snapshot.roles["label"]
    for batch in tables.iter_batches(folder, snapshot, [split]):
        labels = known(batch.column(label), classes=outputs.kind != "regression")
        rows = batch.filter(labels.is_valid())
        columns = [
            labels.drop_null() if name == label else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        scores = predictor.predict(rows).reshape(rows.num_rows, len(outputs.columns))
        if not np.isfinite(scores).all():
            wrong = int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
            raise Diverged(
                f"the model gives {scores[wrong].tolist()} for a row of split {split!r}",
                where=f"row {wrong:,} of its batch",
                hint="Look for extreme values in its columns, or lower the learning rate.",
            )
        columns += [pa.array(scores[:, place], pa.float64()) for place in range(scores.shape[1])]
        yield pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *outputs.columns])
