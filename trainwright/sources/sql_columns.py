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

_NUMERIC = 1700
_TYPES = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
    **dict.fromkeys((18, 19, 25, 1042, 1043), pa.string()),
}
"""Arrow types by PostgreSQL's OID."""

_AS_TEXT = frozenset({114, 2950, 3802})
"""json, uuid and jsonb: cast to text by the database."""

Rows = Sequence[Sequence[Any]]


def arrow_types(description: Sequence[Any], where: str) -> tuple[pa.Schema, frozenset[str]]:
    """Return the columns of a PostgreSQL cursor's description, and the names of those to read as text."""
    fields, texts, wrong = [], set(), []
    for column in description:
        kind = _type_of(column)
        if kind is None:
            wrong.append(f"{column.name!r} is {column.type_display}")
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


def _type_of(column: Any) -> pa.DataType | None:
    if column.type_code in _AS_TEXT:
        return pa.string()
    if column.type_code != _NUMERIC:
        return _TYPES.get(column.type_code)
    if column.precision is None:
        return _FREE
    fits = column.precision <= _MOST_DIGITS and 0 <= column.scale <= column.precision
    return pa.decimal128(column.precision, column.scale) if fits else None


def postgres_batch(rows: Rows, schema: pa.Schema, start: int, where: str) -> pa.RecordBatch:
    """Convert rows to columns; ``start`` is the number of rows before them, for errors."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [_array(values, field, start, where) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], field: pa.Field, start: int, where: str) -> pa.Array:
    """Convert values to a column; name the first row whose value is not of its type."""
    wrong = (pa.ArrowException, OverflowError, ValueError, TypeError)
    try:
        return pa.array(values, field.type)
    except wrong as error:
        row, value = 0, error
    for row, value in enumerate(values):  # noqa: B007
        try:
            pa.array([value], field.type)
        except wrong:
            break
    raise InputError(
        f"column {field.name!r} is {field.type}, which does not take {value!s:.80} "
        f"in row {start + row + 1:,}",
        where=where,
        hint="Cast it in data.sql.select to a type that takes all values, such as numeric(20, 4), "
        "double precision or text.",
    )


_PYTHON_TYPES = {bool: pa.int64(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


def infer_types(
    names: Sequence[str], pages: Iterable[Rows], declared: Mapping[str, pa.DataType], where: str
) -> pa.Schema:
    """Infer the type of each SQLite column that takes all its values."""
    kinds = dict.fromkeys(names, pa.null())
    times = {name: TypeInference(times_only=True) for name in names}
    for page in pages:
        for name, values in zip(names, zip(*page, strict=True), strict=True):
            for kind in {_PYTHON_TYPES[type(value)] for value in values if value is not None}:
                joined = wider(kinds[name], kind)
                if joined is None:
                    raise InputError(
                        f"column {name!r} holds values of {kinds[name]} and of {kind}",
                        where=where,
                        hint="Cast it in data.sql.select: CAST(column AS TEXT).",
                    )
                kinds[name] = joined
            if kinds[name] == pa.string():
                times[name].add(pa.array(values, pa.string()))
    found = {name: times[name].kind if kind == pa.string() else kind for name, kind in kinds.items()}
    found |= {name: kind for name, kind in declared.items() if name in found}
    return pa.schema(list(found.items()))


def sqlite_batch(rows: Rows, schema: pa.Schema, start: int, where: str) -> pa.RecordBatch:
    """Convert SQLite's rows to columns; texts by the inferred or declared types."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        if any(isinstance(value, str) for value in values):
            texts = pa.array([None if value is None else str(value) for value in values], pa.string())
            arrays.append(convert(texts, field.type, field.name, where, start))
        else:
            arrays.append(_array(values, field, start, where))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
