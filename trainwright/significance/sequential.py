"""Confidence sequences: bounds on a mean that hold at all times at once, however often somebody looks."""

import math

import numpy as np

from trainwright.significance.estimate import Estimate, Floats

_BETS = tuple(1.5 / 4**index for index in range(6))
"""Sizes of the bets: a large one finds a large difference soon, a small one a small difference later."""

_MOST_AT_STAKE = 0.75
"""Largest share of the capital that one bet can lose; the paper's ``c``."""

_STEPS = 32


def mean_bounds(values: Floats, low_level: float, high_level: float) -> Estimate:
    """Bound the mean of values in [-1, 1] that came one after the other.

    With a probability of at most ``low_level`` the lower end is ever above the mean, after any number of
    values, and with at most ``high_level`` the upper end is ever below it.

    Diversified Kelly betting: Waudby-Smith and Ramdas, Estimating means of bounded random variables by
    betting, JRSS B 86 (2024), 1-27. Who bets that the next value is above ``m`` cannot expect to win while
    the mean is at most ``m``. So by Ville's inequality the capital ever exceeds ``1 / level`` with a
    probability of at most ``level``.
    """
    unit = (values + 1) / 2
    low, high = _lower_bound(unit, low_level), 1 - _lower_bound(1 - unit, high_level)
    mean = (
        float(unit.mean()) if len(unit) else 0.5
    )  # moved into the bounds, which earlier values may have set
    return Estimate(*(2 * end - 1 for end in (min(max(mean, low), high), low, high)))


def _lower_bound(values: Floats, level: float) -> float:
    """Return the largest mean at which one of the bettors, who share the level, ever won enough."""
    below, above, enough = 0.0, 1.0, math.log(len(_BETS) / level)
    for _ in range(_STEPS):  # the capital falls as the mean grows
        mean = (below + above) / 2
        capitals = (np.cumsum(np.log1p(min(bet, _MOST_AT_STAKE / mean) * (values - mean))) for bet in _BETS)
        if any(capital.max(initial=0.0) >= enough for capital in capitals):
            below = mean
        else:
            above = mean
    return below
