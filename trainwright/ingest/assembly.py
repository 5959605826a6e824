"""From the reports of all shards to one manifest, and to what only all shards together can tell."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Column, Listing, Snapshot, SnapshotFile
from trainwright.errors import DataRefused
from trainwright.experiment import Data
from trainwright.ingest.keys import Values, refuse_repeated, refuse_shared
from trainwright.ingest.places import scratch_for
from trainwright.ingest.quality import Judged, figures_of
from trainwright.ingest.reference import referenced_files, stored_types
from trainwright.ingest.reports import ShardReport, Totals
from trainwright.ingest.request import Request
from trainwright.ingest.spills import OpenRun
from trainwright.ingest.splits import division
from trainwright.storage import Access
from trainwright.tables import Piece, read_piece

_TO_THE_END = 1 << 31
_ONCE, _APART = "each once", "in one split each"


def assemble(
    request: Request, listing: Listing, reports: Sequence[ShardReport], schema: pa.Schema, totals: Totals
) -> Snapshot:
    """Build the manifest. It does not depend on who made which shard.

    Args:
        request: What is asked for.
        listing: The source's files.
        reports: All shards, in order.
        schema: Columns and types of the source.
        totals: The reports, added up.

    Raises:
        InputError: In reference mode, the rows of a file are in more than one split.
    """
    data, names = request.data, division(request.data).names
    if data.mode == "reference":
        files = referenced_files(listing, reports, names)
    else:
        files = [
            entry for name in names for report in reports for entry in report.files if entry.split == name
        ]
    return Snapshot(
        files=tuple(files),
        columns=tuple(Column(name=name, type=str(kind)) for name, kind in stored_types(schema, data).items()),
        parents={"source": request.version},
        roles=request.roles,
        quality=figures_of(totals, files),
        protection=listing.protection if data.mode == "reference" else "",
    )


def judge_values(
    data: Data, source: str, reports: Sequence[ShardReport], snapshot: Snapshot, folder: Path, access: Access
) -> list[Judged]:
    """Judge whether every key is there once, and whether disjoint columns are.

    Args:
        data: Which columns.
        source: What was read, for errors.
        reports: All shards, in order.
        snapshot: The manifest, whose files are read again where two fingerprints are equal.
        folder: What its relative names are relative to.
        access: What may be reached.
    """
    with _spills(reports, access) as runs:

        def values(column: str) -> Values:
            return lambda shards: _values(column, shards, reports, snapshot, folder)

        keys = _judged(
            f"key {data.key}",
            _ONCE,
            lambda: refuse_repeated(data.key, runs(data.key, ""), snapshot.rows, source, values(data.key)),
        )
        disjoint = [
            _judged(
                f"values of {name}",
                _APART,
                lambda name=name: refuse_shared(name, runs(name, None), values(name)),  # type: ignore[misc]
            )
            for name in data.disjoint
        ]
    return [keys, *disjoint]


def judged_values(data: Data) -> list[Judged]:
    """Return what :func:`judge_values` said of a snapshot that is committed: it would not be otherwise."""
    return [
        _judged(f"key {data.key}", _ONCE, lambda: None),
        *(_judged(f"values of {name}", _APART, lambda: None) for name in data.disjoint),
    ]


def _judged(name: str, limit: str, check: Callable[[], None]) -> Judged:
    try:
        check()
    except DataRefused as refusal:
        return Judged(name=name, figure="more than once", limit=limit, refusal=refusal)
    return Judged(name=name, figure=limit, limit=limit)


@contextmanager
def _spills(
    reports: Sequence[ShardReport], access: Access
) -> Iterator[Callable[[str, str | None], list[OpenRun]]]:
    """Have the spills of all shards on a disk; gives what opens the runs of a column, and of a split."""
    with scratch_for(reports[0].spill.uri) as scratch:
        paths: dict[int, Path] = {}
        for report in reports:
            here = storage.local_path(report.spill.uri)
            paths[report.shard] = here or scratch / f"{report.shard}.fingerprints"
            if here is None:
                storage.fetch(report.spill, paths[report.shard], access)

        def runs(column: str, split: str | None) -> list[OpenRun]:
            return [
                OpenRun(report.shard, paths[report.shard], run)
                for report in reports
                for run in report.runs
                if run.column == column and (run.split == split if split is not None else run.split)
            ]

        yield runs


def _values(
    column: str, shards: set[int], reports: Sequence[ShardReport], snapshot: Snapshot, folder: Path
) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Read a column of some shards again, from the files that the manifest names."""
    chosen = [report for report in reports if report.shard in shards]
    uris = {span.uri for report in chosen for span in report.spans}
    uris |= {entry.uri for report in chosen for entry in report.files}
    for entry in snapshot.files:
        if entry.uri in uris:
            for batch in read_piece(folder, _whole(entry, snapshot), [column]):
                yield entry.split, pa.chunked_array([batch.column(0)])


def _whole(entry: SnapshotFile, snapshot: Snapshot) -> Piece:
    return Piece(entry, 0, _TO_THE_END, entry.rows, snapshot.columns)
