"""Distributions and sums by cell, which merge: those of parts of the rows give those of all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.significance.estimate import Floats

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ValueDistribution:
    """Ascending values, and how many rows of each class have them; thinned beyond ``most`` values.

    A thinned distribution has about ``most`` steps, each with an equal share of the rows, classes counting
    alike: its values are the upper ends of the steps. Each thinning moves a rank by at most one step.

    Attributes:
        values: Distinct, shape (values,).
        counts: Shape (values, classes).
        exact: True if no values were put together.
        most: Number of values beyond which it is thinned.
    """

    values: NDArray[np.generic]
    counts: Integers
    exact: bool
    most: int

    @classmethod
    def of(
        cls, values: NDArray[np.generic], most: int, label: Integers | None = None, classes: int = 1
    ) -> "ValueDistribution":
        """Count values, all of one class or of the class ``label`` from 0 on; both have shape (rows,)."""
        distinct, place = np.unique(values, return_inverse=True)
        cell = place.ravel() * classes + (0 if label is None else label)
        counts = np.bincount(cell, minlength=len(distinct) * classes).reshape(-1, classes)
        return cls(distinct, counts.astype(np.int64), exact=True, most=most).thin(most)

    @classmethod
    def merged(cls, parts: Sequence["ValueDistribution"]) -> "ValueDistribution":
        """Return the distribution of the rows of all parts."""
        values, place = np.unique(np.concatenate([part.values for part in parts]), return_inverse=True)
        counts = np.zeros((len(values), parts[0].counts.shape[1]), np.int64)
        np.add.at(counts, place.ravel(), np.concatenate([part.counts for part in parts]))
        found = cls(values, counts, exact=all(part.exact for part in parts), most=parts[0].most)
        return found.thin(found.most)

    def thin(self, most: int) -> "ValueDistribution":
        """Put values together until at most ``most`` are left; the lowest stays."""
        if len(self.values) <= most:
            return self
        share = np.cumsum(self.counts / np.maximum(self.counts.sum(axis=0), 1), axis=0).sum(axis=1)
        ends = np.searchsorted(share, np.linspace(0, share[-1], most)[1:-1])
        ends = np.unique(np.concatenate([[0], ends, [len(share) - 1]]))
        starts = np.concatenate([[0], ends[:-1] + 1])
        return ValueDistribution(
            self.values[ends], np.add.reduceat(self.counts, starts), exact=False, most=self.most
        )

    @property
    def rows(self) -> int:
        """Rows of all classes."""
        return int(self.counts.sum())

    def ordered(self, index: Integers) -> NDArray[np.generic]:
        """Return the values at some places of all rows in order, from 0."""
        return self.values[np.searchsorted(np.cumsum(self.counts.sum(axis=1)), index, side="right")]

    def quantiles(self, shares: Floats) -> Floats:
        """Return quantiles as ``numpy.quantile`` does, between two rows by their distance."""
        at = (self.rows - 1) * shares
        low = np.floor(at).astype(np.int64)
        first, then = (self.ordered(np.minimum(k, self.rows - 1)).astype(np.float64) for k in (low, low + 1))
        part, step = at - low, then - first
        return np.where(part < 0.5, first + step * part, then - step * (1 - part))  # noqa: PLR2004

    @property
    def steps(self) -> int:
        """Number of the steps of :meth:`step_of`."""
        return 2 * len(self.values)

    def step_of(self, values: NDArray[np.generic]) -> Integers:
        """Return the step of each value, shape (rows,): odd for the end of a step, even for what lies below.

        All rows of an odd step have the same value, so only even ones are not exact.
        """
        place = np.searchsorted(self.values, values, side="left").astype(np.int64)
        at_end: NDArray[np.bool_] = self.values[place] == values
        return 2 * place + at_end


@dataclass(frozen=True)
class Cells:
    """Sums by cell, of the cells that have rows: ascending ids, shape (cells,), and values (cells, sums)."""

    ids: Integers
    values: Floats

    @classmethod
    def add_up(cls, ids: Integers, values: Sequence[Floats]) -> "Cells":
        """Add up each of ``values``, shape (rows,), by the cell of the rows."""
        distinct, place = np.unique(ids, return_inverse=True)
        sums = [np.bincount(place.ravel(), weights=column, minlength=len(distinct)) for column in values]
        return cls(distinct.astype(np.int64), np.stack(sums, axis=-1, dtype=np.float64))

    @classmethod
    def merged(cls, parts: Sequence["Cells"]) -> "Cells":
        """Return the sums of all parts."""
        values = np.concatenate([part.values for part in parts])
        return cls.add_up(np.concatenate([part.ids for part in parts]), list(values.T))
