"""Proportions, and differences of them: by counts alone."""

from typing import Any

import numpy as np

from trainwright.errors import InternalError
from trainwright.significance.estimate import CONFIDENCE, Estimate, Floats, normal_quantile

_ROUNDING = 1e-9
"""What sums of weights, added up in another order, may differ by."""


def wilson(successes: float, trials: float, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate a proportion.

    The score interval: Wilson, JASA 22 (1927). It never leaves [0, 1], and says something even where all
    trials or none succeed.

    Args:
        successes: In [0, trials], up to the rounding of sums of weights; may be a fraction.
        trials: Greater than 0.
        confidence: In (0, 1).
    """
    if not (trials > 0 and -_ROUNDING * trials <= successes <= (1 + _ROUNDING) * trials):
        raise InternalError(f"{successes} successes of {trials} trials")
    successes = min(max(successes, 0.0), trials)
    low, high = wilson_ends(np.float64(successes), np.float64(trials), normal_quantile(confidence))
    return Estimate(float(successes / trials), float(low), float(high))


def wilson_ends(successes: Any, trials: Any, z: float) -> tuple[Any, Any]:
    """Return the ends of :func:`wilson` for numbers or arrays, at a quantile of the normal."""
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return np.clip(middle - half, 0, share), np.clip(middle + half, share, 1)


def newcombe_ends(hits: Floats, total: Floats, z: float) -> tuple[Floats, Floats]:
    """Bound every difference share[i] - share[j]; shape (groups, groups), the diagonal without meaning."""
    share = hits / total
    low, high = wilson_ends(hits, total, z)
    below, above = (share - low) ** 2, (high - share) ** 2
    difference = share[:, None] - share[None, :]
    lower = difference - np.sqrt(below[:, None] + above[None, :])
    upper = difference + np.sqrt(above[:, None] + below[None, :])
    np.fill_diagonal(lower, -1.0)
    np.fill_diagonal(upper, -1.0)
    return lower, upper


def newcombe(successes: tuple[int, int], trials: tuple[int, int], confidence: float = CONFIDENCE) -> Estimate:
    """Estimate the difference of two independent proportions, the first minus the second.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998), 873-890.
    """
    hits, total = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    lower, upper = newcombe_ends(hits, total, normal_quantile(confidence))
    first, second = hits / total
    return Estimate(float(first - second), float(lower[0, 1]), float(upper[0, 1]))
