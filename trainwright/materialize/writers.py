"""Which way rows go into an online store: built from arrays where we know the layout, else Feast's own."""

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import DependencyError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.engine import LOCAL
from trainwright.materialize.keys import VERSION
from trainwright.materialize.rows import Rows

Held = Callable[[], None]
"""Raises unless this run still holds its lease. A process that was paused for longer finds out here only, so
each way asks at a moment from which on nobody else's rows can be overtaken by these."""

FEAST_ROWS = 10_000
"""Rows that Feast's own way takes at a time; by default it takes all, in gigabytes of Python objects."""


class Writer(Protocol):
    """One view's way into an online store."""

    name: str

    def write(self, rows: Rows) -> int:
        """Write rows, each unless a newer one is there; return how many were written."""
        ...

    def close(self) -> None:
        """Give up what was opened."""
        ...


def writer_for(online: Online, view: OnlineView, held: Held) -> Writer:
    """Choose the way into the repository's online store.

    Args:
        online: The repository.
        view: The view.
        held: Asked again before rows are written.

    Raises:
        InputError: The view was never applied to the store.
        DependencyError: The store does not answer.
    """
    if not is_ours(online, view):
        return FeastWriter(online, view, held)
    if online.store == "sqlite":
        from trainwright.materialize.sqlite import SqliteWriter

        return SqliteWriter(online, view, held)
    if online.store == "postgres":
        from trainwright.materialize.postgres import PostgresWriter

        return PostgresWriter(online, view, held)
    from trainwright.materialize.redis import RedisWriter

    return RedisWriter(online, view, held)


def is_ours(online: Online, view: OnlineView) -> bool:
    """Tell whether rows are written here, under our rule that a newer one stays."""
    settings = online.feast.config.online_store
    if getattr(settings, "vector_enabled", False) or getattr(
        settings, "enable_openai_compatible_store", False
    ):
        return False
    if online.engine != LOCAL or online.feast.config.entity_key_serialization_version != VERSION:
        return False
    if online.store == "redis":
        from trainwright.materialize.redis import MAX_FEATURES

        return settings.redis_type != "redis_cluster" and len(view.features) <= MAX_FEATURES
    return online.store in {"sqlite", "postgres"}


class FeastWriter:
    """Feast's own way, in small batches: any store, each with its own idea of which row stays."""

    def __init__(self, online: Online, view: OnlineView, held: Held, *, at_once: int = FEAST_ROWS) -> None:
        from feast.value_type import ValueType

        self.name = f"{online.store}, by Feast itself"
        self._online, self._view, self._held, self._at_once = online, view, held, at_once
        self._keys = {name: ValueType[kind] for name, kind in view.keys.items()}

    def write(self, rows: Rows) -> int:
        """Hand rows to Feast's store; return how many.

        Raises:
            DependencyError: The store failed.
        """
        from feast.utils import _convert_arrow_to_proto

        store, table = self._online.feast, pa.Table.from_batches([rows.table])
        for first in range(0, rows.count, self._at_once):
            piece = table.slice(first, self._at_once).combine_chunks()
            ready = _convert_arrow_to_proto(piece, self._view.feast, self._keys)
            self._held()
            try:
                store.provider.online_write_batch(store.config, self._view.feast, ready, None)
            except Exception as error:
                what = f"Feast could not write to {self._online.store}: {type(error).__name__}: {error}"
                raise DependencyError(what, where="the online store") from error
        return rows.count

    def close(self) -> None:
        """Nothing was opened here."""
