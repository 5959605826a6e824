"""Reference implementations that the library's intervals are compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.significance import Estimate, Rest, normal_quantile
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
