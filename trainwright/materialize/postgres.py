"""Writing into PostgreSQL in Feast's layout, through COPY: one row a key and feature."""

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import DependencyError, InputError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize import wire
from trainwright.materialize.rows import Rows
from trainwright.materialize.values import texts

PATIENCE_S = 60

COLUMNS = ("entity_key", "feature_name", "value", "value_text", "event_ts", "created_ts")

_HEADER = b"PGCOPY\n\xff\r\n\x00" + struct.pack(">ii", 0, 0)
_TRAILER = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
_SINCE_2000 = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL's times start."""


class PostgresWriter:
    """One view's way into PostgreSQL. Feast itself lets an older row replace a newer one; this does not.

    Args:
        online: The repository.
        view: The view.
        held: Raises unless this run still holds its lease.
        patience_s: How long to wait for another run in the middle of a transaction.

    Raises:
        InputError: The view has no table: the definitions were never applied here.
        DependencyError: PostgreSQL does not answer.
    """

    name = "postgres, by COPY"

    def __init__(
        self, online: Online, view: OnlineView, held: Callable[[], None], patience_s: int = PATIENCE_S
    ) -> None:
        from feast.infra.online_stores.helpers import compute_table_id
        from feast.infra.utils.postgres.connection_utils import _get_conn
        from psycopg import Error, sql

        config = online.feast.config
        self._view, self._held, self._patience_s = view, held, patience_s
        versions = config.registry.enable_online_feature_view_versioning
        name = compute_table_id(online.project, view.feast, versions)
        self._table, self._lock = sql.Identifier(name), _lock(name)
        try:
            self._connection = _get_conn(config.online_store)
            self._prepare()
        except Error as error:
            raise _told(error) from error

    def write(self, rows: Rows) -> int:
        """Write rows in one transaction, each unless a newer one is there; return how many were written.

        Raises:
            DependencyError: PostgreSQL failed; nothing of these rows is written then.
            TransientError: The lease was lost; likewise.
        """
        from psycopg import Error

        names = ", ".join(COLUMNS)
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{self._patience_s}s'")
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [self._lock])
                self._held()  # from here on no other can write: one that takes over writes after this
                copy = f"COPY trainwright_incoming ({names}) FROM STDIN (FORMAT binary)"
                with cursor.copy(copy) as incoming:
                    incoming.write(_HEADER)
                    for name, values in rows.values.items():
                        incoming.write(bytes(self._tuples(rows, name, values)))
                    incoming.write(_TRAILER)
                cursor.execute(self._upsert)
                written = cursor.rowcount
            self._connection.commit()
        except Error as error:
            raise _told(error) from error
        return int(written) // len(self._view.features)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _prepare(self) -> None:
        """Make the table of this session that rows arrive in, and the statement that takes them over."""
        from psycopg import sql

        table = self._table
        with self._connection.cursor() as cursor:
            make = "CREATE TEMP TABLE trainwright_incoming ON COMMIT DELETE ROWS AS SELECT * FROM {} LIMIT 0"
            cursor.execute(sql.SQL(make).format(table))
        self._connection.commit()
        update = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[2:])
        names = ", ".join(COLUMNS)
        self._upsert = sql.SQL(
            f"INSERT INTO {{table}} AS held ({names}) SELECT {names} FROM trainwright_incoming "  # noqa: S608  # nosec B608 - our own names
            f"ORDER BY entity_key ON CONFLICT (entity_key, feature_name) DO UPDATE SET {update} "
            "WHERE excluded.event_ts >= held.event_ts"
        ).format(table=table)

    def _tuples(self, rows: Rows, name: str, values: pa.Array) -> memoryview:
        """Write the rows of one feature in PostgreSQL's binary form."""
        text = texts(self._view.features[name], rows.table.column(name), values)
        label = name.encode()
        tuples = wire.joined(
            struct.pack(">h", len(COLUMNS)),
            _sized(rows.keys),
            struct.pack(">i", len(label)) + label,
            _sized(values),
            _sized(_searched(text)),
            _sized(_times(pa.array(rows.event))),
            _sized(_times(rows.created)) if rows.created is not None else _NULL,
        )
        return wire.span(tuples, 0, rows.count)


def _lock(name: str) -> int:
    """Return the number of the lock that the runs of one table share."""
    return int.from_bytes(hashlib.sha256(f"trainwright {name}".encode()).digest()[:8], "big", signed=True)


def _searched(text: list[str | None]) -> pa.Array:
    """Write the texts that are only searched. PostgreSQL's cannot hold a null character; the values can."""
    return pc.replace_substring(pa.array(text, pa.string()), "\0", "").cast(pa.binary())


def _times(micros: pa.Array) -> pa.Array:
    """Write times as PostgreSQL's 8 bytes; a null stays one."""
    since = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False) - _SINCE_2000
    written = pa.array(since.astype(">i8").view("V8").tolist(), pa.binary())
    return pc.if_else(micros.is_valid(), written, pa.scalar(None, pa.binary()))


def _sized(contents: pa.Array) -> pa.Array:
    """Write contents after their size in 4 bytes; a null is size -1 and nothing."""
    sizes = pc.fill_null(pc.binary_length(contents), -1).to_numpy(zero_copy_only=False)
    heads = wire.ragged(sizes.astype(">i4").view(np.uint8), np.full(len(sizes), 4, dtype=np.int64))
    return wire.joined(heads, wire.without_nulls(contents))


def _told(error: Any) -> Exception:
    from psycopg.errors import UndefinedTable

    if isinstance(error, UndefinedTable):
        return InputError(
            f"the online store has no such table, the view was never applied here: {error}",
            where="the online store",
            hint="Run `trainwright features plan`, review it, and then `trainwright features apply`.",
        )
    return DependencyError(
        f"PostgreSQL failed: {type(error).__name__}: {error}",
        where="the online store",
        hint="Nothing is lost: run again when it answers, and the same rows are written again.",
    )
