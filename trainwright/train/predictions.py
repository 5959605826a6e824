"""Scores of the splits that are kept for evaluation, by the program that will be served."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused
from trainwright.train import serving
from trainwright.train.specification import SCORE


def write_predictions(
    folder: Path, training_set: Path, snapshot: Snapshot, splits: Sequence[str], predictor: serving.Predictor
) -> Snapshot:
    """Write the rows of some splits that have a label, with their scores, as a snapshot.

    Args:
        folder: Folder of the new snapshot.
        training_set: Folder of the snapshot that holds the splits.
        snapshot: Its manifest.
        splits: Names of the splits to score.
        predictor: The model, loaded from its folder.

    Raises:
        DataRefused: No row of a split has a label.
    """
    written = tables.write_snapshot(
        folder,
        {split: _scored(training_set, snapshot, split, predictor) for split in splits},
        parents={"training_set": snapshot.digest, "model": predictor.model.digest},
        roles={**snapshot.roles, "score": SCORE},
    )
    if empty := [split for split in splits if not written.splits.get(split)]:
        raise DataRefused(
            f"no row of split {', '.join(map(repr, empty))} has a label, so nothing can be judged on it",
            where=f"label {snapshot.roles['label']!r} of the training set",
        )
    return written


def _scored(
    folder: Path, snapshot: Snapshot, split: str, predictor: serving.Predictor
) -> Iterator[pa.RecordBatch]:
    label = snapshot.roles["label"]
    for batch in tables.iter_batches(folder, snapshot, [split]):
        rows = batch.filter(batch.column(label).is_valid())
        columns = [
            pc.cast(column, pa.int64()) if name == label else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        scores = pa.array(predictor.predict(rows), pa.float64())
        yield pa.RecordBatch.from_arrays([*columns, scores], names=[*rows.schema.names, SCORE])
