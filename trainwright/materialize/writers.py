"""Writers of rows into an online store: ours into Redis, Feast's own into every other, or Feast's engine."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from trainwright.errors import DependencyError, InputError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.encoding import KEY_VERSION, SerializedRows, encode_values
from trainwright.materialize.engine import LOCAL
from trainwright.materialize.redis import RedisWriter

RequireLease = Callable[[], None]
"""Raises unless this run still holds its lease; every writer calls it right before it writes."""

FEAST_ROWS = 10_000
"""Rows that Feast's writer gets at a time; by default it takes all, in gigabytes of Python objects."""

MAX_REDIS_FEATURES = 1000
"""What fits on the stack of Redis' Lua, with a margin."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TABLE = re.compile(r"no such table|relation .* does not exist|UndefinedTable", re.IGNORECASE)


def keeps_newer_rows(online: Online, view: OnlineView) -> bool:
    """Tell whether the writer compares times in the store, so that no row replaces a newer one.

    That is our Redis writer. Feast's SQLite and PostgreSQL stores let an older row replace a newer one.
    """
    config = online.feast.config
    return (
        online.store == "redis"
        and online.engine == LOCAL
        and config.entity_key_serialization_version == KEY_VERSION
        and config.online_store.redis_type != "redis_cluster"
        and len(view.features) <= MAX_REDIS_FEATURES
    )


class FeastWriter:
    """Feast's own writer, in bounded batches. The store's own rule decides which row stays.

    The values are encoded by us and parsed into Feast's messages: its converter rounds integers beyond 2^53
    beside a null, and takes a batch of empty bytes for nulls.
    """

    def __init__(
        self, online: Online, view: OnlineView, require_lease: RequireLease, *, batch_rows: int = FEAST_ROWS
    ) -> None:
        self.name = f"{online.store}, by Feast itself"
        self._online, self._view, self._require_lease = online, view, require_lease
        self._batch_rows = batch_rows
        path = getattr(online.feast.config.online_store, "path", None)
        if online.store == "sqlite" and path and not (online.folder / path).exists():
            raise _never_applied(online, f"no such file {path}")

    def write(self, rows: SerializedRows) -> int:
        """Pass rows to Feast's store; return how many."""
        from feast.utils import _validate_vector_field_lengths

        store, view = self._online.feast, self._view
        try:
            _validate_vector_field_lengths(rows.table, view.feast)
        except ValueError as error:
            raise InputError(str(error), where="the offline files") from None
        messages = list(self._messages(rows))
        for first in range(0, rows.count, self._batch_rows):
            self._require_lease()
            batch = messages[first : first + self._batch_rows]
            try:
                store.provider.online_write_batch(store.config, view.feast, batch, None)
            except Exception as error:
                if any(_NO_TABLE.search(str(link)) for link in (error, error.__cause__) if link):
                    raise _never_applied(self._online, str(error)) from error
                what = f"Feast could not write to {self._online.store}: {type(error).__name__}: {error}"
                hint = "Nothing is lost: run again when it answers, and the same rows are written again."
                raise DependencyError(what, where="the online store", hint=hint) from error
        return rows.count

    def close(self) -> None:
        """Do nothing: Feast's connection is closed with the repository."""

    def _messages(
        self, rows: SerializedRows
    ) -> Iterator[tuple[Any, dict[str, Any], datetime, datetime | None]]:
        """Build Feast's messages: entity key, values, event time and creation time of each row."""
        from feast.protos.feast.types.EntityKey_pb2 import EntityKey
        from feast.protos.feast.types.Value_pb2 import Value

        names, features = list(self._view.keys), list(rows.values)
        keys = [
            encode_values(name, kind, rows.table.column(name)).to_pylist()
            for name, kind in self._view.keys.items()
        ]
        values = [column.to_pylist() for column in rows.values.values()]
        created = rows.created.to_pylist() if rows.created is not None else [None] * rows.count
        for index, event in enumerate(rows.event.tolist()):
            key = EntityKey(join_keys=names, entity_values=[Value.FromString(part[index]) for part in keys])
            pairs = zip(features, values, strict=True)
            row = {name: Value.FromString(column[index]) for name, column in pairs}
            known = created[index]
            yield key, row, _time(event), None if known is None else _time(known)


OnlineWriter: TypeAlias = RedisWriter | FeastWriter
"""Writer of one view's rows into an online store."""


def writer_for(online: Online, view: OnlineView, require_lease: RequireLease) -> OnlineWriter:
    """Return the writer for the repository's online store."""
    writer = RedisWriter if keeps_newer_rows(online, view) else FeastWriter
    return writer(online, view, require_lease)


def _time(micros: int) -> datetime:
    return (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None)  # Feast takes it as UTC


def _never_applied(online: Online, said: str) -> InputError:
    return InputError(
        f"the online store has no table of this view: it was never applied here: {said.strip():.200}",
        where=f"the online store ({online.store})",
        hint="Run `trainwright features plan`, review it, and then `trainwright features apply`.",
    )
