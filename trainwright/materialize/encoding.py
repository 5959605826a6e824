"""Feast's stored form of keys and values, encoded a whole column at a time with Arrow and numpy.

Feast 0.67 makes one Python object a value. These functions write the same bytes (``feast.types.Value`` and
Protobuf timestamps) for every type that files hold as such; maps, sets, structs, JSON and columns that Feast
has to convert go through Feast's own converter. As in Feast, NaN in a column of floats is null; a null in a
list is NaN, 0, False or empty; a time counts in whole seconds, and a null time is the least int64.

Every encoded column is an Arrow array of bytes without nulls, shape (rows,).
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.featurestore import OnlineView

Ints = NDArray[np.int64]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Protobuf's wire types."""

KEY_VERSION = 3
"""The serialization of entity keys that Feast 0.67 writes; it only reads older ones."""

NULL_TIME = np.iinfo(np.int64).min
"""What Feast stores for a null time."""

_EMPTY = pa.scalar(b"", pa.binary())
_MORE, _LOW_SEVEN = 0x80, 0x7F
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SerializedRows:
    """The newest rows of some keys, one a key, as columns and as the bytes that Feast stores.

    ``table`` has the columns by their names in the view; ``values`` each feature's ``feast.types.Value`` as
    bytes. ``event`` and ``created`` are in microseconds since 1970; ``created`` is None if the view has none.
    """

    table: pa.RecordBatch
    keys: pa.Array
    values: Mapping[str, pa.Array]
    event: Ints
    created: pa.Array | None

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows)


def encode_rows(view: OnlineView, table: pa.RecordBatch) -> SerializedRows:
    """Encode rows of a view as Feast stores them."""
    return SerializedRows(
        table=table,
        keys=entity_keys(table, view.keys),
        values={name: encode_values(name, kind, table.column(name)) for name, kind in view.features.items()},
        event=microseconds(table.column(view.time)).to_numpy(zero_copy_only=False),
        created=microseconds(table.column(view.created)) if view.created else None,
    )


def microseconds(times: pa.Array) -> pa.Array:
    """Return times as microseconds since 1970 in UTC; Feast takes a time without a zone as UTC."""
    return times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())


# Entity keys and timestamps

_KEY_NUMBERS = {
    "INT32": ("<i4", pa.int32()),
    "INT64": ("<i8", pa.int64()),
    "UNIX_TIMESTAMP": ("<i8", pa.int64()),
}


def entity_keys(rows: pa.Table | pa.RecordBatch, keys: Mapping[str, str]) -> pa.Array:
    """Serialize the entity key of each row.

    ``keys`` has Feast's type of each part, by name; the parts have no nulls.
    """
    from feast.infra.key_encoding_utils import serialize_entity_key_prefix

    names = sorted(keys)
    parts = [_key_part(name, keys[name], rows.column(name)) for name in names]
    return join_parts(serialize_entity_key_prefix(names, KEY_VERSION), *parts)


def _key_part(name: str, kind: str, column: pa.Array) -> pa.Array:
    from feast.value_type import ValueType

    number = struct.pack("<I", ValueType[kind].value)
    try:
        if kind in {"STRING", "BYTES"}:
            content = column.cast(pa.binary())
            return join_parts(number, fixed(b"", sizes_of(content).astype("<u4")), content)
        if kind in _KEY_NUMBERS:
            width, plain = _KEY_NUMBERS[kind]
            seconds = pa.types.is_timestamp(column.type)
            values = whole_seconds(column) if seconds else column.cast(plain).to_numpy(zero_copy_only=False)
            return fixed(number + struct.pack("<I", np.dtype(width).itemsize), values.astype(width))
    except pa.ArrowException as error:
        what = f"key {name!r} is {kind}, but its column ({column.type}) has other values: {error}"
        raise InputError(what, where="the offline files") from None
    raise InputError(
        f"key {name!r} is {kind}: Feast looks up strings, bytes, integers and times",
        where="the feature view's entities",
        hint="Give the entity one of these as its value_type.",
    )


def timestamps(micros: Ints) -> pa.Array:
    """Encode times as Protobuf's ``Timestamp``. ``micros``: since 1970, shape (rows,)."""
    seconds, rest = np.divmod(micros, _MICROSECONDS)
    first = join_parts(_tag(1, VARINT), varints(seconds))
    second = join_parts(_tag(2, VARINT), varints(rest * 1000))
    return join_parts(
        pc.if_else(pa.array(seconds != 0), first, _EMPTY), pc.if_else(pa.array(rest != 0), second, _EMPTY)
    )


# Values


@dataclass(frozen=True)
class _Kind:
    """Encoder of one Feast type: a field of ``feast.types.Value`` with its wire type.

    ``fits`` tells whether an Arrow type holds such values as they are; ``payload`` encodes a column in which
    ``fill`` replaced the nulls. A null is an empty value, unless Feast stores it.
    """

    field: str
    fits: Callable[[pa.DataType], bool]
    payload: Callable[[pa.Array], pa.Array]
    wire_type: int
    fill: Any
    stored_null: bool = False


