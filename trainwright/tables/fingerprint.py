"""64-bit fingerprints of values: equal values have equal ones in every process, version, type and batch.

With the finalizer ``m`` of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; its constants are Stafford's Mix13), a key ``k = m(seed + m(domain))`` and ``g`` the
golden ratio as 64 bits, a sequence of words of one domain has the hash

    m(k + length + sum over i of m(word[i] ^ m(k + (i + 1) * g)))    modulo 2**64

where ``length`` is its number of bytes. The sum of mixed words is the AdHash of Bellare and Micciancio ("A
new paradigm for collision-free hashing", EUROCRYPT 1997): it takes words in any order, so many values of any
lengths are summed at once. Of a single word, the hash is a bijection: different integers never collide.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError

Words = NDArray[np.uint64]
"""Unsigned 64-bit numbers; sums and products wrap around."""

NULL, INTEGER, REAL, LARGE, DECIMAL, TIME, BYTES = range(1, 8)
"""Domains: values of one never have the words of another."""

WORD = 8
"""Bytes a word."""

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(words: Words) -> Words:
    """Mix each word, in place, with the finalizer of SplitMix64: a bijection."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def key_of(domain: int, seed: int) -> int:
    """Return the key of a domain under a seed."""
    return _mix(seed + _mix(domain))


def of_nothing(seed: int) -> np.uint64:
    """Return the hash of a null: the only value without any word."""
    return np.uint64(_mix(key_of(NULL, seed)))


def positions(key: int, start: int, count: int) -> Words:
    """Return what the words from place ``start`` on are combined with; shape (count,)."""
    place = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    return mixed(place * np.uint64(_GOLDEN) + np.uint64(key))


def finished(total: Words, key: int, lengths: Any) -> Words:
    """Turn sums of mixed words into hashes; ``lengths`` are bytes, shape (rows,) or a number."""
    total += np.asarray(lengths).astype(np.uint64)
    total += np.uint64(key)
    return mixed(total)


def of_words(domain: int, seed: int, *words: Words) -> Words:
    """Hash values that are made of as many words each; every argument holds one of each, shape (rows,)."""
    key = key_of(domain, seed)
    total: Words = np.zeros(len(words[0]), dtype=np.uint64)
    for word, position in zip(words, positions(key, 0, len(words)), strict=True):
        total += mixed(word ^ position)
    return finished(total, key, WORD * len(words))


def _mix(number: int) -> int:
    return int(mixed(np.array([number & MASK], dtype=np.uint64))[0])


_LIMIT = float(1 << 63)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UNIT = re.compile(r"\[(s|ms|us|ns)\b")
_DAY_S = 86_400


def fixed_width(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """View the values of a fixed-width array, with whatever lies where it is null."""
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype=dtype)
    return values[array.offset : array.offset + len(array)]


def booleans(array: pa.Array, seed: int) -> Words:
    """Hash true as 1 and false as 0."""
    return integers(array.cast(pa.uint8()), seed)


def integers(array: pa.Array, seed: int) -> Words:
    """Hash an integer by its 64 bits; one that only unsigned numbers reach is of its own domain."""
    values = fixed_width(array, np.dtype(str(array.type)))
    total = of_words(INTEGER, seed, values.astype(np.int64).view(np.uint64))
    if array.type == pa.uint64() and (large := values >> np.uint64(63) != 0).any():
        total[large] = of_words(LARGE, seed, values[large])
    return total


def reals(array: pa.Array, seed: int) -> Words:
    """Hash a whole number as an integer, and anything else by the bits of its double."""
    values = fixed_width(array, np.dtype(f"f{array.type.bit_width // 8}")).astype(np.float64)
    values[np.isnan(values)] = np.nan
    whole = (np.trunc(values) == values) & (values >= -_LIMIT) & (values < _LIMIT)
    words = np.where(whole, values, 0.0).astype(np.int64).view(np.uint64)
    if whole.all():
        return of_words(INTEGER, seed, words)
    total = of_words(REAL, seed, values.view(np.uint64))
    if whole.any():
        total[whole] = of_words(INTEGER, seed, words[whole])
    return total


