import datetime as dt
import math
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables.slow_fingerprint import mix, slow_fingerprint
from trainwright.errors import InputError
from trainwright.tables import fingerprints

PINNED = {
    None: 8199580975773293796,
    7: 4223171065159040096,
    -1: 5935301375146945875,
    0.5: 236092516597471855,
    "a": 15721727851385122620,
    "": 4138424368856890209,
    "hello there, world": 6571017668915248579,
}
"""Answers that must never change: splits and remembered keys depend on them."""


def test_mixing_is_that_of_splitmix64() -> None:
    state, first = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        first.append(mix(state))
    assert first == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize(("value", "expected"), PINNED.items())
def test_known_answers_stay_as_they_are(value: float | str | None, expected: int) -> None:
    kind = pa.string() if value is None else None
    assert fingerprints(pa.array([value], kind)).tolist() == [expected]
    assert slow_fingerprint(value) == expected


SEEDS = st.integers(0, 2**70)
WHOLE = st.integers(-(2**63), 2**63 - 1)
COLUMNS = st.one_of(
    st.tuples(st.just(pa.int64()), st.lists(st.one_of(st.none(), WHOLE))),
    st.tuples(st.just(pa.uint64()), st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 1)))),
    st.tuples(st.just(pa.float64()), st.lists(st.one_of(st.none(), st.floats()))),
    st.tuples(st.just(pa.float32()), st.lists(st.one_of(st.none(), st.floats(width=32)))),
    st.tuples(st.just(pa.bool_()), st.lists(st.one_of(st.none(), st.booleans()))),
    st.tuples(st.just(pa.string()), st.lists(st.one_of(st.none(), st.text(max_size=40)))),
    st.tuples(st.just(pa.large_binary()), st.lists(st.one_of(st.none(), st.binary(max_size=40)))),
    st.tuples(st.just(pa.binary(11)), st.lists(st.one_of(st.none(), st.binary(min_size=11, max_size=11)))),
    st.tuples(
        st.just(pa.timestamp("us", tz="UTC")),
        st.lists(st.one_of(st.none(), st.datetimes(timezones=st.just(dt.UTC)))),
    ),
    st.tuples(st.just(pa.date32()), st.lists(st.one_of(st.none(), st.dates()))),
    st.tuples(
        st.just(pa.decimal128(38, 6)),
        st.lists(st.one_of(st.none(), st.decimals(-(10**31), 10**31, places=6, allow_nan=False))),
    ),
    st.tuples(
        st.just(pa.decimal256(70, 20)),
        st.lists(st.one_of(st.none(), st.decimals(-(10**7), 10**7, places=20, allow_nan=False))),
    ),
)


@settings(max_examples=250)
@given(column=COLUMNS, seed=SEEDS, skipped=st.integers(0, 3))
def test_every_value_has_the_fingerprint_of_its_definition(
    column: tuple[pa.DataType, list], seed: int, skipped: int
) -> None:
    kind, values = column
    found = fingerprints(pa.array(values, kind).slice(skipped), seed)
    assert found.tolist() == [slow_fingerprint(value, seed) for value in values[skipped:]]


