"""Trains a language model on the token column of a snapshot, and measures its loss on rows kept for it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import nn

from trainwright import serving, tables
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DataRefused, Diverged
from trainwright.experiment import LanguageModel
from trainwright.serving import TokenPredictor
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.fitting import fit_network
from trainwright.train.given import Given, figures
from trainwright.train.loop import Fitted
from trainwright.train.model import TrainedOnTokens, write_language_model
from trainwright.train.tokens import Sequences, TokenSource, added, count, encode

LOSS, SCORED = "loss", "tokens_scored"
"""Columns of the predictions: mean negative log-likelihood a token, in nats, and over how many tokens."""


_SCORES = 1 << 23
"""Scores that are held at a time: 64 MiB."""


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
    for split in given.training.predict:
        _check(replace(source, split=split), given)
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


def _check(source: TokenSource, given: Given) -> None:
    """Look at every token that is scored in the end: a wrong one is not to be found after the training."""
    for file in range(given.group.rank, len(source.files), given.group.size):
        for _ in source.read(file):
            pass


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
        lists = batch.column(network.tokens)
        lengths: NDArray[np.int64] = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        tokens: NDArray[np.int64] = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        kept = lengths > 1
        loss = _sums(predictor, network, tokens, lengths)[kept] / (lengths[kept] - 1)
        if not np.isfinite(loss).all():
            raise Diverged(f"the model's loss is not finite on a row of split {split!r}")
        columns = [*batch.filter(pa.array(kept)).columns, pa.array(loss), pa.array(lengths[kept] - 1)]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, LOSS, SCORED])


def _sums(
    predictor: TokenPredictor, network: LanguageModel, tokens: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the loss of each row, added up over its tokens; pieces of one length are scored together.

    Args:
        predictor: The model.
        network: Its context and vocabulary.
        tokens: Those of all rows, one row after the other.
        lengths: Tokens of each row, shape (rows,).
    """
    starts = np.cumsum(lengths) - lengths
    pieces: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(lengths > 1):
        for first in range(0, int(lengths[row]) - 1, network.context):
            size = min(network.context, int(lengths[row]) - 1 - first)
            pieces.setdefault(size, []).append((int(row), int(starts[row]) + first))
    sums = np.zeros(len(lengths))
    for size, found in pieces.items():
        at_once = max(1, _SCORES // (size * network.vocabulary))
        for begin in range(0, len(found), at_once):
            rows, places = np.array(found[begin : begin + at_once]).T
            block = tokens[places[:, None] + np.arange(size + 1)]
            scores = np.take_along_axis(predictor.predict(block[:, :-1]), block[:, 1:, None], axis=2)
            np.add.at(sums, rows, -scores.sum(axis=(1, 2)))
    return sums
