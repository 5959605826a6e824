"""Fingerprints of text and bytes, taken from Arrow's buffers without making an object of any value."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.tables.mixing import BYTES, WORD, Words, finished, key_of, mixed, positions

_AT_A_TIME = 1 << 20
"""Bytes that are hashed together."""

_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(WORD + 1)], dtype=np.uint64)


def texts(array: pa.Array, seed: int) -> Words:
    """Hash text by its UTF-8, and bytes as they are."""
    data, offsets = _bytes_of(array)
    key, lengths = key_of(BYTES, seed), np.diff(offsets)
    if len(array) == 1 and lengths[0] > _AT_A_TIME:
        return finished(_sum_of_long(data[offsets[0] : offsets[1]], key), key, lengths)
    content = _Bytes(data[offsets[0] : offsets[-1]])
    return finished(_sums(content, offsets[:-1] - offsets[0], lengths, key), key, lengths)


class _Bytes:
    """Bytes of which the 64-bit word at any place can be taken, many at a time."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        padded = np.zeros(len(data) + WORD, dtype=np.uint8)
        padded[: len(data)] = data
        self._words: Words = np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))

    def words(self, at: NDArray[np.int64], left: NDArray[np.int64]) -> Words:
        """Take the little-endian word at each place, of which only the first ``left`` bytes count."""
        words: Words = self._words[at]
        words &= _FIRST_BYTES[np.minimum(left, WORD)]
        return words


def _bytes_of(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of all values, and where each value begins, and the end; shape (rows + 1,)."""
    *_, data = array.buffers()
    content = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
    return content, _offsets(array)


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        places: NDArray[np.int64] = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
        return places * np.int64(width)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64 if large else np.int32)
    within: NDArray[np.int64] = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return within


def _sums(data: _Bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64], key: int) -> Words:
    """Sum the mixed words of each value; shape (rows,). A value of no bytes has one word, 0."""
    if lengths.max(initial=0) <= WORD:
        return mixed(data.words(starts, lengths) ^ positions(key, 0, 1))
    counts = np.maximum(-(-lengths // WORD), 1)
    firsts = np.cumsum(counts) - counts
    place = np.arange(firsts[-1] + counts[-1], dtype=np.int64) - np.repeat(firsts, counts)
    words = data.words(np.repeat(starts, counts) + WORD * place, np.repeat(lengths, counts) - WORD * place)
    words ^= positions(key, 0, int(counts.max()))[place]
    return np.add.reduceat(mixed(words), firsts)


def _sum_of_long(data: NDArray[np.uint8], key: int) -> Words:
    """Sum the mixed words of one long value, a block after another; shape (1,)."""
    total: Words = np.zeros(1, dtype=np.uint64)
    for start in range(0, len(data), _AT_A_TIME):
        block = data[start : start + _AT_A_TIME]
        words: Words = np.zeros(-(-len(block) // WORD), dtype=np.uint64)
        words.view(np.uint8)[: len(block)] = block
        total += mixed(words ^ positions(key, start // WORD, len(words))).sum(dtype=np.uint64)
    return total


def text_parts(array: pa.Array, rows: int) -> Iterator[pa.Array]:
    """Cut an array into parts of at most so many rows and not many bytes; a long value is its own part."""
    start, offsets = 0, _offsets(array)
    while start < len(array):
        fit = int(np.searchsorted(offsets, offsets[start] + _AT_A_TIME, "right")) - 1
        stop = max(start + 1, min(fit, start + rows, len(array)))
        yield array.slice(start, stop - start)
        start = stop


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values are strings of characters or bytes."""
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return pa.types.is_fixed_size_binary(kind) or any(is_kind(kind) for is_kind in kinds)
