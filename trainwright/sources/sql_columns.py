"""Arrow columns of a database: PostgreSQL's by the cursor's description, SQLite's inferred from values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.sources.inference import TypeInference, convert
from trainwright.sources.parts import wider

_MOST_DIGITS = 38
_FREE = pa.decimal128(_MOST_DIGITS, 18)
"""Type of a numeric without precision: 20 digits before and 18 after the point."""

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
_UNSUPPORTED = {
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
    """Return the Arrow types of a PostgreSQL cursor's description.

    Args:
        description: Its columns, from psycopg.
        where: The database, for errors.

    Returns:
        The columns and their Arrow types, and the names of those to read as text.

    Raises:
        InputError: A column has an unsupported type; all of them are named.
    """
    fields, texts, wrong = [], set(), []
    for column in description:
        kind = _kind_of(column)
        if kind is None:
            wrong.append(f"{column.name!r} is {_UNSUPPORTED.get(column.type_code) or column.type_display}")
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


def postgres_batch(
    rows: Sequence[Sequence[Any]], schema: pa.Schema, start: int, where: str
) -> pa.RecordBatch:
    """Convert rows to columns.

    Args:
        rows: Values from the driver.
        schema: The columns.
        start: Rows before these.
        where: The database, for errors.

    Raises:
        InputError: A value is not of its column's type; names the column, the row and the value.
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


_KINDS = {bool: pa.int64(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


def infer_types(
    names: Sequence[str],
    pages: Iterable[Sequence[Sequence[Any]]],
    declared: Mapping[str, pa.DataType],
    where: str,
) -> pa.Schema:
    """Infer the type of each SQLite column that takes all its values.

    Raises:
        InputError: A column has values of two kinds, such as text and numbers.
    """
    kinds = dict.fromkeys(names, pa.null())
    finders = {name: TypeInference(times_only=True) for name in names}
    for page in pages:
        for name, values in zip(names, zip(*page, strict=True), strict=True):
            for kind in {_KINDS[type(value)] for value in values if value is not None}:
                kinds[name] = _joined(kinds[name], kind, name, where)
            if kinds[name] == pa.string():
                finders[name].add(pa.array(values, pa.string()))
    found = {name: finders[name].kind if kind == pa.string() else kind for name, kind in kinds.items()}
    return pa.schema(list((found | {name: kind for name, kind in declared.items() if name in found}).items()))


def _joined(one: pa.DataType, two: pa.DataType, name: str, where: str) -> pa.DataType:
    joined = two if pa.types.is_null(one) else wider(one, two)
    if joined is None:
        raise InputError(
            f"column {name!r} holds values of {one} and of {two}",
            where=where,
            hint="Cast it in data.sql.select: CAST(column AS TEXT).",
        )
    return joined


def sqlite_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema, start: int, where: str) -> pa.RecordBatch:
    """Convert SQLite's rows to columns.

    Raises:
        InputError: A value is not of its declared type.
    """
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        if any(isinstance(value, str) for value in values):
            texts = pa.array([None if value is None else str(value) for value in values], pa.string())
            arrays.append(convert(texts, field.type, field.name, where, start))
        else:
            arrays.append(_numbers(values, field, where))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numbers(values: Sequence[Any], field: pa.Field, where: str) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise InputError(
            f"column {field.name!r} is {field.type}, which does not take a value: {error!s:.200}", where=where
        ) from None