def times(array: pa.Array, seed: int) -> Words:
    """Hash a moment, a time of day or a duration as whole seconds and the nanoseconds after them."""
    values = fixed_width(array, np.dtype(f"i{array.type.bit_width // 8}")).astype(np.int64)
    unit = _UNIT.search(str(array.type))
    if unit is None:  # a date32, which counts days
        seconds, rest = values * _DAY_S, np.zeros_like(values)
    else:
        ticks = _TICKS[unit.group(1)]
        seconds, rest = values // ticks, values % ticks * (_TICKS["ns"] // ticks)
    return of_words(TIME, seed, seconds.view(np.uint64), rest.view(np.uint64))


_LIMB = (1 << 32) - 1
_LIMBS = 8
"""32-bit digits of the widest decimal."""


def decimals(array: pa.Array, seed: int) -> Words:
    """Hash a decimal by its digits and its scale, without the zeros behind the point."""
    width = array.type.bit_width // 32
    raw = fixed_width(array, np.dtype((np.uint32, width)))
    negative = raw[:, -1] >> np.uint32(31) != 0
    limbs = np.zeros((len(array), _LIMBS), dtype=np.uint64)
    limbs[:, :width] = np.where(negative[:, None], ~raw, raw)
    carry = negative.astype(np.uint64)
    for place in range(width):
        limbs[:, place] += carry
        carry = limbs[:, place] >> np.uint64(32)
        limbs[:, place] &= np.uint64(_LIMB)
    scale = _without_zeros(limbs, array.type.scale)
    words = limbs[:, 0::2] | limbs[:, 1::2] << np.uint64(32)
    total = of_words(DECIMAL, seed, *words.T, (2 * scale + negative).astype(np.uint64))
    whole = (scale == 0) & ~words[:, 1:].any(axis=1) & (words[:, 0] <= np.uint64(MASK >> 1) + negative)
    integers = np.where(negative, ~words[:, 0] + np.uint64(1), words[:, 0])
    total[whole] = of_words(INTEGER, seed, integers[whole])
    return total


def _without_zeros(limbs: Words, scale: int) -> NDArray[np.int64]:
    """Divide by ten, in place, what ends in a zero behind the point; return each row's scale after it."""
    scales: NDArray[np.int64] = np.full(len(limbs), scale, dtype=np.int64)
    rows = np.arange(len(limbs)) if scale > 0 else np.arange(0)
    while rows.size:
        quotient, remainder = np.empty_like(limbs[rows]), np.zeros(rows.size, dtype=np.uint64)
        for place in reversed(range(limbs.shape[1])):
            current = remainder << np.uint64(32) | limbs[rows, place]
            quotient[:, place] = current // np.uint64(10)
            remainder = current % np.uint64(10)
        even = remainder == 0
        rows = rows[even]
        limbs[rows] = quotient[even]
        scales[rows] -= 1
        rows = rows[scales[rows] > 0]
    return scales


_TEXTS_AT_A_TIME = 1 << 20
"""Bytes that are hashed together."""

_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(WORD + 1)], dtype=np.uint64)


