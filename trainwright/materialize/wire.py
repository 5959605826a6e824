"""Protobuf's wire format for whole columns: the bytes of every row, built with Arrow and numpy.

What comes out is an Arrow array of bytes without nulls, one entry a row.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

Ints = NDArray[np.int64]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Protobuf's wire types."""

NOTHING = pa.scalar(b"", pa.binary())
_MORE = 0x80
_LOW_SEVEN = 0x7F


def tag(number: int, wire_type: int) -> bytes:
    """Return the bytes that announce a field."""
    value, out = number << 3 | wire_type, bytearray()
    while value > _LOW_SEVEN:
        out.append(value & _LOW_SEVEN | _MORE)
        value >>= 7
    return bytes([*out, value])


def ragged(data: NDArray[np.uint8], sizes: Ints) -> pa.Array:
    """Cut bytes into entries.

    Args:
        data: All bytes, shape (sum of sizes,).
        sizes: Bytes of each entry, shape (rows,).
    """
    ends: NDArray[np.int32] = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def varints(values: Ints) -> pa.Array:
    """Write integers, 1 to 10 bytes each; negative ones take 10, as in int32 and int64. Shape (rows,)."""
    bits = np.ascontiguousarray(values, dtype=np.int64).view(np.uint64)
    sizes: Ints = np.ones(len(bits), dtype=np.int64)
    for shift in range(7, 64, 7):
        sizes += (bits >> np.uint64(shift)) != 0
    width = int(sizes.max(initial=1))
    table: NDArray[np.uint8] = np.empty((len(bits), width), dtype=np.uint8)
    for place in range(width):
        table[:, place] = (bits >> np.uint64(7 * place)).astype(np.uint8) | _MORE
    table[np.arange(len(bits)), sizes - 1] &= _LOW_SEVEN
    return ragged(table[np.arange(width) < sizes[:, None]], sizes)


def fixed(head: bytes, values: NDArray[np.generic]) -> pa.Array:
    """Write numbers of one width after the same bytes, least byte first. Shape (rows,)."""
    width = values.dtype.itemsize
    table: NDArray[np.uint8] = np.empty((len(values), len(head) + width), dtype=np.uint8)
    table[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    table[:, len(head) :] = little.view(np.uint8).reshape(len(values), width)
    return ragged(table.ravel(), np.full(len(values), len(head) + width, dtype=np.int64))


def joined(*parts: pa.Array | bytes) -> pa.Array:
    """Put parts one after the other in every row; bytes stand in each. At least one part is an array."""
    columns = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*columns, NOTHING)


def delimited(head: bytes, contents: pa.Array) -> pa.Array:
    """Write contents after a field's bytes and their own length."""
    return joined(head, varints(sizes_of(contents)), contents)


def sizes_of(contents: pa.Array) -> Ints:
    """Return the bytes of each entry, shape (rows,)."""
    sizes: Ints = pc.binary_length(contents).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def regrouped(entries: pa.Array, counts: Sequence[int] | Ints) -> pa.Array:
    """Put entries together: the first ``counts[0]`` become the first row, and so on; nothing is copied."""
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


def without_nulls(column: pa.Array) -> pa.Array:
    """Return a column of bytes with nothing where it has a null."""
    return pc.fill_null(column, NOTHING) if column.null_count else column
