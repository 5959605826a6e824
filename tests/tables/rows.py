"""Random tables of every type that a snapshot takes."""

import datetime as dt

import pyarrow as pa
from hypothesis import strategies as st


def optional(values: st.SearchStrategy) -> st.SearchStrategy:  # type: ignore[type-arg]
    return st.one_of(st.none(), values)


def list_of_pairs(found: dict[str, int]) -> list[tuple[str, int]]:
    return list(found.items())


TEXT = st.text(max_size=6)
MOMENTS = st.datetimes(dt.datetime(1678, 1, 1), dt.datetime(2262, 1, 1))
DIGITS = st.lists(st.integers(0, 9), max_size=2)
PAIRS = st.dictionaries(TEXT, st.integers(0, 9), max_size=2).map(list_of_pairs)
RECORD = st.fixed_dictionaries({"a": st.integers(0, 9), "b": TEXT})
VALUES = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=6)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("s"), MOMENTS.map(lambda moment: moment.replace(microsecond=0))),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("ns"), MOMENTS),
    (pa.timestamp("us", tz="America/New_York"), MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC))),
    (pa.decimal128(20, 4), st.decimals(-(10**12), 10**12, places=4, allow_nan=False)),
    (pa.list_(pa.int32()), st.lists(optional(st.integers(-9, 9)), max_size=3)),
    (pa.list_(pa.large_string()), st.lists(optional(TEXT), max_size=3)),
    (pa.struct([("a", pa.int8()), ("b", pa.string())]), RECORD),
    (pa.map_(pa.string(), pa.int8()), PAIRS),
    (pa.null(), st.none()),
    (pa.date64(), st.dates()),
    (pa.time32("s"), st.times().map(lambda time: time.replace(microsecond=0))),
    (pa.struct([("a", pa.list_(pa.int8()))]), st.fixed_dictionaries({"a": DIGITS})),
]  # fmt: skip
DICTIONARY = (pa.dictionary(pa.int32(), pa.string()), TEXT)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from([*VALUES, DICTIONARY]), min_size=1, max_size=5))
    names = draw(st.lists(TEXT.filter(str.strip), min_size=len(kinds), max_size=len(kinds), unique=True))
    rows = draw(st.integers(0, 40))
    columns = [
        pa.array(draw(st.lists(optional(values), min_size=rows, max_size=rows)), kind)
        for kind, values in kinds
    ]
    return pa.Table.from_arrays(columns, names=names)


TABLES = tables()
