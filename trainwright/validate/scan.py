"""Scan a split in pieces, and merge the partial statistics and counts in one fixed order.

Partial results are merged by their place alone: each 32 in a row, and the results of that in the same way.
So one process, many processes and Beam give the same bytes.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.experiment.data import Runner
from trainwright.tables import ROW_GROUP, Piece, pieces, read_piece
from trainwright.tables.workers import Pool, processors
from trainwright.validate.columns import Counts, Cuts, add_counts, listed, no_counts, prepared
from trainwright.validate.statistics import Statistics
from trainwright.validate.tfdv import schema_pb2

PIECE_ROWS = 2 * ROW_GROUP
"""Rows a piece, about: the unit of work."""

FAN_IN = 32
"""Partial results that are merged at a time."""

_PIECES_A_TASK = 4
_TASKS_A_WORKER = 4


@dataclass(frozen=True)
class ScanRequest:
    """The statistics and counts to take of every piece.

    Attributes:
        schema: Which values are counted one by one, as a serialized ``Schema``.
        columns: Columns whose statistics are taken; none to count only.
    """

    schema: bytes
    columns: tuple[str, ...]
    cuts: Mapping[str, Cuts]

    def begin(self) -> Statistics:
        """Return the statistics of no rows."""
        return Statistics(schema_pb2.Schema.FromString(self.schema))


@dataclass(frozen=True)
class PartialResult:
    """Partial statistics and counts of some rows.

    Attributes:
        parts: Their partial statistics, packed; empty if only counts were wanted.
    """

    parts: bytes
    counts: dict[str, Counts]


def take(folder: Path, piece: Piece, wanted: ScanRequest) -> PartialResult:
    """Read one piece.

    Raises:
        InputError: A file is gone, or is not what the manifest says.
    """
    statistics = wanted.begin() if wanted.columns else None
    counts = no_counts(wanted.cuts)
    names = [*wanted.columns, *(name for name in wanted.cuts if name not in wanted.columns)]
    for batch in read_piece(folder, piece, names):
        columns = prepared(batch)
        add_counts(counts, columns, wanted.cuts)
        if statistics is not None:
            known = {name: columns[name] for name in wanted.columns if name in columns}
            statistics.add_listed(listed(known))
    return PartialResult(statistics.packed() if statistics is not None else b"", counts)


def merge(taken: Iterable[PartialResult], wanted: ScanRequest) -> PartialResult:
    """Add up what was taken, in the order given."""
    statistics, counts = wanted.begin(), no_counts(wanted.cuts)
    for entry in taken:
        if wanted.columns:
            statistics.merge_packed(entry.parts)
        for name, rows in entry.counts.items():
            counts[name] += rows
    return PartialResult(statistics.packed() if wanted.columns else b"", counts)


def levels(count: int) -> int:
    """Return how often :data:`FAN_IN` at a time are merged until ``count`` have become one; at least once."""
    return 1 if count <= FAN_IN else 1 + levels(-(-count // FAN_IN))


def merge_all(taken: Iterable[PartialResult], count: int, wanted: ScanRequest) -> PartialResult:
    """Add up what was taken of ``count`` pieces, given in their order, in the one fixed way."""
    rows = iter(taken)
    for _ in range(levels(count)):
        rows = map(partial(merge, wanted=wanted), _by_fan_in(rows))
    return next(rows, merge((), wanted))


def _by_fan_in(taken: Iterator[PartialResult]) -> Iterator[Iterator[PartialResult]]:
    for first in taken:
        yield itertools.chain([first], itertools.islice(taken, FAN_IN - 1))


def finish(total: PartialResult, wanted: ScanRequest) -> Any:
    """Return the statistics of everything that was taken (``DatasetFeatureStatisticsList``)."""
    statistics = wanted.begin()
    return (statistics.merge_packed(total.parts) if wanted.columns else statistics).finish()


def scan(
    folder: Path, snapshot: Snapshot, split: str, wanted: ScanRequest, runner: Runner, shared: str = ""
) -> tuple[Any, dict[str, Counts]]:
    """Take what is wanted of a split.

    Args:
        split: Name of the split.
        runner: On what; it changes nothing of the result.
        shared: Folder or URI that Beam's workers reach, too; a folder of this machine if empty.

    Returns:
        TFDV's ``DatasetFeatureStatisticsList``, and the rows by bin and column.

    Raises:
        InputError: No such split or column, or a file is gone or not what the manifest says.
        DependencyError: A worker died.
    """
    found = pieces(folder, snapshot, [split], PIECE_ROWS)
    if runner.engine == "beam":
        from trainwright.validate.beam import scan_pieces

        return scan_pieces(folder, found, wanted, runner.options, shared)
    total = merge_all(_on_processes(folder, found, wanted, runner.workers), len(found), wanted)
    return finish(total, wanted), total.counts


def _on_processes(
    folder: Path, found: Sequence[Piece], wanted: ScanRequest, workers: int
) -> Iterator[PartialResult]:
    count = min(workers, processors())
    pool = Pool(partial(_take_task, folder=folder, wanted=wanted), count, _named)
    return itertools.chain.from_iterable(pool.run(_tasks(found, count)))


def _take_task(task: Sequence[Piece], folder: Path, wanted: ScanRequest) -> list[PartialResult]:
    return [take(folder, piece, wanted) for piece in task]


def _tasks(found: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Put pieces of one file that follow each other together, so that few processes check the same file."""
    size = max(1, min(_PIECES_A_TASK, len(found) // (_TASKS_A_WORKER * workers)))
    tasks = []
    for _, group in itertools.groupby(found, key=lambda piece: piece.entry.uri):
        of_file = list(group)
        tasks += [of_file[start : start + size] for start in range(0, len(of_file), size)]
    return tasks


def _named(task: Sequence[Piece]) -> str:
    return f"{task[0].entry.uri}, row groups from {task[0].first} on"
