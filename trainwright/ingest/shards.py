"""One shard of a source: read, checked, divided, written, reported. The same on every machine.

Which rows make up a shard is decided from the source alone, before any worker starts; a worker gets a
:class:`ShardPlan` once and then one :class:`SourceShard` after another, and returns small documents. So the
number and place of workers change nothing of the result.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import storage
from trainwright.artifacts import UNASSIGNED, Listing, SourceFile
from trainwright.engine import map_pieces, require_reachable
from trainwright.errors import InputError, TransientError
from trainwright.experiment import Data
from trainwright.experiment.data import ROW
from trainwright.ingest.commit import OutputLocations, ShardOutput, scratch_for
from trainwright.ingest.keys import SpillWriter
from trainwright.ingest.reference import columns_read, read_referenced
from trainwright.ingest.reports import ColumnFigures, ShardReport, Span, measure, merged
from trainwright.ingest.roles import LabelRule, prepare_label, prepare_time, require_names
from trainwright.ingest.splits import divide, division
from trainwright.sources import SourcePart, Sources
from trainwright.storage import Access, AlreadyExists, ObjectChanged
from trainwright.tables import fingerprints


class ShardCounter:
    """Divides the rows of a shard into splits, and counts and fingerprints them on the way."""

    def __init__(self, data: Data, spill: BinaryIO) -> None:
        self._data = data
        self._division = division(data)
        self.spill = SpillWriter(spill)
        self.columns: dict[str, ColumnFigures] = {}
        self.spans: dict[tuple[str, str], Span] = {}

    def divide(self, rows: pa.Table, uri: str) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each split, counted."""
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            self.columns[name] = merged((self.columns.get(name, ColumnFigures()), measure(column)))
        if not rows.num_rows:
            return
        if self._data.key:
            self.spill.add(self._data.key, "", fingerprints(rows[self._data.key]))
        for split, part in divide(rows, self._division):
            self._count(split, part, uri)
            if split != UNASSIGNED:
                self._spill_disjoint(split, part)
            yield split, part

    def _count(self, split: str, rows: pa.Table, uri: str) -> None:
        here = Span(uri=uri, split=split, rows=rows.num_rows)
        if self._data.label:
            here = _with_label(here, rows[self._data.label])
        if self._data.time:
            ends = pc.min_max(rows[self._data.time].cast(pa.int64())).as_py()
            here = replace(here, oldest=ends["min"], newest=ends["max"])
        before = self.spans.get((uri, split))
        self.spans[uri, split] = before.plus(here) if before else here

    def _spill_disjoint(self, split: str, rows: pa.Table) -> None:
        for name in self._data.disjoint:
            present = rows[name].drop_null()
            if pa.types.is_floating(present.type):
                present = present.filter(pc.invert(pc.is_nan(present)))
            self.spill.add(name, split, fingerprints(present))


def _with_label(span: Span, label: pa.ChunkedArray) -> Span:
    span = replace(span, labels=len(label) - label.null_count)
    if pa.types.is_floating(label.type):
        return replace(span, numbers=measure(label))
    counts = np.bincount(label.drop_null().to_numpy())
    return replace(span, classes={str(number): int(counts[number]) for number in np.flatnonzero(counts)})


_BYTES_A_ROW = 100
"""What a row of a text file is taken to need, for cutting only: its rows are known after reading it."""


@dataclass(frozen=True, kw_only=True)
class SourceShard:
    """Consecutive parts of a source, made by one worker at a time."""

    index: int
    parts: tuple[SourcePart, ...]


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """The input of every worker, sent once; files must be as listed also after they were read."""

    sources: Sources
    listing: Listing
    data: Data
    label: LabelRule | None
    place: OutputLocations
    access: Access

    @cached_property
    def entries(self) -> dict[str, SourceFile]:
        """The files of the listing, by URI; a database has none."""
        return {} if self.data.sql else {entry.uri: entry for entry in self.listing.files}


def cut(parts: Sequence[SourcePart], sizes: Mapping[str, int], shard_rows: int) -> list[SourceShard]:
    """Put consecutive parts together into shards of about ``shard_rows`` rows."""
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


