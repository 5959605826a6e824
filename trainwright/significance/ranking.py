"""The area under the ROC curve, and what it may be by chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InternalError
from trainwright.significance.estimate import CONFIDENCE, Estimate, Floats, apart, normal_quantile
from trainwright.significance.proportions import wilson


def delong(label: NDArray[np.int64], score: Floats, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate the area under the ROC curve: the chance that a positive outscores a negative.

    Ties count one half. The variance is that of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988),
    by the fast algorithm of Sun and Xu (IEEE Signal Processing Letters 21, 2014). The interval is symmetric
    on the scale of log-odds (Pepe, The Statistical Evaluation of Medical Tests, 2003, section 5.2), because
    near 1 the plain one begins too high; with fewer than 30 rows of a class it still does. Where the variance
    says nothing, on perfect separation or a single row of a class, the interval is Wilson's for as many
    independent pairs of a positive and a negative as there are.

    ``label`` is 0 or 1, both occur; ``score`` is higher for a likelier 1; both have shape (rows,).
    """
    area, variance = _delong(label, [score])
    positives = int(label.sum())
    spread = math.sqrt(max(0.0, float(variance[0, 0])))
    return _on_odds(float(area[0]), spread, min(positives, len(label) - positives), confidence)


def _on_odds(value: float, spread: float, pairs: float, confidence: float) -> Estimate:
    """Return an area, its interval symmetric in log-odds; without a spread Wilson's of ``pairs``."""
    if not spread > 0 or not 0 < value < 1:
        bounds = wilson(value * pairs, pairs, confidence)
        return Estimate(value, bounds.low, bounds.high)
    half, odds = normal_quantile(confidence) * spread / (value * (1 - value)), value / (1 - value)
    if half > 700:  # noqa: PLR2004 - beyond what exp can take
        return Estimate(value, 0.0, 1.0)
    return Estimate(value, odds / (odds + math.exp(half)), odds / (odds + math.exp(-half)))