def _floats(width: str) -> Callable[[pa.Array], pa.Array]:
    def encode(column: pa.Array) -> pa.Array:
        with np.errstate(over="ignore"):  # as in Feast, a double beyond a float's range becomes infinite
            return fixed(b"", column.to_numpy(zero_copy_only=False).astype(width))

    return encode


def _integers(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def encode(column: pa.Array) -> pa.Array:
        return varints(column.cast(kind).to_numpy(zero_copy_only=False).astype(np.int64))

    return encode


def whole_seconds(column: pa.Array, *, down: bool = True) -> Ints:
    """Return times in whole seconds since 1970, rounded down or towards it; a null is :data:`NULL_TIME`."""
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    known = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False)
    towards_zero = np.sign(known) * (np.abs(known) // _MICROSECONDS)
    seconds: Ints = known // _MICROSECONDS if down else towards_zero
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), seconds, NULL_TIME)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _text(field: str) -> _Kind:
    return _Kind(field, pa.types.is_string, lambda column: column.cast(pa.binary()), LENGTH, "")


_TYPES = pa.types
_BYTES = _Kind("bytes_val", _TYPES.is_binary, lambda column: column.cast(pa.binary()), LENGTH, b"")
_SCALARS: Mapping[str, _Kind] = {
    "DOUBLE": _Kind("double_val", _is_number, _floats("<f8"), FIXED64, np.nan),
    "FLOAT": _Kind("float_val", _TYPES.is_floating, _floats("<f4"), FIXED32, np.nan),
    "INT64": _Kind("int64_val", _TYPES.is_integer, _integers(pa.int64()), VARINT, 0),
    "INT32": _Kind("int32_val", _TYPES.is_integer, _integers(pa.int32()), VARINT, 0),
    "BOOL": _Kind("bool_val", _TYPES.is_boolean, _integers(pa.int8()), VARINT, False),
    "STRING": _text("string_val"),
    "BYTES": _BYTES,
    "PDF_BYTES": _BYTES,
    "IMAGE_BYTES": _BYTES,
    "UUID": _text("uuid_val"),
    "TIME_UUID": _text("time_uuid_val"),
    "UNIX_TIMESTAMP": _Kind(
        "unix_timestamp_val",
        _TYPES.is_timestamp,
        lambda column: varints(whole_seconds(column)),
        VARINT,
        None,
        stored_null=True,
    ),
}
_LISTED = ("DOUBLE", "FLOAT", "INT64", "INT32", "BOOL", "STRING", "BYTES", "UNIX_TIMESTAMP")


def is_fast(kind: str, column: pa.DataType) -> bool:
    """Tell whether a column of a Feast type is encoded from arrays, and not by Feast's converter."""
    listed = kind.removesuffix("_LIST")
    if listed != kind:
        is_list = pa.types.is_list(column) or pa.types.is_large_list(column)
        return listed in _LISTED and is_list and _SCALARS[listed].fits(column.value_type)
    return kind in _SCALARS and _SCALARS[kind].fits(column)


def encode_values(name: str, kind: str, column: pa.Array) -> pa.Array:
    """Encode a feature's values, of a type such as ``DOUBLE_LIST``, as Feast stores them; a null is empty."""
    try:
        if not is_fast(kind, column.type):
            found = [value.SerializeToString(deterministic=True) for value in feast_values(kind, column)]
            return pa.array(found, pa.binary())
        listed = kind.removesuffix("_LIST")
        return _list(kind, _SCALARS[listed], column) if listed != kind else _scalar(_SCALARS[kind], column)
    except (pa.ArrowException, ValueError, TypeError, AssertionError) as error:
        what = f"feature {name!r} is {kind}, but its column ({column.type}) has other values: {error}"
        raise InputError(what, where="the offline files") from None


def feast_values(kind: str, column: pa.Array) -> list[Any]:
    """Convert a column with Feast's own converter, into its ``Value`` messages.

    Integers are passed as Python's: in numpy's, which Feast would use, one null makes them all floats. Bytes
    get one more entry that is not empty: Feast takes a column of empty ones for nulls.
    """
    from feast.type_map import python_values_to_proto_values
    from feast.value_type import ValueType

    if pa.types.is_binary(column.type):
        return list(python_values_to_proto_values([*column.to_pylist(), b"some"], ValueType[kind])[:-1])
    inner = column.type.value_type if pa.types.is_list(column.type) else column.type
    values: Any = column.to_pylist() if pa.types.is_integer(inner) else column.to_numpy(zero_copy_only=False)
    return list(python_values_to_proto_values(values, ValueType[kind]))


