"""Types of a database that gives none: SQLite's columns, by all their values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.sources.schemas import wider
from trainwright.sources.textual import KindFinder, convert

_KINDS = {bool: pa.int64(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


def observed_types(
    names: Sequence[str],
    pages: Iterable[Sequence[Sequence[Any]]],
    declared: Mapping[str, pa.DataType],
    where: str,
) -> pa.Schema:
    """Find the type of each column that takes all its values; a text column of times is one of times.

    Raises:
        InputError: A column holds values of two kinds, such as text and numbers.
    """
    kinds = dict.fromkeys(names, pa.null())
    finders = {name: KindFinder(times_only=True) for name in names}
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


def typed_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema, start: int, where: str) -> pa.RecordBatch:
    """Bring SQLite's rows to columns.

    Raises:
        InputError: A type that was said does not take a value.
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