def delong_difference(
    label: NDArray[np.int64], first: Floats, second: Floats, confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate by how much the first score's area exceeds the second's, on the same rows.

    Paired: what both scores find easy or hard cancels. Sources as for :func:`delong`. All arrays have
    shape (rows,); each class has at least two rows. Where one of the areas has no variance, such as that of a
    perfect ranking, it is as uncertain as its own interval all the same: see :func:`apart`.
    """
    area, variance = _delong(label, [first, second])
    pairs = min(int(label.sum()), len(label) - int(label.sum()))
    same = bool(np.array_equal(first, second))
    return _difference(area, variance, pairs, confidence, same=same)


def _difference(area: Floats, variance: Floats, pairs: float, confidence: float, *, same: bool) -> Estimate:
    """Return the first area less the second; of the same scores with certainty 0."""
    spread = float(variance[0, 0] + variance[1, 1] - 2 * variance[0, 1])
    value, half = float(area[0] - area[1]), normal_quantile(confidence) * math.sqrt(max(0.0, spread))
    found = Estimate(value, max(-1.0, value - half), min(1.0, value + half))
    alone = [math.sqrt(max(0.0, float(variance[index, index]))) for index in (0, 1)]
    if same or min(alone) > 0:
        return found
    return apart(found, *(_on_odds(float(area[i]), alone[i], pairs, confidence) for i in (0, 1)))


def _delong(label: NDArray[np.int64], scores: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return the areas, shape (scores,), and their covariances, shape (scores, scores)."""
    positive = label == 1
    m, n = int(positive.sum()), int((~positive).sum())
    if not (m and n):
        raise InternalError(f"an area needs both classes, got {m} positives and {n} negatives")
    above, below = np.empty((len(scores), m)), np.empty((len(scores), n))
    for index, score in enumerate(scores):
        beaten = _beaten(score, positive, np.ones(len(score)))
        above[index], below[index] = beaten[positive] / n, 1 - beaten[~positive] / m
    area = above.mean(axis=1)
    if min(m, n) < 2:  # noqa: PLR2004
        return area, np.zeros((len(scores), len(scores)))
    return area, np.atleast_2d(np.cov(above)) / m + np.atleast_2d(np.cov(below)) / n


@dataclass(frozen=True)
class Placements:
    """Areas of one or two scores, with what every unit of rows adds to them.

    Attributes:
        area: Of each score, shape (scores,).
        influence: What each unit moves the area by, shape (scores, units); each row of it adds up to 0.
        pairs: As many independent pairs of a positive and a negative as there are.
        same: Whether there are two scores, and they are equal in every row.
    """

    area: Floats
    influence: Floats
    pairs: float
    same: bool = False

    def estimate(self, index: int, confidence: float = CONFIDENCE) -> Estimate:
        """Return the area of one score with its interval."""
        spread = math.sqrt(self._covariance()[index, index])
        return _on_odds(float(self.area[index]), spread, self.pairs, confidence)

    def difference(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return by how much the first area exceeds the second, paired."""
        return _difference(self.area, self._covariance(), self.pairs, confidence, same=self.same)

    def _covariance(self) -> Floats:
        units = self.influence.shape[1]
        covariance: Floats = self.influence @ self.influence.T * (units / max(1, units - 1))
        return covariance


def placements(
    label: NDArray[np.int64],
    scores: Sequence[Floats],
    *,
    weight: Floats | None = None,
    clusters: NDArray[np.int64] | None = None,
) -> Placements:
    """Estimate areas of rows that have weights, or that were drawn in clusters.

    An area moves with a row by its placement: how far it beats the rows of the other class. Added up within
    clusters, the placements' squares are its variance (Obuchowski, Biometrics 53, 1997); of single rows it is
    DeLong's, but for n instead of n - 1.

    Args:
        label: 0 or 1, shape (rows,); both occur with a weight above 0.
        scores: One or two, each of shape (rows,).
        weight: Of each row, at least 0, shape (rows,); None for 1.
        clusters: Of each row, from 0 on without gaps, shape (rows,); None where each is its own.
    """
    heavy = np.ones(len(label)) if weight is None else weight
    positive = label == 1
    up, down = float(heavy[positive].sum()), float(heavy[~positive].sum())
    if not (up > 0 and down > 0):
        raise InternalError(f"an area needs both classes, got weights {up} of positives and {down}")
    area, influence = np.empty(len(scores)), []
    for index, score in enumerate(scores):
        weight_beaten = _beaten(score, positive, heavy)
        beaten = np.where(positive, weight_beaten / down, 1 - weight_beaten / up)
        area[index] = min(float(np.sum(beaten[positive] * heavy[positive]) / up), 1.0)
        moved = heavy * (beaten - area[index]) / np.where(positive, up, down)
        influence.append(moved if clusters is None else np.bincount(clusters, weights=moved))
    pairs = min(_effective(heavy * side, clusters) for side in (positive, ~positive))
    same = len(scores) > 1 and bool(np.array_equal(scores[0], scores[1]))
    return Placements(area, np.stack(influence), pairs, same)


def _effective(weight: Floats, clusters: NDArray[np.int64] | None) -> float:
    """Return as how many units of one weight some rows count (Kish, Survey Sampling, 1965, section 11.7)."""
    units = weight if clusters is None else np.bincount(clusters, weights=weight)
    return float(units.sum() ** 2 / np.sum(units**2))


def _beaten(score: Floats, positive: NDArray[np.bool_], weight: Floats) -> Floats:
    """Return the weight of the rows of the other class that each row beats; ties count one half.

    All rows are sorted once: a row beats what lies before the rows that it is tied with, and half of those.
    """
    order = np.argsort(score)
    ordered, up = score[order], positive[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    sizes = np.diff(np.append(first, len(score)))
    beaten = np.empty(len(score))
    for one in (True, False):
        others = np.append(0.0, np.cumsum(np.where(up != one, weight[order], 0.0)))
        middle = (others[first] + others[first + sizes]) / 2
        rows = order[up == one]
        beaten[rows] = np.repeat(middle, sizes)[up == one]
    return beaten
