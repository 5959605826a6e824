"""Ingest a source: read it in shards, check it, divide it into splits, and commit it, its manifest last."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Column, Listing, Snapshot, SnapshotFile
from trainwright.errors import DataRefused, DependencyError, InputError, PermissionRefused, TrainwrightError
from trainwright.experiment import Data
from trainwright.ingest.commit import FolderCommit, SnapshotCommit, StoreCommit, scratch_for
from trainwright.ingest.keys import OpenRun, Values, reject_duplicates, reject_shared
from trainwright.ingest.quality import (
    LimitResult,
    SummaryPage,
    figures_of,
    judge,
    judge_size,
    read_previous,
    reject,
)
from trainwright.ingest.reference import referenced_files, require_referable, stored_types
from trainwright.ingest.reports import ShardReport, Totals, add_up
from trainwright.ingest.request import IngestRequest, locate_source
from trainwright.ingest.runner import make_shards
from trainwright.ingest.shards import ShardPlan, cut
from trainwright.ingest.splits import division
from trainwright.sources import open_source
from trainwright.storage import Access, ObjectChanged
from trainwright.tables import Piece, read_piece, require_columns
from trainwright.tracking import Stopwatch

_TO_THE_END = 1 << 31
_ONCE, _APART = "each once", "in one split each"


def assemble(
    request: IngestRequest,
    listing: Listing,
    reports: Sequence[ShardReport],
    schema: pa.Schema,
    totals: Totals,
) -> Snapshot:
    """Build the manifest. It does not depend on who made which shard.

    Args:
        reports: All shards, in order.

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
) -> list[LimitResult]:
    """Judge whether every key is there once, and whether disjoint columns are.

    Args:
        reports: All shards, in order.
        snapshot: The manifest, whose files are read again where two fingerprints are equal.
        folder: What its relative names are relative to.
    """
    with _spills(reports, access) as runs:

        def values(column: str) -> Values:
            return lambda shards: _values(column, shards, reports, snapshot, folder)

        keys = _judged(
            f"key {data.key}",
            _ONCE,
            lambda: reject_duplicates(data.key, runs(data.key, ""), snapshot.rows, source, values(data.key)),
        )
        disjoint = [
            _judged(
                f"values of {name}",
                _APART,
                lambda name=name: reject_shared(name, runs(name, None), values(name)),  # type: ignore[misc]
            )
            for name in data.disjoint
        ]
    return [keys, *disjoint]


def judged_values(data: Data) -> list[LimitResult]:
    """Return what :func:`judge_values` said of a snapshot that is committed: it would not be otherwise."""
    return [
        _judged(f"key {data.key}", _ONCE, lambda: None),
        *(_judged(f"values of {name}", _APART, lambda: None) for name in data.disjoint),
    ]


def _judged(name: str, limit: str, check: Callable[[], None]) -> LimitResult:
    try:
        check()
    except DataRefused as refusal:
        return LimitResult(name=name, figure="more than once", limit=limit, refusal=refusal)
    return LimitResult(name=name, figure=limit, limit=limit)


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


_LISTED = 20
"""A source of at most this many files has each of them, with its checksum, in the step's record."""

_TURNS = 3
"""How often a source is begun with that is written again, with the same bytes, while it is read."""


def ingest(
    source: str, source_version: str, data: Data, folder: Path, summary: Path, access: Access | None = None
) -> Snapshot:
    """Read a source and write it, or pin it, as a snapshot.

    Rows keep the order of the source within each split; rows in no split go to ``unassigned``. The time
    column is stored in UTC and the label as int64 of 0, 1 and null; other columns as they are.

    Args:
        source_version: The content digest that it found.
        data: Roles of columns, splits, limits, where the shards go and on what they are made.
        folder: The artifact's folder, for the manifest, the listing and the record; and the shards, unless
            they go to ``data.store``.
        summary: Markdown file: limits and figures, rows by split, what the columns hold. It is written
            before anything is refused.
        access: What may be reached; absent: the hosts of ``data``.

    Returns:
        The manifest; its digest is the data version.

    Raises:
        InputError: The source changed since it was resolved, a file is broken, files differ, or a column
            with a role is missing or holds what it must not.
        DataRefused: There are no rows, a key is there twice, a value of a disjoint column is in two splits,
            or a limit of ``data`` does not hold; all of these at once.
        DependencyError: The source kept being written while it was read.
        TransientError: A worker died; run again, and with a store it goes on where it was.
    """
    watch = Stopwatch()
    allowed = access or Access(hosts=data.hosts)
    request, listing = locate_source(
        IngestRequest(source=source, version=source_version, data=data, access=allowed)
    )
    sizes = judge_size(listing, data)
    if any(one.refusal for one in sizes):
        SummaryPage(source=request.source, judged=sizes).write(summary)
        reject(sizes)
    commit = StoreCommit(data.store, request, listing) if data.store else FolderCommit(folder)
    step = _Step(request, listing, commit, folder, summary)
    snapshot = step.adopt() or step.make()
    folder.mkdir(parents=True, exist_ok=True)
    snapshot.write(folder)
    step.listing.write(folder)
    watch.record(
        folder,
        "ingest",
        f"{snapshot.rows:,} rows, {len(snapshot.columns)} columns, data {snapshot.digest[:6]}…",
        config=data.model_dump(mode="json") | {"source": request.source},
        inputs={"source": source_version} | _files_by_name(step.listing),
        outputs={"data": snapshot.digest},
    )
    return snapshot


