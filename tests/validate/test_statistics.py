"""The road from Arrow batches to TFDV's statistics changes nothing but its speed."""

import datetime as dt
import decimal
import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.validate.statistics import (
    QUANTILES,
    VALUES_KEPT,
    Statistics,
    by_column,
    describe,
    listed,
    readable,
    unreadable,
)
from trainwright.validate.tfdv import schema_pb2, statistics_pb2, tfdv

NONE = schema_pb2.Schema()


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


def in_order(statistics: object) -> bytes:
    """The same statistics with columns by name and values of equal frequency by label, as bytes."""
    copy = statistics_pb2.DatasetFeatureStatisticsList.FromString(statistics.SerializeToString())
    features = sorted(copy.datasets[0].features, key=lambda feature: feature.path.step[0])
    for feature in features:
        if feature.HasField("string_stats"):
            values, buckets = feature.string_stats.top_values, feature.string_stats.rank_histogram.buckets
            values.sort(key=lambda value: (-value.frequency, value.value))
            buckets.sort(key=lambda bucket: (-bucket.sample_count, bucket.label))
            for place, bucket in enumerate(buckets):
                bucket.low_rank = bucket.high_rank = place
    result = statistics_pb2.DatasetFeatureStatistics(
        num_examples=copy.datasets[0].num_examples, features=features
    )
    return bytes(result.SerializeToString(deterministic=True))


def of_dataframe(table: pa.Table) -> object:
    options = tfdv.StatsOptions(
        num_rank_histogram_buckets=VALUES_KEPT, num_quantiles_histogram_buckets=QUANTILES
    )
    with np.errstate(invalid="ignore"):  # infinities have no variance
        return tfdv.generate_statistics_from_dataframe(table.to_pandas(), options)


@pytest.mark.parametrize("rows", [1, 3, 2_000])
def test_batches_give_what_tfdv_gives_for_a_dataframe_to_the_last_bit(rows: int) -> None:
    table = mixed(rows)
    ours = describe(table.to_batches(), NONE)
    assert in_order(ours) == in_order(of_dataframe(table))


def test_many_batches_give_exact_counts_and_moments_and_quantiles_within_the_sketch_error() -> None:
    table = mixed(60_000)
    ours = by_column(describe(table.to_batches(max_chunksize=7_001), NONE))
    theirs = by_column(of_dataframe(table))
    assert ours.keys() == theirs.keys()
    for name, feature in ours.items():
        other = theirs[name]
        assert feature.string_stats.common_stats == other.string_stats.common_stats
        for field in ("mean", "std_dev", "min", "max", "num_zeros"):
            got, expected = getattr(feature.num_stats, field), getattr(other.num_stats, field)
            assert got == pytest.approx(expected, rel=1e-9, nan_ok=True), (name, field)
        assert len(feature.string_stats.rank_histogram.buckets) == len(
            other.string_stats.rank_histogram.buckets
        )
    drawn = table["real"].drop_null().to_numpy()
    (quantiles,) = [x for x in ours["real"].num_stats.histograms if x.type == x.QUANTILES]
    below = [np.mean(drawn <= bucket.high_value) for bucket in quantiles.buckets]
    assert below == pytest.approx(np.arange(1, QUANTILES + 1) / QUANTILES, abs=0.01)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 999), max_size=5, unique=True))
def test_rows_cut_anywhere_and_merged_in_parts_give_the_same_statistics(cuts: list[int]) -> None:
    table = mixed(1_000)
    places = [0, *sorted(cuts), 1_000]
    total = Statistics(NONE)
    for start, stop in itertools.pairwise(places):
        part = Statistics(NONE)
        for batch in table.slice(start, stop - start).to_batches():
            part.add(batch)
        total.merge(part)
    whole = describe(table.to_batches(), NONE)
    for name, feature in by_column(total.finish()).items():
        other = by_column(whole)[name]
        assert feature.num_stats.mean == pytest.approx(other.num_stats.mean, rel=1e-12, nan_ok=True)
        assert feature.string_stats.unique == other.string_stats.unique
        assert sum(x.sample_count for x in feature.string_stats.rank_histogram.buckets) == sum(
            x.sample_count for x in other.string_stats.rank_histogram.buckets
        )


def test_a_nan_is_counted_as_such_where_pandas_would_call_it_missing() -> None:
    table = pa.table({"x": pa.array([1.0, float("nan"), None, 3.0])})
    feature = by_column(describe(table.to_batches(), NONE))["x"]
    assert feature.num_stats.common_stats.num_missing == 1
    assert feature.num_stats.histograms[0].num_nan == 1


def test_no_distinct_value_is_dropped_below_ten_thousand() -> None:
    table = pa.table({"word": [f"w{n}" for n in range(9_000)] * 2})
    feature = by_column(describe(table.to_batches(max_chunksize=5_000), NONE))["word"]
    buckets = feature.string_stats.rank_histogram.buckets
    assert {(bucket.label, bucket.sample_count) for bucket in buckets} == {(f"w{n}", 2) for n in range(9_000)}


def test_the_values_of_a_key_are_not_counted() -> None:
    schema = schema_pb2.Schema()
    schema.feature.add(name="id", type=schema_pb2.BYTES)
    table = pa.table({"id": [f"i{n}" for n in range(100)]})
    feature = by_column(describe(table.to_batches(), schema, uncounted=["id"]))["id"]
    assert feature.string_stats.common_stats.num_non_missing == 100
    assert not feature.string_stats.rank_histogram.buckets


MOMENT = dt.datetime(2013, 10, 1, 9, 30, 15, 999_999, tzinfo=dt.UTC)
FORMS = {
    "timestamps as whole seconds": (pa.array([MOMENT, None], pa.timestamp("us", "UTC")), [1380619815, None]),
    "timestamps of another zone in UTC": (
        pa.array([MOMENT], pa.timestamp("ms", "America/New_York")),
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
    assert listed(table.to_batches()[0]).schema.names == ["x"]
    assert unreadable(table.schema) == {"deep": "struct<a: int64>", "map": "map<string, int64>"}


def test_a_dataframe_is_what_pandas_makes_of_the_table() -> None:
    """The comparison above is only as good as this: pandas holds the same values."""
    frame = mixed(100).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["real"].isna().sum() == mixed(100)["real"].null_count
