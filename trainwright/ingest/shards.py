"""One shard of a source: read, checked, divided, written, reported. The same on every machine.

Which rows make up a shard is decided from the source alone, before any worker starts; a worker gets a
:class:`ShardPlan` once and then one :class:`SourceShard` after another, and returns small documents. So the
number and place of workers change nothing of the result.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import BinaryIO, Self

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import UNASSIGNED, Listing, SnapshotFile, SourceFile
from trainwright.errors import InputError
from trainwright.experiment import Data
from trainwright.ingest.commit import Outbox, OutputLocations, scratch_for
from trainwright.ingest.keys import SpillWriter
from trainwright.ingest.reference import columns_read, footer_figures, read_referenced
from trainwright.ingest.reports import (
    SAMPLE,
    ColumnFigures,
    FingerprintRun,
    ShardReport,
    Span,
    measure,
    merged,
    packed,
    unpacked,
)
from trainwright.ingest.roles import prepare_label, prepare_time, require_names
from trainwright.ingest.splits import division
from trainwright.sources import SourcePart, Sources
from trainwright.storage import Access, AlreadyExists, ObjectChanged
from trainwright.tables import FileWriter, fingerprints


class ShardFiles:
    """Writes the rows of a shard, split by split, as they come.

    A file is ended after the batch that brings it to ``most_rows``, so a stream that is one long shard
    becomes many files.
    """

    def __init__(self, outbox: Outbox, most_rows: int) -> None:
        self._outbox, self._most_rows = outbox, most_rows
        self._open: dict[str, FileWriter] = {}
        self._done: list[SnapshotFile] = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was not finished."""
        for writer in self._open.values():
            writer.abandon()

    def append(self, split: str, rows: pa.Table) -> None:
        """Add rows to a split."""
        writer = self._open.get(split)
        if writer is not None and writer.rows >= self._most_rows:
            self._end(split)
            writer = None
        if writer is None:
            writer = self._open[split] = FileWriter(self._outbox.data_path(split, self._pieces(split)))
        writer.append(rows)

    def finish(self) -> tuple[SnapshotFile, ...]:
        """End every file, send it to its place, and say what the manifest says of it."""
        for split in tuple(self._open):
            self._end(split)
        return tuple(self._done)

    def _end(self, split: str) -> None:
        piece = self._pieces(split)
        self._done.append(self._outbox.send_data(split, piece, self._open[split].finish()))
        del self._open[split]

    def _pieces(self, split: str) -> int:
        return sum(entry.split == split for entry in self._done)


