"""Which way rows go into an online store: built from arrays where we know the layout, else Feast's own."""

from typing import Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import DependencyError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.keys import VERSION
from trainwright.materialize.rows import Rows

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


def writer_for(online: Online, view: OnlineView) -> Writer:
    """Choose the way into the repository's online store.

    Raises:
        InputError: The view was never applied to the store.
        DependencyError: The store does not answer.
    """
    settings = online.feast.config.online_store
    plain = not getattr(settings, "vector_enabled", False)
    plain = plain and not getattr(settings, "enable_openai_compatible_store", False)
    plain = plain and online.feast.config.entity_key_serialization_version == VERSION
    if plain and online.store == "sqlite":
        from trainwright.materialize.sqlite import SqliteWriter

        return SqliteWriter(online, view)
    if plain and online.store == "postgres":
        from trainwright.materialize.postgres import PostgresWriter

        return PostgresWriter(online, view)
    if plain and online.store == "redis" and settings.redis_type != "redis_cluster":
        from trainwright.materialize.redis import MAX_FEATURES, RedisWriter

        if len(view.features) <= MAX_FEATURES:
            return RedisWriter(online, view)
    return FeastWriter(online, view)


class FeastWriter:
    """Feast's own way, in small batches: any store, each with its own idea of which row stays."""

    def __init__(self, online: Online, view: OnlineView) -> None:
        from feast.value_type import ValueType

        self.name = f"{online.store}, by Feast itself"
        self._online, self._view = online, view
        self._keys = {name: ValueType[kind] for name, kind in view.keys.items()}

    def write(self, rows: Rows) -> int:
        """Hand rows to Feast's store; return how many.

        Raises:
            DependencyError: The store failed.
        """
        from feast.utils import _convert_arrow_to_proto

        store, table = self._online.feast, pa.Table.from_batches([rows.table])
        for first in range(0, rows.count, FEAST_ROWS):
            piece = table.slice(first, FEAST_ROWS).combine_chunks()
            ready = _convert_arrow_to_proto(piece, self._view.feast, self._keys)
            try:
                store.provider.online_write_batch(store.config, self._view.feast, ready, None)
            except Exception as error:
                what = f"Feast could not write to {self._online.store}: {type(error).__name__}: {error}"
                raise DependencyError(what, where="the online store") from error
        return rows.count

    def close(self) -> None:
        """Nothing was opened here."""
