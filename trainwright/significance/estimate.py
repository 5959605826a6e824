"""A number with the interval around it."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""How often an interval holds the true value, unless asked otherwise."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with the interval around it, ``low <= value <= high`` up to rounding."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write it as ``0.741 [0.738, 0.744]``."""
        return f"{self.value:.3f} {self.interval}"

    @property
    def interval(self) -> str:
        """The interval alone, as ``[0.738, 0.744]``."""
        return f"[{self.low:.3f}, {self.high:.3f}]"


def apart(found: Estimate, first: Estimate, second: Estimate) -> Estimate:
    """Widen the interval of ``first - second`` to what both have alone.

    A share of which all is right does not vary from draw to draw, and is not certain for that: the paired
    interval of a difference then knows the other's spread alone, or none. Both intervals are put together as
    those of independent figures are (Zou and Donner, Statistics in Medicine 27, 2008); what pairs have in
    common only makes a difference surer.

    Args:
        found: The difference, with the interval that pairs give it.
        first: The figure of the first, with its own interval.
        second: That of the second.
    """
    low = found.value - math.hypot(first.value - first.low, second.high - second.value)
    high = found.value + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(found.value, min(found.low, max(-1.0, low)), max(found.high, min(1.0, high)))


def normal_quantile(confidence: float) -> float:
    """Return z such that a standard normal lies in [-z, z] with this probability, in (0, 1)."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)
