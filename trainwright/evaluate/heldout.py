"""Rows that a model was made with do not tell how good it is: they are refused as what is judged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.experiment import Evaluation, Training
from trainwright.lineage import ancestors

_DEFAULT = str(Training.model_fields["split"].default)


def require_held_out(folder: Path, evaluation: Evaluation) -> None:
    """Check that the split that is judged had no part in making the model.

    Neither the rows that it was fitted on, nor those that its training looked at to end, and to choose its
    weights and its threshold: the best of many looks is better there than it will be anywhere else (Cawley
    and Talbot, Journal of Machine Learning Research 11, 2010). The record beside the predictions names both.
    Where there is none, a split of the name that a training learns from by default is refused.

    Args:
        folder: Folder of the predictions.
        evaluation: Names the split.

    Raises:
        InputError: It had.
    """
    why = dict(_made_with(folder)).get(evaluation.split)
    if why:
        raise InputError(
            f"split {evaluation.split!r} {why}: it does not tell how good the model is on rows that are new",
            where="evaluation.split",
            hint="Judge a split that had no part in the training; data.splits and training.predict name it.",
        )


def _made_with(folder: Path) -> Iterator[tuple[str, str]]:
    """Give every split that had a part, and which."""
    trained = list(_trainings(folder))
    for training in trained:
        watched = (training.get("guards") or {}).get("early_stopping") or {}
        if watched.get("split"):
            yield str(watched["split"]), "ended the training, and chose the model"
    for training in trained:
        yield str(training.get("split", _DEFAULT)), "is what the model was fitted on"
    if not trained:
        yield _DEFAULT, "is what a model is fitted on, and no record beside the predictions says another"


def _trainings(folder: Path) -> Iterator[dict[str, Any]]:
    """Give the section ``training`` of every step that the predictions came through."""
    if not (folder / Record.FILE).exists():
        return
    for record in ancestors([Record.read(folder)]):
        if isinstance(asked := record.config.get("training"), dict):
            yield asked
