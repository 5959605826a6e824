"""Convert Arrow columns to the raw columns that transforms take, and labels to numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.transforms import MISSING_TIME, Categories, Kind, Raw, Transforms, Values
from trainwright.transforms.encoding import require


class UnreadableValueError(InputError):
    """A value of a column that cannot be read as its kind; ``row`` is its position in the rows."""

    def __init__(self, name: str, kind: Kind, row: int, value: object) -> None:
        super().__init__(
            f"column {name!r} cannot be read as a {kind}: row {row:,}, counted from 0, holds {value!r:.80}",
            where="input of the model",
            hint=f"The model was trained with a {kind} in {name!r}: correct the value, or leave it empty.",
        )
        self.name, self.kind, self.row, self.value = name, kind, row, value


def to_raw(rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]], transforms: Transforms) -> Raw:
    """Convert rows, as Arrow or as lists by name, to the arrays that a program takes, or raise InputError."""
    return transforms.raw(to_values(to_table(rows), transforms.inputs))


def to_table(rows: pa.Table | pa.RecordBatch | Mapping[str, Sequence[Any]]) -> pa.Table | pa.RecordBatch:
    """Return rows, as Arrow or as lists by name, as Arrow; raise InputError for lists that make no table."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    try:
        return pa.table({name: pa.array(values, from_pandas=True) for name, values in rows.items()})
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, OverflowError) as error:
        raise InputError(f"these columns are not a table: {error}", where="input of the model") from None


def to_values(rows: pa.Table | pa.RecordBatch, kinds: Mapping[str, Kind]) -> dict[str, Values]:
    """Convert columns of Arrow, each of its kind, to raw columns; raise InputError for one that cannot be."""
    require(rows.schema.names, kinds)
    return {name: _to_values(rows.column(name), kind, name) for name, kind in kinds.items()}


def _to_values(column: pa.Array | pa.ChunkedArray, kind: Kind, name: str) -> Values:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
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
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        if len(column) > 1:
            half = len(column) // 2
            _to_values(column.slice(0, half), kind, name)
            _after(column.slice(half), kind, name, half)
        raise UnreadableValueError(name, kind, 0, _first_value(column)) from None


def _first_value(column: pa.Array) -> Any:
    """Return the first value of a column; bytes where a text is no UTF-8, and the type of an empty column."""
    if not len(column):
        return str(column.type)
    try:
        return column[0].as_py()
    except UnicodeDecodeError:
        return column[0].as_buffer().to_pybytes()


def _after(column: pa.Array, kind: Kind, name: str, start: int) -> None:
    """Find the unreadable value of a column, whose rows begin at ``start``."""
    try:
        _to_values(column, kind, name)
    except UnreadableValueError as error:
        raise UnreadableValueError(name, kind, start + error.row, error.value) from None


def _to_categories(column: pa.Array) -> Categories:
    is_dictionary = pa.types.is_dictionary(column.type)
    texts = is_dictionary and column.type.value_type in (pa.string(), pa.large_string())
    if not texts or column.dictionary.null_count:
        # Booleans become "true" and "false".
        plain = column.dictionary_decode() if is_dictionary else column
        column = pc.cast(plain, pa.string()).dictionary_encode()
    codes = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return Categories(codes=codes.astype(np.int64, copy=False), values=column.dictionary.to_pylist())


def to_tokens(column: pa.Array) -> pa.Array:
    """Return the tokens of each row as lists: token ids as they are, of text the bytes of its UTF-8."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    encoded = column.fill_null("").cast(pa.large_binary())
    _, offsets, data = encoded.buffers()
    starts = np.frombuffer(offsets, np.int64)[encoded.offset : encoded.offset + len(encoded) + 1]
    values = np.frombuffer(data or b"", np.uint8)
    return pa.LargeListArray.from_arrays(pa.array(starts), pa.array(values))


def numeric_labels(column: pa.Array, *, classes: bool) -> pa.Array:
    """Return labels as numbers, whole ones if they are classes; NaN counts as missing.

    Raises:
        InputError: A class is not a whole number.
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
            f"the labels are classes, so they are whole numbers: {error}",
            where="label of the training set",
            hint="Set data.label_kind: regression if the label is an amount.",
        ) from None
