"""Scores from a model's folder: what evaluation judges and what is served is the same program.

::

    model = serving.load(Path("model"))
    model.predict({"carrier": ["UA"], "distance": [1400], ...})   # probabilities, float64
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.documents import digest_file
from trainwright.errors import InputError
from trainwright.train.columns import to_values
from trainwright.transforms import Transforms

PROGRAM = "program.pt2"
"""The exported program in a model's folder."""

_CHUNK = 16_384


class Predictor:
    """A loaded model.

    Attributes:
        model: Its manifest.
        transforms: Its transforms.
    """

    def __init__(self, model: Model, transforms: Transforms, program: torch.nn.Module) -> None:
        self.model, self.transforms, self._program = model, transforms, program

    def predict(self, rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
        """Return the probability of label 1 for each row, shape (rows,), in [0, 1].

        Args:
            rows: At least the columns that the model reads, as Arrow or as lists by name. ``None`` and NaN
                stand for no value; a value that was not there in training is treated as unknown.

        Raises:
            InputError: A column is missing, cannot be read as what it was in training, or has another
                number of rows than the others.
        """
        table = rows if isinstance(rows, pa.Table | pa.RecordBatch) else _to_table(rows)
        encoded = self.transforms.encode(to_values(table, self.transforms.inputs))
        scores = np.empty(table.num_rows, dtype=np.float64)
        with torch.inference_mode():
            for start in range(0, table.num_rows, _CHUNK):
                part = slice(start, start + _CHUNK)
                numeric = torch.from_numpy(encoded.numeric[part])
                categories = torch.from_numpy(encoded.categories[part])
                scores[part] = self._program(numeric, categories).numpy()
        return scores


def _to_table(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    try:
        return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"these columns are not a table: {error}", where="input of the model") from None


def load(folder: Path) -> Predictor:
    """Load a model, after checking that every file is what its manifest says.

    Args:
        folder: The model's folder, with ``model.json``.

    Raises:
        InputError: There is no model here, or a file of it is missing or was changed.
    """
    model = Model.read(folder)
    for entry in model.files:
        path = folder / entry.path
        if not path.is_file():
            raise InputError(f"the model has no {entry.path}", where=str(folder))
        if path.stat().st_size != entry.size or digest_file(path) != entry.sha256:
            raise InputError(
                f"{entry.path} is not what the model's manifest says: it was changed after the training",
                where=str(folder),
                hint="Take the model from where it was registered, or train it again.",
            )
    program = torch.export.load(folder / PROGRAM).module()
    return Predictor(model, Transforms.read(folder), program)


def _load_pyfunc(path: str) -> Predictor:
    """Load a registered model for ``mlflow.pyfunc.load_model``: what its ``MLmodel`` file names."""
    return load(Path(path))
