"""Scores from a model's folder: what evaluation judges and what is served is the same program.

::

    model = serving.load(Path("model"))
    model.predict({"carrier": ["UA"], "distance": [1400], ...})   # probabilities, float64

Torch is imported for networks alone, and XGBoost for trees alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.documents import digest_file
from trainwright.errors import InputError
from trainwright.transforms import Transforms

if TYPE_CHECKING:
    from trainwright.serving.program import Program, TokenProgram

PROGRAM = "program.pt2"
"""The exported program in a model's folder."""

WEIGHTS = "weights.safetensors"
"""The weights in a model's folder."""


class Predictor(Protocol):
    """A loaded model of rows, whatever it is made of.

    Attributes:
        model: Its manifest.
        transforms: Its transforms.
    """

    model: Model
    transforms: Transforms

    def predict(self, rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
        """Return the scores of some rows: shape (rows,), or (rows, classes) for more than two classes.

        Args:
            rows: At least the columns that the model reads, as Arrow or as lists by name. ``None`` and NaN
                stand for no value; a value that was not there in training is treated as unknown.

        Raises:
            InputError: A column is missing, cannot be read as what it was in training, or has another
                number of rows than the others.
        """
        ...


class NetworkPredictor:
    """A loaded network.

    Attributes:
        model: Its manifest.
        transforms: Its transforms.
    """

    def __init__(self, model: Model, program: "Program") -> None:
        self.model, self.transforms, self._program = model, program.transforms, program

    def predict(self, rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
        """Return the scores of some rows, as every :class:`Predictor` does."""
        return self._program.predict(rows)


def load(folder: Path, digest: str | None = None) -> Predictor:
    """Load a model of rows, after checking that every file is what its manifest says.

    Args:
        folder: The model's folder, with ``model.json``.
        digest: What the manifest's digest must be; absent, whoever wrote the folder is trusted.

    Raises:
        InputError: There is no model here, it is another one, or a file of it is missing or was changed.
    """
    model = verified(folder, digest)
    if model.kind == "trees":
        from trainwright.serving.trees import load_trees

        return load_trees(folder)
    from trainwright.serving.program import Program

    program = load_program(folder / PROGRAM)
    if not isinstance(program, Program):
        raise InputError(
            "this model scores tokens, not rows",
            where=str(folder),
            hint="Read it with serving.load_language_model(folder).",
        )
    return NetworkPredictor(model, program)


class TokenPredictor:
    """A loaded language model.

    Attributes:
        model: Its manifest.
    """

    def __init__(self, model: Model, program: "TokenProgram") -> None:
        self.model, self._program = model, program

    def predict(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the log-probability of every token at every place; see ``TokenProgram.predict``."""
        return self._program.predict(tokens)


def load_language_model(folder: Path, digest: str | None = None) -> TokenPredictor:
    """Load a model of tokens, after checking that every file is what its manifest says.

    Args:
        folder: The model's folder, with ``model.json``.
        digest: What the manifest's digest must be; absent, whoever wrote the folder is trusted.

    Raises:
        InputError: There is no such model here, or a file of it is missing or was changed.
    """
    model = verified(folder, digest)
    from trainwright.serving.program import TokenProgram

    program = load_program(folder / PROGRAM)
    if not isinstance(program, TokenProgram):
        raise InputError("this model scores rows, not tokens", where=str(folder))
    return TokenPredictor(model, program)


def load_program(path: Path) -> "Program | TokenProgram":
    """Read an exported program from its file alone, which also says how it is fed; see docs/model-folder.md.

    Nothing tells whether the file is the one that was trained: take it from where it was registered.

    Raises:
        InputError: It is no program of this library, or was written by a torch that this one cannot read.
    """
    from trainwright.serving.program import read_program

    return read_program(path)


def verified(folder: Path, digest: str | None = None) -> Model:
    """Return the manifest of a model, after checking that every file is what it says.

    Raises:
        InputError: There is no model here, it is another one, or a file of it is missing or was changed.
    """
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
    """Load a registered model for ``mlflow.pyfunc.load_model``: what its ``MLmodel`` file names."""
    folder = Path(path)
    return load_language_model(folder) if Model.read(folder).kind == "lm" else load(folder)
