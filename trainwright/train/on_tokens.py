"""Trains a language model on the token column of a snapshot, and measures its loss on rows kept for it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import nn

from trainwright import tables
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DataRefused, Diverged
from trainwright.experiment import LanguageModel
from trainwright.train import serving
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.fitting import fit_network
from trainwright.train.given import Given, figures
from trainwright.train.loop import Fitted
from trainwright.train.model import TrainedOnTokens, write_language_model
from trainwright.train.serving import TokenPredictor
from trainwright.train.tokens import Sequences, TokenSource, added, count, encode

LOSS, SCORED = "loss", "tokens_scored"
"""Columns of the predictions: mean negative log-likelihood a token, in nats, and over how many tokens."""


@dataclass(frozen=True)
class FinishedTokens:
    """A training on tokens that has ended well."""

    given: Given
    network: LanguageModel
    fitted: Fitted
    trained: TrainedOnTokens

    def write(self, model: Path, predictions: Path) -> tuple[Model, Snapshot]:
        """Write the model, and measure its loss on each row of the splits that are kept for evaluation."""
        written = write_language_model(model, self.trained)
        predictor = serving.load_language_model(model)
        return written, write_losses(predictions, self.given, self.network, predictor)


def train_on_tokens(given: Given, network: LanguageModel) -> FinishedTokens:
    """Count, encode and learn a split of tokens; every process ends with the same model.

    Raises:
        InputError: A token is missing or outside the vocabulary.
        DataRefused: There is not even one sequence.
    """
    source = TokenSource(given.training_set, given.snapshot, given.training.split, network)
    samples, metrics = _encoded(given, source)
    early = given.training.guards.early_stopping
    watched = _encoded(given, replace(source, split=early.split))[0] if early else None
    architecture = make(network)
    module: nn.Module
    module, fitted = fit_network(given, architecture, Inputs(Target("tokens")), samples, watched, _no_classes)
    trained = TrainedOnTokens(module, architecture, network, source, given.config, figures(fitted) | metrics)
    return FinishedTokens(given, network, fitted, trained)


def _encoded(given: Given, source: TokenSource) -> tuple[Sequences, dict[str, float]]:
    counts = count(source, given.group)
    found = added(counts)
    feeding = given.training.feeding
    return encode(source, counts, given.home / "encoded", given.group, feeding), {
        "rows": float(found.rows),
        "rows_without_label": 0.0,
        "sequences": float(found.sequences),
        "tokens": float(found.tokens),
        "tokens_dropped": float(found.dropped),
        "base_rate_loss": math.log(source.network.vocabulary),
    }


def _no_classes() -> NDArray[np.generic]:
    """Give nothing: tokens are not drawn by class, which is refused before anything starts."""
    return np.empty(0, dtype=np.int64)


def write_losses(folder: Path, given: Given, network: LanguageModel, predictor: TokenPredictor) -> Snapshot:
    """Write the rows of some splits with the loss of each, as a snapshot.

    A row is cut into pieces of at most ``context`` tokens; each is scored by itself, and the first
    token of a row is given, not judged.

    Raises:
        DataRefused: No row of a split has two tokens.
        Diverged: A loss is not finite.
    """
    snapshot, splits = given.snapshot, given.training.predict
    written = tables.write_snapshot(
        folder,
        {split: _losses(given, network, predictor, split) for split in splits},
        parents={"training_set": snapshot.digest, "model": predictor.model.digest},
        roles={**snapshot.roles, LOSS: LOSS},
    )
    if empty := [split for split in splits if not written.splits.get(split)]:
        raise DataRefused(
            f"no row of split {', '.join(map(repr, empty))} has two tokens, so nothing can be judged on it",
            where=f"column {network.tokens!r} of the training set",
        )
    return written


def _losses(
    given: Given, network: LanguageModel, predictor: TokenPredictor, split: str
) -> Iterator[pa.RecordBatch]:
    for batch in tables.iter_batches(given.training_set, given.snapshot, [split]):
        column = batch.column(network.tokens)
        rows = [np.asarray(row.as_py() or [], dtype=np.int64) for row in column]
        kept = np.array([len(row) > 1 for row in rows], dtype=bool)
        found = [_loss(predictor, row, network.context) for row in rows if len(row) > 1]
        losses, counts = [loss for loss, _ in found], [scored for _, scored in found]
        if not np.isfinite(losses).all():
            raise Diverged(f"the model's loss is not finite on a row of split {split!r}")
        columns = [*batch.filter(pa.array(kept)).columns, pa.array(losses, pa.float64())]
        names = [*batch.schema.names, LOSS, SCORED]
        yield pa.RecordBatch.from_arrays([*columns, pa.array(counts, pa.int64())], names=names)


def _loss(predictor: TokenPredictor, row: NDArray[np.int64], context: int) -> tuple[float, int]:
    """Return the mean loss a token of one row, and how many tokens were judged."""
    total, scored = 0.0, 0
    for first in range(0, len(row) - 1, context):
        piece = row[first : first + context + 1]
        scores = predictor.predict(piece[None, :-1])[0]
        total -= float(scores[np.arange(len(piece) - 1), piece[1:]].sum())
        scored += len(piece) - 1
    return total / scored, scored
