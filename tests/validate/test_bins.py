"""Bins of both splits alike: no row is lost, and a distance is one of the data."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.drift.comparison import edges
from trainwright.validate.columns import add_counts, by_column, cut_points, no_counts, prepared, with_bins
from trainwright.validate.statistics import describe
from trainwright.validate.tfdv import schema_pb2, tfdv

NUMBERS = st.lists(
    st.floats(allow_nan=True, allow_infinity=True, width=32) | st.none(), min_size=1, max_size=60
)


def batches(values: object) -> list[pa.RecordBatch]:
    return pa.table({"x": pa.array(values, pa.float64())}).to_batches(max_chunksize=17)


def count(batches: list[pa.RecordBatch], cuts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    counts = no_counts(cuts)
    for batch in batches:
        add_counts(counts, prepared(batch), cuts)
    return counts


def cuts_of(values: object) -> object:
    return cut_points(by_column(describe(batches(values), schema_pb2.Schema()))["x"])


@settings(max_examples=40)
@given(NUMBERS, NUMBERS)
def test_every_number_is_in_exactly_one_bin(previous: list[float], current: list[float]) -> None:
    cuts = cuts_of(previous)
    numbers = [value for value in current if value is not None and not math.isnan(value)]
    if cuts is None:
        assert not any(value is not None and math.isfinite(value) for value in previous)
        return
    counts = count(batches(current), {"x": cuts})["x"]
    assert counts.sum() == len(numbers)
    bounds = edges(cuts)
    assert len(bounds) == len(counts) + 1
    assert bounds == sorted(bounds)
    finite = [value for value in previous if value is not None and math.isfinite(value)]
    assert counts[0] == sum(value < min(finite) for value in numbers)
    assert counts[-1] == sum(value > max(finite) for value in numbers)


def test_a_value_that_fills_a_quantile_has_a_bin_of_its_own() -> None:
    cuts = cuts_of([0.0] * 800 + [1.0] * 200)
    assert count(batches([0.0] * 3 + [1.0] * 5 + [2.0, -1.0]), {"x": cuts})["x"].tolist() == [1, 3, 5, 1]


def test_bins_are_about_equally_full_in_the_previous_split() -> None:
    values = np.random.default_rng(0).exponential(30, 20_000)
    counts = count(batches(values), {"x": cuts_of(values)})["x"]
    assert counts[0] == counts[-1] == 0
    assert counts[1:-1] / 20_000 == pytest.approx(np.full(20, 0.05), abs=0.011)


def test_a_column_that_holds_words_now_has_no_numbers_to_count() -> None:
    words = pa.table({"x": ["1", "2"]}).to_batches()
    assert count(words, {"x": np.array([0.0, 1.0])})["x"].tolist() == [0, 0, 0]


def distance(current: object, previous: object) -> float:
    schema = tfdv.infer_schema(previous)
    for feature in schema.feature:
        feature.drift_comparator.jensen_shannon_divergence.threshold = 1.0
    account = tfdv.validate_statistics(current, schema, previous_statistics=previous)
    return float(account.drift_skew_info[0].drift_measurements[0].value)


def test_two_random_halves_of_one_table_are_apart_by_tfdvs_bins_and_together_by_these() -> None:
    """Why the bins are ours: hours of the day and delays, as in the flights."""
    draw = np.random.default_rng(3)
    late = np.where(draw.random(40_000) < 0.7, draw.integers(-10, 0, 40_000), draw.exponential(60, 40_000))
    halves = [late[:4_000].round(), late[4_000:].round()]
    current, previous = (describe(batches(half), schema_pb2.Schema()) for half in halves)
    cuts = {"x": cut_points(by_column(previous)["x"])}
    now, before = (count(batches(half), cuts) for half in halves)
    assert distance(current, previous) > 0.02
    assert distance(with_bins(current, now), with_bins(previous, before)) < 0.001
