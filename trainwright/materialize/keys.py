"""Feast's form of stored keys and times, for whole columns at once."""

import struct
from collections.abc import Mapping

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.errors import InputError
from trainwright.materialize import wire

VERSION = 3
"""The one serialization of keys that Feast 0.67 writes; older ones are only read."""

_NUMBERS = {"INT32": ("<i4", pa.int32()), "INT64": ("<i8", pa.int64()), "UNIX_TIMESTAMP": ("<i8", pa.int64())}
_MICROSECONDS = 1_000_000
_SECONDS, _NANOS = wire.tag(1, wire.VARINT), wire.tag(2, wire.VARINT)


def entity_keys(rows: pa.Table | pa.RecordBatch, keys: Mapping[str, str]) -> pa.Array:
    """Write the key of each row as Feast looks it up.

    Args:
        rows: Has a column for each part of the key, without nulls.
        keys: Feast's type of each part, by name.

    Returns:
        Bytes, shape (rows,).

    Raises:
        InputError: A part has a type that Feast cannot look up.
    """
    from feast.infra.key_encoding_utils import serialize_entity_key_prefix

    names = sorted(keys)
    parts = [_part(name, keys[name], rows.column(name)) for name in names]
    return wire.joined(serialize_entity_key_prefix(names, VERSION), *parts)


def _part(name: str, kind: str, column: pa.Array) -> pa.Array:
    from feast.value_type import ValueType

    from trainwright.materialize.values import whole_seconds

    number = struct.pack("<I", ValueType[kind].value)
    try:
        if kind in {"STRING", "BYTES"}:
            content = column.cast(pa.binary())
            return wire.joined(number, wire.fixed(b"", wire.sizes_of(content).astype("<u4")), content)
        if kind in _NUMBERS:
            width, plain = _NUMBERS[kind]
            seconds = pa.types.is_timestamp(column.type)
            values = whole_seconds(column) if seconds else column.cast(plain).to_numpy(zero_copy_only=False)
            return wire.fixed(number + struct.pack("<I", np.dtype(width).itemsize), values.astype(width))
    except pa.ArrowException as error:
        what = f"key {name!r} is {kind}, and its column, {column.type}, holds what is not: {error}"
        raise InputError(what, where="the offline files") from None
    raise InputError(
        f"key {name!r} is {kind}: Feast looks up strings, bytes, integers and times",
        where="the feature view's entities",
        hint="Give the entity one of these as its value_type.",
    )


def timestamps(micros: wire.Ints) -> pa.Array:
    """Write times as Protobuf's ``Timestamp``. ``micros``: since 1970, shape (rows,)."""
    seconds, rest = np.divmod(micros, _MICROSECONDS)
    nothing = pa.scalar(b"", pa.binary())
    first = wire.joined(_SECONDS, wire.varints(seconds))
    second = wire.joined(_NANOS, wire.varints(rest * 1000))
    return wire.joined(
        pc.if_else(pa.array(seconds != 0), first, nothing), pc.if_else(pa.array(rest != 0), second, nothing)
    )
