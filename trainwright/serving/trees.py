"""Score rows with the gradient-boosted trees of a model folder. Needs xgboost, neither torch nor a GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.errors import InputError
from trainwright.serving import Predictor
from trainwright.serving.trees_check import check_trees
from trainwright.transforms import Raw, TimeOf, Transforms, encoding

TREES_FILE = "model.ubj"
"""The trees in a model's folder: XGBoost's own format, universal binary JSON."""

MEAN, DEVIATION = "trainwright.mean", "trainwright.deviation"
"""Attributes of the trees of a regression, which predict ``(label - mean) / deviation``."""

_CYCLES = (", sine of the day", ", cosine of the day", ", sine of the week", ", cosine of the week")


@dataclass(frozen=True)
class MatrixLayout:
    """Columns of the matrix, and the encoded feature of each.

    A network has a feature of its own for a missing number; a tree learns a direction for it instead.
    So the number becomes NaN, and that feature is left out.

    Attributes:
        names: Name of each column.
        inputs: The input column that each is made from.
        types: Type of each column as XGBoost writes it: ``q`` a number, ``c`` a category.
        kept: Numeric features that become columns, in order; shape (numeric columns,).
        indicator: The feature that says that it is missing, or -1; shape (numeric columns,).
        starts: First code of each category column in the shared vocabulary; shape (categories,).
    """

    names: tuple[str, ...]
    inputs: tuple[str, ...]
    types: tuple[str, ...]
    kept: NDArray[np.int64]
    indicator: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, transforms: Transforms) -> "MatrixLayout":
        """Return the layout of some fitted transforms."""
        names: list[str] = []
        inputs: list[str] = []
        kept: list[int] = []
        indicator: list[int] = []
        place = 0
        for column in (*transforms.scaled, *transforms.times):
            features = _CYCLES if isinstance(column, TimeOf) else ("",)
            names += [column.name + feature for feature in features]
            inputs += [column.name] * len(features)
            kept += range(place, place + len(features))
            place += len(features)
            indicator += [place if column.indicator else -1] * len(features)
            place += column.indicator
        sizes = [category.size for category in transforms.categories]
        categories = [category.name for category in transforms.categories]
        return cls(
            names=(*names, *categories),
            inputs=(*inputs, *categories),
            types=("q",) * len(names) + ("c",) * len(sizes),
            kept=np.array(kept, dtype=np.int64),
            indicator=np.array(indicator, dtype=np.int64),
            starts=np.cumsum([0, *sizes])[: len(sizes)].astype(np.int64),
        )

    def matrix(self, numeric: NDArray[np.float32], categories: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the matrix of encoded rows: shape (rows, columns), float32, NaN where a value is missing."""
        columns = len(self.kept)
        matrix = np.empty((len(numeric), columns + len(self.starts)), dtype=np.float32)
        matrix[:, :columns] = numeric[:, self.kept]
        for place in np.flatnonzero(self.indicator >= 0):
            matrix[numeric[:, self.indicator[place]] > 0, place] = np.nan
        codes = categories - self.starts
        matrix[:, columns:] = np.where(codes == encoding.MISSING, np.nan, codes)
        return matrix


class Forest:
    """Trees that score encoded rows."""

    def __init__(self, booster: xgboost.Booster, layout: MatrixLayout) -> None:
        self._booster, self._layout = booster, layout

    def score(
        self, numeric: NDArray[np.float32], categories: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """Return the probability of label 1 or the predicted number, shape (rows,), or (rows, classes)."""
        scores: NDArray[np.float64] = self._booster.predict(self._matrix(numeric, categories)).astype(
            np.float64
        )
        mean, deviation = self._booster.attr(MEAN), self._booster.attr(DEVIATION)
        return scores if mean is None or deviation is None else scores * float(deviation) + float(mean)

    def margins(
        self, numeric: NDArray[np.float32], categories: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """Return log-odds or standardised predictions, shape (rows,), or logits (rows, classes)."""
        rows = self._matrix(numeric, categories)
        margins: NDArray[np.float64] = self._booster.predict(rows, output_margin=True).astype(np.float64)
        return margins

    def _matrix(self, numeric: NDArray[np.float32], categories: NDArray[np.integer[Any]]) -> xgboost.DMatrix:
        rows = self._layout.matrix(numeric, categories)
        return xgboost.DMatrix(rows, feature_types=list(self._layout.types), enable_categorical=True)


def load_trees(folder: Path) -> Predictor:
    """Load a model of trees, whose files are verified.

    Raises:
        InputError: XGBoost cannot read it.
        ModelRefused: A tree is malformed (:func:`check_trees`).
    """
    model, transforms = Model.read(folder), Transforms.read(folder)
    layout = MatrixLayout.of(transforms)
    check_trees(folder / TREES_FILE, len(layout.names))
    try:
        booster = xgboost.Booster(model_file=folder / TREES_FILE)
    except (xgboost.core.XGBoostError, OSError) as error:
        raise InputError(f"XGBoost cannot read the trees: {error}", where=str(folder / TREES_FILE)) from error
    forest = Forest(booster, layout)

    def score(raw: Raw) -> NDArray[np.float64]:
        encoded = transforms.encode_raw(raw)
        return forest.score(encoded.numeric, encoded.categories)

    return Predictor(model, transforms, score)
