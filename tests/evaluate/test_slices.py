"""Slices are cut by value, counted by loops, and listed rather than judged where they are small."""

import numpy as np
import pyarrow as pa
import pytest

from trainwright.evaluate.slices import BUCKETS, MAX_SLICES, MISSING, cut_column, group_rows

DRAW = np.random.default_rng(0)
ROWS = 3000
LABEL = (DRAW.random(ROWS) < 0.3).astype(np.int64)
SCORE = DRAW.random(ROWS)


def counted(values: list[object], label: np.ndarray, score: np.ndarray) -> dict[object, tuple[int, ...]]:
    """Rows, positives, selected and hits by value, one row after another."""
    found: dict[object, tuple[int, ...]] = {}
    for value, truth, high in zip(values, label, score >= 0.5, strict=True):
        before = found.get(value, (0, 0, 0, 0))
        now = (1, int(truth), int(high), int(truth and high))
        found[value] = tuple(a + b for a, b in zip(before, now, strict=True))
    return found


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
def test_each_value_is_a_slice_whose_counts_a_loop_finds(column: pa.Array) -> None:
    expected = counted(column.to_pylist(), LABEL, SCORE)
    found = cut_column(LABEL, SCORE, pa.chunked_array([column]), "x", threshold=0.5, min_positives=1)
    assert [entry.name for entry in found.slices] == [str(value) for value in sorted(expected)]
    for entry, value in zip(found.slices, sorted(expected), strict=True):
        assert (entry.rows, entry.positives, entry.selected, entry.hits) == expected[value]
        assert entry.recall is not None
        assert entry.recall.value == expected[value][3] / expected[value][1]
        assert entry.selection_rate.value == expected[value][2] / expected[value][0]


def test_the_gap_is_between_the_largest_and_the_smallest_recall() -> None:
    values = DRAW.choice(["a", "b", "c", "d"], ROWS).tolist()
    expected = {value: entry[3] / entry[1] for value, entry in counted(values, LABEL, SCORE).items()}
    found = cut_column(LABEL, SCORE, pa.chunked_array([values]), "x", threshold=0.5, min_positives=30)
    assert found.gap is not None
    assert found.highest is not None
    assert found.lowest is not None
    assert found.gap.size.value == pytest.approx(max(expected.values()) - min(expected.values()))
    assert expected[found.highest.name] == max(expected.values())
    assert expected[found.lowest.name] == min(expected.values())


def test_a_column_of_many_numbers_is_cut_into_buckets_of_about_as_many_rows() -> None:
    grouping = group_rows(pa.chunked_array([DRAW.normal(1000, 300, ROWS)]), "distance")
    sizes = np.bincount(grouping.place)
    assert len(grouping.names) == BUCKETS
    assert sizes.min() > ROWS / BUCKETS * 0.9
    assert len(set(grouping.names)) == BUCKETS


def test_a_bucket_holds_what_its_name_says() -> None:
    values = np.arange(100.0)
    grouping = group_rows(pa.chunked_array([values]), "x")
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
    names = group_rows(pa.chunked_array([values]), "x").names
    assert len(names) in {5, BUCKETS}
    assert len(set(names)) == len(names)


def test_a_number_is_named_as_it_is_written() -> None:
    column = pa.chunked_array([pa.array([0.1, -2, 7, 1e20], pa.float32())])
    assert list(group_rows(column, "x").names) == ["-2", "0.1", "7", "1e+20"]


def test_numbers_without_end_are_in_the_outer_buckets() -> None:
    values = [float("-inf")] * 30 + [float(index) for index in range(100)] + [float("inf")] * 30
    names = group_rows(pa.chunked_array([values]), "x").names
    assert names[0].startswith("-inf to ")
    assert names[-1].endswith("inf")
    assert not any("nan" in name for name in names)


@pytest.mark.parametrize(
    "column", [pa.array(["a", None, "b"]), pa.array([1, None, 2]), pa.array([1.5, None, float("nan")])]
)
def test_rows_without_a_value_are_a_slice_of_their_own(column: pa.Array) -> None:
    grouping = group_rows(pa.chunked_array([column]), "x")
    assert grouping.names[grouping.place[1]] == MISSING


def test_truth_values_are_slices() -> None:
    assert list(group_rows(pa.chunked_array([[True, False]]), "x").names) == ["false", "true"]


def test_of_very_many_names_the_rarest_share_one_slice_that_is_not_judged() -> None:
    values = [f"tail {index:03d}" for index in range(120) for _ in range(1 + (index < 60) * 49)]
    label, score = np.tile([0, 1], len(values) // 2), np.linspace(0, 1, len(values))
    found = cut_column(label, score, pa.chunked_array([values]), "x", threshold=0.5, min_positives=1)
    assert len(found.slices) == MAX_SLICES + 1
    assert found.slices[-1].name == "(70 rarer values)"
    assert found.slices[-1].reason == "rare values together"
    assert sum(entry.rows for entry in found.slices) == len(values)


def test_very_long_values_have_short_names_that_still_differ() -> None:
    values = ["x" * 100_000 + end for end in "ab"]
    names = group_rows(pa.chunked_array([values]), "text").names
    assert len(set(names)) == 2
    assert max(map(len, names)) == 80 - 10 + 2 + 8


def test_a_slice_with_too_few_positives_is_listed_with_its_count_and_not_judged() -> None:
    values = ["big"] * 200 + ["other"] * 200 + ["small"] * 10
    label = np.array([0, 1] * 200 + [1] * 4 + [0] * 6)
    found = cut_column(
        label, np.linspace(0, 1, 410), pa.chunked_array([values]), "x", threshold=0.5, min_positives=30
    )
    assert [entry.reason for entry in found.slices] == ["", "", "4 of at least 30 positives"]
    assert [entry.name for entry in found.judged] == ["big", "other"]


def test_a_single_judged_slice_has_no_gap() -> None:
    column = pa.chunked_array([["only"] * ROWS])
    assert cut_column(LABEL, SCORE, column, "x", threshold=0.5, min_positives=1).gap is None


def test_a_slice_of_one_class_has_no_area_and_one_without_positives_no_recall() -> None:
    column = pa.chunked_array([["a", "a", "b", "b"]])
    found = cut_column(
        np.array([0, 0, 0, 1]),
        np.array([0.2, 0.9, 0.4, 0.6]),
        column,
        "x",
        threshold=0.5,
        min_positives=1,
    )
    only_negatives, both = found.slices
    assert (only_negatives.auc, only_negatives.recall) == (None, None)
    assert both.auc is not None
    assert both.auc.value == 1
