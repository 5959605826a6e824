"""Ingest a source: read it in shards, check it, divide it into splits, and commit it, its manifest last."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import Column, Listing, Snapshot, SnapshotTarget
from trainwright.documents import canonical, digest_text
from trainwright.errors import DataRefused, InputError, PermissionRefused, TrainwrightError
from trainwright.experiment import Data
from trainwright.experiment.data import ROW
from trainwright.ingest.commit import FolderCommit, StoreCommit, only_writer, scratch_for
from trainwright.ingest.keys import OpenRun, reject_duplicates, reject_shared
from trainwright.ingest.quality import (
    LimitResult,
    figures_of,
    judge,
    judge_size,
    read_previous,
    reject,
    write_summary,
)
from trainwright.ingest.reference import referenced_files, require_referable
from trainwright.ingest.reports import ShardReport, Totals, add_up
from trainwright.ingest.roles import TIME, LabelRule, label_rule, target_of
from trainwright.ingest.shards import ShardPlan, cut, make_shards
from trainwright.ingest.splits import division
from trainwright.sources import list_source, open_source, places_of
from trainwright.storage import Access, ObjectChanged
from trainwright.tables import Piece, read_piece, require_columns
from trainwright.tables.capacity import warn_of_disk
from trainwright.tables.reading import TO_THE_END
from trainwright.tracking import Stopwatch

LAYOUT = 3
"""Part of every request's digest: raise it when shards or their reports are written differently."""

_RECORDED_FILES = 20
"""A source of at most this many files has each of them, with checksum and version, in the step's record."""

_ONCE, _APART = "each once", "in one split each"


def ingest(source: str, source_version: str, data: Data, folder: Path, summary: Path) -> Snapshot:
    """Read a source and write it, or pin it, as a snapshot.

    Rows keep the order of the source within each split; rows in no split go to ``unassigned``. The time
    column is stored in UTC, the label as its class number or, for a regression, as float64; other columns as
    they are. Without a key, the column ``row`` has the position of each row in the source, from 0.

    Args:
        source_version: The content digest that ``resolve`` found.
        folder: The artifact's folder, for the manifest, the listing and the record; and the shards, unless
            they go to ``data.store``.
        summary: Markdown file: limits and figures, rows by split, figures of the columns. It is written
            before anything is rejected.

    Returns:
        The manifest; its digest is the data version.

    Raises:
        InputError: The source changed since it was resolved, a file is broken, files differ, or a column
            with a role is missing or holds what it must not, or the kind of the label is not clear.
        DataRefused: There are no rows, a key is there twice, a value of a disjoint column is in two splits,
            or a limit of ``data`` does not hold; all of these at once.
        DependencyError: The source was written while it was read.
        TransientError: A worker died (run again; with a store it resumes), or another ingest writes there.
    """
    watch = Stopwatch()
    access = Access(hosts=data.hosts)
    location, listing = _locate(source, source_version, data, access)
    sizes = judge_size(listing, data)
    if any(one.refusal for one in sizes):
        write_summary(summary, location, sizes)
        reject(sizes)
    with only_writer(folder):
        commit: FolderCommit | StoreCommit = FolderCommit(folder)
        if data.store:
            commit = StoreCommit(data.store, request_digest(location, source_version, data), listing, access)
        previous = read_previous(data, access)
        run = _Run(location, source_version, data, access, listing, commit, folder, summary, sizes, previous)
        snapshot = run.adopt() or run.make()
        snapshot.write(folder)
        listing.write(folder)
        files = listing.files if len(listing.files) <= _RECORDED_FILES else ()
        watch.record(
            folder,
            "ingest",
            f"{snapshot.rows:,} rows, {len(snapshot.columns)} columns, data {snapshot.digest[:6]}…",
            config=data.model_dump(mode="json")
            | {"source": location, "pinned": {entry.uri: entry.version for entry in files if entry.version}},
            inputs={"source": source_version} | {f"file {entry.uri}": entry.checksum for entry in files},
            outputs={"data": snapshot.digest},
        )
    return snapshot


def _locate(source: str, version: str, data: Data, access: Access) -> tuple[str, Listing]:
    """Find a location of the requested content, and list it there."""
    failures: list[InputError] = []
    for place in places_of(source, version, data, access):
        try:
            listing = list_source(place, data, access)
            if listing.content_digest == version:
                return place, listing
            failures.append(_changed(place, f"{listing.content_digest[:12]}, expected {version[:12]}"))
        except InputError as error:
            failures.append(error)
    raise failures[0]


