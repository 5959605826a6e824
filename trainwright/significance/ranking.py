"""Distributions of scores that merge, the area under the ROC curve, and what it may be by chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.significance.estimate import CONFIDENCE, Estimate, Floats, apart, normal_quantile
from trainwright.significance.proportions import wilson

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


def roc_area(label: NDArray[np.int64], score: Floats) -> float:
    """Return the area under the ROC curve: the chance that a positive outscores a negative, half for ties.

    ``label`` is 0 or 1, both occur; ``score`` is higher for a likelier 1; both have shape (rows,).
    """
    step = np.unique(score, return_inverse=True)[1].ravel()
    cells = Cells.add_up((step * 2 + 1) * 2 + label, [np.ones(len(label))])
    return float(rank(cells, 2 * int(step.max()) + 2, 1).area[0])


def _on_odds(value: float, spread: float, pairs: float, confidence: float) -> Estimate:
    """Return an area, its interval symmetric in log-odds; without a spread Wilson's of ``pairs``."""
    if not spread > 0 or not 0 < value < 1:
        bounds = wilson(value * pairs, pairs, confidence)
        return Estimate(value, bounds.low, bounds.high)
    half, odds = normal_quantile(confidence) * spread / (value * (1 - value)), value / (1 - value)
    if half > 700:  # noqa: PLR2004 - beyond what exp can take
        return Estimate(value, 0.0, 1.0)
    return Estimate(value, odds / (odds + math.exp(half)), odds / (odds + math.exp(-half)))


def delong_covariance(products: Floats, counts: Floats) -> Floats:
    """Return the covariance of areas from the products of influences by label.

    DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988. ``products`` has shape (labels, scores, scores);
    ``counts``, rows by label, shape (labels,). Of a single row of a label no variance is known: the
    covariance is 0.
    """
    if counts.min() < 2:  # noqa: PLR2004
        return np.zeros(products.shape[1:])
    found: Floats = np.sum(products * (counts / (counts - 1))[:, None, None], axis=0)
    return found


@dataclass(frozen=True)
class Placements:
    """Areas of one or two scores, with their covariance.

    Attributes:
        area: Of each score, shape (scores,).
        covariance: Shape (scores, scores).
        pairs: As many independent pairs of a positive and a negative as there are.
        same: True if there are two scores, and they are equal in every row.
    """

    area: Floats
    covariance: Floats
    pairs: float
    same: bool = False

    def estimate(self, index: int, confidence: float = CONFIDENCE) -> Estimate:
        """Return the area of one score with its interval, symmetric on the scale of log-odds.

        Pepe, The Statistical Evaluation of Medical Tests, 2003, section 5.2: near 1 the plain one begins too
        high; with fewer than 30 rows of a class it still does. Where the variance says nothing, on perfect
        separation or a single row of a class, the interval is Wilson's.
        """
        spread = math.sqrt(max(0.0, float(self.covariance[index, index])))
        return _on_odds(float(self.area[index]), spread, self.pairs, confidence)

    def difference(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return by how much the first area exceeds the second, paired; of the same scores certainly 0.

        Where one of the areas has no variance, such as that of a perfect ranking, it is as uncertain as its
        own interval all the same: see :func:`apart`.
        """
        area, variance = self.area, self.covariance
        spread = float(variance[0, 0] + variance[1, 1] - 2 * variance[0, 1])
        value, half = float(area[0] - area[1]), normal_quantile(confidence) * math.sqrt(max(0.0, spread))
        found = Estimate(value, max(-1.0, value - half), min(1.0, value + half))
        if self.same or min(variance[0, 0], variance[1, 1]) > 0:
            return found
        return apart(found, *(self.estimate(index, confidence) for index in (0, 1)))


def units_covariance(products: Floats, units: int) -> Floats:
    """Return the covariance of areas from the products of influences, added up over units.

    An area moves with a row by its placement: how far it beats the rows of the other class. Added up within
    clusters, the placements' squares are its variance (Obuchowski, Biometrics 53, 1997).
    """
    return products * (units / max(1, units - 1))


def effective_count(total: float, squares: float) -> float:
    """Return as how many units of one weight some count, from the sums of weights and of their squares.

    Kish, Survey Sampling, 1965, section 11.7.
    """
    return total**2 / squares if squares else 1.0


@dataclass(frozen=True)
class Ranking:
    """Areas of the parts of some rows, and what a row of each cell adds to that of its part.

    A cell is a part, a step of the score, from the lowest, and a label: its id is
    ``(part * steps + step) * 2 + label``.

    Attributes:
        area: Of each part, shape (parts,); NaN where it lacks a label.
        sides: Weights of label 0 and 1, shape (parts, 2).
        unsure: Share of the pairs of a positive and a negative that share an even step, of which it is not
            known which one is before the other, shape (parts,).
        ids: Of the cells, ascending, shape (cells,).
        influence: For a weight of 1, shape (cells,).
        weight: Of their rows, shape (cells,).
    """

    area: Floats
    sides: Floats
    unsure: Floats
    ids: Integers
    influence: Floats
    weight: Floats

    def by_step(self) -> Floats:
        """Return the sums by step of a single part, the highest first, shape (steps, 3).

        They are the weights of all rows, of positives, and 1 for an even step.
        """
        step, place = np.unique(self.ids >> 1, return_inverse=True)
        positive = np.where(self.ids & 1, self.weight, 0.0)
        sums = [np.bincount(place, weights=value, minlength=len(step)) for value in (self.weight, positive)]
        return np.stack([*sums, step % 2 == 0], axis=-1)[::-1]

    def of(self, ids: Integers) -> Floats:
        """Return the influence of rows by their cell, shape (rows,); of an unknown cell any number."""
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return self.influence[place]


def rank(cells: Cells, steps: int, parts: int) -> Ranking:
    """Rank the rows of each part from their weights by cell: see :class:`Ranking`.

    A row beats what lies in the steps before its own, and half of its own step.
    """
    ids, weight = cells.ids, cells.values[:, 0]
    label, part = ids & 1, ids // (2 * steps)
    first = np.flatnonzero(np.diff(ids >> 1, prepend=-1))
    sizes = np.diff(np.append(first, len(ids)))
    begin = np.searchsorted(part, part[first])
    sides = np.bincount(part * 2 + label, weights=weight, minlength=2 * parts).astype(np.float64)
    sides = sides.reshape(parts, 2)
    beaten = np.empty(len(ids))
    for side in (0, 1):
        others = np.append(0.0, np.cumsum(np.where(label != side, weight, 0.0)))
        middle = (others[first] + others[first + sizes]) / 2 - others[begin]
        beaten[label == side] = np.repeat(middle, sizes)[label == side]
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.where(label == 1, beaten / sides[part, 0], 1 - beaten / sides[part, 1])
        won = np.bincount(part, weights=np.where(label == 1, place * weight, 0.0), minlength=parts)
        area: Floats = np.minimum(won / sides[:, 1], 1.0)
        area[~(sides.min(axis=1) > 0)] = np.nan
        both = np.add.reduceat(weight * (label == 1), first) * np.add.reduceat(weight * (label == 0), first)
        both = np.where(ids[first] >> 1 & 1, 0.0, both)
        unsure = np.bincount(part[first], weights=both, minlength=parts) / (sides[:, 0] * sides[:, 1])
        influence = (place - area[part]) / sides[part, label]
    return Ranking(area, sides, unsure, ids, influence, weight)
