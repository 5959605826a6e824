"""Scores from a model's folder: evaluation and serving use the same program.

::

    model = serving.load(Path("model"))
    model.predict({"carrier": ["UA"], "distance": [1400], ...})   # probabilities, float64

Torch is imported for networks alone, and XGBoost for trees alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.documents import digest_file
from trainwright.errors import InputError
from trainwright.serving.columns import to_raw
from trainwright.transforms import Raw, Transforms

PROGRAM = "program.pt2"
"""The exported program in a model's folder."""

WEIGHTS = "weights.safetensors"
"""The weights in a model's folder."""


@dataclass(frozen=True)
class Predictor:
    """A loaded model of rows: its manifest, its transforms, and the function that scores raw rows."""

    model: Model
    transforms: Transforms
    score: Callable[[Raw], NDArray[np.float64]]

    def predict(self, rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
        """Return the scores of some rows: shape (rows,), or (rows, classes) for more than two classes.

        Args:
            rows: At least the columns that the model reads, as Arrow or as lists by name. ``None`` and NaN
                are missing values; a value that was not in the training rows is treated as unknown.

        Raises:
            InputError: A column is missing, cannot be read as its kind, or has another length.
        """
        return self.score(to_raw(rows, self.transforms))


@dataclass(frozen=True)
class TokenPredictor:
    """A loaded language model: its manifest, and ``TokenProgram.predict`` of its program."""

    model: Model
    predict: Callable[[NDArray[np.int64]], NDArray[np.float64]]


def load(folder: Path, digest: str | None = None) -> Predictor:
    """Load a model of rows, after checking every file against its manifest.

    Args:
        folder: The model's folder, with ``model.json``.
        digest: The expected digest of the manifest; without it, the writer of the folder is trusted.

    Raises:
        InputError: There is no such model of rows here, or a file of it is missing or was changed.
    """
    model = verified(folder, digest)
    if model.kind == "trees":
        from trainwright.serving.trees import load_trees

        return load_trees(folder)
    from trainwright.serving.program import Program, read_program

    program = read_program(folder / PROGRAM)
    if not isinstance(program, Program):
        raise InputError(
            "this model scores tokens, not rows",
            where=str(folder),
            hint="Read it with serving.load_language_model(folder).",
        )
    return Predictor(model, program.transforms, program.score)


def load_language_model(folder: Path, digest: str | None = None) -> TokenPredictor:
    """Load a model of tokens as :func:`load` does one of rows.

    Raises:
        InputError: There is no such language model here, or a file of it is missing or was changed.
    """
    model = verified(folder, digest)
    from trainwright.serving.program import TokenProgram, read_program

    program = read_program(folder / PROGRAM)
    if not isinstance(program, TokenProgram):
        raise InputError("this model scores rows, not tokens", where=str(folder))
    return TokenPredictor(model, program.predict)


def verified(folder: Path, digest: str | None = None) -> Model:
    """Return the manifest of a model; raise InputError if a file of it is missing or differs."""
    model = Model.read(folder)
    if digest is not None and model.digest != digest:
        raise InputError(f"this is model {model.digest[:12]}, not {digest[:12]}", where=str(folder))
    for entry in model.files:
        path = folder / entry.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{entry.path} of the model lies outside its folder", where=str(folder))
        if not path.is_file():
            raise InputError(f"the model has no {entry.path}", where=str(folder))
        if path.stat().st_size != entry.size or digest_file(path) != entry.sha256:
            raise InputError(
                f"{entry.path} is not what the model's manifest says: it was changed after the training",
                where=str(folder),
                hint="Take the model from where it was registered, or train it again.",
            )
    if model.kind != "trees" and PROGRAM not in {entry.path for entry in model.files}:
        raise InputError(f"the model's manifest names no {PROGRAM}", where=str(folder))
    return model


def _load_pyfunc(path: str) -> Predictor | TokenPredictor:
    """Load a registered model for ``mlflow.pyfunc.load_model``, whose ``MLmodel`` file names this module."""
    folder = Path(path)
    return load_language_model(folder) if Model.read(folder).kind == "lm" else load(folder)