DAY, LONG_AGO = dt.datetime(2024, 2, 29), dt.datetime(1901, 1, 1, tzinfo=dt.UTC)
UNITS = ("s", "ms", "us", "ns")
NUMBERS = [pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal256(50, 3)]
SAME = [
    (7, [*NUMBERS, pa.uint8(), pa.uint64(), pa.decimal128(9, 2), pa.decimal128(38, 10)]),
    (-1, [*NUMBERS, pa.decimal128(9, 2)]),
    (0, [*NUMBERS, pa.decimal128(5, 5)]),
    ("é day", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(6)]),
    (DAY, [pa.date32(), pa.date64(), *(pa.timestamp(unit) for unit in UNITS)]),
    (LONG_AGO, [pa.timestamp("s", tz="UTC"), pa.timestamp("us", tz="Asia/Tokyo")]),
    (dt.time(1, 2, 3), [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    (dt.timedelta(seconds=-3), [pa.duration(unit) for unit in UNITS]),
    (Decimal("0.50"), [pa.decimal128(3, 2), pa.decimal128(38, 12), pa.decimal256(76, 30)]),
]


@pytest.mark.parametrize(("value", "kinds"), SAME)
def test_equal_values_of_other_types_have_equal_fingerprints(value: object, kinds: list[pa.DataType]) -> None:
    arrays = [pa.array([Decimal(value) if pa.types.is_decimal(k) else value], k) for k in kinds]  # type: ignore[arg-type]
    assert len({int(fingerprints(array)[0]) for array in arrays}) == 1


def test_true_is_one_and_false_is_zero() -> None:
    assert fingerprints(pa.array([True, False])).tolist() == fingerprints(pa.array([1, 0])).tolist()


def test_dictionaries_chunks_slices_and_extensions_are_as_their_values() -> None:
    words = pa.array(["b", None, "a", "b", "", "a longer one than eight"])
    expected = fingerprints(words).tolist()
    assert fingerprints(words.dictionary_encode()).tolist() == expected
    twice = pa.chunked_array([words.slice(0, 2), words.slice(2).dictionary_encode().cast(pa.string())])
    assert fingerprints(twice).tolist() == expected
    null_inside = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["b", None]))
    assert fingerprints(null_inside).tolist() == [expected[0], expected[1], expected[1]]

    class Name(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(pa.string(), "test.name")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "Name":
            return cls()

    assert fingerprints(pa.ExtensionArray.from_storage(Name(), words)).tolist() == expected
    if hasattr(pa, "string_view"):
        assert fingerprints(words.cast(pa.string_view())).tolist() == expected


def test_nulls_nans_and_zeros_are_one_value_each() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], dtype=np.uint64)
    assert len(set(fingerprints(pa.array(odd.view(np.float64))).tolist())) == 1
    first, second, infinite = fingerprints(pa.array([0.0, -0.0, math.inf])).tolist()
    assert first == second != infinite
    kinds = [pa.int8(), pa.string(), pa.float64(), pa.null(), pa.decimal128(5, 1), pa.date32(), pa.bool_()]
    assert {int(fingerprints(pa.array([None], kind))[0]) for kind in kinds} == {PINNED[None]}


def test_values_that_look_alike_differ() -> None:
    alike = [
        pa.array(["", "\0", "\0\0", "a", "a\0", "a\0\0\0\0\0\0\0", "a\0\0\0\0\0\0\0\0", "7", "True"]),
        pa.array([0, 7, 2**63 - 1, -(2**63), -1]),
        pa.array([2**64 - 1, 2**63], pa.uint64()),
        pa.array([math.nan, math.inf, -math.inf, 1e300, 0.5]),
        pa.array([0], pa.timestamp("us")),
        pa.array([None], pa.null()),
        pa.array([Decimal("0.5"), Decimal("-0.5"), Decimal("0.05")], pa.decimal128(9, 3)),
    ]
    found = [value for array in alike for value in fingerprints(array).tolist()]
    assert len(set(found)) == len(found)


def test_words_in_another_order_differ() -> None:
    parts = ["aaaaaaaa", "bbbbbbbb", "cccccccc"]
    texts = [x + y + z for x in parts for y in parts for z in parts]
    assert len(set(fingerprints(pa.array(texts)).tolist())) == len(texts)


