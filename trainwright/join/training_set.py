"""The training set: rows with their features as they were known at each row's time."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import Listing, Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Features
from trainwright.featurestore import Service, open_service
from trainwright.join.asof import Ints
from trainwright.join.audit import Audit, ViewAudit, single_column_scores
from trainwright.join.columns import Plan, plan_columns
from trainwright.join.coverage import require_covered
from trainwright.join.history import joined_values
from trainwright.join.source import Source, microseconds
from trainwright.join.summary import headline, summary_of
from trainwright.storage import take_listing
from trainwright.tracking import Stopwatch

CHUNK_ROWS = 1_000_000
"""Rows joined at once: what bounds the memory."""

SCORED_ROWS = 200_000
"""Rows that the single-column scores look at, at most."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def make_training_set(
    entities: Path, data_version: str, features: Features, features_version: str, folder: Path, summary: Path
) -> Snapshot:
    """Join a feature service to every row of a snapshot, and prove that nothing leaked.

    Order, count and splits of the rows are kept. The training set has the rows' key, time, label and request
    columns, and the features; no other column goes on.

    Args:
        entities: The snapshot with the rows; its time column says when each prediction is made.
        data_version: Digest that the snapshot must have.
        features: Which features are joined.
        features_version: Content digest that ``features.source`` must have.
        folder: Where the training set is written.
        summary: Where the Markdown summary is written, whatever the audit says.

    Returns:
        The manifest of the training set.

    Raises:
        InputError: A column, the service or a file is missing or cannot be joined; a row has no key or time
            of its own or is newer than the cutoff; an input is not the one that was asked for; or a change
            of the features would go unseen.
        DataRefused: A joined value is not the one that was known at its row's time.
    """
    watch = Stopwatch()
    snapshot = Snapshot.open(entities, data_version)
    listing = _require_version(features.source, features_version)
    service = open_service(features.repository, features.service)
    require_covered(service, features, [entry.uri for entry in listing.files])
    _require_created(service, features)
    join = Join(snapshot, service, features)
    join.require_keys(entities)
    with tables.SnapshotWriter(folder, list(snapshot.splits)) as writer:
        for split, table in join.rows(entities):
            writer.append(split, table)
        audit = join.audit()
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(summary_of(snapshot, service, join.plan, audit))
        _refuse_leaks(audit)
        training_set = writer.commit(
            parents={"entities": data_version, "features": service.digest},
            roles={role: name for role, name in snapshot.roles.items() if name in join.plan.carried},
            quality=audit.figures(),
        )
    watch.record(
        folder,
        "join",
        headline(training_set, join.plan, audit),
        config=features.model_dump(mode="json"),
        inputs={"entities": data_version, "features": features_version},
        outputs={"training_set": training_set.digest, "service": service.digest},
        parents=[entities],
    )
    return training_set


