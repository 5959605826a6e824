"""The encoder that is exported, against the same thing calculated a value at a time in plain Python."""

import dataclasses
import hashlib
import math
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainwright.errors import DataRefused
from trainwright.transforms import (
    MISSING_CATEGORY,
    MISSING_TIME,
    Categories,
    Category,
    Encoded,
    Number,
    Ranked,
    TimeOf,
    Transforms,
    Values,
    encoding,
    fingerprint,
)
from trainwright.transforms.encoder import Encoder
from trainwright.transforms.encoding import Raw, require_distinct

POINTS = (-1e150, -3.5, -5e-324, 0.0, 5e-324, 1.0, 1e8, 1e8 + 1e-7, 1e150)
LEVELS = tuple((place + 0.5) / len(POINTS) for place in range(len(POINTS)))
LEARNED = ("UA", "", "true", "ä", "日本", "a\0b", "0")
TRANSFORMS = Transforms(
    numbers=(
        Number(name="x", mean=12.5, scale=0.31, indicator=True),
        Number(name="same", mean=5.0, scale=0.0, indicator=True),
        Number(name="tiny", mean=-0.0, scale=3e161, indicator=False),
    ),
    ranked=(
        Ranked(name="r", points=POINTS, levels=LEVELS, indicator=True),
        Ranked(name="one", points=(7.0,), levels=(0.5,), indicator=False),
    ),
    times=(TimeOf(name="t", indicator=True), TimeOf(name="u", indicator=False)),
    categories=(Category(name="c", values=LEARNED), Category(name="d", values=())),
)

CYCLES_US = (86_400_000_000, 604_800_000_000)
LAST = 2**63 - 1

