"""The join of a training set, chunk by chunk, with its audit; and the columns that it reads and adds."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import Snapshot
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
from trainwright.join.history import FileHistory, Ints, microseconds
from trainwright.join.quarantine import QuarantinedKeys
from trainwright.join.reference import joined_again


@dataclass(frozen=True)
class ColumnPlan:
    """The columns of a training set.

    Attributes:
        key: Column that identifies a row.
        time: Column with the time of the lookup.
        label: Column to predict; empty if the rows have none.
        carried: Columns of the rows that go into the training set, in order.
        joined: Columns that the features add, in order.
        read: Columns of the rows that are read.
        left: Columns of the rows that are dropped, also those that are only keys.
    """

    key: str
    time: str
    label: str
    carried: tuple[str, ...]
    joined: tuple[str, ...]
    read: tuple[str, ...]
    left: tuple[str, ...]


def plan_columns(snapshot: Snapshot, service: Service, features: Features) -> ColumnPlan:
    """Decide which columns are read, carried and joined.

    Raises:
        InputError: A column is missing, would leak or be a duplicate; all such columns are named.
    """
    if problems := list(_problems(snapshot, service, features)):
        lines = "\n".join(f"  {line}" for line in problems)
        raise InputError(
            f"these columns cannot be joined\n{lines}", where=f"feature service {service.name!r}"
        )
    roles = snapshot.roles
    identity = [roles[role] for role in ("key", "time", "label") if role in roles]
    carried = tuple(dict.fromkeys([*identity, *features.request]))
    entities = [column for view in service.views for column in view.keys.values()]
    read = tuple(dict.fromkeys([*carried, *entities]))
    return ColumnPlan(
        key=roles["key"],
        time=roles["time"],
        label=roles.get("label", ""),
        carried=carried,
        joined=tuple(service.features),
        read=read,
        left=tuple(column.name for column in snapshot.columns if column.name not in carried),
    )


def _problems(snapshot: Snapshot, service: Service, features: Features) -> Iterator[str]:
    known = [column.name for column in snapshot.columns]
    yield from (f"the rows have no {role} column" for role in ("key", "time") if role not in snapshot.roles)
    yield from _missing("features.request", features.request, known)
    yield from _missing("features.known_after", features.known_after, known)
    names = [view.name for view in service.views]
    yield from _missing("features.limits.max_missing", features.limits.max_missing, service.features)
    yield from _unknown_views("features.limits.max_expired", features.limits.max_expired, names)
    yield from _unknown_views("features.limits.max_age_s", features.limits.max_age_s, names)
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


def _missing(what: str, names: Iterable[str], known: list[str]) -> Iterator[str]:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            yield f"{what}: no column {name!r}; {advice}"


def _unknown_views(what: str, names: Iterable[str], known: list[str]) -> Iterator[str]:
    yield from (
        f"{what}: no view {name!r}; the service has {', '.join(known)}" for name in names if name not in known
    )


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


CHUNK_ROWS = 250_000
"""Rows joined at once: bounds the memory, beside the views themselves."""

ENGINE_ROWS = 2_000_000
"""Likewise on an engine, which scans the whole history each time."""

MEDIAN_ROWS = 200_000
"""Sampled ages for the median, at most."""

SCORED_ROWS = 200_000
"""Rows of the single-column scores, at most."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

HistoryOf: TypeAlias = Callable[[View, Service], FileHistory | EngineHistory]
"""Opens the history of a view."""


def open_history(view: View, service: Service) -> FileHistory | EngineHistory:
    """Open the history of a view: on the service's engine, or from its files."""
    return EngineHistory(view, service) if service.on_engine else FileHistory(view)


class Join:
    """One join, with its columns and the audit so far.

    Attributes:
        plan: Its columns.
        service: The feature service.
        features: Section ``features`` of the experiment.
        left_out: The quarantine.
        views: Audit of each view, by name.

    Args:
        snapshot: Manifest of the rows.
        service: The feature service.
        features: Section ``features`` of the experiment.
        left_out: The quarantine.
        chunk_rows: Rows joined at once; None for the default.
        open_history: Opens the history of a view.

    Raises:
        InputError: A column is missing, would leak or is a duplicate; or a view's files are ambiguous.
    """

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
        self._to_score = _Sample(snapshot.splits[self._scored], SCORED_ROWS)
        self._to_check = _Sample(snapshot.rows, features.checked_rows)
        self._given = _Sample(snapshot.rows, features.checked_rows)

    def require_keys(self, entities: Path) -> None:
        """Check that the key is unique.

        Raises:
            InputError: There is no row; or a key is null or a duplicate.
        """
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
        yield from self._joined(waiting)

    def audit(self) -> Audit:
        """Return the audit of all yielded rows, after the reference join of a sample.

        Raises:
            InputError: Feast cannot join a view.
        """
        plan, checked, given = self.plan, self._to_check.rows, self._given.rows
        if checked and given and not any(audit.leaks for audit in self.views.values()):
            for source, audit in zip(self._sources, self.views.values(), strict=True):
                joined = given.select(source.values.column_names)
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
        if not pieces:
            return
        rows = pa.concat_tables([table for _, table in pieces])
        at = self._times(rows)
        parts = [rows.select(self.plan.carried)]
        every = -(-self._snapshot.rows // MEDIAN_ROWS)
        for source, audit in zip(self._sources, self.views.values(), strict=True):
            found = source.find(rows, at)
            joined = source.take(found)
            audit.add(source, found, rows, at, joined, every)
            parts.append(joined)
        whole = _beside(parts)
        # Apart: Feast needs the rows' keys, which do not all go on, and may have the name of a feature.
        self._to_check.add(rows)
        self._given.add(_beside(parts[1:]))
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
        if not pa.types.is_timestamp(column.type):
            raise InputError(
                f"{name!r} is {column.type}, not a timestamp",
                where="the rows' time column",
                hint="Name a timestamp column in data.time.",
            )
        if column.null_count:
            raise InputError(
                f"{column.null_count:,} rows have no {name!r}",
                where="the rows' time column",
                hint="Leave such rows out of the source, or name another column in data.time.",
            )
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
    """One row in so many of all that pass by, evenly spread, at most a given number.

    Args:
        rows: Rows that will pass by, at most.
        most: Rows that are kept, at most.
    """

    def __init__(self, rows: int, most: int) -> None:
        self._every = max(-(-rows // most), 1)
        self._seen = 0
        self._kept: list[pa.Table] = []

    @property
    def rows(self) -> pa.Table | None:
        """The sample; None without rows."""
        return pa.concat_tables(self._kept) if self._kept else None

    def add(self, rows: pa.Table) -> None:
        """Add rows; some are sampled."""
        places = np.arange(-self._seen % self._every, rows.num_rows, self._every)
        self._seen += rows.num_rows
        self._kept.append(rows.take(pa.array(places)))


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