def _scalar(kind: _Kind, column: pa.Array) -> pa.Array:
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    head = _tag(_number(kind.field), kind.wire_type)
    payload = kind.payload(column if kind.stored_null else _filled(column, kind.fill))
    whole = _delimited(head, payload) if kind.wire_type == LENGTH else join_parts(head, payload)
    if not column.null_count or kind.stored_null:
        return whole
    return pc.if_else(column.is_valid(), whole, _EMPTY)


def _list(name: str, kind: _Kind, column: pa.Array) -> pa.Array:
    entries, entry = column.flatten(), _tag(1, LENGTH)
    if kind.stored_null:  # Feast rounds the times of a list towards 1970, and single ones down
        payload = varints(whole_seconds(entries, down=False))
    else:
        payload = kind.payload(_filled(entries, kind.fill))
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    if kind.wire_type == LENGTH:
        inner = _regroup(_delimited(entry, payload), counts)
    else:
        packed = _delimited(entry, _regroup(payload, counts))
        inner = pc.if_else(pa.array(counts > 0), packed, _EMPTY)
    whole = _delimited(_tag(_number(f"{name.lower()}_val"), LENGTH), inner)
    return pc.if_else(column.is_valid(), whole, _EMPTY) if column.null_count else whole


def _filled(column: pa.Array, fill: Any) -> pa.Array:
    if not column.null_count:
        return column
    number = pa.types.is_integer(column.type) and isinstance(fill, float)
    wide = column.cast(pa.float64()) if number else column
    return pc.fill_null(wide, pa.scalar(fill, wide.type))


@cache
def _number(field: str) -> int:
    from feast.protos.feast.types.Value_pb2 import Value

    return int(Value.DESCRIPTOR.fields_by_name[field].number)


# Protobuf's wire format


def _tag(number: int, wire_type: int) -> bytes:
    value, out = number << 3 | wire_type, bytearray()
    while value > _LOW_SEVEN:
        out.append(value & _LOW_SEVEN | _MORE)
        value >>= 7
    return bytes([*out, value])


def _split(data: NDArray[np.uint8], sizes: Ints) -> pa.Array:
    """Split bytes into entries of given sizes. ``data``: shape (sum of sizes,)."""
    ends: NDArray[np.int32] = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def varints(values: Ints) -> pa.Array:
    """Encode integers in 1 to 10 bytes each; negative ones take 10, as in int32 and int64."""
    bits = np.ascontiguousarray(values, dtype=np.int64).view(np.uint64)
    sizes: Ints = np.ones(len(bits), dtype=np.int64)
    for shift in range(7, 64, 7):
        sizes += (bits >> np.uint64(shift)) != 0
    width = int(sizes.max(initial=1))
    table: NDArray[np.uint8] = np.empty((len(bits), width), dtype=np.uint8)
    for index in range(width):
        table[:, index] = (bits >> np.uint64(7 * index)).astype(np.uint8) | _MORE
    table[np.arange(len(bits)), sizes - 1] &= _LOW_SEVEN
    return _split(table[np.arange(width) < sizes[:, None]], sizes)


def fixed(head: bytes, values: NDArray[np.generic]) -> pa.Array:
    """Encode numbers of one width after the same head, least byte first."""
    width = values.dtype.itemsize
    table: NDArray[np.uint8] = np.empty((len(values), len(head) + width), dtype=np.uint8)
    table[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    table[:, len(head) :] = little.view(np.uint8).reshape(len(values), width)
    return _split(table.ravel(), np.full(len(values), len(head) + width, dtype=np.int64))


def join_parts(*parts: pa.Array | bytes) -> pa.Array:
    """Join parts row by row; a part of bytes stands in every row. At least one part is an array."""
    columns = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*columns, _EMPTY)


def _delimited(head: bytes, contents: pa.Array) -> pa.Array:
    return join_parts(head, varints(sizes_of(contents)), contents)


def sizes_of(contents: pa.Array) -> Ints:
    """Return the bytes of each entry, shape (rows,)."""
    sizes: Ints = pc.binary_length(contents).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def _regroup(entries: pa.Array, counts: Sequence[int] | Ints) -> pa.Array:
    """Join runs of entries: the first ``counts[0]`` become the first row, and so on, without copying."""
    _, offsets, data = entries.buffers()
    starts = np.frombuffer(offsets, dtype=np.int32)[entries.offset : entries.offset + len(entries) + 1]
    ends: Ints = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ends[1:])
    buffers = [None, pa.py_buffer(np.ascontiguousarray(starts[ends])), data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)


def span(entries: pa.Array, first: int, last: int) -> memoryview:
    """Return the bytes of entries ``[first, last)`` as one piece, without copying."""
    _, offsets, data = entries.buffers()
    starts = np.frombuffer(offsets, dtype=np.int32)[entries.offset :]
    return memoryview(data)[int(starts[first]) : int(starts[last])] if data else memoryview(b"")