numbers = st.floats(width=64) | st.sampled_from([1e150, -1e150, 5e-324, 2.3e-308, -0.0, *POINTS])
moments = st.integers(-(2**63), LAST) | st.sampled_from(
    [MISSING_TIME, MISSING_TIME + 1, -1, 0, 1, *CYCLES_US, -CYCLES_US[1], CYCLES_US[0] // 4, LAST]
)
texts = st.none() | st.text(max_size=4) | st.sampled_from(LEARNED)
rows = st.lists(st.tuples(*[numbers] * 5, moments, moments, texts, texts), max_size=30)

HARD = [
    (value, -value, value, value, value, moment, -moment, text, text)
    for value, moment, text in zip(
        [math.nan, math.inf, 1e150, math.nextafter(1e150, 2e150), 5e-324, -0.0, 12.5, 1e300],
        [MISSING_TIME + 1, 0, 1, LAST, 86_400_000_000 * 3 // 4, 999_999_999, 302_400_000_000, 10**15],
        [None, "UA", "ua", "", "日本", "a\0b", "a", "never"],
        strict=True,
    )
]


def column(values: Sequence[str | None]) -> Categories:
    distinct = list(dict.fromkeys(value for value in values if value is not None))
    places = [-1 if value is None else distinct.index(value) for value in values]
    return Categories(codes=np.array(places, dtype=np.int64), values=distinct)


def columns(found: Sequence[tuple[object, ...]]) -> dict[str, Values]:
    names = [*TRANSFORMS.inputs]
    by_name = dict(zip(names, zip(*found, strict=True), strict=True)) if found else dict.fromkeys(names, ())
    kinds = {"number": lambda values: np.array(values, dtype=np.float64), "category": column}
    kinds["time"] = lambda values: np.array(values, dtype=np.int64)
    return {name: kinds[TRANSFORMS.inputs[name]](values) for name, values in by_name.items()}


def usable(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= 1e150


def standard(value: float, mean: float, scale: float) -> float:
    return min(max((value - mean) * scale, -10.0), 10.0) if usable(value) else 0.0


def place(value: float, points: Sequence[float], levels: Sequence[float]) -> float:
    """By hand: the line between the two neighbours, in whole fractions."""
    from fractions import Fraction

    if not usable(value):
        return 0.0
    after = bisect_right(points, value)
    if after in (0, len(points)):
        level = Fraction(levels[0 if after == 0 else -1])
    else:
        low, high = Fraction(points[after - 1]), Fraction(points[after])
        share = (Fraction(value) - low) / (high - low)
        level = Fraction(levels[after - 1]) * (1 - share) + Fraction(levels[after]) * share
    return float(level - Fraction(1, 2)) * math.sqrt(12)


def waves(moment: int) -> list[float]:
    if moment == MISSING_TIME:
        return [0.0] * 4
    turns = [2 * math.pi * (moment % cycle) / cycle for cycle in CYCLES_US]
    return [wave(turn) for turn in turns for wave in (math.sin, math.cos)]


def by_hand(row: tuple[object, ...]) -> tuple[list[float], list[int]]:
    x, same, tiny, r, one, t, u, c, d = row
    features = [
        *(standard(x, 12.5, 0.31), float(not usable(x))),
        *(0.0, float(not usable(same))),
        standard(tiny, 0.0, 3e161),
        *(place(r, POINTS, LEVELS), float(not usable(r))),
        place(one, (7.0,), (0.5,)),
        *(*waves(t), float(t == MISSING_TIME)),
        *waves(u),
    ]
    code = 0 if c is None else LEARNED.index(c) + 2 if c in LEARNED else 1
    return features, [code, len(LEARNED) + 2 + (0 if d is None else 1)]


def exported(raw: Raw) -> Encoded:
    """Encode as a caller of the program does: row by row in memory, all three tensors."""
    tensors = (
        torch.from_numpy(np.ascontiguousarray(entry)) for entry in (raw.numbers, raw.times, raw.categories)
    )
    numeric, codes = Encoder(TRANSFORMS)(*tensors)
    return Encoded(numeric.numpy(), codes.numpy())


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(rows)
@example(HARD)
@example([])
def test_the_encoder_gives_what_is_calculated_by_hand(found: list[tuple[object, ...]]) -> None:
    encoded = TRANSFORMS.encode(columns(found))
    assert encoded.numeric.dtype == np.float32
    assert encoded.numeric.shape == (len(found), TRANSFORMS.width)
    for row, features, codes in zip(found, encoded.numeric, encoded.categories, strict=True):
        expected, expected_codes = by_hand(row)
        np.testing.assert_allclose(features, np.array(expected, dtype=np.float32), rtol=2e-7, atol=1e-9)
        assert codes.tolist() == expected_codes


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(rows)
@example(HARD)
def test_training_and_program_encode_to_the_same_bits(found: list[tuple[object, ...]]) -> None:
    learned, program = TRANSFORMS.encode(columns(found)), exported(TRANSFORMS.raw(columns(found)))
    assert program.numeric.tobytes() == learned.numeric.tobytes()
    assert np.array_equal(program.categories, learned.categories)


def test_many_random_bit_patterns_encode_to_the_same_bits_in_numpy_and_torch() -> None:
    random = np.random.default_rng(5)
    bits = random.integers(-(2**63), LAST, (40_000, 5), dtype=np.int64)
    near = random.normal(12.5, 5.0, (40_000, 5)) * 10.0 ** random.integers(-3, 9, (40_000, 5))
    values = np.where(random.random(bits.shape) < 0.3, bits.view(np.float64), near)
    times = random.integers(-(2**63), LAST, (40_000, 2), dtype=np.int64) // random.choice(
        [1, 10**3, 10**6], 2
    )
    raw = TRANSFORMS.raw(
        {name: values[:, index] for index, name in enumerate(["x", "same", "tiny", "r", "one"])}
        | {"t": times[:, 0], "u": times[:, 1]}
        | {"c": column(["UA", "x", None, ""] * 10_000), "d": column([None, "v"] * 20_000)}
    )
    learned, program = TRANSFORMS.encode_raw(raw), exported(raw)
    assert program.numeric.tobytes() == learned.numeric.tobytes()
    assert np.array_equal(program.categories, learned.categories)


def test_a_wave_is_that_of_the_standard_library_to_the_fourteenth_digit() -> None:
    times = np.arange(-CYCLES_US[1], CYCLES_US[1], 61_234_567, dtype=np.int64)
    expected = np.array([waves(int(time)) for time in times]).T
    np.testing.assert_allclose(np.stack(list(encoding._waves(times))), expected, rtol=0, atol=1e-14)


def test_a_fingerprint_is_the_first_eight_bytes_of_the_sha_256_of_the_text() -> None:
    # From `printf UA | sha256sum`, by hand.
    assert (
        hashlib.sha256(b"UA")
        .hexdigest()
        .startswith(fingerprint("UA").to_bytes(8, "little", signed=True).hex())
    )
    assert fingerprint("") == int.from_bytes(bytes.fromhex("e3b0c44298fc1c14"), "little", signed=True)
    assert fingerprint("ä") == fingerprint("\u00e4") != fingerprint("a\u0308")


def test_of_a_text_that_comes_in_many_rows_the_program_gets_one_number_a_row() -> None:
    raw = TRANSFORMS.raw(
        columns([(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, text, None) for text in ("UA", None, "UA")])
    )
    assert raw.categories[:, 0].tolist() == [fingerprint("UA"), MISSING_CATEGORY, fingerprint("UA")]
    assert raw.categories[:, 1].tolist() == [MISSING_CATEGORY] * 3


@pytest.mark.parametrize("code", [LAST, LAST - 1, MISSING_CATEGORY + 1, 0, -1])
def test_a_fingerprint_that_nothing_learned_has_is_unknown_even_at_the_ends(code: int) -> None:
    found = Encoder(TRANSFORMS).codes(torch.tensor([[code], [code]]))
    assert found.flatten().tolist() == [1, len(LEARNED) + 3]


def test_learned_values_with_one_fingerprint_are_refused() -> None:
    require_distinct("c", ["a", "b"], [1, 2])
    with pytest.raises(DataRefused, match="values 'a' and 'b' of column 'c' have the same fingerprint"):
        require_distinct("c", ["a", "b"], [1, 1])
    with pytest.raises(DataRefused, match="values 'no value' and 'a' of column 'c'"):
        require_distinct("c", ["a"], [MISSING_CATEGORY])


@pytest.mark.parametrize(
    "parts", [("numbers",), ("ranked",), ("times",), ("categories",), ("numbers", "times")]
)
def test_a_model_without_some_kinds_of_columns_encodes_all_the_same(parts: tuple[str, ...]) -> None:
    empty = {name: () for name in ("numbers", "ranked", "times", "categories") if name not in parts}
    transforms = dataclasses.replace(TRANSFORMS, **empty)
    given = {name: values for name, values in columns(HARD).items() if name in transforms.inputs}
    learned, raw = transforms.encode(given), transforms.raw(given)
    tensors = (
        torch.from_numpy(np.ascontiguousarray(entry)) for entry in (raw.numbers, raw.times, raw.categories)
    )
    program = Encoder(transforms)(*tensors)
    assert learned.numeric.shape == (len(HARD), transforms.width)
    assert learned.categories.shape == (len(HARD), len(transforms.categories))
    assert learned.numeric.tobytes() == program[0].numpy().tobytes()


def test_rows_can_be_encoded_without_torch() -> None:
    code = (
        "import sys, numpy as np; from trainwright.transforms import Number, Transforms;"
        "x = Number(name='x', mean=1., scale=2., indicator=False);"
        "t = Transforms(numbers=(x,), times=(), categories=());"
        "print(t.encode({'x': np.array([1.5])}).numeric, 'torch' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["[[1.]]", "False"]


def test_a_time_is_measured_from_the_start_of_its_day_also_before_1970() -> None:
    day = CYCLES_US[0]
    moments = np.array([-day // 4 - 365 * day, 3 * day // 4])
    sine, cosine = list(encoding._waves(moments))[:2]
    np.testing.assert_allclose(sine, -1.0, rtol=0, atol=1e-15)
    assert np.abs(cosine).max() < 1e-15
