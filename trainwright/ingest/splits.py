"""Splits by time: which window each row falls into, and whether every window has enough rows."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import UNASSIGNED
from trainwright.errors import DataRefused
from trainwright.experiment import Window

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


class Splits:
    """Windows of time by name, half-open: ``start <= t < end``. They do not overlap.

    Args:
        windows: The windows, already checked to be disjoint.

    Attributes:
        names: Their names in the order of time, which does not depend on the order in a file.
    """

    def __init__(self, windows: Mapping[str, Window]) -> None:
        self._windows = windows
        ordered = sorted(windows.items(), key=lambda item: item[1].start)
        self.names = [name for name, _ in ordered]
        self._starts = np.array([(window.start - _EPOCH) // _TICK for _, window in ordered])
        self._ends = np.array([(window.end - _EPOCH) // _TICK for _, window in ordered])
        self._rows = dict.fromkeys(windows, 0)
        self._span: tuple[int, int] | None = None

    def divide(self, table: pa.Table, time: pa.ChunkedArray) -> Iterator[tuple[str, pa.Table]]:
        """Give the rows of each split, in the order in which they came.

        Args:
            table: Some rows.
            time: Their times, ``timestamp[us, tz=UTC]`` without nulls.
        """
        if not table.num_rows:
            return
        moments: NDArray[np.int64] = time.cast(pa.int64()).to_numpy()
        first, last = self._span or (moments[0], moments[0])
        self._span = (min(first, moments.min()), max(last, moments.max()))
        place = np.searchsorted(self._starts, moments, side="right") - 1
        place[(place >= 0) & (moments >= self._ends[place])] = -1
        for index in np.unique(place):
            name = self.names[index] if index >= 0 else UNASSIGNED
            chosen = place == index
            self._rows[name] = self._rows.get(name, 0) + int(chosen.sum())
            yield name, table if chosen.all() else table.filter(pa.array(chosen))

    def require(self, min_rows: int, source: str) -> None:
        """Refuse splits with too few rows, all at once.

        Raises:
            DataRefused: There is no row at all, or a split has fewer than ``min_rows``.
        """
        if self._span is None:
            raise DataRefused(f"0 rows in {source}", where="data.source")
        few = [
            f"{self._rows[name]:,} rows in split {name!r} of {source}; "
            f"min_rows is {min_rows:,}, the window is {_written(window.start)} to {_written(window.end)}"
            for name, window in self._windows.items()
            if self._rows[name] < min_rows
        ]
        if few:
            first, last = (_written(_EPOCH + int(moment) * _TICK) for moment in self._span)
            raise DataRefused(
                "\n".join(few),
                where="data.splits",
                hint=f"The rows go from {first} to {last}: move the windows, or wait for more rows.",
            )


def _written(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%SZ}"
