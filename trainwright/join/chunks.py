"""The join of a training set, chunk by chunk: its columns, its quarantine and its audit."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import RUN_AGAIN, Snapshot, SnapshotFile
from trainwright.errors import InputError
from trainwright.experiment import Features
from trainwright.featurestore import Service, View
from trainwright.join.audit import (
    Audit,
    ViewAudit,
    column_figures,
    missing_values,
    nearly_unique,
    refusals,
    scored_rows,
    single_column_scores,
)
from trainwright.join.columns import ColumnPlan, plan_columns
from trainwright.join.history import EngineHistory, FileHistory, History, Ints, microseconds
from trainwright.tables.capacity import warn_of_memory


class QuarantinedKeys:
    """The keys of the rows that validation took out (null for a row without one), which get no features."""

    def __init__(self, keys: pa.ChunkedArray, version: str) -> None:
        self.version, self.rows = version, len(keys)
        self._keys, self._nulls = keys.drop_null().combine_chunks(), keys.null_count > 0
        self.met: dict[str, int] = {}
        """Rows that were left out, by split; splits without any are absent."""

    @classmethod
    def read(cls, folder: Path | None, version: str, data_version: str, key: str) -> "QuarantinedKeys":
        """Read the quarantine of the rows ``data_version``; empty without a folder."""
        if folder is None:
            return cls(pa.chunked_array([], pa.string()), "")
        snapshot = Snapshot.open(folder, version)
        if snapshot.parents.get("snapshot") != data_version:
            named = snapshot.parents.get("snapshot", "")[:12] or "(not named)"
            raise InputError(
                f"the quarantine was taken from data {named}, these rows are {data_version[:12]}",
                where=str(folder),
                hint=RUN_AGAIN,
            )
        splits = [split for split, rows in snapshot.splits.items() if rows]
        batches = [batch.column(0) for batch in tables.iter_batches(folder, snapshot, splits, [key])]
        return cls(pa.chunked_array(batches or [pa.array([], pa.string())]), version)

    def without(self, split: str, rows: pa.Table, key: str) -> pa.Table:
        """Return the other rows, and count the quarantined ones."""
        if not self.rows:
            return rows
        others = rows.filter(pc.invert(self.mask(rows[key])))
        if left_out := rows.num_rows - others.num_rows:
            self.met[split] = self.met.get(split, 0) + left_out
        return others

    def mask(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Tell which keys are those of quarantined rows."""
        quarantined = pc.is_in(keys, value_set=self._keys)
        return pc.or_(quarantined, pc.is_null(keys)) if self._nulls else quarantined

    def keys(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the rows' keys that must be present and distinct; a null may be in quarantine."""
        return keys.drop_null() if self._nulls else keys

    def require_met(self) -> None:
        """Check that every quarantined row was among the entities."""
        met = sum(self.met.values())
        if met != self.rows:
            raise InputError(
                f"{self.rows:,} rows are in quarantine, and {met:,} of the entities have one of their keys",
                where="quarantine",
                hint="The key has to be unique.",
            )


CHUNK_ROWS = 250_000
"""Rows joined at once: bounds the memory, beside the views themselves."""

ENGINE_ROWS = 2_000_000
"""Likewise on an engine, which scans the whole history each time."""

SAMPLED_ROWS = 200_000
"""Rows of the single-column scores, and ages for the median, at most."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def open_history(view: View, service: Service) -> History:
    """Open the history of a view: on the service's engine, or from its files."""
    return EngineHistory(view, service) if service.on_engine else FileHistory(view)


class Join:
    """One join, with its columns and the audit of each view so far; without a service there is no view."""

    def __init__(
        self,
        snapshot: Snapshot,
        service: Service | None,
        features: Features,
        left_out: QuarantinedKeys,
    ) -> None:
        self.plan: ColumnPlan = plan_columns(snapshot, service, features)
        self.service, self.features, self.left_out = service, features, left_out
        self.target = snapshot.target
        self._snapshot = snapshot
        self._sources = [open_history(view, service) for view in service.views] if service else []
        self._chunk = ENGINE_ROWS if service and service.on_engine else CHUNK_ROWS
        views = service.views if service else ()
        self.views: dict[str, ViewAudit] = {view.name: ViewAudit(view) for view in views}
        self._missing: Counter[str] = Counter()
        self._scored = max(snapshot.splits, key=lambda name: snapshot.splits[name])
        self._to_score = _Sample(snapshot.splits[self._scored], SAMPLED_ROWS)
        self._to_check = _Sample(snapshot.rows, features.checked_rows)
        self._joined_values = _Sample(snapshot.rows, features.checked_rows)

    def require_keys(self, entities: Path) -> None:
        """Check that the key is unique."""
        if not self._snapshot.rows:
            raise InputError(
                "there is no row to join to",
                where=str(entities),
                hint="Look at the summaries of ingest and validate: what was left out, and why.",
            )
        name = self.plan.key
        warn_of_memory("join", self._snapshot.rows, "They are the keys: give the step more memory.")
        batches = tables.iter_batches(entities, self._snapshot, list(self._snapshot.splits), [name])
        every = pa.chunked_array([batch.column(0) for batch in batches])
        self._quarantined = self.left_out.mask(every) if self.left_out.rows else None
        keys = self.left_out.keys(every)
        absent, repeated = keys.null_count, len(keys) - len(keys.unique())
        if absent or repeated:
            problem = f"{absent:,} rows have none" if absent else f"{repeated:,} rows repeat another's"
            raise InputError(
                f"{name!r} is no key: {problem}",
                where=str(entities),
                hint="Name a column in data.key that every row has, and no two share.",
            )

    def references(self) -> dict[str, list[tuple[SnapshotFile, int]]]:
        """Return the files that can stay where they are, by split, with the number of their rows to keep.

        None can if one lies in the snapshot's own folder, or if a feature has the name of one of its columns.
        """
        files, names = self._snapshot.files, {column.name for column in self._snapshot.columns}
        if not all(entry.in_place for entry in files) or names & {*self.plan.joined}:
            return {}
        found: dict[str, list[tuple[SnapshotFile, int]]] = {split: [] for split in self._snapshot.splits}
        start = 0
        for split, entries in found.items():
            for entry in (entry for entry in files if entry.split == split):
                kept = entry.rows
                if self._quarantined is not None:
                    kept -= pc.sum(self._quarantined.slice(start, kept)).as_py() or 0
                start += entry.rows
                if kept:
                    entries.append((entry, kept))
        return found

    def rows(self, entities: Path) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each split, in order, with their features."""
        waiting: list[tuple[str, pa.Table]] = []
        count = 0
        for split, whole in _pieces(entities, self._snapshot, self.plan.read, self._chunk):
            table = self.left_out.without(split, whole, self.plan.key)
            waiting.append((split, table))
            count += table.num_rows
            if count >= self._chunk:
                yield from self._joined(waiting)
                waiting, count = [], 0
        if waiting:
            yield from self._joined(waiting)

    def audit(self) -> Audit:
        """Return the audit of all yielded rows, after the reference join of a sample."""
        plan, kind = self.plan, self.target.kind
        self._join_again()
        scored = self._to_score.rows if plan.label else None
        names = [*plan.inputs, *plan.joined]
        scores = single_column_scores(scored, plan.label, names, kind) if scored else {}
        rows = self._snapshot.rows - self.left_out.rows
        missing = {name: self._missing[name] for name in plan.inputs}
        views = self.service.views if self.service else ()
        found = Audit(
            rows=rows,
            views=tuple(audit.figures() for audit in self.views.values()),
            columns=column_figures(self.views, missing, rows, scores),
            scored_on=self._scored if plan.label else "",
            scored_rows=scored_rows(scored, plan.label, kind) if scored else (),
            service=self.service.digest if self.service else "",
            view_digests={view.name: view.digest for view in views},
        )
        return replace(found, refusals=tuple(refusals(found, self.features.limits, kind)))

    def nearly_unique(self) -> list[str]:
        """Return the carried text columns that have another value in almost every row, such as names."""
        sample = self._to_score.rows
        return nearly_unique(sample, self.plan.inputs) if sample and self.target.kind != "text" else []

    def _join_again(self) -> None:
        """Join a sample again by the reference, and compare."""
        checked, values = self._to_check.rows, self._joined_values.rows
        if self.service and checked and values and not any(audit.leaks for audit in self.views.values()):
            from trainwright.join.reference import joined_again  # it imports Feast

            for source, audit in zip(self._sources, self.views.values(), strict=True):
                joined = values.select(source.values.column_names)
                audit.compare(joined_again(self.service, source, checked, self.plan.time), checked, joined)

    def _joined(self, pieces: list[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
        """Join one chunk, audit it, and cut it into its splits again."""
        rows = pa.concat_tables([table for _, table in pieces])
        at = self._times(rows) if self.plan.time else np.empty(0, dtype=np.int64)
        parts = [rows.select(self.plan.carried)]
        every = -(-self._snapshot.rows // SAMPLED_ROWS)
        for source, audit in zip(self._sources, self.views.values(), strict=True):
            found = source.find(rows, at)
            joined = source.take(found)
            audit.add(source, found, rows, at, joined, every)
            parts.append(joined)
        self._missing.update({name: missing_values(rows[name]) for name in self.plan.inputs})
        whole = _beside(parts)
        if self._sources:
            # Apart: Feast needs the rows' keys, which do not all go on, and may have the name of a feature.
            self._to_check.add(rows)
            self._joined_values.add(_beside(parts[1:]))
        start = 0
        for split, table in pieces:
            piece = whole.slice(start, table.num_rows)
            start += table.num_rows
            if split == self._scored:
                self._to_score.add(piece)
            yield split, piece

    def _times(self, rows: pa.Table) -> Ints:
        """Return the rows' times, in microseconds."""
        name, column = self.plan.time, rows[self.plan.time]
        where = "the rows' time column"
        if not pa.types.is_timestamp(column.type):
            hint = "Name a timestamp column in data.time."
            raise InputError(f"{name!r} is {column.type}, not a timestamp", where=where, hint=hint)
        if column.null_count:
            hint = "Leave such rows out of the source, or name another column in data.time."
            raise InputError(f"{column.null_count:,} rows have no {name!r}", where=where, hint=hint)
        at = microseconds(column)
        if (cutoff := self.features.cutoff) is not None:
            newer = np.flatnonzero(at >= (cutoff - _EPOCH) // timedelta(microseconds=1))
            if newer.size:
                example = rows.slice(int(newer[0]), 1).select([self.plan.key, name]).to_pylist()[0]
                raise InputError(
                    f"{newer.size:,} rows are not before {cutoff.isoformat()}, such as {example}",
                    where="features.cutoff",
                    hint="Their features may not be complete yet: leave such rows out, or move the cutoff.",
                )
        return at


class _Sample:
    """One row in so many of the ``rows`` that will pass by, evenly spread, at most ``most``."""

    def __init__(self, rows: int, most: int) -> None:
        self._every = max(-(-rows // most), 1)
        self._seen = 0
        self._sampled: list[pa.Table] = []

    @property
    def rows(self) -> pa.Table | None:
        return pa.concat_tables(self._sampled) if self._sampled else None

    def add(self, rows: pa.Table) -> None:
        places = np.arange(-self._seen % self._every, rows.num_rows, self._every)
        self._seen += rows.num_rows
        self._sampled.append(rows.take(pa.array(places)))


def _beside(parts: list[pa.Table]) -> pa.Table:
    names = [name for part in parts for name in part.column_names]
    return pa.table([column for part in parts for column in part.columns], names=names)


def _pieces(
    folder: Path, snapshot: Snapshot, columns: tuple[str, ...], most: int
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows in pieces of one split each; a split without rows yields one empty piece."""
    for split, rows in snapshot.splits.items():
        if not rows:
            yield split, tables.read_split(folder, snapshot, split, columns)
        for batch in tables.iter_batches(folder, snapshot, [split], columns, min(most, tables.ROW_GROUP)):
            yield split, pa.Table.from_batches([batch])
