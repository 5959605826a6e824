"""Check the columns of a table, and convert them to the types that a snapshot stores."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import RUN_AGAIN, Column, Snapshot
from trainwright.errors import InputError


def require_columns(table: Any, names: Iterable[str], where: str) -> None:
    """Check that columns exist.

    Args:
        table: A table, a record batch or a schema of Arrow, a :class:`Snapshot`, or its columns.

    Raises:
        InputError: Any column is missing; all missing ones are named, each with its close matches.
    """
    columns = table.columns if isinstance(table, Snapshot) else table
    if isinstance(columns, tuple | list):
        known = [column.name for column in columns]
    else:
        known = list(table.names if isinstance(table, pa.Schema) else table.schema.names)
    missing = []
    for name in sorted(set(names) - set(known)):
        close = difflib.get_close_matches(name, known, n=3)
        missing.append(f"no column {name!r}" + (f" (close: {', '.join(close)})" if close else ""))
    if missing:
        raise InputError("; ".join(missing), where=where, hint=f"Its columns: {', '.join(known)}.")


def require_distinct(schema: pa.Schema, where: str) -> pa.Schema:
    """Return the schema, unless a column has no name, or the name of another."""
    if unnamed := [place for place, name in enumerate(schema.names, 1) if not name.strip()]:
        raise InputError(
            f"columns have no name: {', '.join(map(str, unnamed))} of {len(schema.names)}",
            where=where,
            hint="Name them; pandas writes its index without a name unless index=False is set.",
        )
    if twice := sorted(name for name, count in Counter(schema.names).items() if count > 1):
        raise InputError(f"columns {twice} appear twice", where=where)
    return schema


def schema_difference(first: pa.Schema, second: pa.Schema) -> str:
    """Describe how the second schema differs from the first."""
    gone = [name for name in first.names if name not in second.names]
    new = [name for name in second.names if name not in first.names]
    retyped = [
        f"{field.name!r} is {second.field(field.name).type}, was {field.type}"
        for field in first
        if field.name in second.names and second.field(field.name).type != field.type
    ]
    parts = [f"no column {name!r}" for name in gone] + [f"new column {name!r}" for name in new] + retyped
    return "; ".join(parts) or f"the order of columns is {second.names}, was {first.names}"


def plain(table: pa.Table, where: str = "") -> pa.Table:
    """Convert a table to the types that every supported pyarrow reads.

    Digits of a time below the microsecond are cut off; whatever else would be lost is an error.

    Raises:
        InputError: A column has values that its type cannot hold, such as a time in the year 300,000.
    """
    schema = pa.schema([pa.field(field.name, _plain_type(field.type)) for field in table.schema])
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        try:
            safe = "timestamp[ns" not in str(column.type)
            columns.append(column if column.type == field.type else column.cast(field.type, safe=safe))
        except pa.ArrowException as error:
            raise InputError(
                f"column {field.name!r} is {column.type}, and cannot be stored as {field.type}: {error}",
                where=where,
            ) from None
    return pa.Table.from_arrays(columns, schema=schema)


_PLAIN = {
    "large_string": pa.string(),
    "string_view": pa.string(),
    "large_binary": pa.binary(),
    "binary_view": pa.binary(),
    "halffloat": pa.float32(),
    "date64[ms]": pa.date32(),
    "time32[s]": pa.time32("ms"),
}


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if is_nested(kind):
        return _plain_nested(kind)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if str(kind).startswith(("decimal32", "decimal64")):
        return pa.decimal128(kind.precision, kind.scale)
    return _PLAIN.get(str(kind), kind)


def _plain_nested(kind: pa.DataType) -> pa.DataType:
    """Name the entries of a list in one way; Parquet and Arrow have different names for them."""
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([field.with_type(_plain_type(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_union(kind):
        return kind
    entries = kind.value_field.with_type(_plain_type(kind.value_type)).with_name("item")
    return pa.large_list(entries) if pa.types.is_large_list(kind) else pa.list_(entries)


def is_nested(kind: pa.DataType) -> bool:
    """Return whether values of a type hold other values; an older pyarrow forgets lists of a fixed size."""
    return bool(pa.types.is_nested(kind)) or bool(pa.types.is_fixed_size_list(kind))


def declared(table: pa.Table, columns: Sequence[Column], where: str) -> pa.Table:
    """Convert rows of any writer to the columns, the order and the types that a manifest declares.

    A column without any value has no type of its own in some files; integers and floats may be narrower in
    one file than in another. A conversion that would lose or invent a value is an error.

    Raises:
        InputError: A column is of another type than the manifest says.
    """
    table = plain(table.select([column.name for column in columns]), where)
    for place, column in enumerate(columns):
        kind = table.schema.types[place]
        if str(_plain_type(kind)) != column.type:  # the entries of a map have a name that Parquet changes
            table = table.set_column(place, column.name, _as_declared(table.column(place), column, where))
    return table


def is_declared(schema: pa.Schema, columns: Sequence[Column]) -> bool:
    """Return whether a file has the declared columns in the declared types already."""
    types = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    return all(types.get(column.name) == column.type for column in columns)


def _as_declared(values: pa.ChunkedArray, column: Column, where: str) -> pa.ChunkedArray:
    kind = named_type(column.type)
    how = f"is {values.type}, the manifest says {column.type}"
    if kind is not None and _holds(kind, values.type):
        try:
            return values.cast(kind)
        except pa.ArrowException as error:
            how = f"does not fit {column.type}: {error}"
    raise InputError(f"cached input changed: column {column.name!r} {how}", where=where, hint=RUN_AGAIN)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether a type is of a kind that holds the values of another."""
    of = pa.types
    if of.is_timestamp(wide) and of.is_timestamp(narrow):
        return bool(wide.tz) == bool(narrow.tz)
    if of.is_floating(wide) and of.is_integer(narrow):
        return True
    kinds = (of.is_integer, of.is_floating, of.is_decimal)
    return of.is_null(narrow) or any(of_kind(wide) and of_kind(narrow) for of_kind in kinds)


_WITH_ZONE = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")


def named_type(text: str) -> pa.DataType | None:
    """Return the type that Arrow writes like this, or None for one that holds other types."""
    if found := _WITH_ZONE.fullmatch(text):
        return pa.timestamp(found.group(1), tz=found.group(2))
    if found := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if found.group(1) == "128" else pa.decimal256
        return make(int(found.group(2)), int(found.group(3)))
    if found := _FIXED.fullmatch(text):
        return pa.binary(int(found.group(1)))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return None
