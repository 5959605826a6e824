"""Which split each row belongs to: windows of time, or shares by a hash of a column."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import UNASSIGNED
from trainwright.experiment import Data, Share, Window
from trainwright.experiment.data import ROW
from trainwright.tables import fingerprints

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)
"""Times are whole ticks from the epoch."""

_ALL = 1 << 64
_NEARLY_ALL = 1 - Fraction(1, 10**9)
"""Shares that sum to this or more are taken to sum to 1: decimal fractions need not add up exactly."""


def division(data: Data) -> "Shares | Windows":
    """Return how a section ``data`` divides rows: the same way in every process."""
    return (
        Shares(data.shares, data.split_by or data.key or ROW, data.split_seed)
        if data.shares
        else Windows(data)
    )


class Windows:
    """Half-open windows of time that do not overlap, in the order of time.

    ``names`` are the splits in the order of the manifest; the last has the rows that are in no other.
    """

    def __init__(self, data: Data) -> None:
        ordered = sorted(data.windows.items(), key=lambda item: item[1].start)
        self._time = data.time
        self.names = (*(name for name, _ in ordered), UNASSIGNED)
        self._starts = np.array([ticks(window.start) for _, window in ordered])
        self._ends = np.array([ticks(window.end) for _, window in ordered])

    def places(self, rows: pa.Table) -> NDArray[np.intp]:
        """Return each row's window as an index: the last that has begun, unless it has ended, too.

        The column of times is ``timestamp[us, tz=UTC]`` without nulls.
        """
        moments: NDArray[np.int64] = rows[self._time].cast(pa.int64()).to_numpy()
        place = np.searchsorted(self._starts, moments, side="right") - 1
        place[(place < 0) | (moments >= self._ends[place])] = len(self._starts)
        return place


class Shares:
    """Shares of the values of a column, by the 64-bit fingerprint of each: equal values fall together.

    The names in alphabetical order get consecutive ranges of the numbers below ``2**64``, each as long as its
    share of them: the range of the k-th ends at ``floor(2**64 * (f_1 + … + f_k))``, in exact arithmetic on
    the fractions as they are written. A row belongs to the range that its fingerprint lies in. The last name
    has the rows that are in no range.
    """

    def __init__(self, shares: Mapping[str, Share], column: str, seed: int) -> None:
        self._column, self._seed = column, seed
        ordered = sorted(shares)
        self.names = (*ordered, UNASSIGNED)
        ends, total = [], Fraction(0)
        for name in ordered:
            total += Fraction(str(shares[name].fraction))
            ends.append(int(total * _ALL))
        if total >= _NEARLY_ALL:
            ends.pop()  # the last share goes to the end of all numbers
        self._ends = np.array(ends, dtype=np.uint64)

    def places(self, rows: pa.Table) -> NDArray[np.intp]:
        """Return each row's share as an index: the first whose range ends above the fingerprint."""
        return np.searchsorted(self._ends, fingerprints(rows[self._column], self._seed), side="right")


def divide(rows: pa.Table, splits: Shares | Windows) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each split, in their order."""
    places = splits.places(rows)
    for place in np.unique(places):
        chosen = np.flatnonzero(places == place)
        first, count = int(chosen[0]), len(chosen)
        whole = int(chosen[-1]) - first + 1 == count
        yield splits.names[place], rows.slice(first, count) if whole else rows.take(pa.array(chosen))


def ticks(moment: datetime) -> int:
    """Return a time as microseconds from 1970 on."""
    return (moment - EPOCH) // TICK


def written(moment: int) -> str:
    """Write a time that is given in microseconds from 1970 on."""
    return f"{EPOCH + moment * TICK:%Y-%m-%d %H:%M:%SZ}"


def window_of(window: Window) -> str:
    """Write a window for people."""
    return f"{written(ticks(window.start))} to {written(ticks(window.end))}"