class ShardCounter:
    """Divides the rows of a shard into splits, and counts and fingerprints them on the way.

    Args:
        data: Roles of columns, splits, columns that must be disjoint.
    """

    def __init__(self, data: Data, spill: BinaryIO) -> None:
        self._data = data
        self._division = division(data)
        self._spill = SpillWriter(spill)
        self._columns: dict[str, ColumnFigures] = {}
        self._left_to_sample = SAMPLE
        self._spans: dict[tuple[str, str], Span] = {}
        self._labels: defaultdict[str, int] = defaultdict(int)
        self._positives: defaultdict[str, int] = defaultdict(int)

    def divide(self, rows: pa.Table, uri: str) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each split, counted."""
        self._measure(rows)
        if not rows.num_rows:
            return
        self._spill.add(self._data.key, "", fingerprints(rows[self._data.key]))
        for split, part in self._division.divide(rows, self._division.places(rows)):
            self._count(split, part, uri)
            if split != UNASSIGNED:
                self._keep_apart(split, part)
            yield split, part

    def finish(self) -> tuple[FingerprintRun, ...]:
        """End the spill."""
        return self._spill.finish()

    def report(
        self,
        shard: int,
        *,
        files: tuple[SnapshotFile, ...],
        spill: SourceFile,
        runs: tuple[FingerprintRun, ...],
    ) -> ShardReport:
        """Return what was counted."""
        return ShardReport(
            shard=shard,
            files=files,
            spans=tuple(self._spans.values()),
            labels=dict(self._labels),
            positives=dict(self._positives),
            columns=self._columns,
            spill=spill,
            runs=runs,
        )

    def _measure(self, rows: pa.Table) -> None:
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            found = measure(column, self._left_to_sample)
            self._columns[name] = merged((self._columns.get(name, ColumnFigures()), found))
        self._left_to_sample = max(0, self._left_to_sample - rows.num_rows)

    def _count(self, split: str, rows: pa.Table, uri: str) -> None:
        label = rows[self._data.label]
        self._labels[split] += len(label) - label.null_count
        self._positives[split] += pc.sum(label).as_py() or 0
        ends = pc.min_max(rows[self._data.time].cast(pa.int64())).as_py()
        here = Span(uri=uri, split=split, rows=rows.num_rows, oldest=ends["min"], newest=ends["max"])
        before = self._spans.get((uri, split), replace(here, rows=0))
        self._spans[uri, split] = replace(
            here,
            rows=before.rows + here.rows,
            oldest=min(before.oldest, here.oldest),
            newest=max(before.newest, here.newest),
        )

    def _keep_apart(self, split: str, rows: pa.Table) -> None:
        for name in self._data.disjoint:
            present = rows[name].drop_null()
            if pa.types.is_floating(present.type):
                present = present.filter(pc.invert(pc.is_nan(present)))
            self._spill.add(name, split, fingerprints(present))


_BYTES_A_ROW = 100
"""What a row of a text file is taken to need, for cutting only: its rows are known after reading it."""


@dataclass(frozen=True, kw_only=True)
class SourceShard:
    """Consecutive parts of a source, made by one worker at a time."""

    index: int
    parts: tuple[SourcePart, ...]


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """The input of every worker, sent once.

    Attributes:
        listing: Its files, as they must still be after they were read.
    """

    sources: Sources
    listing: Listing
    data: Data
    place: OutputLocations
    access: Access

    @cached_property
    def entries(self) -> dict[str, SourceFile]:
        """The files of the listing, by URI; a database has none."""
        return {} if self.data.sql else {entry.uri: entry for entry in self.listing.files}


def cut(parts: Sequence[SourcePart], sizes: Mapping[str, int], shard_rows: int) -> list[SourceShard]:
    """Put consecutive parts together into shards of about ``shard_rows`` rows.

    Args:
        parts: The parts of a source, in order.
        sizes: Bytes by file, for parts whose rows only reading tells.
        shard_rows: Rows a shard is to have; one part alone may have more.
    """
    shards: list[list[SourcePart]] = []
    held = 0
    for part in parts:
        rows = part.rows if part.rows is not None else sizes.get(part.uri, 0) // _BYTES_A_ROW
        if not shards or held + rows > shard_rows:
            shards.append([])
            held = 0
        shards[-1].append(part)
        held += rows
    return [SourceShard(index=index, parts=tuple(group)) for index, group in enumerate(shards)]


def make_shard(plan: ShardPlan, shard: SourceShard) -> ShardReport:
    """Make one shard, and commit its report; where another attempt was first, return that one's.

    Raises:
        InputError: A row or a file is not what it must be.
        ObjectChanged: A file is not the one that was listed.
    """
    with scratch_for(plan.place.files) as scratch:
        outbox = Outbox(plan.place, shard.index, scratch, plan.access)
        try:
            report = _made(plan, shard, outbox)
        except BaseException as error:
            outbox.withdraw()
            if isinstance(error, InputError):
                _require_unmoved(plan, shard)
            raise
        place = plan.place.report(shard.index)
        content = packed(report)
        try:
            storage.create(place, content, plan.access)
        except AlreadyExists:
            outbox.withdraw()
            return unpacked(storage.read_bytes(place, access=plan.access), place)
        return unpacked(content, place)  # as other attempts read it: key order reaches the manifest


def _made(plan: ShardPlan, shard: SourceShard, outbox: Outbox) -> ShardReport:
    copying = plan.data.mode == "copy"
    with outbox.spill_path().open("xb") as spill, ShardFiles(outbox, plan.data.shard_rows) as files:
        tally = ShardCounter(plan.data, spill)
        for part in shard.parts:
            for uri, start, rows in _rows(plan, part):
                for split, divided in tally.divide(_prepared(rows, plan.data, uri, start), uri):
                    if copying:
                        files.append(split, divided)
        runs = tally.finish()
        written = files.finish()
    _require_unmoved(plan, shard)
    report = tally.report(shard.index, files=written, spill=outbox.send_spill(), runs=runs)
    return report if copying else replace(report, columns=_with_footers(plan, shard, report.columns))


def _rows(plan: ShardPlan, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
    if plan.data.mode == "copy":
        return plan.sources.batches(part)
    entry, columns = plan.entries[part.uri], columns_read(plan.data)
    return read_referenced(entry, part, plan.sources.schema, columns, plan.access)


def _prepared(rows: pa.Table, data: Data, uri: str, start: int) -> pa.Table:
    """Check the columns with a role, and bring time and label into their stored form."""
    require_names(rows[data.key], "key", data.key, uri, start)
    if data.split_by:
        require_names(rows[data.split_by], "split_by", data.split_by, uri, start)
    time = prepare_time(rows[data.time], data.time, uri, start)
    label = prepare_label(rows[data.label], data.label, uri)
    for name, column in ((data.time, time), (data.label, label)):
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _with_footers(
    plan: ShardPlan, shard: SourceShard, read: Mapping[str, ColumnFigures]
) -> dict[str, ColumnFigures]:
    """Add what the files' footers say of the columns that were not read."""
    counted = [footer_figures(plan.entries[part.uri], part, plan.access) for part in shard.parts]
    return {
        name: read[name]
        if name in read
        else merged(found.get(name, ColumnFigures(nulls=-1)) for found in counted)
        for name in plan.sources.schema.names
    }


def _require_unmoved(plan: ShardPlan, shard: SourceShard) -> None:
    """Reject a file of a disk that was written since it was listed; a store's are pinned by their version.

    Raises:
        ObjectChanged: One was.
    """
    for uri in dict.fromkeys(part.uri for part in shard.parts):
        entry = plan.entries.get(uri)
        if entry is not None and storage.local_path(uri) is not None:
            try:
                now = storage.head(uri)
            except InputError:
                raise ObjectChanged("a file was removed while it was read", where=uri) from None
            if (now.size, now.written) != (entry.size, entry.written):
                raise ObjectChanged("a file was written while it was read", where=uri)
