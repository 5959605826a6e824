"""Columns of a database as Arrow's: by the types that the cursor describes, value for value."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError

_MOST_DIGITS = 38
_FREE = pa.decimal128(_MOST_DIGITS, 18)
"""What a numeric without precision is stored as: 20 digits before and 18 after the point."""

_INTS = {20: pa.int64(), 21: pa.int16(), 23: pa.int32(), 26: pa.int64()}
_OTHERS = {
    16: pa.bool_(),
    17: pa.binary(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}
_TEXTS = frozenset({18, 19, 25, 1042, 1043})
_AS_TEXT = {114: "json", 2950: "uuid", 3802: "jsonb"}
_NUMERIC = 1700
_REFUSED = {
    1083: "time",
    1266: "time with time zone",
    1186: "interval",
    790: "money",
    600: "point",
    869: "inet",
    650: "cidr",
    142: "xml",
}


def arrow_types(description: Sequence[Any], where: str) -> tuple[pa.Schema, frozenset[str]]:
    """Read a PostgreSQL cursor's description.

    Args:
        description: Its columns, as psycopg describes them.
        where: The database, for errors.

    Returns:
        The columns and their Arrow types, and the names of those that are to be read as text.

    Raises:
        InputError: A column is of a type that is not taken; all of them are named.
    """
    fields, texts, wrong = [], set(), []
    for column in description:
        kind = _kind_of(column)
        if kind is None:
            wrong.append(f"{column.name!r} is {_REFUSED.get(column.type_code) or column.type_display}")
            continue
        fields.append(pa.field(column.name, kind))
        if column.type_code in _AS_TEXT:
            texts.add(column.name)
    if wrong:
        raise InputError(
            f"columns of types that are not taken: {', '.join(wrong)}",
            where=where,
            hint="Cast them in data.sql.select to text, a number or a timestamp; take arrays apart.",
        )
    return pa.schema(fields), frozenset(texts)


def _kind_of(column: Any) -> pa.DataType | None:
    code = column.type_code
    if code == _NUMERIC:
        if column.precision is None:
            return _FREE
        fits = column.precision <= _MOST_DIGITS and 0 <= column.scale <= column.precision
        return pa.decimal128(column.precision, column.scale) if fits else None
    if code in _TEXTS or code in _AS_TEXT:
        return pa.string()
    return _INTS.get(code) or _OTHERS.get(code)


def as_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema, start: int, where: str) -> pa.RecordBatch:
    """Bring rows to columns.

    Args:
        rows: Values, as the driver gives them.
        schema: The columns.
        start: Rows before these.
        where: The database, for errors.

    Raises:
        InputError: A column's type does not take a value; names the column, the row and the value.
    """
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [
        _array(list(values), field, start, where) for values, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], field: pa.Field, start: int, where: str) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        row, value = next(
            (index, value) for index, value in enumerate(values) if not _is_taken(value, field.type)
        )
    raise InputError(
        f"column {field.name!r} is {field.type}, which does not take {value!s:.80} "
        f"in row {start + row + 1:,}",
        where=where,
        hint="Cast it in data.sql.select to a type that takes all values, such as numeric(20, 4), "
        "double precision or text.",
    )


def _is_taken(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return False
    return True
