"""Reference implementations for the library's intervals, and areas of rows that are in memory."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.significance import (
    Cells,
    Estimate,
    Placements,
    Rest,
    delong_covariance,
    effective_count,
    normal_quantile,
    rank,
    units_covariance,
)
from trainwright.significance.proportions import newcombe_ends


def bootstrap(
    statistic: Callable[..., float],
    columns: Sequence[NDArray[Any]],
    *,
    strata: NDArray[Any] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Estimate any statistic by drawing rows again, one pass over all rows a draw.

    Percentile interval: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    rows = len(columns[0])
    groups = [np.arange(rows)] if strata is None else [np.flatnonzero(strata == s) for s in np.unique(strata)]
    draw = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for index in range(resamples):
        chosen = np.concatenate([draw.choice(group, len(group)) for group in groups])
        drawn[index] = statistic(*(column[chosen] for column in columns))
    low, high = np.quantile(drawn, [0.025, 0.975], method="weibull")
    return Estimate(float(statistic(*columns)), float(low), float(high))


def newcombe(successes: tuple[int, int], trials: tuple[int, int], confidence: float = 0.95) -> Estimate:
    """Estimate the difference of two independent proportions, the first minus the second."""
    (hits, other), (total, others) = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    low, high = newcombe_ends(hits, total, other, others, normal_quantile(confidence))
    return Estimate(float(hits / total - other / others), float(low), float(high))


def rest_of(successes: Sequence[int], trials: Sequence[int]) -> Rest:
    """Return the other groups of each group, where there is nothing else."""
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    return Rest(hits.sum() - hits, total.sum() - total, total / total.sum())


def delong(label: NDArray[np.int64], score: NDArray[np.float64]) -> Estimate:
    """Estimate an area with DeLong's variance."""
    return _delong(label, [score]).estimate(0)


def delong_difference(
    label: NDArray[np.int64], first: NDArray[np.float64], second: NDArray[np.float64]
) -> Estimate:
    """Estimate by how much the first score's area exceeds the second's."""
    return _delong(label, [first, second]).difference()


def _delong(label: NDArray[np.int64], scores: Sequence[NDArray[np.float64]]) -> Placements:
    areas, influence = _influence(label, scores, np.ones(len(label)))
    sums = [influence[:, label == side] for side in (0, 1)]
    counts = np.bincount(label, minlength=2).astype(np.float64)
    covariance = delong_covariance(np.stack([part @ part.T for part in sums]), counts)
    return Placements(areas, covariance, float(counts.min()), _same(scores))


def placements(
    label: NDArray[np.int64],
    scores: Sequence[NDArray[np.float64]],
    *,
    weight: NDArray[np.float64] | None = None,
    clusters: NDArray[np.int64] | None = None,
) -> Placements:
    """Estimate areas of rows that have weights, or that were drawn in clusters."""
    heavy = np.ones(len(label)) if weight is None else weight
    areas, influence = _influence(label, scores, heavy)
    sides = [heavy * (label == side) for side in (0, 1)]
    if clusters is not None:
        influence = np.stack([np.bincount(clusters, weights=row) for row in influence])
        sides = [np.bincount(clusters, weights=side) for side in sides]
    pairs = min(effective_count(float(side.sum()), float(np.sum(side**2))) for side in sides)
    covariance = units_covariance(influence @ influence.T, influence.shape[1])
    return Placements(areas, covariance, pairs, _same(scores))


def _same(scores: Sequence[NDArray[np.float64]]) -> bool:
    return len(scores) > 1 and bool(np.array_equal(scores[0], scores[1]))


def _influence(
    label: NDArray[np.int64], scores: Sequence[NDArray[np.float64]], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return areas, shape (scores,), and what each row adds to them, shape (scores, rows)."""
    areas, rows = [], []
    for score in scores:
        step = np.unique(score, return_inverse=True)[1].ravel()
        ids = (step * 2 + 1) * 2 + label
        ranking = rank(Cells.add_up(ids, [weight]), 2 * int(step.max()) + 2, 1)
        areas.append(ranking.area[0])
        rows.append(weight * ranking.of(ids))
    return np.array(areas), np.stack(rows)
