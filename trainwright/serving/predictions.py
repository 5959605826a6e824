"""Write predictions as a snapshot: scores of rows, or the loss of a language model on each row."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import tables
from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.errors import DataRefused, Diverged
from trainwright.experiment import LanguageModel
from trainwright.serving import Predictor, TokenPredictor
from trainwright.serving.columns import numeric_labels, to_tokens
from trainwright.serving.outputs import Outputs


def write_predictions(
    folder: Path,
    training_set: Path,
    snapshot: Snapshot,
    splits: Sequence[str],
    predictor: Predictor,
    outputs: Outputs | None = None,
) -> Snapshot:
    """Write the rows of some splits of a training set that have a label, with their scores, as a snapshot.

    Without ``outputs``, the model gives the probability of label 1.

    Raises:
        Diverged: A score is not finite.
    """
    outputs = outputs or Outputs("binary", snapshot.roles["label"])
    label = snapshot.roles["label"]
    with tables.SnapshotWriter(folder, splits) as writer:
        for split, piece in _pieces(training_set, snapshot, splits):
            for batch in tables.read_piece(training_set, piece):
                writer.append(split, _scored(batch, label, split, predictor, outputs))
            writer.end_file(split)
        return writer.commit(
            parents={"training_set": _training_set_of(snapshot), "model": predictor.model.digest},
            roles={**snapshot.roles, **outputs.roles},
            quality={"threshold": outputs.threshold.value} if outputs.threshold else None,
            target=snapshot.target,
        )


PIECE_ROWS = 1_000_000
"""Rows of the training set whose predictions make up one file, about; so each file depends on them alone."""


def _pieces(folder: Path, snapshot: Snapshot, splits: Sequence[str]) -> Iterator[tuple[str, tables.Piece]]:
    for split in splits:
        for piece in tables.pieces(folder, snapshot, [split], PIECE_ROWS):
            yield split, piece


def _training_set_of(snapshot: Snapshot) -> str:
    """Return the digest of the training set, which a copy of one of its splits names as its parent."""
    return snapshot.parents.get("training_set", snapshot.digest)


def no_labels(splits: Sequence[str], snapshot: Snapshot) -> DataRefused:
    """Return the error for splits without any label."""
    return DataRefused(
        f"no row of split {', '.join(map(repr, splits))} has a label, so nothing can be judged on it",
        where=f"label {snapshot.roles['label']!r} of the training set",
    )


def no_scores(predictions: Snapshot, splits: Sequence[str]) -> DataRefused | None:
    """Return the error for predictions without a row of one of the splits; None if each has one."""
    empty = [split for split in splits if not predictions.splits.get(split)]
    if empty and TOKENS in predictions.roles:
        return DataRefused(
            f"no row of split {', '.join(map(repr, empty))} has two tokens, so nothing can be judged on it",
            where=f"column {predictions.roles[TOKENS]!r} of the training set",
        )
    return no_labels(empty, predictions) if empty else None


def _scored(
    batch: pa.RecordBatch, label: str, split: str, predictor: Predictor, outputs: Outputs
) -> pa.RecordBatch:
    """Return the rows of a batch that have a label, with their scores."""
    labels = numeric_labels(batch.column(label), classes=outputs.kind != "regression")
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
    return pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *outputs.columns])


LOSS, SCORED = "loss", "tokens_scored"
"""Columns of the predictions: mean negative log-likelihood per token, in nats, and the number of tokens."""

TOKENS = "tokens"
"""Role of the column with the tokens; `evaluate` compares the loss with that of their frequencies."""

_MAX_SCORES = 1 << 23
"""Scores in memory at a time: 64 MiB."""


def write_losses(
    folder: Path,
    training_set: Path,
    snapshot: Snapshot,
    splits: Sequence[str],
    network: LanguageModel,
    predictor: TokenPredictor,
) -> Snapshot:
    """Write the rows of some splits with the loss of each, as a snapshot.

    A row is cut into pieces of at most ``context`` tokens, each scored by itself; the first token of a row
    has no loss.

    Raises:
        Diverged: A loss is not finite.
    """
    with tables.SnapshotWriter(folder, splits) as writer:
        for split, piece in _pieces(training_set, snapshot, splits):
            for batch in _loss_batches(tables.read_piece(training_set, piece), network, predictor, split):
                writer.append(split, batch)
            writer.end_file(split)
        return writer.commit(
            parents={"training_set": _training_set_of(snapshot), "model": predictor.model.digest},
            roles={**snapshot.roles, LOSS: LOSS, TOKENS: network.column},
            target=SnapshotTarget(kind="text"),
        )


def _loss_batches(
    batches: Iterable[pa.RecordBatch], network: LanguageModel, predictor: TokenPredictor, split: str
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        losses, scored = row_losses(batch.column(network.column), network, predictor)
        kept = scored > 0
        loss = losses[kept]
        if not np.isfinite(loss).all():
            raise Diverged(f"the model's loss is not finite on a row of split {split!r}")
        columns = [*batch.filter(pa.array(kept)).columns, pa.array(loss), pa.array(scored[kept])]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, LOSS, SCORED])


def row_losses(
    column: pa.Array, network: LanguageModel, predictor: TokenPredictor
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean loss per token of each row, NaN below two tokens, and the number of scored tokens."""
    lists = to_tokens(column)
    lengths: NDArray[np.int64] = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    tokens: NDArray[np.int64] = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    scored = np.maximum(lengths - 1, 0)
    losses = np.full(len(lengths), np.nan)
    np.divide(_sums(predictor, network, tokens, lengths), scored, out=losses, where=scored > 0)
    return losses, scored


def _sums(
    predictor: TokenPredictor, network: LanguageModel, tokens: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the loss of each row, added up over its tokens; pieces of one length are scored together."""
    starts = np.cumsum(lengths) - lengths
    pieces: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(lengths > 1):
        for first in range(0, int(lengths[row]) - 1, network.context):
            size = min(network.context, int(lengths[row]) - 1 - first)
            pieces.setdefault(size, []).append((int(row), int(starts[row]) + first))
    sums = np.zeros(len(lengths))
    for size, found in pieces.items():
        at_once = max(1, _MAX_SCORES // (size * network.token_ids))
        for begin in range(0, len(found), at_once):
            rows, places = np.array(found[begin : begin + at_once]).T
            block = tokens[places[:, None] + np.arange(size + 1)]
            scores = np.take_along_axis(predictor.predict(block[:, :-1]), block[:, 1:, None], axis=2)
            np.add.at(sums, rows, -scores.sum(axis=(1, 2)))
    return sums
