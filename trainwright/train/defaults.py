"""Defaults of a training that depend on its rows: resolved once by the step, and recorded in its spec."""

import math
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Auto, LanguageModel, Network, ResolvedTraining, Training, Trees
from trainwright.experiment.training import EarlyStopping

_STEPS = 3000
"""Steps that a table is trained for, within the bounds of the epochs."""

_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 50
_BATCHES = 100
"""Batches of an epoch, within the bounds of the batch size."""

_SMALLEST_BATCH, _LARGEST_BATCH = 32, 8192
_RATE, _RATE_BATCH = 1e-3, 256
_EVALUATIONS = 40
"""Most evaluations of a training for early stopping: of a few rows, an epoch is too short to tell."""

_SHARE, _SHARE_ROWS = 0.1, 500
"""Share of the rows held out for early stopping, and the fewest rows to hold any out of."""

_PATIENCE, _TREES_PATIENCE = 5, 10
_TEXT_STEPS, _MOST_TEXT_EPOCHS = 1000, 20
_SMALLEST_TEXT_BATCH, _LARGEST_TEXT_BATCH = 8, 64


def resolve_training(
    training: Training, network: Network, snapshot: Snapshot, parts: int = 1
) -> ResolvedTraining:
    """Return the settings with the defaults that depend on the number of rows.

    Args:
        training: The section; what it sets stays.
        network: The model to train.
        snapshot: Manifest of the training set.
        parts: Data-parallel processes; a default batch has a sample for each.

    Raises:
        InputError: Early stopping by a share does not suit the model.
    """
    rows = labelled_rows(snapshot, training.split)
    if isinstance(network, LanguageModel):
        defaults = _defaults_of_text(training, network, snapshot, parts)
    else:
        defaults = _defaults_of_table(training, rows, parts)
    length = {
        name: default if (value := getattr(training, name)) is None else value
        for name, default in defaults.items()
    }
    data = training.model_dump(mode="json") | length
    data["guards"]["early_stopping"] = _early_stopping(training, network, rows, length)
    return ResolvedTraining.check(data, "training")


def labelled_rows(snapshot: Snapshot, split: str) -> int:
    """Return the rows of a split that have a label, assuming as many without one as in the others."""
    missing = snapshot.quality.get(f"nulls.{snapshot.roles.get('label', '')}", 0)
    return round(snapshot.splits.get(split, 0) * (1 - missing / max(snapshot.rows, 1)))


def _defaults_of_table(training: Training, rows: int, parts: int) -> dict[str, Any]:
    """Return batch size, epochs and learning rate by the rows; what is set decides what follows from it."""
    power = 2 ** round(math.log2(max(rows, 1) / _BATCHES)) if rows else _SMALLEST_BATCH
    size = training.batch_size or max(min(max(int(power), _SMALLEST_BATCH), _LARGEST_BATCH), parts)
    batches = max(1, math.ceil(rows / size))
    epochs = min(max(math.ceil(_STEPS / batches), _FEWEST_EPOCHS), _MOST_EPOCHS)
    # Twice the batch has half the variance of the gradient: Adam's rate follows the square root.
    rate = float(f"{_RATE * math.sqrt(size / _RATE_BATCH):.2g}")
    return {"batch_size": size, "epochs": epochs, "learning_rate": rate}


def _defaults_of_text(
    training: Training, network: LanguageModel, snapshot: Snapshot, parts: int
) -> dict[str, Any]:
    """Return the same for sequences of tokens, of which a split has about one per ``context`` bytes."""
    written = sum(entry.size for entry in snapshot.files if entry.split == training.split)
    sequences = max(written / network.context, 1)
    power = 2 ** round(math.log2(sequences / _BATCHES))
    bounded = min(max(int(power), _SMALLEST_TEXT_BATCH), _LARGEST_TEXT_BATCH)
    size = training.batch_size or max(bounded, parts)
    epochs = min(max(math.ceil(_TEXT_STEPS * size / sequences), 1), _MOST_TEXT_EPOCHS)
    return {"batch_size": size, "epochs": epochs, "learning_rate": _RATE}


def _early_stopping(
    training: Training, network: Network, rows: int, length: dict[str, Any]
) -> dict[str, Any] | None:
    """Return early stopping with its share and patience; None if it is off."""
    early = training.guards.early_stopping
    if early is None:
        return None
    share, is_tokens = early.share, isinstance(network, LanguageModel)
    if not early.split and is_tokens:
        if early != EarlyStopping():
            raise InputError(
                "a language model is watched on a split of its own, and guards.early_stopping names none",
                where="training.guards.early_stopping.split",
                hint="Name a split that is neither trained on nor scored, or leave early_stopping out.",
            )
        return None
    if not early.split and share is None:
        # Without held-out rows, kind auto has nothing to choose by.
        few = rows < _SHARE_ROWS and not isinstance(network, Auto)
        if few or training.parallel.pipeline > 1:
            return None
        share = _SHARE
    in_rounds = isinstance(network, Trees | Auto)
    every, patience = early.every_steps, _TREES_PATIENCE if in_rounds else _PATIENCE
    if every is None and training.epochs is None and not is_tokens and not in_rounds:
        batches = math.ceil(rows / length["batch_size"])
        steps = training.steps or length["epochs"] * batches
        every = math.ceil(steps / _EVALUATIONS) if steps > _EVALUATIONS * batches else None
    resolved = {"share": share, "every_steps": every, "patience": early.patience or patience}
    return early.model_dump(mode="json") | resolved
