"""Numbers in ascending order, at a third of what a comparison sort costs.

TFDV's quantile sketch sorts every value that it is given, and a value's bin is found by a search. Both are
three to thirty times cheaper on values that are in order, and no statistic depends on the order of rows: so
each column of a batch is put in order by itself first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPAN = 1 << 17
"""Whole numbers that lie within so many of each other are counted, not sorted."""

_WIDE = 8

_DISORDER = 64
"""Neighbours that may be left in the wrong order by equal keys before everything is sorted anew."""


def ascending(values: NDArray[Any]) -> NDArray[Any]:
    """Return the same numbers in ascending order, NaN last.

    Whole numbers of a short range are counted. Others are sorted by radix: numpy does that for keys of 16
    bits, so their place between the least and the largest is written in two such keys. Where that does not
    tell them apart (far outliers, infinities, NaN) numpy's own sort follows.

    Args:
        values: Integers or floats, shape (rows,).
    """
    if not values.size:
        return values
    low, high = values.min(), values.max()
    if values.dtype.kind in "iu" and int(high) - int(low) < _SPAN:
        return _counted(values, low)
    return _by_radix(values, float(low), float(high))


def _counted(values: NDArray[Any], low: Any) -> NDArray[Any]:
    wide = values if values.dtype.itemsize == _WIDE else values.astype(np.int64)
    rows = np.bincount((wide - low).astype(np.int64))
    steps = np.flatnonzero(rows)
    found: NDArray[Any] = np.repeat(steps.astype(values.dtype) + low, rows[steps])
    return found


def _by_radix(values: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = np.float64(2**32 - 1) / (np.float64(high) - low)
    if not np.isfinite(scale) or not scale:
        return np.sort(values)
    keys = ((values.astype(np.float64) - low) * scale).clip(0, 2**32 - 1).astype("<u4")
    halves = keys.view("<u2").reshape(-1, 2)
    first = np.argsort(np.ascontiguousarray(halves[:, 0]), kind="stable")
    second = np.argsort(halves[:, 1][first], kind="stable")
    return _mended(values[first[second]])


def _mended(values: NDArray[Any]) -> NDArray[Any]:
    """Exchange neighbours that two equal keys left in the wrong order."""
    while (wrong := np.flatnonzero(values[1:] < values[:-1])).size:
        if wrong.size > _DISORDER:
            return np.sort(values)
        apart = wrong[np.diff(wrong, prepend=-2) > 1]
        values[apart], values[apart + 1] = values[apart + 1], values[apart]
    return values
