"""The distribution of a numeric column, counted in bounded memory: the same however the rows were cut.

A float64 becomes a whole number that orders like it. These numbers are counted, at first each on its own;
once there are more than :data:`MOST` different ones, their lowest bits are left out, as few as it takes. How
many that are depends on all the values together, and on nothing else, so parts that are counted apart and
merged in any order end with the same counts. Few values, such as years, are counted exactly; many are told
apart to a precision that suits the range in which they lie.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 16_384
"""Different numbers that are counted."""

STEPS = 256
"""Parts into which quantiles cut a distribution."""

_SIGN = np.int64(np.iinfo(np.int64).max)


@dataclass
class Distribution:
    """Counts of the values of a numeric column.

    Attributes:
        shift: Lowest bits that are left out.
        number: What is left of the ordered numbers, ascending and distinct; shape (counted,).
        count: Rows of each; shape (counted,).
    """

    shift: int
    number: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Distribution":
        """Count finite values."""
        number, count = np.unique(_ordered(values + 0.0), return_counts=True)  # -0.0 becomes 0.0
        return cls(0, number, count.astype(np.int64))._bounded()

    def merged(self, other: "Distribution") -> "Distribution":
        """Return the counts of both."""
        shift = max(self.shift, other.shift)
        number = np.concatenate([self.number >> (shift - self.shift), other.number >> (shift - other.shift)])
        return _counted(shift, number, np.concatenate([self.count, other.count]))._bounded()

    @property
    def state(self) -> dict[str, Any]:
        """What was counted, as plain data and arrays; the fields by name."""
        return dict(vars(self))

    def quantiles(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return points of the cumulative distribution: values, ascending, and their levels.

        The level of a value is the share of rows below it, and half of those at it. There are at most
        ``STEPS + 1`` points, the smallest and the largest value among them, spread evenly over the rows;
        where there are no more different values, each is a point.
        """
        total = int(self.count.sum())
        until = np.cumsum(self.count)
        chosen = np.arange(until.size)
        if until.size > STEPS + 1:
            wanted = np.linspace(0, total, STEPS + 1)
            chosen = np.unique(np.clip(np.searchsorted(until, wanted), 0, until.size - 1))
        levels = (until - self.count / 2) / total
        # The middle of what the left-out bits could have been.
        middle = (self.number[chosen] << self.shift) + ((1 << self.shift) >> 1)
        return tuple(_value(middle).tolist()), tuple(levels[chosen].tolist())

    def _bounded(self) -> "Distribution":
        found = self
        while found.number.size > MOST:
            found = _counted(found.shift + 1, found.number >> 1, found.count)
        return found


def _counted(shift: int, number: NDArray[np.int64], count: NDArray[np.int64]) -> Distribution:
    distinct, place = np.unique(number, return_inverse=True)
    total = np.zeros(distinct.size, dtype=np.int64)
    np.add.at(total, place, count)
    return Distribution(shift, distinct, total)


def _ordered(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers that order as the values do: the bits, turned round where they are negative."""
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ _SIGN, bits)


def _value(ordered: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(ordered < 0, ordered ^ _SIGN, ordered).view(np.float64)
