"""The path from Arrow batches to TFDV's statistics changes nothing but its speed."""

import datetime as dt
import decimal
import itertools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.validate.equality import assert_same, of_dataframe, of_lists
from trainwright.artifacts import Snapshot
from trainwright.engine.pieces import FAN_IN
from trainwright.errors import InputError
from trainwright.experiment import DataEngine
from trainwright.tables import pieces, write_snapshot
from trainwright.tables.workers import Pool
from trainwright.validate.columns import by_column, listed, numbers, prepared, readable, unreadable
from trainwright.validate.profile import Profiler
from trainwright.validate.statistics import (
    QUANTILES,
    SKETCH_ERROR,
    VALUES_KEPT,
    ScanRequest,
    Statistics,
    counted_as,
    describe,
    scan,
    take,
)
from trainwright.validate.tfdv import schema_pb2

NONE = schema_pb2.Schema()
FLIGHTS = Path(__file__).parents[2] / "examples" / "flights" / "data" / "flights.parquet"


def mixed(rows: int, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    some = draw.random(rows) < 0.1
    words = np.array(["a", "b", "naïve", "日本", ""])[draw.integers(0, 5, rows)]
    return pa.table(
        {
            "whole": pa.array(draw.integers(-5, 50, rows)),
            "small": pa.array(draw.integers(0, 9, rows).astype(np.int16)),
            "real": pa.array(draw.normal(0, 10, rows), mask=some),
            "single": pa.array(draw.random(rows).astype(np.float32)),
            "infinite": pa.array(np.where(some, np.inf, draw.random(rows))),
            "word": pa.array(words, mask=some),
            "none": pa.array([None] * rows, pa.string()),
            "yes": pa.array(draw.random(rows) < 0.3),
        }
    )


@pytest.mark.parametrize("rows", [1, 3, 2_000])
def test_batches_give_what_tfdv_gives_for_a_dataframe(rows: int) -> None:
    table = mixed(rows)
    assert_same(describe(table.to_batches(), NONE), of_dataframe(table.to_pandas()))


def test_values_that_the_schema_calls_categories_are_counted_as_tfdv_counts_them() -> None:
    schema = schema_pb2.Schema()
    schema.feature.add(name="whole", type=schema_pb2.INT).int_domain.is_categorical = True
    schema.feature.add(name="yes", type=schema_pb2.INT).bool_domain.SetInParent()
    schema.feature.add(
        name="word", type=schema_pb2.BYTES
    ).string_domain.is_categorical = schema_pb2.StringDomain.CATEGORICAL_NO
    table = mixed(3_000)
    frame = table.to_pandas().astype({"yes": np.int8})
    assert_same(describe(table.to_batches(max_chunksize=1_000), schema), of_dataframe(frame, schema=schema))


# One strategy for each type: how TFDV is given the value by hand, and the values.
DAY, MOMENT = dt.date(1970, 1, 1), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def unsigned(number: float) -> float:
    """Take the sign off a zero: which of two equal numbers bounds a bucket is chance, on every path."""
    return number + 0.0


ODD = st.sampled_from([math.inf, -math.inf, math.nan, 0.0, 5e-324])
QUARTERS = st.integers(-999, 999).map(lambda n: decimal.Decimal(n) / 4)  # Arrow rounds others in its own way
ODD_WORDS = ["", "ü", "日本", "\u0000", "a" * 2_000]
KINDS: dict[str, tuple[pa.DataType, pa.DataType, Any, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), pa.int8(), int, st.integers(-128, 127)),
    "int64": (pa.int64(), pa.int64(), int, st.integers(-(2**62), 2**62)),
    "uint32": (pa.uint32(), pa.int64(), int, st.integers(0, 2**32 - 1)),
    "float32": (pa.float32(), pa.float32(), float, st.floats(width=32).map(unsigned)),
    "float64": (pa.float64(), pa.float64(), float, st.floats(-1e150, 1e150).map(unsigned) | ODD),
    "bool": (pa.bool_(), pa.int8(), int, st.booleans()),
    "string": (pa.string(), pa.string(), str, st.text(max_size=8)),
    "large_string": (pa.large_string(), pa.string(), str, st.sampled_from(ODD_WORDS)),
    "binary": (pa.binary(), pa.binary(), bytes, st.binary(max_size=4)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), pa.string(), str, st.sampled_from(["x", "y", ""])),
    "date": (pa.date32(), pa.int64(), lambda day: (day - DAY).days, st.dates()),
    "decimal": (pa.decimal128(9, 2), pa.float64(), float, QUARTERS),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        pa.int64(),
        lambda time: (time - MOMENT) // dt.timedelta(seconds=1),
        st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2100, 1, 1), timezones=st.just(dt.UTC)),
    ),
}  # fmt: skip
NAMES = ["plain", "with space", "dots.in.it", "数", "", "'; --", "a/b", "%s{0}"]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, dict[str, tuple[list[Any], pa.DataType]]]:
    """A table of any types, and its columns as TFDV takes them, written out by hand."""
    rows = draw(st.integers(1, 40))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    names = draw(st.permutations(NAMES))[: len(kinds)]
    arrays, by_hand = {}, {}
    for name, kind in zip(names, kinds, strict=True):
        stored, taken, plain, values = KINDS[kind]
        column = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        arrays[name] = pa.array(column, stored)
        by_hand[name] = ([None if x is None else [plain(x)] for x in arrays[name].to_pylist()], taken)
    return pa.table(arrays), by_hand


