"""Encoded rows as trees read them: what is missing is missing, and a category is a category."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.transforms import Number, Ranked, TimeOf, Transforms

_MISSING = 0
_CYCLES = (", sine of the day", ", cosine of the day", ", sine of the week", ", cosine of the week")


@dataclass(frozen=True)
class Layout:
    """Columns of the matrix, and where each is found among the encoded features.

    A network is told of a missing number by a feature of its own; a tree learns a direction for it instead.
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
    def of(cls, transforms: Transforms) -> "Layout":
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