def _changed(source: str, how: str) -> InputError:
    return InputError(
        f"the source changed since it was resolved: {how}",
        where=source,
        hint="Run the pipeline again: resolve looks at the source anew.",
    )


def request_digest(source: str, version: str, data: Data) -> str:
    """Return the digest of a request: equal digests give equal snapshots.

    The engine, the store and caches do not count; the location of the source counts only where the manifest
    names it.
    """
    section = data.model_dump(mode="json", exclude={"engine", "store", "remember", "source"})
    request = {"layout": LAYOUT, "source_version": version, "data": section}
    return digest_text(canonical(request | ({"source": source} if data.mode == "reference" else {})))


@dataclass(frozen=True)
class _Run:
    """One run of the step: adopt what is committed already, or make it."""

    source: str
    version: str
    data: Data
    access: Access
    listing: Listing
    commit: FolderCommit | StoreCommit
    folder: Path
    summary: Path
    sizes: list[LimitResult]
    previous: Snapshot | None

    def adopt(self) -> Snapshot | None:
        """Return the snapshot that another attempt at the same request committed, if it is whole.

        It is rejected if it does not reach its limits any more: the previous snapshot is another one.
        """
        committed = self.commit.committed()
        if committed is None:
            return None
        snapshot, reports = committed
        totals = add_up(reports, division(self.data).names)
        if totals.all_rows != snapshot.rows:
            return None
        keys = [self.data.key] if self.data.key else []
        passed = [
            *(LimitResult(name=f"key {x}", figure=_ONCE, limit=_ONCE) for x in keys),
            *(LimitResult(name=f"values of {x}", figure=_APART, limit=_APART) for x in self.data.disjoint),
        ]
        self._judge(snapshot, totals, lambda: passed)
        self.commit.clean_up()  # whoever committed may have been killed before it did
        return snapshot

    def make(self) -> Snapshot:
        """Make the shards that are not there yet, judge them all, and commit."""
        place = storage.local_path(self.data.store) if self.data.store else self.folder
        if self.data.mode == "copy" and place:
            size = sum(entry.size for entry in self.listing.files)
            warn_of_disk("the files of the copy", size, place, "Set data.mode: reference, or data.store.")
        try:
            reports, schema, label = self._shards()
            totals = add_up(reports, division(self.data).names)
            snapshot = self._assemble(reports, schema, label, totals)
            self._judge(snapshot, totals, lambda: self._judge_values(reports, snapshot))
            snapshot = self.commit.publish(snapshot)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, DataRefused):
                with suppress(TrainwrightError):  # a concurrent attempt may have committed and cleaned up
                    if committed := self.adopt():
                        return committed
            with suppress(TrainwrightError):  # the first failure is the one to report
                self.commit.abandon(final=isinstance(error, DataRefused | InputError | PermissionRefused))
            raise
        self.commit.clean_up()
        return snapshot

    def _shards(self) -> tuple[list[ShardReport], pa.Schema, LabelRule | None]:
        data, listing = self.data, self.listing
        try:
            sources = open_source(listing, data, self.access)
            _require_readable(sources.schema, data, self.source)
            label = label_rule(sources, data)
            if data.mode == "reference":
                require_referable(listing, sources.schema, data, label)
            sizes = {entry.uri: entry.size for entry in listing.files}
            shards = cut(sources.parts(), sizes, data.shard_rows)
            reports = self.commit.valid_reports()
            plan = ShardPlan(
                sources=sources,
                listing=listing,
                data=data,
                label=label,
                place=self.commit.place,
                access=self.access,
            )
            made = make_shards(plan, [shard for shard in shards if shard.index not in reports])
        except (InputError, ObjectChanged) as error:
            if isinstance(error, ObjectChanged) or not data.sql:
                self._require_unchanged(error)
            raise
        reports |= {report.shard: report for report in made}
        return [reports[shard.index] for shard in shards], sources.schema, label

    def _require_unchanged(self, error: TrainwrightError) -> None:
        """Reject the source if it changed while it was read: that is then the cause of the error."""
        try:
            now = list_source(self.source, self.data, self.access)
        except InputError:
            raise _changed(self.source, error.what) from error
        if now.content_digest != self.version:
            raise _changed(self.source, error.what) from error

    def _assemble(
        self, reports: Sequence[ShardReport], schema: pa.Schema, label: LabelRule | None, totals: Totals
    ) -> Snapshot:
        """Build the manifest. It does not depend on who made which shard."""
        data, names = self.data, division(self.data).names
        if data.mode == "reference":
            files = referenced_files(self.listing, reports, names)
        else:
            written = [entry for report in reports for entry in report.files]
            files = [entry for name in names for entry in written if entry.split == name]
        types = dict(zip(schema.names, schema.types, strict=True))
        types |= {data.time: TIME} if data.time else {}
        types |= {label.name: label.type} if label else {}
        types |= {} if data.key else {ROW: pa.int64()}
        roles = {"key": data.key or ROW, "time": data.time, "label": data.label}
        target = target_of(label, totals.all_classes, self.source) if totals.all_rows else SnapshotTarget()
        return Snapshot(
            files=tuple(files),
            columns=tuple(Column(name=name, type=str(kind)) for name, kind in types.items()),
            parents={"source": self.version},
            roles={role: name for role, name in roles.items() if name},
            quality=figures_of(totals, files, target),
            protection=self.listing.protection if data.mode == "reference" else "",
            target=target,
        )

    def _judge(self, snapshot: Snapshot, totals: Totals, values: Callable[[], list[LimitResult]]) -> None:
        """Judge all limits, write the summary, and reject the snapshot if a limit does not hold."""
        judged = [*self.sizes, *judge(totals, self.data, self.source, self.previous)]
        if totals.all_rows:
            judged += values()
        write_summary(self.summary, self.source, judged, totals, snapshot)
        reject(judged)

    def _judge_values(self, reports: Sequence[ShardReport], snapshot: Snapshot) -> list[LimitResult]:
        """Judge whether every key is there once, and whether disjoint columns are."""

        def judged(name: str, limit: str, check: Callable[[], None]) -> LimitResult:
            try:
                check()
            except DataRefused as refusal:
                return LimitResult(name=name, figure="more than once", limit=limit, refusal=refusal)
            return LimitResult(name=name, figure=limit, limit=limit)

        def values(column: str, shards: set[int]) -> Iterator[tuple[str, pa.ChunkedArray]]:
            """Read a column of some shards again, from the files that the manifest names."""
            chosen = [report for report in reports if report.shard in shards]
            uris = {span.uri for report in chosen for span in report.spans}
            uris |= {entry.uri for report in chosen for entry in report.files}
            for entry in (entry for entry in snapshot.files if entry.uri in uris):
                piece = Piece(entry, 0, TO_THE_END, entry.rows, snapshot.columns)
                for batch in read_piece(self.folder, piece, [column]):
                    yield entry.split, pa.chunked_array([batch.column(0)])

        found = []
        with self._spills(reports) as runs:
            if key := self.data.key:
                read = partial(values, key)
                check = partial(reject_duplicates, key, runs(key, False), snapshot.rows, self.source, read)
                found.append(judged(f"key {key}", _ONCE, check))
            for name in self.data.disjoint:
                check = partial(reject_shared, name, runs(name, True), partial(values, name))
                found.append(judged(f"values of {name}", _APART, check))
        return found

    @contextmanager
    def _spills(self, reports: Sequence[ShardReport]) -> Iterator[Callable[[str, bool], list[OpenRun]]]:
        """Fetch the spills of all shards; gives what opens the runs of a column, of all rows or by split."""
        with scratch_for(reports[0].spill.uri) as scratch:
            paths: dict[int, Path] = {}
            for report in reports:
                here = storage.local_path(report.spill.uri)
                paths[report.shard] = here or scratch / f"{report.shard}.fingerprints"
                if here is None:
                    storage.fetch(report.spill, paths[report.shard], self.access)
            yield lambda column, by_split: [
                OpenRun(report.shard, paths[report.shard], run)
                for report in reports
                for run in report.runs
                if run.column == column and bool(run.split) == by_split
            ]


def _require_readable(schema: pa.Schema, data: Data, source: str) -> None:
    """Reject a section that names columns which are not there, or are of the wrong type."""
    named = [data.key, data.time, data.label, data.split_by, *data.disjoint, *data.quality.max_missing]
    require_columns(schema, [name for name in named if name], where=source)
    if not data.key and ROW in schema.names:
        raise InputError(
            f"the source has a column {ROW!r}, which is the name of the key that ingest would add",
            where=source,
            hint=f"Name the column that identifies a row in data.key; data.key: {ROW}, if that is it.",
        )
    if nested := [name for name in data.disjoint if pa.types.is_nested(schema.field(name).type)]:
        raise InputError(
            f"disjoint columns {nested} hold lists or structures, not single values",
            where="data.disjoint",
            hint="Leave them out, or name a column of single values instead.",
        )