@settings(max_examples=25)
@given(tables())
def test_rows_of_any_types_give_what_tfdv_gives_for_them_written_out_by_hand(drawn: Any) -> None:
    table, by_hand = drawn
    assert_same(describe(table.to_batches(), NONE), of_lists(by_hand))


def test_lists_of_values_give_what_tfdv_gives_for_them() -> None:
    rows = [[1, 2, 2], None, [], [7], [None, 3]]
    words = [["a", "b"], [], None, ["a"], ["ü"]]
    table = pa.table({"n": pa.array(rows, pa.list_(pa.int32())), "w": pa.array(words, pa.list_(pa.string()))})
    assert_same(
        describe(table.to_batches(), NONE),
        of_lists({"n": (rows, pa.int64()), "w": (words, pa.large_binary())}),
    )


def test_columns_without_a_value_and_tables_without_a_row_are_as_tfdv_sees_them() -> None:
    kinds = {"n": pa.int64(), "x": pa.float64(), "w": pa.string()}
    for values in ([None] * 4, []):
        batch = pa.RecordBatch.from_arrays([pa.array(values, kind) for kind in kinds.values()], list(kinds))
        by_hand = {name: (values, kind) for name, kind in kinds.items()}
        assert_same(describe([batch], NONE), of_lists(by_hand))


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, Path, Snapshot]:
    if not FLIGHTS.exists():
        pytest.fail("the flights are not prepared: run `make test`, which prepares them")
    table, folder = pq.read_table(FLIGHTS).slice(0, 120_000), tmp_path_factory.mktemp("flights")
    return table, folder, write_snapshot(folder, {"all": [table]}, parents={}, roles={})


def test_the_flights_give_what_tfdv_gives_for_them_as_a_dataframe(
    flights: tuple[pa.Table, Path, Snapshot],
) -> None:
    table, folder, snapshot = flights
    named = schema_pb2.Schema(feature=[schema_pb2.Feature(name=x.name) for x in snapshot.columns])
    ours = Profiler(folder, snapshot, named, DataEngine(workers=2)).statistics("all")
    whole = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int64Dtype()}
    frame = table.to_pandas(types_mapper=whole.get)
    for name in table.column_names:
        if pa.types.is_timestamp(table.schema.field(name).type):
            frame[name] = frame[name].astype("int64") // 10**9
    theirs = of_dataframe(frame)
    assert_same(ours, theirs, sketched=True)
    for name in table.column_names:
        ranks_are_right(table[name], by_column(ours)[name])
        ranks_are_right(table[name], by_column(theirs)[name])


def ranks_are_right(column: pa.ChunkedArray, feature: Any) -> None:
    """Every quantile lies where it should, within the documented error."""
    for histogram in feature.num_stats.histograms:
        if histogram.type == histogram.QUANTILES:
            flat = readable(pa.concat_arrays(column.chunks))
            values = np.sort(flat.drop_null().to_numpy(zero_copy_only=False))
            for place, bucket in enumerate(histogram.buckets, 1):
                least, most = (np.searchsorted(values, bucket.high_value, side) for side in ("left", "right"))
                wanted = place / QUANTILES * len(values)
                assert least - wanted <= SKETCH_ERROR * len(values)
                assert wanted - most <= SKETCH_ERROR * len(values)


def test_many_batches_give_exact_counts_and_quantiles_within_the_sketch_error() -> None:
    table = mixed(60_000)
    ours = describe(table.to_batches(max_chunksize=7_001), NONE)
    assert_same(ours, of_dataframe(table.to_pandas()), sketched=True)
    for name in ("whole", "small", "real", "single", "infinite"):
        ranks_are_right(table[name], by_column(ours)[name])