def _files_by_name(listing: Listing) -> dict[str, str]:
    if len(listing.files) > _LISTED:
        return {}
    return {f"file {entry.uri}": entry.checksum for entry in listing.files}


class _Step:
    """One run of the step: adopt what is committed already, or make it."""

    def __init__(
        self, request: IngestRequest, listing: Listing, commit: SnapshotCommit, folder: Path, summary: Path
    ) -> None:
        self.listing = listing
        self._request, self._commit = request, commit
        self._folder, self._summary = folder, summary
        self._sizes = judge_size(listing, request.data)
        self._previous = read_previous(request.data, request.access)

    def adopt(self) -> Snapshot | None:
        """Return the snapshot that another attempt at the same request committed, if it is whole.

        Raises:
            DataRefused: It does not reach its limits any more: the previous snapshot is another one.
        """
        snapshot = self._commit.committed()
        if snapshot is None:
            return None
        totals = add_up(self._commit.reports(), division(self._request.data).names)
        if totals.all_rows != snapshot.rows:
            return None
        judged = [*self._sizes, *judge(totals, self._request.data, self._request.source, self._previous)]
        judged += judged_values(self._request.data)
        self._tell(snapshot, totals, judged)
        reject(judged)
        self._commit.tidy()  # whoever committed may have been killed before it did
        return snapshot

    def make(self) -> Snapshot:
        """Make the shards that are not there yet, judge them all, and commit.

        Raises:
            As :func:`ingest`.
        """
        try:
            snapshot = self._commit.publish(self._judged())
        except BaseException as error:
            if committed := self._committed_meanwhile(error):
                return committed
            final = (DataRefused, InputError, PermissionRefused)
            with suppress(TrainwrightError):  # the first failure is the one to report
                self._commit.give_up(for_good=isinstance(error, final))
            raise
        self._commit.tidy()
        return snapshot

    def _committed_meanwhile(self, error: BaseException) -> Snapshot | None:
        """Return what a concurrent attempt committed: it may have tidied up under this one."""
        if isinstance(error, Exception) and not isinstance(error, DataRefused):
            with suppress(TrainwrightError):
                return self.adopt()
        return None

    def _judged(self) -> Snapshot:
        request = self._request
        reports, schema = self._shards()
        totals = add_up(reports, division(request.data).names)
        snapshot = assemble(request, self.listing, reports, schema, totals)
        judged = [*self._sizes, *judge(totals, request.data, request.source, self._previous)]
        if totals.all_rows:
            judged += judge_values(
                request.data, request.source, reports, snapshot, self._folder, request.access
            )
        self._tell(snapshot, totals, judged)
        reject(judged)
        return snapshot

    def _shards(self) -> tuple[list[ShardReport], pa.Schema]:
        """Make all shards from one content, though its files may be written anew with the same bytes."""
        for _ in range(_TURNS):
            try:
                return self._try()
            except (InputError, ObjectChanged) as error:
                self.listing = self._request.listed_again(self.listing, error)
        raise DependencyError(
            f"the source was written {_TURNS} times while it was read",
            where=self._request.source,
            hint="Run again when nobody writes to it.",
        )

    def _try(self) -> tuple[list[ShardReport], pa.Schema]:
        request, listing = self._request, self.listing
        sources = open_source(listing, request.data, request.access)
        _require_readable(sources.schema, listing, request)
        shards = cut(
            sources.parts(), {entry.uri: entry.size for entry in listing.files}, request.data.shard_rows
        )
        kept = self._commit.kept()
        plan = ShardPlan(
            sources=sources,
            listing=listing,
            data=request.data,
            place=self._commit.place,
            access=request.access,
        )
        made = make_shards(plan, [shard for shard in shards if shard.index not in kept])
        reports = kept | {report.shard: report for report in made}
        return [reports[shard.index] for shard in shards], sources.schema

    def _tell(self, snapshot: Snapshot, totals: Totals, judged: Sequence[LimitResult]) -> None:
        refused = any(one.refusal for one in judged)
        SummaryPage(
            source=self._request.source,
            judged=judged,
            totals=totals,
            types={column.name: column.type for column in snapshot.columns},
            roles=snapshot.roles,
            digest="" if refused else snapshot.digest,
        ).write(self._summary)


def _require_readable(schema: pa.Schema, listing: Listing, request: IngestRequest) -> None:
    """Reject a section that names columns which are not there, or are of the wrong type."""
    data = request.data
    named = [data.key, data.time, data.label, *data.disjoint, *data.quality.max_missing]
    require_columns(schema, [*named, *([data.split_by] if data.split_by else [])], where=request.source)
    if nested := [name for name in data.disjoint if pa.types.is_nested(schema.field(name).type)]:
        raise InputError(
            f"disjoint columns {nested} hold lists or structures, not single values",
            where="data.disjoint",
            hint="Leave them out, or name a column of single values instead.",
        )
    if data.mode == "reference":
        require_referable(listing, schema, data)
