"""A stable 64-bit hash of every value of a column: for splits, samples and keys, never for secrets."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.tables.decimals import decimals
from trainwright.tables.mixing import MASK, Words, of_nothing
from trainwright.tables.numbers import booleans, integers, reals, times
from trainwright.tables.texts import is_text, text_parts, texts

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
    with the finalizer of SplitMix64 and summed as in AdHash; :mod:`trainwright.tables.mixing` has the formula
    and its sources. It spreads well and is no cryptographic hash: who knows the seed can make values collide.

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
