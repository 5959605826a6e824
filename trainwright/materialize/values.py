"""Feast's form of stored values: ``feast.types.Value`` as bytes, a whole column at a time.

Feast 0.67 makes one Python object a value; this writes the same bytes with Arrow and numpy, for every type
that files hold as such. What is left (maps, sets, structs, JSON, and columns of a type that Feast converts)
goes through Feast's own converter. As Feast has it: NaN in a column of floats is null; a null in a list is
NaN, 0, False or empty; a time counts in whole seconds, and a null time is the least number there is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.materialize import wire

NULL_TIME = np.iinfo(np.int64).min
"""What Feast stores for a time that is null."""

_ENTRY = wire.tag(1, wire.LENGTH)
"""Announces the entries of a list in each of Feast's list messages."""

_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Kind:
    """How the values of one Feast type are written.

    Attributes:
        field: The field of ``feast.types.Value``.
        fits: Whether an Arrow type holds such values as they are.
        payload: Writes a column without nulls: what follows the field's own bytes.
        wire_type: How the payload is announced.
        absent: What stands for a null; the column is filled with it before it is written.
        stored_null: Whether that is stored; else a null is nothing at all.
    """

    field: str
    fits: Callable[[pa.DataType], bool]
    payload: Callable[[pa.Array], pa.Array]
    wire_type: int
    absent: Any
    stored_null: bool = False


def _floats(width: str) -> Callable[[pa.Array], pa.Array]:
    def write(column: pa.Array) -> pa.Array:
        with np.errstate(over="ignore"):  # a double beyond a float's range is infinite there, as in Feast
            return wire.fixed(b"", column.to_numpy(zero_copy_only=False).astype(width))

    return write


def _integers(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def write(column: pa.Array) -> pa.Array:
        return wire.varints(column.cast(kind).to_numpy(zero_copy_only=False).astype(np.int64))

    return write


def _bits(column: pa.Array) -> pa.Array:
    return wire.varints(column.to_numpy(zero_copy_only=False).astype(np.int64))


def _texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _seconds(column: pa.Array) -> pa.Array:
    return wire.varints(whole_seconds(column))


def _listed_seconds(column: pa.Array) -> pa.Array:
    """Write times of lists, which Feast rounds towards 1970, and single ones down."""
    return wire.varints(whole_seconds(column, down=False))


def whole_seconds(column: pa.Array, *, down: bool = True) -> wire.Ints:
    """Return times in whole seconds since 1970; a null is :data:`NULL_TIME`. Shape (rows,)."""
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    known = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False)
    towards_zero = np.sign(known) * (np.abs(known) // _MICROSECONDS)
    seconds: wire.Ints = known // _MICROSECONDS if down else towards_zero
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, seconds, NULL_TIME)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


_INT32, _INT64 = _integers(pa.int32()), _integers(pa.int64())
_SCALARS: Mapping[str, Kind] = {
    "DOUBLE": Kind("double_val", _is_number, _floats("<f8"), wire.FIXED64, np.nan),
    "FLOAT": Kind("float_val", pa.types.is_floating, _floats("<f4"), wire.FIXED32, np.nan),
    "INT64": Kind("int64_val", pa.types.is_integer, _INT64, wire.VARINT, 0),
    "INT32": Kind("int32_val", pa.types.is_integer, _INT32, wire.VARINT, 0),
    "BOOL": Kind("bool_val", pa.types.is_boolean, _bits, wire.VARINT, False),
    "STRING": Kind("string_val", pa.types.is_string, _texts, wire.LENGTH, ""),
    "BYTES": Kind("bytes_val", pa.types.is_binary, _texts, wire.LENGTH, b""),
    "PDF_BYTES": Kind("bytes_val", pa.types.is_binary, _texts, wire.LENGTH, b""),
    "IMAGE_BYTES": Kind("bytes_val", pa.types.is_binary, _texts, wire.LENGTH, b""),
    "UUID": Kind("uuid_val", pa.types.is_string, _texts, wire.LENGTH, ""),
    "TIME_UUID": Kind("time_uuid_val", pa.types.is_string, _texts, wire.LENGTH, ""),
    "UNIX_TIMESTAMP": Kind(
        "unix_timestamp_val", pa.types.is_timestamp, _seconds, wire.VARINT, None, stored_null=True
    ),
}
_LISTED = ("DOUBLE", "FLOAT", "INT64", "INT32", "BOOL", "STRING", "BYTES", "UNIX_TIMESTAMP")


def is_fast(kind: str, column: pa.DataType) -> bool:
    """Tell whether a column of a Feast type is written here, and not by Feast's own converter."""
    listed = kind.removesuffix("_LIST")
    if listed != kind:
        is_list = pa.types.is_list(column) or pa.types.is_large_list(column)
        return listed in _LISTED and is_list and _SCALARS[listed].fits(column.value_type)
    return kind in _SCALARS and _SCALARS[kind].fits(column)


