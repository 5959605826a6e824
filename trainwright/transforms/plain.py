"""The encoder in numpy, for models that are served without torch.

Step by step what :mod:`trainwright.transforms.encoder` does. Every step of both is an operation that IEEE 754
defines to the last bit, so they give the same bits; ``tests/transforms`` holds them to it.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainwright.transforms.encoding import (
    CLIP,
    CYCLES_S,
    FIRST,
    LARGEST,
    MISSING,
    SINE,
    UNKNOWN,
    Category,
    Encoded,
    Number,
    Ranked,
    Transforms,
)
from trainwright.transforms.raw import MISSING_CATEGORY, MISSING_TIME, Marks, Raw, fingerprint


def encode(transforms: Transforms, raw: Raw) -> Encoded:
    """Turn raw rows into what a model reads, as ``Transforms.encode`` does."""
    numeric = np.empty((len(raw), transforms.width), dtype=np.float32)
    with np.errstate(over="ignore"):  # what is cut off afterwards
        for index, feature in enumerate(_features(transforms, raw)):
            numeric[:, index] = feature
    codes = np.empty((len(raw), len(transforms.categories)), dtype=np.int64)
    offset = 0
    for index, (category, marks) in enumerate(zip(transforms.categories, raw.marks, strict=True)):
        codes[:, index] = _codes(category, marks) + offset
        offset += category.size
    return Encoded(numeric, codes)


def _features(transforms: Transforms, raw: Raw) -> Iterator[NDArray[np.generic]]:
    for number, values in zip(transforms.scaled, raw.numbers.T, strict=True):
        known = np.abs(values) <= LARGEST  # false for NaN
        yield (
            _standard(values, known, number) if isinstance(number, Number) else _place(values, known, number)
        )
        if number.indicator:
            yield ~known
    for time, moments in zip(transforms.times, raw.times.T, strict=True):
        dated = moments != MISSING_TIME
        for wave in _waves(moments):
            yield np.where(dated, wave, 0.0)
        if time.indicator:
            yield ~dated


def _standard(values: NDArray[np.float64], known: NDArray[np.bool_], column: Number) -> NDArray[np.float64]:
    centred = np.where(known, values, column.mean) - column.mean
    return np.clip(centred * column.scale, -CLIP, CLIP)


def _place(values: NDArray[np.float64], known: NDArray[np.bool_], column: Ranked) -> NDArray[np.float64]:
    points, heights = np.array(column.points), (np.array(column.levels) - 0.5) * math.sqrt(12)
    steep = np.minimum(np.diff(heights) / np.diff(points), np.finfo(np.float64).max)
    usable = np.where(known, values, 0.0)
    place = np.searchsorted(points[1:], usable, side="right")
    beyond = np.maximum(usable - points[place], 0.0)
    return np.where(known, beyond * np.append(steep, 0.0)[place] + heights[place], 0.0)


def _waves(moments: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
    """Yield sine and cosine within each cycle."""
    for cycle_s in CYCLES_S:
        cycle_us = cycle_s * 1_000_000
        turn = np.mod(moments, cycle_us).astype(np.float64) * (1 / cycle_us)
        yield _sine(np.minimum(turn, np.maximum(0.5 - turn, turn - 1)))
        yield _sine(np.abs(turn - 0.5) - 0.25)


def _sine(turn: NDArray[np.float64]) -> NDArray[np.float64]:
    square = turn * turn
    total = square * SINE[-1] + SINE[-2]
    for coefficient in SINE[-3::-1]:
        total = total * square + coefficient
    return total * turn


def _codes(column: Category, marks: Marks) -> NDArray[np.int64]:
    known = {fingerprint(value): code for code, value in enumerate(column.values, start=FIRST)}
    known[MISSING_CATEGORY] = MISSING
    table = [known.get(mark, UNKNOWN) for mark in marks.distinct.tolist()]
    return np.array(table, dtype=np.int64)[marks.places]
