"""The newest row of every key within a window, from files of any size in bounded memory."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import SourceFile
from trainwright.errors import DependencyError, InputError, TrainwrightError
from trainwright.featurestore import OnlineView, broken_offline_file
from trainwright.materialize.encoding import microseconds
from trainwright.materialize.watermark import TimeWindow
from trainwright.storage import open_file

READ_ROWS = 65_536
"""Rows read from a file at a time."""

BATCH_ROWS = 20_000
"""Rows of a batch, at most."""

BATCH_BYTES = 32 << 20
"""Bytes of a batch, roughly, at most: bounds the memory when values are large."""

SORT_MEMORY = "256MB"
"""Memory of DuckDB before it spills to its folder."""

_THREADS = 2
_US = 1_000_000


@dataclass
class LatestRows:
    """The newest row of each key of a view's window, in a DuckDB database on disk.

    ``late`` counts the rows before the window that were created after ``known_since``, which are not written.
    """

    view: OnlineView
    window: TimeWindow
    known_since: datetime | None
    rows: int = 0
    keys: int = 0
    newest: datetime | None = None
    late: int = 0
    _problem: TrainwrightError | None = None  # that stopped the reading; DuckDB only reports that one did
    _database: Any = field(default=None, repr=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of bounded size: keys, features and times by their names in the view."""
        yield from self._read("SELECT * FROM latest")

    def sample(self, count: int) -> pa.Table:
        """Return the rows of at most ``count`` keys, in order; always the same ones."""
        names = _quoted(self.view.keys)
        some = f"SELECT * FROM latest ORDER BY hash({names}), {names} LIMIT {int(count)}"  # noqa: S608  # nosec B608 - quoted names
        found = list(self._read(f"SELECT * FROM ({some}) ORDER BY {names}"))  # noqa: S608  # nosec B608 - quoted names
        return pa.Table.from_batches(found) if found else pa.table({})

    def _read(self, query: str) -> Iterator[pa.RecordBatch]:
        cursor = self._database.cursor()
        for batch in cursor.sql(query).to_arrow_reader(BATCH_ROWS):
            for piece in tables.plain(pa.Table.from_batches([batch])).to_batches():
                pieces = max(1, -(-piece.nbytes // BATCH_BYTES))
                step = max(1, -(-piece.num_rows // pieces))
                yield from (piece.slice(first, step) for first in range(0, piece.num_rows, step))

    def _incoming(self, files: Sequence[SourceFile]) -> pa.RecordBatchReader:
        """Return the window's rows as one stream of batches with the same schema."""
        view, schema = self.view, pa.schema([])
        for entry in files:
            with open_parquet(view, entry) as parquet:
                found = tables.plain(_renamed(parquet.schema_arrow.empty_table(), view, entry.uri)).schema
            schema = schema if len(schema) else found
            if found != schema:
                difference = tables.schema_difference(schema, found)
                raise InputError(f"the files of view {view.name!r} differ: {difference}", where=entry.uri)
        for name in (view.time, view.created):
            if name and not pa.types.is_timestamp(kind := schema.field(name).type):
                what = f"column {view.columns[name]!r} of view {view.name!r} is {kind}, no timestamp"
                raise InputError(what, where=view.source)

        def parts() -> Iterator[pa.RecordBatch]:
            try:
                for entry in files:
                    yield from self._pieces(entry)
            except TrainwrightError as error:
                self._problem = error
                raise

        return pa.RecordBatchReader.from_batches(schema, parts())

    def _pieces(self, entry: SourceFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in the window; row groups without any are not read."""
        with open_parquet(self.view, entry) as parquet:
            every = range(parquet.num_row_groups)
            groups = [group for group in every if self._may_hold(parquet.metadata.row_group(group))]
            columns = list(dict.fromkeys(self.view.columns.values()))
            for batch in parquet.iter_batches(READ_ROWS, row_groups=groups, columns=columns):
                table = tables.plain(_renamed(pa.Table.from_batches([batch]), self.view, entry.uri))
                for piece in table.to_batches():
                    yield self._within(piece, entry)

    def _may_hold(self, group: Any) -> bool:
        """Tell from a row group's statistics whether it can have rows of the window, or late ones."""
        view, window = self.view, self.window
        times = time_span(group, view.columns[view.time])
        if times is None:
            return True
        if times[0] < window.end and (window.start is None or times[1] >= window.start):
            return True
        if self.known_since is None or not view.created:
            return False
        known = time_span(group, view.columns[view.created])
        return known is not None and known[1] >= self.known_since

    def _within(self, piece: pa.RecordBatch, entry: SourceFile) -> pa.RecordBatch:
        """Return a batch's rows in the window, and count them and the late ones."""
        view, window = self.view, self.window
        for name in (*view.keys, view.time):
            if nulls := piece.column(name).null_count:
                kind = "key" if name in view.keys else "event timestamp"
                what = f"{kind} column {view.columns[name]!r} of view {view.name!r} has {nulls:,} nulls"
                raise InputError(what, where=entry.uri, hint="Every row needs its key and its time.")
        at = microseconds(piece.column(view.time))
        inside = pc.less(at, window.end_us)
        if window.start_us is not None:
            before = pc.less(at, window.start_us)
            inside = pc.and_not(inside, before)
            if self.known_since is not None and view.created:
                known = microseconds(piece.column(view.created))
                late = pc.and_(before, pc.greater_equal(known, int(self.known_since.timestamp() * _US)))
                self.late += pc.sum(late).as_py() or 0
        rows = piece.filter(inside)
        if rows.num_rows:
            self.rows += rows.num_rows
            newest = datetime.fromtimestamp(pc.max(at.filter(inside)).as_py() / _US, UTC)
            self.newest = max(newest, self.newest or newest)
        return rows

    def _select(self) -> None:
        """Write the newest rows into the table ``latest``: the last by event time, then by creation time."""
        view, names = self.view, _quoted(self.view.keys)
        order = f"{_quoted([view.time])} DESC"
        order += f", {_quoted([view.created])} DESC NULLS LAST" if view.created else ""
        self._database.execute(
            "CREATE TABLE latest AS SELECT * FROM incoming "  # noqa: S608  # nosec B608 - quoted names
            f"QUALIFY rank() OVER (PARTITION BY {names} ORDER BY {order}) = 1"
        )
        ties = f"SELECT {names}, max({_quoted([view.time])}) FROM latest GROUP BY {names} HAVING count(*) > 1"  # noqa: S608  # nosec B608 - quoted names
        if self._database.execute(f"{ties} LIMIT 1").fetchone():
            self._database.execute("CREATE OR REPLACE TABLE latest AS SELECT DISTINCT * FROM latest")
        if values := self._database.execute(f"{ties} LIMIT 1").fetchone():
            pairs = zip([*view.keys, view.time], values, strict=True)
            shown = ", ".join(f"{name}={value}" for name, value in pairs)
            counted = f"SELECT count(*) - count(DISTINCT ({names})) FROM latest"  # noqa: S608  # nosec B608 - quoted names
            count = self._database.execute(counted).fetchone()[0]
            raise InputError(
                f"view {view.name!r} is ambiguous: {count:,} rows have the key and the times of another but "
                f"other values, such as {shown}",
                where=view.source,
                hint="Keep one of them, or give them different created timestamps.",
            )
        self.keys = int(self._database.execute("SELECT count(*) FROM latest").fetchone()[0])


@contextmanager
def latest_rows(
    view: OnlineView, files: Sequence[SourceFile], window: TimeWindow, known_since: datetime | None = None
) -> Iterator[LatestRows]:
    """Find the newest row of each key in a view's files, each read in the version that was listed."""
    import duckdb

    latest = LatestRows(view, window, known_since)
    with tempfile.TemporaryDirectory(prefix="trainwright-materialize-") as scratch:
        settings: dict[str, Any] = {"memory_limit": SORT_MEMORY, "threads": _THREADS}
        settings |= {"temp_directory": f"{scratch}/spill", "preserve_insertion_order": False}
        with duckdb.connect(str(Path(scratch) / "latest.duckdb"), config=settings) as database:
            database.execute("SET TimeZone = 'UTC'")
            database.register("incoming", latest._incoming(files))
            latest._database = database
            try:
                latest._select()
            except duckdb.Error as error:
                hint = (
                    "Give the disk of the temporary folder more space: about the size of the window's rows."
                )
                what = f"DuckDB could not find the newest rows: {error}"
                raise latest._problem or DependencyError(what, where="DuckDB", hint=hint) from error
            yield latest


def time_span(group: Any, name: str) -> tuple[datetime, datetime] | None:
    """Return the least and the greatest time in a column of a row group; None if unknown."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema != name or column.statistics is None:
            continue
        found = column.statistics
        ends = (found.min, found.max) if found.has_min_max and not found.null_count else ()
        times = [time.replace(tzinfo=time.tzinfo or UTC) for time in ends if isinstance(time, datetime)]
        return (times[0], times[1]) if len(times) > 1 else None
    return None


@contextmanager
def open_parquet(view: OnlineView, entry: SourceFile) -> Iterator[pq.ParquetFile]:
    """Open a file of a view, in the version that was listed."""
    with open_file(entry.uri, entry.version) as stream, broken_offline_file(view.name, entry.uri):
        yield pq.ParquetFile(stream)


def _renamed(table: pa.Table, view: OnlineView, uri: str) -> pa.Table:
    tables.require_columns(
        table.schema, dict.fromkeys(view.columns.values()), where=f"offline file of view {view.name!r}: {uri}"
    )
    return pa.table({name: table[column] for name, column in view.columns.items()})


def _quoted(names: Iterable[str]) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)
