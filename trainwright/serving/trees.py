"""Scores by trees, from a model's folder. Needs numpy, pyarrow and xgboost; neither torch nor a GPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import xgboost
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.errors import InputError
from trainwright.serving.columns import to_table, to_values
from trainwright.serving.matrix import Layout
from trainwright.transforms import Transforms, encoding

FILE = "model.ubj"
"""The trees in a model's folder: XGBoost's own format, universal binary JSON."""

MEAN, DEVIATION = "trainwright.mean", "trainwright.deviation"
"""Attributes of the trees of a regression, which predict ``(label - mean) / deviation``."""


class Forest:
    """Trees that score encoded rows.

    Args:
        booster: The trees.
        layout: From encoded rows to what they read.
    """

    def __init__(self, booster: xgboost.Booster, layout: Layout) -> None:
        self._booster, self._layout = booster, layout

    def score(
        self, numeric: NDArray[np.float32], categories: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """Return the probability of label 1 or the predicted number, shape (rows,), or (rows, classes).

        Args:
            numeric: Shape (rows, features), as the transforms give it.
            categories: Shape (rows, categories).
        """
        rows = self._layout.matrix(numeric, categories)
        matrix = xgboost.DMatrix(rows, feature_types=list(self._layout.types), enable_categorical=True)
        scores: NDArray[np.float64] = self._booster.predict(matrix).astype(np.float64)
        mean, deviation = self._booster.attr(MEAN), self._booster.attr(DEVIATION)
        return scores if mean is None or deviation is None else scores * float(deviation) + float(mean)


class TreesPredictor:
    """A loaded model of trees.

    Attributes:
        model: Its manifest.
        transforms: Its transforms.
    """

    def __init__(self, model: Model, transforms: Transforms, forest: Forest) -> None:
        self.model, self.transforms, self._forest = model, transforms, forest

    def predict(self, rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
        """Return the scores of some rows: shape (rows,), or (rows, classes) for more than two classes.

        Args:
            rows: At least the columns that the model reads, as Arrow or as lists by name. ``None`` and NaN
                stand for no value; a value that was not there in training is treated as unknown.

        Raises:
            InputError: A column is missing, cannot be read as what it was in training, or has another
                number of rows than the others.
        """
        raw = self.transforms.raw(to_values(to_table(rows), self.transforms.inputs))
        encoded = encoding.encode(self.transforms, raw)
        return self._forest.score(encoded.numeric, encoded.categories)


def load_trees(folder: Path) -> TreesPredictor:
    """Load a model of trees; whether its files are what the manifest says is for the caller to check.

    Raises:
        InputError: There is no such model, or XGBoost cannot read it.
    """
    model, transforms = Model.read(folder), Transforms.read(folder)
    try:
        booster = xgboost.Booster(model_file=folder / FILE)
    except (xgboost.core.XGBoostError, OSError) as error:
        raise InputError(f"XGBoost cannot read the trees: {error}", where=str(folder / FILE)) from error
    return TreesPredictor(model, transforms, Forest(booster, Layout.of(transforms)))