def test_beyond_what_is_kept_distinct_values_are_as_tfdv_finds_them_and_counts_within_their_error() -> None:
    rows = 120_000
    words = np.random.default_rng(0).zipf(1.1, rows) % 40_000
    table = pa.table({"w": [f"w{word}" for word in words]})
    total = Statistics(NONE)
    for start in range(0, rows, 30_000):
        part = table.slice(start, 30_000).combine_chunks()
        total.merge_packed(Statistics(NONE).add(part.to_batches()[0]).packed())
    ours, theirs = (by_column(found)["w"] for found in (total.finish(), of_dataframe(table.to_pandas())))
    assert ours.string_stats.unique == theirs.string_stats.unique > VALUES_KEPT
    true = dict(zip(*np.unique(words, return_counts=True), strict=True))
    for bucket in ours.string_stats.rank_histogram.buckets:
        missed = true[int(bucket.label[1:])] - bucket.sample_count
        assert abs(missed) <= rows / VALUES_KEPT


@settings(max_examples=8)
@given(st.lists(st.integers(1, 999), max_size=5, unique=True))
def test_rows_cut_anywhere_and_merged_in_parts_give_the_same_statistics(cuts: list[int]) -> None:
    table = mixed(1_000)
    places = [0, *sorted(cuts), 1_000]
    total = Statistics(NONE)
    for start, stop in itertools.pairwise(places):
        part = Statistics(NONE)
        for batch in table.slice(start, stop - start).to_batches():
            part.add(batch)
        total.merge_packed(part.packed())
    assert_same(total.finish(), describe(table.to_batches(), NONE))


def test_a_nan_is_counted_as_such_where_pandas_would_call_it_missing() -> None:
    table = pa.table({"x": pa.array([1.0, float("nan"), None, 3.0])})
    feature = by_column(describe(table.to_batches(), NONE))["x"]
    assert feature.num_stats.common_stats.num_missing == 1
    assert feature.num_stats.histograms[0].num_nan == 1


def test_the_values_of_a_key_are_not_counted() -> None:
    schema = schema_pb2.Schema()
    schema.feature.add(name="id", type=schema_pb2.BYTES)
    table = pa.table({"id": [f"i{n}" for n in range(100)]})
    feature = by_column(describe(table.to_batches(), schema, uncounted=["id"]))["id"]
    assert feature.string_stats.common_stats.num_non_missing == 100
    assert not feature.string_stats.rank_histogram.buckets


HALF_PAST_NINE = dt.datetime(2013, 10, 1, 9, 30, 15, 999_999, tzinfo=dt.UTC)
FORMS = {
    "timestamps as whole seconds": (
        pa.array([HALF_PAST_NINE, None], pa.timestamp("us", "UTC")),
        [1380619815, None],
    ),
    "timestamps of another zone in UTC": (
        pa.array([HALF_PAST_NINE], pa.timestamp("ms", "America/New_York")),
        [1380619815],
    ),
    "dates as days": (pa.array([dt.date(1970, 1, 11)], pa.date32()), [10]),
    "times of the day as stored": (pa.array([dt.time(0, 0, 2)], pa.time64("us")), [2_000_000]),
    "decimals as doubles": (pa.array([decimal.Decimal("1.50")], pa.decimal128(5, 2)), [1.5]),
    "booleans as 0 and 1": (pa.array([True, False, None]), [1, 0, None]),
    "dictionaries as their values": (pa.array(["a", "b", "a"]).dictionary_encode(), [b"a", b"b", b"a"]),
    "large strings as bytes": (pa.array(["ü"], pa.large_string()), ["ü".encode()]),
    "lists as they are": (pa.array([[1, 2], None, []], pa.list_(pa.int32())), [[1, 2], None, []]),
}


@pytest.mark.parametrize("case", FORMS)
def test_types_that_tfdv_does_not_know_are_mapped(case: str) -> None:
    array, expected = FORMS[case]
    assert readable(array).to_pylist() == expected
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    assert by_column(describe([batch], NONE))["x"].path.step[0] == "x"


def test_structs_and_maps_are_left_out_and_named() -> None:
    table = pa.table(
        {"x": [1], "deep": [{"a": 1}], "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}
    )
    assert listed(prepared(table.to_batches()[0])).schema.names == ["x"]
    assert unreadable(table.schema) == {"deep": "struct<a: int64>", "map": "map<string, int64>"}


def test_numbers_come_in_order_without_what_is_none() -> None:
    column = pa.array([3.0, None, float("nan"), -1.0, float("inf")])
    (found,) = prepared(pa.RecordBatch.from_arrays([column], ["x"])).values()
    assert numbers(found).tolist() == [-1.0, 3.0, math.inf]
    assert found.null_count == 1
    assert numbers(pa.array([[5, 1], None, [3]], pa.large_list(pa.int64()))).tolist() == [1.0, 3.0, 5.0]
    assert numbers(pa.array(["7"])).tolist() == []


def test_a_dataframe_is_what_pandas_makes_of_the_table() -> None:
    """The comparison above is only as good as this: pandas holds the same values."""
    frame = mixed(100).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["real"].isna().sum() == mixed(100)["real"].null_count
    assert VALUES_KEPT > 1_000


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, object]:
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "x": draw.normal(0, 1, 40_000),
            "n": draw.integers(0, 9, 40_000),
            "w": draw.choice(["a", "b", "ü"], 40_000),
            "empty": pa.array([None] * 40_000, pa.float64()),
        }
    )
    made = write_snapshot(tmp_path, {"train": [table]}, parents={}, roles={}, rows_per_file=500)
    return tmp_path, made


