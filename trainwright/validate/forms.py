"""Columns in the form that TFDV takes: every row a list of values, or null."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.validate.ordering import ascending
from trainwright.validate.tfdv import array_util

_DAYS_OR_SECONDS = 32
"""Bits of the temporal types that are stored in a shorter integer."""


def prepared(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Bring the columns of a batch into types that TFDV takes, each one's numbers in ascending order.

    The columns of a row lie apart afterwards: no statistic looks at two of them. Columns of a type that TFDV
    cannot take are left out; :func:`unreadable` names them.
    """
    pairs = zip(batch.schema.names, batch.columns, strict=True)
    flat = {name: column if _is_text(column.type) else readable(column) for name, column in pairs}
    return {name: _in_order(column) for name, column in flat.items() if column is not None}


def listed(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Make every row of prepared columns a list of values, or null."""
    arrays = [
        column if pa.types.is_large_list(column.type) else array_util.ToSingletonListArray(column)
        for column in columns.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def numbers(column: pa.Array) -> NDArray[np.float64]:
    """Return the numbers of a prepared column in ascending order, null and NaN left out; none of other types.

    Shape (numbers,); whole numbers beyond 2 to the 53rd are rounded.
    """
    if pa.types.is_large_list(column.type):
        column = _in_order(column.flatten())
    if not _is_number(column.type):
        return np.empty(0)
    values = column.slice(0, len(column) - column.null_count).to_numpy().astype(np.float64, copy=False)
    found: NDArray[np.float64] = values[: np.searchsorted(values, np.inf, side="right")]
    return found


def _in_order(column: pa.Array) -> pa.Array:
    """Put the numbers of a column into ascending order, NaN and then null last; leave others as they are."""
    if not _is_number(column.type):
        return column
    values = column.drop_null().to_numpy(zero_copy_only=False)
    found = pa.array(ascending(values), column.type)
    return pa.concat_arrays([found, pa.nulls(column.null_count, column.type)]) if column.null_count else found


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    """Whether TFDV takes a column as it is: text, of which it makes the same as of bytes."""
    of = pa.types
    return any(holds(kind) for holds in (of.is_string, of.is_large_string, of.is_binary, of.is_large_binary))


def unreadable(schema: pa.Schema) -> dict[str, str]:
    """Return the columns that TFDV cannot take, with their types: structs, maps, unions."""
    return {field.name: str(field.type) for field in schema if _target(field.type) is None}


def readable(array: pa.Array) -> pa.Array | None:
    """Bring a column into a type that TFDV takes, or return None.

    Integers and booleans become 64-bit and 8-bit integers, decimals and floats doubles, strings bytes.
    Timestamps become whole seconds since 1970 in UTC, dates days; a time of the day or a duration stays the
    number it is stored as.
    """
    target = _target(array.type)
    if target is None or target == array.type:
        return None if target is None else array
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False)
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == _DAYS_OR_SECONDS else pa.int64())
    return array.cast(target)


def _target(kind: pa.DataType) -> Any:
    """Return the type under which TFDV takes a column; None if it does not."""
    of = pa.types
    if of.is_list(kind) or of.is_large_list(kind):
        inner = _target(kind.value_type)
        flat = inner is not None and not of.is_large_list(inner) and not of.is_temporal(kind.value_type)
        return pa.large_list(inner) if flat else None
    if of.is_dictionary(kind):
        return _target(kind.value_type)
    forms = (
        (of.is_boolean(kind), pa.int8()),
        (of.is_unsigned_integer(kind), pa.uint64()),
        (of.is_signed_integer(kind) or of.is_temporal(kind), pa.int64()),
        (of.is_float32(kind) or of.is_float64(kind) or of.is_decimal(kind), pa.float64()),
        (of.is_null(kind) or _is_text(kind), pa.large_binary()),
    )
    return next((target for holds, target in forms if holds), None)
