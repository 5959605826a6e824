"""Rows are put into slices by value, by bucket, or by two columns crossed."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from trainwright.errors import InputError
from trainwright.evaluate.groupings import BUCKETS, MISSING, ColumnSummary, Grouping, cross, group_rows

DRAW = np.random.default_rng(0)
ROWS = 3000
MOST = 1 << 20


@dataclass(frozen=True)
class Grouped:
    """A grouping, made from two halves of a column, and the slice of each row."""

    grouping: Grouping
    names: list[str]
    place: np.ndarray


def grouped(column: pa.ChunkedArray, name: str) -> Grouped:
    halves = [column.slice(0, len(column) // 2), column.slice(len(column) // 2)]
    summary = ColumnSummary.merged([ColumnSummary.of(half, name, MOST) for half in halves])
    grouping = group_rows(summary, name)
    return Grouped(grouping, list(grouping.names), grouping.assign({name: column}))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(DRAW.choice(["EWR", "JFK", "LGA"], ROWS)),
        pa.array(DRAW.choice(["EWR", "JFK", "LGA"], ROWS)).dictionary_encode(),
        pa.array(DRAW.integers(5, 24, ROWS)),
        pa.array(DRAW.choice([0.25, 0.5], ROWS)),
    ],
    ids=["names", "dictionary", "hours", "few numbers"],
)
def test_each_value_is_a_slice(column: pa.Array) -> None:
    values = column.to_pylist()
    found = grouped(pa.chunked_array([column]), "x")
    assert list(found.names) == [str(value) for value in sorted(set(values))]
    assert [found.names[place] for place in found.place] == [str(value) for value in values]


def test_a_crossing_has_a_slice_for_every_pair_that_occurs() -> None:
    sex, race = DRAW.choice(["F", "M"], ROWS), DRAW.choice(["a", "b", "c"], ROWS)
    race[sex == "F"] = np.where(race[sex == "F"] == "c", "a", race[sex == "F"])
    columns = {"s": pa.chunked_array([sex]), "r": pa.chunked_array([race])}
    one, two = (grouped(column, name) for name, column in columns.items())
    rows = np.bincount(one.place * 3 + two.place, minlength=6).reshape(2, 3)
    found = cross(one.grouping, two.grouping, rows)
    place = found.assign(columns)
    assert found.columns == ("s", "r")
    assert list(found.names) == ["F, a", "F, b", "M, a", "M, b", "M, c"]
    assert [found.names[index] for index in place] == [f"{s}, {r}" for s, r in zip(sex, race, strict=True)]


@pytest.mark.covers("B64")
def test_a_column_without_any_value_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="column 'x' has no value in any of 3 rows"):
        grouped(pa.chunked_array([pa.nulls(3, pa.string())]), "x")


def test_a_column_of_many_numbers_is_cut_into_buckets_of_about_as_many_rows() -> None:
    grouping = grouped(pa.chunked_array([DRAW.normal(1000, 300, ROWS)]), "distance")
    sizes = np.bincount(grouping.place)
    assert len(grouping.names) == BUCKETS
    assert sizes.min() > ROWS / BUCKETS * 0.9
    assert len(set(grouping.names)) == BUCKETS


def test_a_bucket_holds_what_its_name_says() -> None:
    values = np.arange(100.0)
    grouping = grouped(pa.chunked_array([values]), "x")
    for value, place in zip(values, grouping.place, strict=True):
        low, high = (float(end) for end in grouping.names[place].split(" to "))
        assert low <= value <= high


@pytest.mark.parametrize(
    "values",
    [
        pa.array([10_000_000_000_001 + index for index in range(5)]),
        pa.array([2**62 + index for index in range(5)]),
        pa.array([1 + index * 1e-12 for index in range(5)]),
        pa.array([1_000_000 + index * 0.01 for index in range(400)]),
        pa.array([2**62 + index for index in range(400)]),
    ],
    ids=["long", "too large for a float", "close", "close buckets", "large buckets"],
)
def test_different_numbers_never_share_a_name_however_close_they_are(values: pa.Array) -> None:
    names = grouped(pa.chunked_array([values]), "x").names
    assert len(names) in {5, BUCKETS}
    assert len(set(names)) == len(names)


def test_a_number_is_named_as_it_is_written() -> None:
    column = pa.chunked_array([pa.array([0.1, -2, 7, 1e20], pa.float32())])
    assert list(grouped(column, "x").names) == ["-2", "0.1", "7", "1e+20"]


def test_numbers_without_end_are_in_the_outer_buckets() -> None:
    values = [float("-inf")] * 30 + [float(index) for index in range(100)] + [float("inf")] * 30
    names = grouped(pa.chunked_array([values]), "x").names
    assert names[0].startswith("-inf to ")
    assert names[-1].endswith("inf")
    assert not any("nan" in name for name in names)


@pytest.mark.parametrize(
    "column", [pa.array(["a", None, "b"]), pa.array([1, None, 2]), pa.array([1.5, None, float("nan")])]
)
def test_rows_without_a_value_are_a_slice_of_their_own(column: pa.Array) -> None:
    grouping = grouped(pa.chunked_array([column]), "x")
    assert grouping.names[grouping.place[1]] == MISSING


def test_truth_values_are_slices() -> None:
    assert list(grouped(pa.chunked_array([[True, False]]), "x").names) == ["false", "true"]


@pytest.mark.covers("B64")
def test_of_very_many_names_the_rarest_share_one_slice() -> None:
    values = [f"tail {index:03d}" for index in range(120) for _ in range(1 + (index < 60) * 49)]
    found = grouped(pa.chunked_array([values]), "x")
    assert len(found.names) == 51
    assert found.names[-1] == found.grouping.pooled == "(70 rarer values)"
    assert np.bincount(found.place).tolist()[:50] == [50] * 50


def test_very_long_values_have_short_names_that_still_differ() -> None:
    values = ["x" * 100_000 + end for end in "ab"]
    names = grouped(pa.chunked_array([values]), "text").names
    assert len(set(names)) == 2
    assert max(map(len, names)) == 80 - 10 + 2 + 8
