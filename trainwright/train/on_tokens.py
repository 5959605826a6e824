"""Trains a language model on the token column of a snapshot, and measures its loss on rows kept for it."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from trainwright import serving
from trainwright.artifacts import Model, Snapshot
from trainwright.experiment import LanguageModel
from trainwright.serving.predictions import write_losses
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.fitting import fit_network
from trainwright.train.given import Given, figures
from trainwright.train.loop import Fitted
from trainwright.train.model import TrainedOnTokens, write_language_model
from trainwright.train.tokens import Sequences, TokenSource, added, count, encode


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
        return written, write_losses(
            predictions,
            self.given.training_set,
            self.given.snapshot,
            self.given.training.predict,
            self.network,
            predictor,
        )


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
