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


def positions(key: int, count: int) -> Words:
    """Return what the words of a value are combined with, by their place; shape (count,)."""
    place = np.arange(1, count + 1, dtype=np.uint64)
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
    for word, position in zip(words, positions(key, len(words)), strict=True):
        total += mixed(word ^ position)
    return finished(total, key, WORD * len(words))


def _mix(number: int) -> int:
    return int(mixed(np.array([number & MASK], dtype=np.uint64))[0])


_LIMIT = 1 << 63
_DECIMAL_BYTES = 32
"""Bytes of the widest decimal."""

_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UNIT = re.compile(r"\[(s|ms|us|ns)\b")
_DAY_S = 86_400


def fixed_width(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """View the values of a fixed-width array, with whatever lies where it is null."""
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype=dtype)
    return values[array.offset : array.offset + len(array)]


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


def decimals(array: pa.Array, seed: int) -> Words:
    """Hash a decimal by its digits and its scale, without the zeros behind the point."""
    width, buffer = array.type.bit_width // 8, memoryview(array.buffers()[1])
    numbers, scales = [], []
    for place in range(array.offset, array.offset + len(array)):
        number = int.from_bytes(buffer[place * width : (place + 1) * width], "little", signed=True)
        scale = array.type.scale
        while scale > 0 and number % 10 == 0:
            number, scale = number // 10, scale - 1
        numbers.append(number)
        scales.append(scale)
    digits = b"".join(abs(number).to_bytes(_DECIMAL_BYTES, "little") for number in numbers)
    words = np.frombuffer(digits, "<u8").reshape(len(array), -1)
    heads = [2 * scale + (number < 0) for number, scale in zip(numbers, scales, strict=True)]
    total = of_words(DECIMAL, seed, *words.T, np.array(heads, np.int64).view(np.uint64))
    whole = [not scale and -_LIMIT <= number < _LIMIT for number, scale in zip(numbers, scales, strict=True)]
    integers = [number for number, is_whole in zip(numbers, whole, strict=True) if is_whole]
    total[np.array(whole)] = of_words(INTEGER, seed, np.array(integers, np.int64).view(np.uint64))
    return total


_TEXTS_AT_A_TIME = 1 << 20
"""Bytes that are hashed together."""

_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(WORD + 1)], dtype=np.uint64)


def texts(array: pa.Array, seed: int) -> Words:
    """Hash text by its UTF-8, and bytes as they are."""
    buffer, offsets = array.buffers()[-1], _offsets(array)
    data = np.frombuffer(buffer if buffer is not None else b"", dtype=np.uint8)
    key, lengths = key_of(BYTES, seed), np.diff(offsets)
    content, starts = data[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0]
    return finished(_sums(content, starts, lengths, key), key, lengths)


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        places: NDArray[np.int64] = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
        return places * np.int64(width)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64 if large else np.int32)
    within: NDArray[np.int64] = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return within


def _sums(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], key: int) -> Words:
    """Sum the mixed words of each value; shape (rows,). A value of no bytes has one word, 0."""
    padded = np.zeros(len(data) + WORD, dtype=np.uint8)
    padded[: len(data)] = data
    words_at: Words = np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))
    if lengths.max(initial=0) <= WORD:
        return mixed((words_at[starts] & _FIRST_BYTES[lengths]) ^ positions(key, 1))
    counts = np.maximum(-(-lengths // WORD), 1)
    firsts = np.cumsum(counts) - counts
    place = np.arange(firsts[-1] + counts[-1], dtype=np.int64) - np.repeat(firsts, counts)
    left = np.repeat(lengths, counts) - WORD * place
    words = words_at[np.repeat(starts, counts) + WORD * place] & _FIRST_BYTES[np.minimum(left, WORD)]
    words ^= positions(key, int(counts.max()))[place]
    return np.add.reduceat(mixed(words), firsts)


def _text_parts(array: pa.Array) -> Iterator[pa.Array]:
    """Cut an array into parts of not many rows and bytes; a long value is a part by itself."""
    start, offsets = 0, _offsets(array)
    while start < len(array):
        fit = int(np.searchsorted(offsets, offsets[start] + _TEXTS_AT_A_TIME, "right")) - 1
        stop = max(start + 1, min(fit, start + _AT_A_TIME, len(array)))
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
    another. Numbers beyond 64 bits and fractions equal those of their own kind only. It is no cryptographic
    hash: who knows the seed can make values collide.

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
    missing = np.uint64(_mix(key_of(NULL, seed)))  # a null has no word
    total: Words = np.full(len(array), missing, dtype=np.uint64)
    if pa.types.is_null(array.type):
        return total
    hashing, start = _hashing(array.type), 0
    parts = (array.slice(start, _AT_A_TIME) for start in range(0, len(array), _AT_A_TIME))
    for part in _text_parts(array) if is_text(array.type) else parts:
        values = hashing(part, seed)
        if part.null_count:
            values[part.is_null().to_numpy(zero_copy_only=False)] = missing
        total[start : start + len(part)] = values
        start += len(part)
    return total


def _of_dictionary(array: pa.DictionaryArray, seed: int) -> Words:
    """Hash each value of the dictionary once; a null may be a null index or an index of a null."""
    values = np.append(_of_chunk(array.dictionary, seed), np.uint64(_mix(key_of(NULL, seed))))
    place: NDArray[Any] = pc.fill_null(array.indices.cast(pa.int64()), len(values) - 1).to_numpy()
    hashes: Words = values[place]
    return hashes


def _hashing(kind: pa.DataType) -> Callable[[pa.Array, int], Words]:
    for is_kind, hashing in _KINDS:
        if is_kind(kind):
            return hashing
    raise InputError(
        f"values of type {kind} have no fingerprint",
        where="fingerprints",
        hint="Take a column of numbers, booleans, times, decimals, text or bytes.",
    )


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, int], Words]], ...] = (
    (pa.types.is_boolean, lambda array, seed: integers(array.cast(pa.uint8()), seed)),
    (pa.types.is_integer, integers),
    (pa.types.is_floating, reals),
    (pa.types.is_temporal, times),
    (pa.types.is_decimal, decimals),
    (is_text, texts),
)
