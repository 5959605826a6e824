"""Score rows with the gradient-boosted trees of a model folder. Needs xgboost, neither torch nor a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import xgboost
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.errors import InputError
from trainwright.serving.columns import to_table, to_values
from trainwright.transforms import Number, Ranked, TimeOf, Transforms, encoding

_MISSING = 0
_CYCLES = (", sine of the day", ", cosine of the day", ", sine of the week", ", cosine of the week")


@dataclass(frozen=True)
class MatrixLayout:
    """Columns of the matrix, and where each is found among the encoded features.

    A network has a feature of its own for a missing number; a tree learns a direction for it instead.
    So the number becomes NaN, and that feature is left out.

    Attributes:
        names: Name of each column.
        types: Type of each column as XGBoost writes it: ``q`` a number, ``c`` a category.
        kept: Numeric features that become columns, in order; shape (numeric columns,).
        indicator: The feature that says that it is missing, or -1; shape (numeric columns,).
        starts: First code of each category column in the shared vocabulary; shape (categories,).
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    kept: NDArray[np.int64]
    indicator: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, transforms: Transforms) -> "MatrixLayout":
        """Return the layout of some fitted transforms."""
        names: list[str] = []
        kept: list[int] = []
        indicator: list[int] = []
        place = 0
        columns: tuple[Number | Ranked | TimeOf, ...]
        columns = (*transforms.numbers, *transforms.ranked, *transforms.times)
        for column in columns:
            features = _CYCLES if isinstance(column, TimeOf) else ("",)
            names += [column.name + feature for feature in features]
            kept += range(place, place + len(features))
            place += len(features)
            indicator += [place if column.indicator else -1] * len(features)
            place += column.indicator
        sizes = [category.size for category in transforms.categories]
        return cls(
            names=(*names, *(category.name for category in transforms.categories)),
            types=("q",) * len(names) + ("c",) * len(sizes),
            kept=np.array(kept, dtype=np.int64),
            indicator=np.array(indicator, dtype=np.int64),
            starts=np.cumsum([0, *sizes])[: len(sizes)].astype(np.int64),
        )

    def matrix(self, numeric: NDArray[np.float32], categories: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the matrix of some rows.

        Args:
            numeric: Shape (rows, features), as the transforms give it.
            categories: Shape (rows, categories), codes in the shared vocabulary.

        Returns:
            Shape (rows, columns), float32; NaN where there is no value.
        """
        columns = len(self.kept)
        made = np.empty((len(numeric), columns + len(self.starts)), dtype=np.float32)
        made[:, :columns] = numeric[:, self.kept]
        for place in np.flatnonzero(self.indicator >= 0):
            made[numeric[:, self.indicator[place]] > 0, place] = np.nan
        codes = categories - self.starts
        made[:, columns:] = np.where(codes == _MISSING, np.nan, codes)
        return made


TREES_FILE = "model.ubj"
"""The trees in a model's folder: XGBoost's own format, universal binary JSON."""

MEAN, DEVIATION = "trainwright.mean", "trainwright.deviation"
"""Attributes of the trees of a regression, which predict ``(label - mean) / deviation``."""


class Forest:
    """Trees that score encoded rows.

    Args:
        booster: The trees.
        layout: From encoded rows to what they read.
    """

    def __init__(self, booster: xgboost.Booster, layout: MatrixLayout) -> None:
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
        booster = xgboost.Booster(model_file=folder / TREES_FILE)
    except (xgboost.core.XGBoostError, OSError) as error:
        raise InputError(f"XGBoost cannot read the trees: {error}", where=str(folder / TREES_FILE)) from error
    return TreesPredictor(model, transforms, Forest(booster, MatrixLayout.of(transforms)))
