"""Convert Arrow columns to the raw columns that transforms take, and labels to numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.transforms import MISSING_TIME, Categories, Kind, Values


def to_table(rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> pa.Table | pa.RecordBatch:
    """Return rows as Arrow; they are that, or lists by name.

    Raises:
        InputError: The lists make no table.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    try:
        return pa.table({name: pa.array(values, from_pandas=True) for name, values in rows.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, OverflowError) as error:
        raise InputError(f"these columns are not a table: {error}", where="input of the model") from None


def to_values(rows: pa.Table | pa.RecordBatch, kinds: Mapping[str, Kind]) -> dict[str, Values]:
    """Turn columns of Arrow into raw columns.

    Args:
        rows: A table or a batch with at least the columns in ``kinds``.
        kinds: What each column is, by name.

    Raises:
        InputError: A column is missing, or cannot be read as what it is said to be.
    """
    known = set(rows.schema.names)
    if missing := [name for name in kinds if name not in known]:
        raise InputError(f"no columns {missing}, which the model reads", where="input of the model")
    return {name: _to_values(_flat(rows.column(name)), kind, name) for name, kind in kinds.items()}


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _to_values(column: pa.Array, kind: Kind, name: str) -> Values:
    try:
        match kind:
            case "number":
                # Whole numbers beyond 2^53, such as keys, become the nearest that float64 has.
                numbers = pc.cast(column, pa.float64(), safe=False)
                return numbers.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
            case "time":
                microseconds = pc.cast(column, pa.timestamp("us"), safe=False).cast(pa.int64())
                return microseconds.fill_null(MISSING_TIME).to_numpy()  # type: ignore[no-any-return]
            case "category":
                return _to_categories(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise InputError(
            f"column {name!r} of type {column.type} cannot be read as a {kind}: {error}",
            where="input of the model",
        ) from None


def _to_categories(column: pa.Array) -> Categories:
    if not _is_dictionary_of_texts(column):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        # Booleans become "true" and "false".
        column = pc.cast(column, pa.string()).dictionary_encode()
    codes = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return Categories(codes=codes.astype(np.int64, copy=False), values=column.dictionary.to_pylist())


def _is_dictionary_of_texts(column: pa.Array) -> bool:
    """Tell whether a column is encoded already, with no missing value among the distinct ones."""
    if not pa.types.is_dictionary(column.type) or column.dictionary.null_count:
        return False
    kind = column.type.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def numeric_labels(column: pa.Array, *, classes: bool) -> pa.Array:
    """Return labels as numbers, whole ones if they are classes; NaN counts as missing.

    Raises:
        InputError: One that should be whole is not.
    """
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        numbers = pc.cast(column, pa.float64())
        column = pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)
    elif not classes:
        return pc.cast(column, pa.float64(), safe=False)
    try:
        return pc.cast(column, pa.int64()) if classes else column
    except pa.ArrowInvalid as error:
        raise InputError(
            f"the labels are classes, so they are whole numbers: {error}", where="training.objective.kind"
        ) from None
