"""Writing into SQLite in Feast's layout: one row a key and feature."""

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from trainwright.errors import DependencyError, InputError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.rows import Rows
from trainwright.materialize.values import texts

PATIENCE_S = 60

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SqliteWriter:
    """One view's way into a SQLite file. Feast itself lets an older row replace a newer one; this does not.

    Args:
        online: The repository.
        view: The view.
        held: Raises unless this run still holds its lease.
        patience_s: How long to wait for another process that writes to the file.

    Raises:
        InputError: The view has no table: the definitions were never applied here.
    """

    name = "sqlite, from arrays"

    def __init__(
        self, online: Online, view: OnlineView, held: Callable[[], None], patience_s: int = PATIENCE_S
    ) -> None:
        from feast.infra.online_stores.helpers import compute_table_id

        config = online.feast.config
        self._view, self._held, self._patience_s = view, held, patience_s
        self._path = online.folder / config.online_store.path
        table = compute_table_id(
            online.project, view.feast, config.registry.enable_online_feature_view_versioning
        )
        self._insert = _insert(table)
        self._connection = self._opened(table)

    def write(self, rows: Rows) -> int:
        """Write rows in one transaction, each unless a newer one is there; return how many were written.

        Raises:
            DependencyError: The file is locked, full or broken; nothing of these rows is written then.
            TransientError: The lease was lost; likewise.
        """
        before = self._connection.total_changes
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._held()  # from here on no other can write: one that takes over writes after this
                self._connection.executemany(self._insert, self._cells(rows))
        except sqlite3.Error as error:
            raise self._broken(error) from error
        return (self._connection.total_changes - before) // len(self._view.features)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _opened(self, table: str) -> sqlite3.Connection:
        uri = f"{self._path.as_uri()}?mode=rw"  # a file that is not there is not made
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=self._patience_s)
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        except sqlite3.Error as error:
            if self._path.exists():
                raise self._broken(error) from error
            names = []
        if (table,) not in names:
            raise InputError(
                f"the online store has no table {table!r}: the view was never applied here",
                where=str(self._path),
                hint="Run `trainwright features plan`, review it, and then `trainwright features apply`.",
            )
        return connection

    def _cells(self, rows: Rows) -> Iterator[tuple[Any, ...]]:
        """Give the table's rows: one a key and feature, keys in order so that the file grows in order."""
        keys = rows.keys.to_pylist()
        event = [stored_seconds(micros) for micros in rows.event.tolist()]
        known = rows.created.to_pylist() if rows.created is not None else [None] * rows.count
        created = [None if micros is None else stored_seconds(micros) for micros in known]
        columns = []
        for name, values in rows.values.items():
            text = texts(self._view.features[name], rows.table.column(name), values)
            columns.append((name, values.to_pylist(), text))
        for place in sorted(range(rows.count), key=keys.__getitem__):
            for name, values, text in columns:
                yield keys[place], name, values[place], text[place], event[place], created[place]

    def _broken(self, error: sqlite3.Error) -> DependencyError:
        return DependencyError(f"SQLite failed: {error}", where=str(self._path))


def stored_seconds(micros: int) -> int:
    """Return a time as Feast's SQLite store keeps it: whole seconds of its UTC clock, read as a local one.

    Feast's reader undoes that; both are exact where the clock of the machine is UTC.
    """
    return int((_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None).timestamp())


def _insert(table: str) -> str:
    name = '"' + table.replace('"', '""') + '"'
    columns = ("entity_key", "feature_name", "value", "value_text", "event_ts", "created_ts")
    update = ", ".join(f"{column} = excluded.{column}" for column in columns[2:])
    return (
        f"INSERT INTO {name} ({', '.join(columns)}) VALUES (?, ?, ?, ?, ?, ?) "  # noqa: S608  # nosec B608 - a quoted name
        f"ON CONFLICT(entity_key, feature_name) DO UPDATE SET {update} "
        f"WHERE excluded.event_ts >= {name}.event_ts"
    )