def wanted(snapshot: object) -> ScanRequest:
    schema = counted_as(schema_pb2.Schema()).SerializeToString()
    cuts = {"x": np.linspace(-3, 3, 7), "n": np.array([0.5, 3.5])}
    return ScanRequest(schema, tuple(column.name for column in snapshot.columns), cuts)


ONE_WORKER = ("--direct_num_workers=1", "--direct_running_mode=multi_processing")
"""A worker process of Beam's, which loads TFDV. That two share pieces is tested in ``tests/ingest``."""


def test_the_same_bytes_on_one_process_on_several_and_on_beam(snapshot: tuple[Path, object]) -> None:
    folder, manifest = snapshot
    assert len(pieces(folder, manifest, ["train"])) > 2 * FAN_IN  # so that groups of groups are merged, too
    engines = [DataEngine(workers=1), DataEngine(workers=2), DataEngine(workers=7)]
    engines.append(DataEngine(name="DirectRunner", options=ONE_WORKER))
    found = [scan(folder, manifest, "train", wanted(manifest), engine) for engine in engines]
    alike = {statistics.SerializeToString(deterministic=True) for statistics, _ in found}
    assert len(alike) == 1
    assert all(counts["x"].tolist() == found[0][1]["x"].tolist() for _, counts in found)
    assert found[0][1]["x"].sum() == 40_000
    assert found[0][0].datasets[0].num_examples == 40_000


def test_rows_in_the_folder_of_the_step_are_no_input_for_other_machines(
    snapshot: tuple[Path, object],
) -> None:
    folder, manifest = snapshot
    with pytest.raises(InputError, match="FlinkRunner works on other machines, which do not reach") as caught:
        scan(folder, manifest, "train", wanted(manifest), DataEngine(name="FlinkRunner"))
    assert caught.value.hint.endswith("in data.store.")


def test_beam_takes_its_own_options(snapshot: tuple[Path, object], tmp_path: Path) -> None:
    folder, manifest = snapshot
    engine = DataEngine(name="DirectRunner", options=("--direct_num_workers=1",))
    counted = ScanRequest(b"", (), {"n": np.array([0.5])})
    statistics, counts = scan(folder, manifest, "train", counted, engine, shared=str(tmp_path / "shared"))
    assert counts["n"].sum() == 40_000
    assert not statistics.datasets[0].features
    assert list((tmp_path / "shared").iterdir()) == []  # the result was read and taken away


def test_a_fork_after_arrow_has_used_its_threads_comes_to_an_end(snapshot: tuple[Path, object]) -> None:
    folder, manifest = snapshot
    for entry in manifest.files[:8]:  # the pool of threads is at work before the fork
        table = pq.read_table(folder / entry.uri, use_threads=True)
        pc.sum(table["x"])
    statistics, _ = scan(folder, manifest, "train", wanted(manifest), DataEngine(workers=2))
    assert statistics.datasets[0].num_examples == 40_000


def test_a_file_that_was_changed_is_refused_by_the_worker_that_reads_it(
    snapshot: tuple[Path, object],
) -> None:
    folder, manifest = snapshot
    place = folder / manifest.files[50].uri
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    with pytest.raises(InputError, match="cached input changed") as caught:
        scan(folder, manifest, "train", wanted(manifest), DataEngine(workers=2))
    assert manifest.files[50].uri in caught.value.what


def test_the_memory_of_a_worker_stays_flat(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    columns = {f"c{place}": draw.normal(0, 1, 100_000) for place in range(8)}
    table = pa.table(columns | {"w": draw.choice([f"v{n}" for n in range(900)], 100_000)})
    manifest = write_snapshot(tmp_path, {"train": [table] * 16}, parents={}, roles={}, rows_per_file=100_000)
    schema = counted_as(schema_pb2.Schema()).SerializeToString()
    asked = ScanRequest(schema, tuple(table.column_names), {})

    def work(piece: object) -> int:
        take(tmp_path, piece, asked)
        return resident_bytes()

    seen = list(Pool(work, 2).run(pieces(tmp_path, manifest, ["train"])))
    assert max(seen[-4:]) - max(seen[4:8]) < 24 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
