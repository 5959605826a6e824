"""Columns: are they there, of what type, and in which one form are they stored."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError


def require_columns(table: Any, names: Iterable[str], where: str) -> None:
    """Check that columns exist.

    Args:
        table: A table, a record batch or a schema of Arrow, or a :class:`Snapshot`.
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
        return [column.name for column in table.columns]
    schema = table if isinstance(table, pa.Schema) else table.schema
    return list(schema.names)


def _with_close(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"{name!r} (close: {', '.join(close)})" if close else repr(name)


def plain(table: pa.Table, where: str = "") -> pa.Table:
    """Bring a table into the one form of its types that every supported pyarrow reads.

    Args:
        table: Any table.
        where: What it is, for the error.

    Raises:
        InputError: A column has values that this form cannot hold, such as a time in the year 300,000.
    """
    schema = pa.schema([pa.field(field.name, _plain_type(field.type)) for field in table.schema])
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = [
        column if column.type == field.type else _cast(column, field, where)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    """Cut off what is finer than a microsecond; whatever else would be lost is an error."""
    try:
        return column.cast(field.type, safe="timestamp[ns" not in str(column.type))
    except pa.ArrowException as error:
        raise InputError(
            f"column {field.name!r} is {column.type}, and cannot be stored as {field.type}: {error}",
            where=where,
        ) from None


_PLAIN = {
    "large_string": pa.string(),
    "string_view": pa.string(),
    "large_binary": pa.binary(),
    "binary_view": pa.binary(),
    "halffloat": pa.float32(),
}


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        entries = kind.value_field.with_type(_plain_type(kind.value_type))
        return pa.list_(entries) if pa.types.is_list(kind) else pa.large_list(entries)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if str(kind).startswith(("decimal32", "decimal64")):
        return pa.decimal128(kind.precision, kind.scale)
    return _PLAIN.get(str(kind), kind)


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
