"""The newest row of every key within a window, from files of any size in bounded memory."""

import tempfile
from collections.abc import Iterator, Sequence
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
from trainwright.featurestore import OnlineView
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
class ReadStatistics:
    """Statistics of the rows that were read.

    Attributes:
        rows: Rows in the window.
        newest: Newest time of them, in microseconds; None without rows.
        late: Rows before the window that became known after ``known_since``: this run does not write them.
        problem: The error that stopped the reading; DuckDB only reports that there was one.
    """

    rows: int = 0
    newest: int | None = None
    late: int = 0
    problem: TrainwrightError | None = None


@dataclass
class LatestRows:
    """The newest row of each key, in a DuckDB database on disk.

    Attributes:
        view: The view.
        statistics: Statistics of the rows that were read.
        keys: Number of keys.
    """

    view: OnlineView
    statistics: ReadStatistics
    keys: int
    _database: Any = field(repr=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of bounded size: keys, features and times by their names in the view."""
        yield from self._read("SELECT * FROM latest")

    def sample(self, count: int) -> pa.Table:
        """Return the rows of at most ``count`` keys, in order; always the same ones."""
        names = ", ".join(_quoted(name) for name in self.view.keys)
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


@contextmanager
def latest_rows(
    view: OnlineView, files: Sequence[SourceFile], window: TimeWindow, known_since: datetime | None = None
) -> Iterator[LatestRows]:
    """Find the newest row of each key: the last by event time, then by creation time.

    Args:
        view: The view.
        files: Its files, as they were listed; a remote one is read in that version.
        window: The window.
        known_since: Count rows before the window that were created from then on.

    Raises:
        InputError: A file is broken or lacks a column; a key or a time is null; or two rows of one key have
            the same times and other values, so that the choice would be arbitrary.
    """
    import duckdb

    statistics = ReadStatistics()
    with tempfile.TemporaryDirectory(prefix="trainwright-materialize-") as scratch:
        settings: dict[str, Any] = {"memory_limit": SORT_MEMORY, "threads": _THREADS}
        settings |= {"temp_directory": f"{scratch}/spill", "preserve_insertion_order": False}
        with duckdb.connect(str(Path(scratch) / "latest.duckdb"), config=settings) as database:
            database.execute("SET TimeZone = 'UTC'")
            database.register("incoming", _reader(view, files, window, known_since, statistics))
            try:
                keys = _newest(database, view)
            except duckdb.Error as error:
                raise statistics.problem or _failed(error) from error
            yield LatestRows(view, statistics, keys, database)


def _failed(error: Exception) -> DependencyError:
    hint = "Give the disk of the temporary folder more space: about the size of the window's rows."
    return DependencyError(f"DuckDB could not find the newest rows: {error}", where="DuckDB", hint=hint)


def _newest(database: Any, view: OnlineView) -> int:
    """Write the newest rows into the table ``latest``; return the number of keys."""
    names = ", ".join(_quoted(name) for name in view.keys)
    order = f"{_quoted(view.time)} DESC"
    order += f", {_quoted(view.created)} DESC NULLS LAST" if view.created else ""
    database.execute(
        "CREATE TABLE latest AS SELECT * FROM incoming "  # noqa: S608  # nosec B608 - quoted names
        f"QUALIFY rank() OVER (PARTITION BY {names} ORDER BY {order}) = 1"
    )
    rows, keys = _counts(database, names)
    if rows == keys:
        return keys
    database.execute("CREATE OR REPLACE TABLE latest AS SELECT DISTINCT * FROM latest")
    rows, keys = _counts(database, names)
    if rows != keys:
        raise _ambiguous(database, view, names, rows - keys)
    return keys


def _counts(database: Any, names: str) -> tuple[int, int]:
    keys = f"SELECT count(*) FROM (SELECT DISTINCT {names} FROM latest)"  # noqa: S608  # nosec B608 - quoted names
    counts = [database.execute(query).fetchone()[0] for query in ("SELECT count(*) FROM latest", keys)]
    return int(counts[0]), int(counts[1])


def _ambiguous(database: Any, view: OnlineView, names: str, count: int) -> InputError:
    query = (
        f"SELECT {names}, max({_quoted(view.time)}) FROM latest GROUP BY {names} HAVING count(*) > 1 LIMIT 1"  # noqa: S608  # nosec B608 - quoted names
    )
    values = database.execute(query).fetchone()
    shown = ", ".join(f"{name}={value}" for name, value in zip([*view.keys, view.time], values, strict=True))
    return InputError(
        f"view {view.name!r} is ambiguous: {count:,} rows have the key and the times of another but other "
        f"values, such as {shown}",
        where=view.source,
        hint="Keep one of them, or give them different created timestamps.",
    )


def _reader(
    view: OnlineView,
    files: Sequence[SourceFile],
    window: TimeWindow,
    known_since: datetime | None,
    statistics: ReadStatistics,
) -> pa.RecordBatchReader:
    """Return the window's rows as one stream of batches with the same schema."""
    schema = pa.schema([])
    for entry in files:
        with open_parquet(view, entry) as parquet:
            found = tables.plain(_renamed(parquet.schema_arrow.empty_table(), view, entry.uri)).schema
        schema = schema if len(schema) else found
        if found != schema:
            difference = tables.schema_difference(schema, found)
            raise InputError(f"the files of view {view.name!r} differ: {difference}", where=entry.uri)
    _require_times(view, schema)

    def parts() -> Iterator[pa.RecordBatch]:
        try:
            for entry in files:
                yield from _pieces(view, entry, window, known_since, statistics)
        except TrainwrightError as error:
            statistics.problem = error
            raise

    return pa.RecordBatchReader.from_batches(schema, parts())


def _pieces(
    view: OnlineView,
    entry: SourceFile,
    window: TimeWindow,
    known_since: datetime | None,
    statistics: ReadStatistics,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file in the window; row groups without any are not read."""
    with open_parquet(view, entry) as parquet:
        groups = [
            index
            for index in range(parquet.num_row_groups)
            if _may_hold(parquet.metadata.row_group(index), view, window, known_since)
        ]
        columns = list(dict.fromkeys(view.columns.values()))
        for batch in parquet.iter_batches(READ_ROWS, row_groups=groups, columns=columns):
            table = tables.plain(_renamed(pa.Table.from_batches([batch]), view, entry.uri))
            for piece in table.to_batches():
                yield _within(piece, view, entry, window, known_since, statistics)


def _within(
    piece: pa.RecordBatch,
    view: OnlineView,
    entry: SourceFile,
    window: TimeWindow,
    known_since: datetime | None,
    statistics: ReadStatistics,
) -> pa.RecordBatch:
    """Return a batch's rows in the window, and update the statistics."""
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
        if known_since is not None and view.created:
            known = microseconds(piece.column(view.created))
            late = pc.and_(before, pc.greater_equal(known, int(known_since.timestamp() * _US)))
            statistics.late += pc.sum(late).as_py() or 0
    rows = piece.filter(inside)
    if rows.num_rows:
        statistics.rows += rows.num_rows
        newest = pc.max(at.filter(inside)).as_py()
        statistics.newest = max(newest, statistics.newest if statistics.newest is not None else newest)
    return rows


def _may_hold(group: Any, view: OnlineView, window: TimeWindow, known_since: datetime | None) -> bool:
    """Tell from a row group's statistics whether it can have rows of the window, or late ones."""
    times = time_span(group, view.columns[view.time])
    if times is None:
        return True
    if times[0] < window.end and (window.start is None or times[1] >= window.start):
        return True
    known = time_span(group, view.columns[view.created]) if known_since is not None and view.created else None
    return known is not None and known_since is not None and known[1] >= known_since


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
    """Open a file of a view, in the version that was listed.

    Raises:
        InputError: It is not Parquet, or broken.
    """
    with open_file(entry.uri, entry.version) as stream:
        try:
            yield pq.ParquetFile(stream)
        except (pa.ArrowException, OSError) as error:
            what = f"the offline file of view {view.name!r} is not Parquet, or broken: {error}"
            raise InputError(what, where=entry.uri) from None


def _renamed(table: pa.Table, view: OnlineView, uri: str) -> pa.Table:
    tables.require_columns(
        table.schema, dict.fromkeys(view.columns.values()), where=f"offline file of view {view.name!r}: {uri}"
    )
    return pa.table({name: table[column] for name, column in view.columns.items()})


def _require_times(view: OnlineView, schema: pa.Schema) -> None:
    for name in (view.time, view.created):
        if name and not pa.types.is_timestamp(kind := schema.field(name).type):
            what = f"column {view.columns[name]!r} of view {view.name!r} is {kind}, no timestamp"
            raise InputError(what, where=view.source)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