def texts(array: pa.Array, seed: int) -> Words:
    """Hash text by its UTF-8, and bytes as they are."""
    data, offsets = _bytes_of(array)
    key, lengths = key_of(BYTES, seed), np.diff(offsets)
    if len(array) == 1 and lengths[0] > _TEXTS_AT_A_TIME:
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
    for start in range(0, len(data), _TEXTS_AT_A_TIME):
        block = data[start : start + _TEXTS_AT_A_TIME]
        words: Words = np.zeros(-(-len(block) // WORD), dtype=np.uint64)
        words.view(np.uint8)[: len(block)] = block
        total += mixed(words ^ positions(key, start // WORD, len(words))).sum(dtype=np.uint64)
    return total


def text_parts(array: pa.Array, rows: int) -> Iterator[pa.Array]:
    """Cut an array into parts of at most so many rows and not many bytes; a long value is its own part."""
    start, offsets = 0, _offsets(array)
    while start < len(array):
        fit = int(np.searchsorted(offsets, offsets[start] + _TEXTS_AT_A_TIME, "right")) - 1
        stop = max(start + 1, min(fit, start + rows, len(array)))
        yield array.slice(start, stop - start)
        start = stop


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are strings of characters or bytes."""
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return pa.types.is_fixed_size_binary(kind) or any(is_kind(kind) for is_kind in kinds)


_AT_A_TIME = 1 << 15
"""Rows that are hashed together: what fits into a processor's cache."""

_VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}


def fingerprints(array: pa.Array | pa.ChunkedArray, seed: int = 0) -> Words:
    """Hash every value of a column.

    The hash of a value is the same in every process, on every machine, in every version of Arrow and NumPy,
    and does not depend on how Arrow stores it: 7 as int8, as int64, as 7.0 or as the decimal 7.00; a string
    as itself, as a large one, as binary or out of a dictionary; a moment in seconds or in nanoseconds, with
    or without a zone; a date as its midnight. True is 1, -0.0 is 0.0, every NaN is one value and every null
    another. Numbers beyond 64 bits and fractions equal those of their own kind only.

    A value is a sequence of 64-bit words of one domain: integers, reals, bytes and so on. The words are mixed
    with the finalizer of SplitMix64 and summed as in AdHash; the head of this module has the
    formula and its sources. It spreads well, but it is no cryptographic hash: who knows the seed can make
    values collide.

    Args:
        array: A column of numbers, booleans, times, decimals, text or bytes; nothing nested.
        seed: Another seed gives an independent hash; its low 64 bits count.

    Returns:
        One hash a row, shape (rows,).

    Raises:
        InputError: The values are of a type that is not hashed, such as a list.
    """
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    total: Words = np.empty(len(array), dtype=np.uint64)
    start = 0
    for chunk in chunks:
        total[start : start + len(chunk)] = _of_chunk(chunk, seed & MASK)
        start += len(chunk)
    return total


def _of_chunk(array: pa.Array, seed: int) -> Words:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if str(array.type) in _VIEWS:
        array = array.cast(_VIEWS[str(array.type)])
    if pa.types.is_dictionary(array.type):
        return _of_dictionary(array, seed)
    missing = of_nothing(seed)
    total: Words = np.full(len(array), missing, dtype=np.uint64)
    if pa.types.is_null(array.type):
        return total
    hashing, start = _hashing(array.type), 0
    for part in _parts(array):
        values = hashing(part, seed)
        if part.null_count:
            values[_nulls(part)] = missing
        total[start : start + len(part)] = values
        start += len(part)
    return total


def _of_dictionary(array: pa.DictionaryArray, seed: int) -> Words:
    """Hash each value of the dictionary once; a null may be a null index or an index of a null."""
    values = np.append(_of_chunk(array.dictionary, seed), of_nothing(seed))
    place: NDArray[Any] = pc.fill_null(array.indices.cast(pa.int64()), len(values) - 1).to_numpy()
    hashes: Words = values[place]
    return hashes


def _nulls(array: pa.Array) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _hashing(kind: pa.DataType) -> Callable[[pa.Array, int], Words]:
    for is_kind, hashing in _KINDS:
        if is_kind(kind):
            return hashing
    raise InputError(
        f"values of type {kind} have no fingerprint",
        where="fingerprints",
        hint="Take a column of numbers, booleans, times, decimals, text or bytes.",
    )


def _parts(array: pa.Array) -> Iterator[pa.Array]:
    if is_text(array.type):
        return text_parts(array, _AT_A_TIME)
    return (array.slice(start, _AT_A_TIME) for start in range(0, len(array), _AT_A_TIME))


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, int], Words]], ...] = (
    (pa.types.is_boolean, booleans),
    (pa.types.is_integer, integers),
    (pa.types.is_floating, reals),
    (pa.types.is_temporal, times),
    (pa.types.is_decimal, decimals),
    (is_text, texts),
)
