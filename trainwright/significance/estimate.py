"""A number with the interval around it."""

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


def normal_quantile(confidence: float) -> float:
    """Return z such that a standard normal lies in [-z, z] with this probability, in (0, 1)."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)
