"""The join of a training set, chunk by chunk: its columns, its quarantine and its audit."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import RUN_AGAIN, Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Features
from trainwright.featurestore import Service, View
from trainwright.join.audit import (
    Audit,
    ViewAudit,
    class_rows,
    column_figures,
    refusals,
    single_column_scores,
)
from trainwright.join.engine import EngineHistory
from trainwright.join.history import FileHistory, History, Ints, microseconds
from trainwright.join.reference import joined_again


@dataclass(frozen=True)
class ColumnPlan:
    """The columns of a training set: those read, carried into it, joined from features, and left out."""

    key: str
    time: str
    label: str
    carried: tuple[str, ...]
    joined: tuple[str, ...]
    read: tuple[str, ...]
    left: tuple[str, ...]


def plan_columns(snapshot: Snapshot, service: Service, features: Features) -> ColumnPlan:
    """Decide which columns are read, carried and joined."""
    if problems := list(_problems(snapshot, service, features)):
        lines = "\n".join(f"  {line}" for line in problems)
        raise InputError(
            f"these columns cannot be joined\n{lines}", where=f"feature service {service.name!r}"
        )
    roles = snapshot.roles
    identity = [roles[role] for role in ("key", "time", "label") if role in roles]
    carried = tuple(dict.fromkeys([*identity, *features.request]))
    entities = [column for view in service.views for column in view.keys.values()]
    return ColumnPlan(
        key=roles["key"],
        time=roles["time"],
        label=roles.get("label", ""),
        carried=carried,
        joined=tuple(service.features),
        read=tuple(dict.fromkeys([*carried, *entities])),
        left=tuple(column.name for column in snapshot.columns if column.name not in carried),
    )


def _problems(snapshot: Snapshot, service: Service, features: Features) -> Iterator[str]:
    known, limits = [column.name for column in snapshot.columns], features.limits
    yield from (f"the rows have no {role} column" for role in ("key", "time") if role not in snapshot.roles)
    yield from _missing("features.request", features.request, known)
    yield from _missing("features.known_after", features.known_after, known)
    yield from _missing("features.limits.max_missing", limits.max_missing, service.features)
    names = [view.name for view in service.views]
    yield from _missing("features.limits.max_expired", limits.max_expired, names, "view")
    yield from _missing("features.limits.max_age_s", limits.max_age_s, names, "view")
    there = [*snapshot.roles.values(), *features.request, *service.features]
    yield from _missing("needed later, by evaluation.slices or features.needed", features.needed, there)
    label = snapshot.roles.get("label", "")
    if label in features.request:
        yield f"features.request holds the label {label!r}"
    for view in service.views:
        yield from _missing(f"view {view.name!r} joins by", view.keys.values(), known)
        for column in view.keys.values():
            if column in (*features.known_after, label):
                yield f"view {view.name!r} joins by {column!r}, which is known only afterwards"
    yield from _misplaced(snapshot, service, features)


def _missing(what: str, names: Iterable[str], known: list[str], kind: str = "column") -> Iterator[str]:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            yield f"{what}: no {kind} {name!r}; {advice}"


def _misplaced(snapshot: Snapshot, service: Service, features: Features) -> Iterator[str]:
    """Yield features with forbidden names, or that would replace another column."""
    roles = {name: role for role, name in snapshot.roles.items()}
    seen: dict[str, str] = {}
    for view in service.views:
        for name in view.features:
            owner = f"feature {name!r} of view {view.name!r}"
            if name in features.known_after:
                yield f"{owner} has the name of a column that is known only afterwards"
            elif name in roles:
                yield f"{owner} has the name of the rows' {roles[name]} column"
            elif name in features.request:
                yield f"{owner} has the name of a request column"
            elif name in seen:
                yield f"{owner} has the name of a feature of view {seen[name]!r}"
            seen[name] = view.name


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
        quarantined = pc.is_in(rows[key], value_set=self._keys)
        if self._nulls:
            quarantined = pc.or_(quarantined, pc.is_null(rows[key]))
        others = rows.filter(pc.invert(quarantined))
        if left_out := rows.num_rows - others.num_rows:
            self.met[split] = self.met.get(split, 0) + left_out
        return others

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

HistoryOf: TypeAlias = Callable[[View, Service], History]
"""Opens the history of a view."""


def open_history(view: View, service: Service) -> History:
    """Open the history of a view: on the service's engine, or from its files."""
    return EngineHistory(view, service) if service.on_engine else FileHistory(view)


class Join:
    """One join, with its columns and the audit of each view so far."""

    def __init__(
        self,
        snapshot: Snapshot,
        service: Service,
        features: Features,
        left_out: QuarantinedKeys,
        *,
        chunk_rows: int | None = None,
        open_history: HistoryOf = open_history,
    ) -> None:
        self.plan: ColumnPlan = plan_columns(snapshot, service, features)
        self.service, self.features, self.left_out = service, features, left_out
        self._snapshot = snapshot
        self._sources = [open_history(view, service) for view in service.views]
        self._chunk = chunk_rows or (ENGINE_ROWS if service.on_engine else CHUNK_ROWS)
        self.views: dict[str, ViewAudit] = {view.name: ViewAudit(view) for view in service.views}
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
        batches = tables.iter_batches(entities, self._snapshot, list(self._snapshot.splits), [name])
        keys = self.left_out.keys(pa.chunked_array([batch.column(0) for batch in batches]))
        absent, repeated = keys.null_count, len(keys) - len(keys.unique())
        if absent or repeated:
            problem = f"{absent:,} rows have none" if absent else f"{repeated:,} rows repeat another's"
            raise InputError(
                f"{name!r} is no key: {problem}",
                where=str(entities),
                hint="Name a column in data.key that every row has, and no two share.",
            )

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
        plan, checked, values = self.plan, self._to_check.rows, self._joined_values.rows
        if checked and values and not any(audit.leaks for audit in self.views.values()):
            for source, audit in zip(self._sources, self.views.values(), strict=True):
                joined = values.select(source.values.column_names)
                audit.compare(joined_again(self.service, source, checked, plan.time), checked, joined)
        request = tuple(name for name in plan.carried if name not in (plan.key, plan.label))
        scored = self._to_score.rows if plan.label else None
        scores = single_column_scores(scored, plan.label, [*request, *plan.joined]) if scored else {}
        found = Audit(
            rows=sum(self._snapshot.splits.values()) - self.left_out.rows,
            views=tuple(audit.figures() for audit in self.views.values()),
            columns=column_figures(self.views, request, scores),
            scored_on=self._scored if plan.label else "",
            scored_rows=class_rows(scored, plan.label) if scored else (),
            service=self.service.digest,
            view_digests={view.name: view.digest for view in self.service.views},
        )
        return replace(found, refusals=tuple(refusals(found, self.features.limits)))

    def _joined(self, pieces: list[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
        """Join one chunk, audit it, and cut it into its splits again."""
        rows = pa.concat_tables([table for _, table in pieces])
        at = self._times(rows)
        parts = [rows.select(self.plan.carried)]
        every = -(-self._snapshot.rows // SAMPLED_ROWS)
        for source, audit in zip(self._sources, self.views.values(), strict=True):
            found = source.find(rows, at)
            joined = source.take(found)
            audit.add(source, found, rows, at, joined, every)
            parts.append(joined)
        whole = _beside(parts)
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
