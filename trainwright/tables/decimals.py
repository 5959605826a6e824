"""Fingerprints of decimals: equal numbers have equal ones, whatever their scale and width."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.tables.mixing import DECIMAL, INTEGER, MASK, Words, of_words
from trainwright.tables.numbers import fixed_width

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