class Join:
    """One join under way: what it reads, what it adds, and what its audit has found so far.

    Args:
        snapshot: Manifest of the rows.
        service: The features.
        features: What was asked for.

    Raises:
        InputError: A column is missing, would leak or is there twice; or a view's files are ambiguous.
    """

    def __init__(self, snapshot: Snapshot, service: Service, features: Features) -> None:
        self.plan: Plan = plan_columns(snapshot, service, features)
        self._snapshot, self._service, self._cutoff = snapshot, service, features.cutoff
        self._sources = [Source(view) for view in service.views]
        self._views = [ViewAudit(view) for view in service.views]
        self._scored = max(snapshot.splits, key=lambda name: snapshot.splits[name])
        self._every = -(-snapshot.splits[self._scored] // SCORED_ROWS)
        self._sample: list[pa.Table] = []

    def require_keys(self, entities: Path) -> None:
        """Check that every row can be told from every other.

        Raises:
            InputError: There is no row; or a key is null or stands twice.
        """
        if not self._snapshot.rows:
            raise InputError("there is no row to join to", where=str(entities))
        name = self.plan.key
        batches = tables.iter_batches(entities, self._snapshot, list(self._snapshot.splits), [name])
        keys = pa.chunked_array([batch.column(0) for batch in batches])
        absent, repeated = keys.null_count, len(keys) - len(keys.unique())
        if absent or repeated:
            problem = f"{absent:,} rows have none" if absent else f"{repeated:,} rows repeat another's"
            raise InputError(f"{name!r} is no key: {problem}", where=str(entities))

    def rows(self, entities: Path) -> Iterator[tuple[str, pa.Table]]:
        """Give the rows of each split, in order, with their features."""
        waiting: list[tuple[str, pa.Table]] = []
        count = 0
        for split, table in _pieces(entities, self._snapshot, self.plan.read):
            waiting.append((split, table))
            count += table.num_rows
            if count >= CHUNK_ROWS:
                yield from self._joined(waiting)
                waiting, count = [], 0
        yield from self._joined(waiting)

    def audit(self) -> Audit:
        """Return what was found over all rows that were given."""
        plan = self.plan
        scores: Mapping[str, float] = {}
        if plan.label and self._sample:
            columns = [name for name in (*plan.carried, *plan.joined) if name not in (plan.key, plan.label)]
            scores = single_column_scores(pa.concat_tables(self._sample), plan.label, columns)
        return Audit(tuple(self._views), scores, self._scored if plan.label else "")

    def _joined(self, pieces: list[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
        """Join one chunk, audit it, and cut it into its splits again."""
        if not pieces:
            return
        rows = pa.concat_tables([table for _, table in pieces])
        at = self._times(rows)
        parts = [rows.select(self.plan.carried)]
        for source, audit in zip(self._sources, self._views, strict=True):
            found = source.find(rows, at)
            joined = joined_values(self._service, source, rows, self.plan.time)
            audit.add(source, found, at, joined, rows[self.plan.key])
            parts.append(joined)
        names = [name for part in parts for name in part.column_names]
        whole = pa.table([column for part in parts for column in part.columns], names=names)
        start = 0
        for split, table in pieces:
            piece = whole.slice(start, table.num_rows)
            start += table.num_rows
            if split == self._scored:
                self._sample.append(piece.take(pa.array(np.arange(0, piece.num_rows, self._every))))
            yield split, piece

    def _times(self, rows: pa.Table) -> Ints:
        """Return the rows' times, in microseconds.

        Raises:
            InputError: The column holds no timestamps, or a row has none, or is too new.
        """
        name, column = self.plan.time, rows[self.plan.time]
        if not pa.types.is_timestamp(column.type):
            raise InputError(f"{name!r} is {column.type}, not a timestamp", where="the rows' time column")
        if column.null_count:
            raise InputError(f"{column.null_count:,} rows have no {name!r}", where="the rows' time column")
        at = microseconds(column)
        if self._cutoff is not None:
            newer = np.flatnonzero(at >= (self._cutoff - _EPOCH) // timedelta(microseconds=1))
            if newer.size:
                example = rows.slice(int(newer[0]), 1).select([self.plan.key, name]).to_pylist()[0]
                raise InputError(
                    f"{newer.size:,} rows are not before {self._cutoff.isoformat()}, such as {example}",
                    where="features.cutoff",
                    hint="Their features may not be complete yet: leave such rows out, or move the cutoff.",
                )
        return at


def _pieces(folder: Path, snapshot: Snapshot, columns: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Give the rows in pieces that each belong to one split; a split without rows gives one empty piece."""
    for split, rows in snapshot.splits.items():
        if not rows:
            yield split, tables.read_split(folder, snapshot, split, columns)
        for batch in tables.iter_batches(folder, snapshot, [split], columns):
            yield split, pa.Table.from_batches([batch])


def _require_version(source: str, version: str) -> Listing:
    listing = take_listing(source)
    found = listing.content_digest
    if found != version:
        raise InputError(
            f"the features are {found[:12]}, expected {version[:12]}: they changed after they were looked at",
            where=source,
            hint="Run again: `resolve` looks at them first.",
        )
    return listing


def _require_created(service: Service, features: Features) -> None:
    """Refuse views that cannot show when a value was known, unless a reason is given."""
    without = [view.name for view in service.views if not view.created]
    if without and not features.allow_backfill_leak:
        raise InputError(
            f"views {without} have no created timestamp, so values that were filled in later would leak",
            where=f"feature service {service.name!r}",
            hint="Give their sources a created_timestamp_column, or say in features.allow_backfill_leak why "
            "they need none.",
        )


def _refuse_leaks(audit: Audit) -> None:
    """Refuse values that are not those that were known."""
    leaking = [view for view in audit.views if view.leaks]
    if leaking:
        lines = [f"  {view.view.name}: {view.leaks:,} rows, such as {view.example}" for view in leaking]
        raise DataRefused(
            "joined values are not those that were known at their rows' times\n" + "\n".join(lines),
            where="the leakage audit",
            hint="Feast and the audit disagree, so nothing was written. Please report it with the files.",
        )