def encode(name: str, kind: str, column: pa.Array) -> pa.Array:
    """Write a column's values as Feast stores them.

    Args:
        name: The feature, for the error.
        kind: Feast's name of its type, such as ``DOUBLE_LIST``.
        column: The values, shape (rows,).

    Returns:
        The bytes of each ``feast.types.Value``; nothing for a null. Shape (rows,).

    Raises:
        InputError: A value is not of the type.
    """
    try:
        if not is_fast(kind, column.type):
            return _by_feast(kind, column)
        listed = kind.removesuffix("_LIST")
        return _list(kind, _SCALARS[listed], column) if listed != kind else _scalar(_SCALARS[kind], column)
    except (pa.ArrowException, ValueError, TypeError, AssertionError) as error:
        what = f"feature {name!r} is {kind}, and its column, {column.type}, holds what is not: {error}"
        raise InputError(what, where="the offline files") from None


def _scalar(kind: Kind, column: pa.Array) -> pa.Array:
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    head = wire.tag(_number(kind.field), kind.wire_type)
    filled = column if kind.stored_null else _filled(column, kind.absent)
    payload = kind.payload(filled)
    whole = wire.delimited(head, payload) if kind.wire_type == wire.LENGTH else wire.joined(head, payload)
    if not column.null_count or kind.stored_null:
        return whole
    return pc.if_else(column.is_valid(), whole, wire.NOTHING)


def _list(name: str, kind: Kind, column: pa.Array) -> pa.Array:
    entries = column.flatten()
    write = _listed_seconds if kind.stored_null else kind.payload
    payload = write(entries if kind.stored_null else _filled(entries, kind.absent))
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    if kind.wire_type == wire.LENGTH:
        inner = wire.regrouped(wire.delimited(_ENTRY, payload), counts)
    else:
        packed = wire.delimited(_ENTRY, wire.regrouped(payload, counts))
        inner = pc.if_else(pa.array(counts > 0), packed, wire.NOTHING)
    whole = wire.delimited(wire.tag(_number(f"{name.lower()}_val"), wire.LENGTH), inner)
    return pc.if_else(column.is_valid(), whole, wire.NOTHING) if column.null_count else whole


def _filled(column: pa.Array, absent: Any) -> pa.Array:
    if not column.null_count:
        return column
    number = pa.types.is_integer(column.type) and isinstance(absent, float)
    wide = column.cast(pa.float64()) if number else column
    return pc.fill_null(wide, pa.scalar(absent, wide.type))


@cache
def _number(field: str) -> int:
    from feast.protos.feast.types.Value_pb2 import Value

    return int(Value.DESCRIPTOR.fields_by_name[field].number)


def _by_feast(kind: str, column: pa.Array) -> pa.Array:
    values = [value.SerializeToString(deterministic=True) for value in feast_values(kind, column)]
    return pa.array(values, pa.binary())


def feast_values(kind: str, column: pa.Array) -> list[Any]:
    """Convert a column with Feast's own converter, into its ``Value`` messages.

    Integers are handed over as Python's: by Feast's own way, numpy's, one null makes them all floats. Bytes
    come with one more that is not empty: a column of nothing else Feast takes for nulls.
    """
    from feast.type_map import python_values_to_proto_values
    from feast.value_type import ValueType

    if pa.types.is_binary(column.type):
        return list(python_values_to_proto_values([*column.to_pylist(), b"some"], ValueType[kind])[:-1])

    inner = column.type.value_type if pa.types.is_list(column.type) else column.type
    values: Any = column.to_pylist() if pa.types.is_integer(inner) else column.to_numpy(zero_copy_only=False)
    return list(python_values_to_proto_values(values, ValueType[kind]))


def texts(kind: str, column: pa.Array, encoded: pa.Array) -> list[str | None]:
    """Return what Feast's SQL stores keep beside a value for searching: numbers and strings as text.

    Args:
        kind: Feast's name of the type.
        column: The values.
        encoded: The same, as :func:`encode` gave them.
    """
    if not is_fast(kind, column.type):
        return _texts_by_feast(encoded)
    if kind == "STRING":
        return list(column.to_pylist())
    if kind not in {"DOUBLE", "FLOAT", "INT64", "INT32", "BOOL"}:
        return [None] * len(column)
    if kind in {"DOUBLE", "FLOAT"}:
        with np.errstate(over="ignore"):
            width = np.float64 if kind == "DOUBLE" else np.float32
            floats = column.to_numpy(zero_copy_only=False).astype(width).astype(np.float64)
        return [None if value != value else repr(value) for value in floats.tolist()]  # noqa: PLR0124 - NaN
    return [None if value is None else str(value) for value in column.to_pylist()]


def _texts_by_feast(encoded: pa.Array) -> list[str | None]:
    from feast.infra.online_stores.helpers import extract_text_and_num
    from feast.protos.feast.types.Value_pb2 import Value

    return [extract_text_and_num(Value.FromString(value), False)[0] for value in encoded.to_pylist()]
