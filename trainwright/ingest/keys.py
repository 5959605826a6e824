"""Find duplicate keys, and values in two splits, by sorted fingerprints that are spilled to disk."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import DataRefused
from trainwright.ingest.reports import FingerprintRun
from trainwright.tables import fingerprints

Fingerprints = NDArray[np.uint64]

RANGES = 1024
"""Ranges of equal length that all 64-bit numbers are cut into."""

_RUN = 1 << 19
"""Fingerprints after which a run is written: 4 MB."""

_WORD = 8
_HEAD = (RANGES + 1) * _WORD
_BOUNDS = (np.arange(1, RANGES, dtype=np.uint64)) << np.uint64(64 - RANGES.bit_length() + 1)


class SpillWriter:
    """Writes the fingerprints of one shard."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._waiting: defaultdict[tuple[str, str], list[Fingerprints]] = defaultdict(list)
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._runs: list[FingerprintRun] = []

    def add(self, column: str, split: str, found: Fingerprints) -> None:
        """Take more fingerprints."""
        place = (column, split)
        self._waiting[place].append(found)
        self._counts[place] += len(found)
        if self._counts[place] >= _RUN:
            self._flush(place)

    def finish(self) -> tuple[FingerprintRun, ...]:
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
            self._runs.append(
                FingerprintRun(column=column, split=split, offset=self._stream.tell(), count=len(total))
            )
            inside = np.searchsorted(total, _BOUNDS)
            self._stream.write(np.concatenate([[0], inside, [len(total)]]).astype("<u8").tobytes())
            self._stream.write(total.astype("<u8", copy=False).tobytes())


def distinct(ascending: Fingerprints) -> Fingerprints:
    """Return what is in an ascending array, each once; NumPy's own ``unique`` hashes, far more slowly."""
    first = np.ones(len(ascending), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]


class OpenRun:
    """A run of a spill that is open for reading by ranges."""

    def __init__(self, shard: int, path: Path, run: FingerprintRun) -> None:
        self.shard, self.split, self.count = shard, run.split, run.count
        self._path = path
        self._start = run.offset + _HEAD
        self._index = np.fromfile(path, "<u8", RANGES + 1, offset=run.offset).astype(np.int64)

    def within(self, first: int, last: int) -> Fingerprints:
        """Read what lies in the ranges ``first`` to ``last`` (not included), in ascending order."""
        begin, end = int(self._index[first]), int(self._index[last])
        return np.fromfile(self._path, "<u8", end - begin, offset=self._start + begin * _WORD)


EXAMINED = 10_000
"""Equal fingerprints behind which the values are looked at; all that are beyond are counted only."""

_AT_A_TIME = 1 << 20
_SHOWN = 3

Values = Callable[[set[int]], Iterable[tuple[str, pa.ChunkedArray]]]
"""Reads a column of some shards once more: the split of the rows, and their values."""


@dataclass(frozen=True)
class Suspects:
    """Fingerprints that are there more than once; the least of them, at most :data:`EXAMINED`, ascending."""

    examined: Fingerprints
    count: int
    shards: set[int]


def repeated(runs: Sequence[OpenRun], at_a_time: int = _AT_A_TIME) -> Suspects:
    """Find fingerprints that are there twice: in all rows, or, for runs that have a split, in two splits."""
    examined: list[Fingerprints] = []
    shards: set[int] = set()
    count = 0
    ordered = sorted(runs, key=lambda run: run.split)
    # As few stretches of ranges as hold about ``at_a_time`` fingerprints each.
    stretches = min(RANGES, max(1, -(-sum(run.count for run in runs) // at_a_time)))
    for first, last in pairwise(RANGES * place // stretches for place in range(stretches + 1)):
        parts = [(run, run.within(first, last)) for run in ordered]
        twice = _twice(parts)
        wanted = twice[: max(0, EXAMINED - count)]
        count += len(twice)
        if len(wanted):
            examined.append(wanted)
            shards |= {run.shard for run, part in parts if np.isin(wanted, part).any()}
    return Suspects(np.concatenate(examined) if examined else np.empty(0, np.uint64), count, shards)


def _twice(parts: Sequence[tuple[OpenRun, Fingerprints]]) -> Fingerprints:
    """Return the fingerprints that are in two splits, or twice in runs without one; ascending."""
    by_split = []
    for split, found in groupby(parts, key=lambda part: part[0].split):
        joined = np.sort(np.concatenate([part for _, part in found]), kind="stable")
        by_split.append(distinct(joined) if split else joined)
    total = np.sort(np.concatenate(by_split), kind="stable") if by_split else np.empty(0, np.uint64)
    return distinct(total[1:][total[1:] == total[:-1]])


def reject_duplicates(name: str, runs: Sequence[OpenRun], rows: int, source: str, values: Values) -> None:
    """Reject keys that are there more than once."""
    suspects = repeated(runs)
    counts = Counter(value for _, value in _examined(suspects, values))
    twice = {value: count for value, count in counts.items() if count > 1}
    if total := _total(suspects, len(twice)):
        shown = ", ".join(f"{value!r} in {count:,} rows" for value, count in list(twice.items())[:_SHOWN])
        raise DataRefused(
            f"key column {name!r} does not identify a row: of {rows:,} rows, "
            f"{total:,} keys are there more than once: {shown}",
            where=source,
            hint="Name a column that is different in every row, or make one where the source is written.",
        )


def reject_shared(name: str, runs: Sequence[OpenRun], values: Values) -> None:
    """Reject values of a disjoint column that are in more than one split."""
    suspects = repeated(runs)
    places: defaultdict[Any, set[str]] = defaultdict(set)
    for split, value in _examined(suspects, values):
        places[value].add(split)
    shared = {value: splits for value, splits in places.items() if len(splits) > 1}
    if total := _total(suspects, len(shared)):
        shown = ", ".join(
            f"{value!r} in {' and '.join(sorted(splits))}" for value, splits in list(shared.items())[:_SHOWN]
        )
        raise DataRefused(
            f"column {name!r} must have no value in two splits, and {total:,} of its values are: {shown}",
            where="data.disjoint",
            hint=f"Divide by it (data.split_by: {name}), or leave such rows out where the source is written.",
        )


def _examined(suspects: Suspects, values: Values) -> Iterator[tuple[str, Any]]:
    """Yield the values behind the examined fingerprints, and their splits."""
    for split, column in values(suspects.shards) if suspects.count else ():
        found = np.isin(fingerprints(column), suspects.examined)
        for value in column.filter(pa.array(found)).drop_null().to_pylist():
            yield split, value


def _total(suspects: Suspects, real: int) -> int:
    """Count what is really there twice: as seen, and beyond what was examined as the fingerprints say."""
    return real + suspects.count - len(suspects.examined)
