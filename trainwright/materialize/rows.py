"""Rows on their way into an online store: as columns, and as the bytes that Feast would store."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.featurestore import OnlineView
from trainwright.materialize.keys import entity_keys
from trainwright.materialize.values import encode
from trainwright.materialize.wire import Ints


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Newest rows of some keys, one a key.

    Attributes:
        table: Keys, features and times, by their names in the view.
        keys: Each key as Feast looks it up, shape (rows,).
        values: Each feature's ``feast.types.Value`` as bytes, by name; shape (rows,).
        event: Time that each row describes, in microseconds since 1970; shape (rows,).
        created: Time from which on it was known, likewise, with nulls; None if the view has none.
    """

    table: pa.RecordBatch
    keys: pa.Array
    values: Mapping[str, pa.Array]
    event: Ints
    created: pa.Array | None

    @property
    def count(self) -> int:
        """Rows in all."""
        return int(self.table.num_rows)


def encoded(view: OnlineView, table: pa.RecordBatch) -> Rows:
    """Write a piece of a view's rows as Feast stores them.

    Raises:
        InputError: A key or a value is not of the type that the view says.
    """
    return Rows(
        table=table,
        keys=entity_keys(table, view.keys),
        values={name: encode(name, kind, table.column(name)) for name, kind in view.features.items()},
        event=microseconds(table.column(view.time)).to_numpy(zero_copy_only=False),
        created=microseconds(table.column(view.created)) if view.created else None,
    )


def microseconds(times: pa.Array) -> pa.Array:
    """Return times as microseconds since 1970 in UTC; one without a zone is UTC, as Feast takes it."""
    return times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())
