"""The mixing that makes fingerprints out of 64-bit words; :mod:`trainwright.tables.fingerprint` says how.

With the finalizer ``m`` of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; its constants are Stafford's Mix13), a key ``k = m(seed + m(domain))`` and ``g`` the
golden ratio as 64 bits, a sequence of words of one domain has the hash

    m(k + length + sum over i of m(word[i] ^ m(k + (i + 1) * g)))    modulo 2**64

where ``length`` is its number of bytes. The sum of mixed words is the AdHash of Bellare and Micciancio ("A
new paradigm for collision-free hashing", EUROCRYPT 1997): it takes words in any order, so many values of any
lengths are summed at once. Of a single word, the hash is a bijection: different integers never collide.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