def make_shards(plan: ShardPlan, shards: Sequence[SourceShard]) -> list[ShardReport]:
    """Make shards by the engine that the plan names; the result is the same with each."""
    engine = plan.data.engine
    require_reachable(() if plan.data.store else ["the shards"], engine, "data.store")
    made = map_pieces(
        partial(make_shard, plan),
        shards,
        engine,
        "ingest",
        store=plan.place.spills,
        describe=lambda shard: f"shard {shard.index}",
        died=TransientError,
        threads=max(1, (os.cpu_count() or 1) // max(1, min(engine.workers, len(shards)))),
        ahead=1,
        # Threads of storage clients hold locks across a fork: a fork server has none.
        preload=["trainwright.ingest.shards"],
    )
    return list(made)


def make_shard(plan: ShardPlan, shard: SourceShard) -> ShardReport:
    """Make one shard, and commit its report; where another attempt was first, return that one's."""
    with scratch_for(plan.place.files) as scratch:
        output = ShardOutput(plan.place, shard.index, scratch, plan.access, plan.data.shard_rows)
        try:
            report = _write_shard(plan, shard, output)
        except BaseException as error:
            output.withdraw()
            if isinstance(error, InputError):
                _require_unchanged(plan, shard)
            raise
        place = storage.join(plan.place.reports, f"{shard.index:05d}.json")
        content = report.packed()
        try:
            storage.create(place, content, plan.access)
        except AlreadyExists:
            output.withdraw()
            content = storage.read_bytes(place, access=plan.access)
        return ShardReport.parse(content, place)  # as other attempts read it: key order reaches the manifest


def _write_shard(plan: ShardPlan, shard: SourceShard, output: ShardOutput) -> ShardReport:
    data = plan.data
    copying = data.mode == "copy"
    with output.spill.open("xb") as spill:
        counter = ShardCounter(data, spill)
        for part in shard.parts:
            for uri, start, rows in _rows(plan, part):
                prepared = _prepare(rows, plan, uri, start)
                if not data.key:
                    prepared = _numbered(prepared, part.before + start)
                for split, divided in counter.divide(prepared, uri):
                    if copying:
                        output.append(split, divided)
        runs = counter.spill.finish()
        files = output.finish()
    _require_unchanged(plan, shard)
    return ShardReport(
        shard=shard.index,
        files=files,
        spans=tuple(counter.spans.values()),
        columns=counter.columns,
        spill=output.send_spill(),
        runs=runs,
    )


def _rows(plan: ShardPlan, part: SourcePart) -> Iterator[tuple[str, int, pa.Table]]:
    """Yield the file, the number of its rows before these, and the rows."""
    if plan.data.mode == "copy":
        return plan.sources.batches(part)
    entry, columns = plan.entries[part.uri], columns_read(plan.data)
    return read_referenced(entry, part, plan.sources.schema, columns, plan.access)


def _prepare(rows: pa.Table, plan: ShardPlan, uri: str, start: int) -> pa.Table:
    """Check the columns with a role, and bring time and label into their stored form."""
    data, stored = plan.data, {}
    for role, name in (("key", data.key), ("split_by", data.split_by)):
        if name:
            require_names(rows[name], role, name, uri, start)
    if data.time:
        stored[data.time] = prepare_time(rows[data.time], data.time, uri, start)
    if plan.label:
        stored[plan.label.name] = prepare_label(rows[plan.label.name], plan.label, uri, start)
    for name, column in stored.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _numbered(rows: pa.Table, first: int) -> pa.Table:
    """Add the position of each row in the source as the key."""
    return rows.append_column(ROW, pa.array(np.arange(first, first + rows.num_rows)))


def _require_unchanged(plan: ShardPlan, shard: SourceShard) -> None:
    """Reject a file of a disk that was written since it was listed; a store's are pinned by their version."""
    for uri in dict.fromkeys(part.uri for part in shard.parts):
        entry = plan.entries.get(uri)
        if entry is not None and storage.local_path(uri) is not None:
            try:
                now = storage.head(uri)
            except InputError:
                raise ObjectChanged("a file was removed while it was read", where=uri) from None
            if (now.size, now.written) != (entry.size, entry.written):
                raise ObjectChanged("a file was written while it was read", where=uri)
