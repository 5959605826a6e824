"""Columns: are they there, are their names good, and how do two sets of them differ."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError


def require_columns(table: Any, names: Iterable[str], where: str) -> None:
    """Check that columns exist.

    Args:
        table: A table, a record batch or a schema of Arrow, a :class:`Snapshot`, or its columns.
        names: The columns that are needed.
        where: What the table is, for the error.

    Raises:
        InputError: Any column is missing; all missing ones are named, each with its close matches.
    """
    known = _column_names(table)
    missing = sorted(set(names) - set(known))
    if missing:
        raise InputError(
            f"no column {'; no column '.join(_with_close(name, known) for name in missing)}",
            where=where,
            hint=f"Its columns: {', '.join(known)}.",
        )


def _column_names(table: Any) -> list[str]:
    if isinstance(table, Snapshot):
        table = table.columns
    if isinstance(table, tuple | list):
        return [column.name for column in table]
    schema = table if isinstance(table, pa.Schema) else table.schema
    return list(schema.names)


def _with_close(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"{name!r} (close: {', '.join(close)})" if close else repr(name)


def require_distinct(schema: pa.Schema, where: str) -> pa.Schema:
    """Return the schema, unless a column has no name, or one that is there twice."""
    if unnamed := [place for place, name in enumerate(schema.names, 1) if not name.strip()]:
        raise InputError(
            f"columns have no name: {', '.join(map(str, unnamed))} of {len(schema.names)}",
            where=where,
            hint="Name them; pandas writes its index without a name unless it is told index=False.",
        )
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise InputError(f"columns {twice} appear twice", where=where)
    return schema


def schema_difference(first: pa.Schema, second: pa.Schema) -> str:
    """Say in words how the second schema differs from the first."""
    gone = [name for name in first.names if name not in second.names]
    new = [name for name in second.names if name not in first.names]
    retyped = [
        f"{field.name!r} is {second.field(field.name).type}, was {field.type}"
        for field in first
        if field.name in second.names and second.field(field.name).type != field.type
    ]
    parts = [f"no column {name!r}" for name in gone] + [f"new column {name!r}" for name in new] + retyped
    return "; ".join(parts) or f"the order of columns is {second.names}, was {first.names}"