def test_long_values_are_hashed_in_blocks_as_if_at_once() -> None:
    rng = np.random.default_rng(1)
    values = [rng.bytes(size) for size in (3_000_001, 0, 9, 1 << 20, (1 << 20) + 1, 70_000, 8)]
    assert fingerprints(pa.array(values)).tolist() == [slow_fingerprint(value) for value in values]
    many = pa.array([f"{n}" * 40 for n in range(40_000)])
    some = [0, 1, 9_999, 32_767, 32_768, 39_999]
    found = fingerprints(many)
    assert [int(found[n]) for n in some] == [slow_fingerprint(many[n].as_py()) for n in some]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int8()), pa.struct([("x", pa.int8())]), pa.map_(pa.int8(), pa.int8())]
)
@pytest.mark.parametrize("values", [[], [None]])
def test_nested_values_are_refused(kind: pa.DataType, values: list[None]) -> None:
    with pytest.raises(InputError, match="have no fingerprint"):
        fingerprints(pa.array(values, kind))


def test_no_rows_have_no_fingerprints() -> None:
    for kind in (pa.int8(), pa.string(), pa.decimal128(5, 1), pa.bool_(), pa.null(), pa.timestamp("ns")):
        assert fingerprints(pa.array([], kind)).shape == (0,)
        assert fingerprints(pa.chunked_array([], kind)).shape == (0,)


# --- does it spread ---------------------------------------------------------------------------------------

ROWS = 300_000
KEYS = {
    "sequential integers": lambda: pa.array(np.arange(ROWS)),
    "every 4096th integer": lambda: pa.array(np.arange(ROWS) << 12),
    "integers that differ in high bits": lambda: pa.array(np.arange(ROWS) << 43),
    "floats": lambda: pa.array(np.arange(ROWS) / 1024),
    "seconds": lambda: pa.array(np.arange(ROWS), pa.timestamp("s")),
    "short strings": lambda: pa.array(np.arange(ROWS)).cast(pa.string()),
    "strings of several words": lambda: pa.array([f"customer/{n:09d}/orders" for n in range(ROWS)]),
}


@pytest.mark.parametrize("name", KEYS)
def test_many_alike_keys_do_not_collide_and_fill_all_buckets_evenly(name: str) -> None:
    found = fingerprints(KEYS[name]())
    assert len(np.unique(found)) == ROWS  # 64 random bits collide here once in 410 million tries
    for bits, buckets in (("low", found & np.uint64(1023)), ("high", found >> np.uint64(54))):
        counts = np.bincount(buckets.astype(np.int64), minlength=1024)
        chi_square = ((counts - ROWS / 1024) ** 2 / (ROWS / 1024)).sum()
        z = (chi_square - 1023) / math.sqrt(2 * 1023)
        assert abs(z) < 4.5, (bits, z)


@pytest.mark.parametrize("width", [8, 16, 24])
def test_a_flipped_bit_of_a_value_flips_each_bit_of_its_fingerprint_half_the_time(
    width: int,
) -> None:
    rng, trials = np.random.default_rng(width), 20_000
    values = rng.integers(0, 256, (trials, width), dtype=np.uint8)
    before = fingerprints(binary(values))
    for bit in range(0, 8 * width, 5):
        values[:, bit // 8] ^= 1 << bit % 8
        flipped = before ^ fingerprints(binary(values))
        values[:, bit // 8] ^= 1 << bit % 8
        share = np.unpackbits(flipped.view(np.uint8).reshape(trials, 8), axis=1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 5.5 * 0.5 / math.sqrt(trials)


def binary(values: np.ndarray) -> pa.Array:  # type: ignore[type-arg]
    rows, width = values.shape
    return pa.Array.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(values.tobytes())])


def test_another_seed_gives_an_independent_hash() -> None:
    keys = pa.array(np.arange(ROWS))
    first, second = (fingerprints(keys, seed) < np.uint64(1 << 62) for seed in (0, 1))
    both = (first & second).mean()
    assert abs(both - 1 / 16) < 5 * math.sqrt(1 / 16 * 15 / 16 / ROWS)


def test_another_process_finds_the_same() -> None:
    code = "import pyarrow as pa; from trainwright.tables import fingerprints as f; "
    code += "print(f(pa.array(['a', None, 'hello there, world'])).tolist())"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.strip() == str([PINNED["a"], PINNED[None], PINNED["hello there, world"]])
