"""Fingerprints of values that must differ, written to disk in sorted runs: memory stays that of one run.

A run is a table of where each 1024th of all 64-bit numbers begins in it, and then its fingerprints in
ascending order. So what lies in one range of the numbers is read from every run without reading the rest.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from trainwright.ingest.reports import Run

Fingerprints = NDArray[np.uint64]

RANGES = 1024
"""Ranges of equal length that all 64-bit numbers are cut into."""

_RUN = 1 << 19
"""Fingerprints after which a run is written: 4 MB."""

_WORD = 8
_HEAD = (RANGES + 1) * _WORD
_BOUNDS = (np.arange(1, RANGES, dtype=np.uint64)) << np.uint64(64 - RANGES.bit_length() + 1)


class SpillWriter:
    """Writes the fingerprints of one shard.

    Args:
        stream: Where they go.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._waiting: defaultdict[tuple[str, str], list[Fingerprints]] = defaultdict(list)
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._runs: list[Run] = []

    def add(self, column: str, split: str, found: Fingerprints) -> None:
        """Take more fingerprints.

        Args:
            column: Whose values they are of.
            split: The split of these rows, whose values are kept once; empty keeps every row's.
            found: Shape (rows,).
        """
        place = (column, split)
        self._waiting[place].append(found)
        self._counts[place] += len(found)
        if self._counts[place] >= _RUN:
            self._flush(place)

    def finish(self) -> tuple[Run, ...]:
        """Write what waits, and say what was written."""
        for place in sorted(self._waiting):
            self._flush(place)
        return tuple(self._runs)

    def _flush(self, place: tuple[str, str]) -> None:
        column, split = place
        total = np.concatenate(self._waiting.pop(place))
        self._counts.pop(place)
        total.sort()
        if split:
            total = distinct(total)
        if len(total):
            self._runs.append(Run(column=column, split=split, offset=self._stream.tell(), count=len(total)))
            inside = np.searchsorted(total, _BOUNDS)
            self._stream.write(np.concatenate([[0], inside, [len(total)]]).astype("<u8").tobytes())
            self._stream.write(total.astype("<u8", copy=False).tobytes())


def distinct(ascending: Fingerprints) -> Fingerprints:
    """Return what is in an ascending array, each once; NumPy's own ``unique`` hashes, far more slowly."""
    first = np.ones(len(ascending), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]


class OpenRun:
    """A run of a spill that is open for reading by ranges.

    Args:
        shard: The shard that it is of.
        path: The spill.
        run: Where it is in there.
    """

    def __init__(self, shard: int, path: Path, run: Run) -> None:
        self.shard, self.split, self.count = shard, run.split, run.count
        self._path = path
        self._start = run.offset + _HEAD
        self._index = np.fromfile(path, "<u8", RANGES + 1, offset=run.offset).astype(np.int64)

    def within(self, first: int, last: int) -> Fingerprints:
        """Read what lies in the ranges ``first`` to ``last`` (not included), in ascending order."""
        begin, end = int(self._index[first]), int(self._index[last])
        return np.fromfile(self._path, "<u8", end - begin, offset=self._start + begin * _WORD)


def ranges(runs: Sequence[OpenRun], most: int) -> Iterator[tuple[int, int]]:
    """Cut all numbers into as few stretches of ranges as keep about ``most`` fingerprints each."""
    stretches = min(RANGES, max(1, -(-sum(run.count for run in runs) // most)))
    ends = [RANGES * place // stretches for place in range(stretches + 1)]
    yield from pairwise(ends)
