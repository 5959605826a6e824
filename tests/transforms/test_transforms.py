"""Transforms: fitting, and the encoded rows."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.contracts.frozen import check
from trainwright.errors import InputError
from trainwright.transforms import MISSING_TIME, Categories, Category, Fit, Scaling, Transforms, Values
from trainwright.transforms.fitting import MOST, STEPS, Distribution

RANDOM = np.random.default_rng(7)


def categories(values: list[str | None]) -> Categories:
    distinct = sorted({value for value in values if value is not None})
    codes = np.array([-1 if value is None else distinct.index(value) for value in values], dtype=np.int64)
    return Categories(codes=codes, values=distinct)


def times(*moments: datetime | None) -> NDArray[np.int64]:
    return np.array(
        [MISSING_TIME if m is None else round(m.timestamp() * 1e6) for m in moments], dtype=np.int64
    )


def fitted(
    columns: dict[str, Values], *, most: int = 100, min_rows: int = 1, scaling: Scaling = "standard"
) -> Transforms:
    fit = Fit({name: kind(values) for name, values in columns.items()}, scaling)
    fit.add(columns)
    return fit.finish(max_categories=most, min_rows=min_rows)


def kind(values: Values) -> str:
    if isinstance(values, Categories):
        return "category"
    return "time" if values.dtype == np.int64 else "number"


def test_numbers_are_standardised_with_the_mean_and_deviation_of_the_training_rows() -> None:
    values = RANDOM.normal(1e6, 3.0, 5000)
    encoded = fitted({"x": values}).encode({"x": values[:100]})
    expected = (values[:100] - values.mean()) / values.std()
    np.testing.assert_allclose(encoded.numeric[:, 0], expected, rtol=1e-5, atol=1e-5)
    assert encoded.numeric.dtype == np.float32


@pytest.mark.parametrize("cuts", [[1], [2500], [100, 101, 4999], list(range(0, 5000, 500))])
def test_however_the_rows_are_cut_the_fit_is_the_same(cuts: list[int]) -> None:
    values = RANDOM.normal(1e8, 1.0, 5000)
    values[::7] = np.nan
    labels = [None if index % 11 == 0 else f"v{index % 5}" for index in range(5000)]
    whole = fitted({"x": values, "c": categories(labels)})
    total = Fit({"x": "number", "c": "category"})
    for start, end in zip([0, *cuts], [*cuts, 5000], strict=True):
        part = Fit({"x": "number", "c": "category"})
        part.add({"x": values[start:end], "c": categories(labels[start:end])})
        total.merge(part.state)
    merged = total.finish(max_categories=100)
    assert merged.categories == whole.categories
    assert merged.numbers[0].mean == pytest.approx(whole.numbers[0].mean, rel=1e-14)
    assert merged.numbers[0].scale == pytest.approx(whole.numbers[0].scale, rel=1e-9)
    assert merged.numbers[0].scale == pytest.approx(1 / np.nanstd(values), rel=1e-6)


def test_a_missing_number_is_0_and_is_indicated_where_training_had_missing_ones() -> None:
    gaps, whole = np.array([1.0, 3.0, np.nan, 5.0]), np.array([1.0, 2.0, 3.0, 4.0])
    transforms = fitted({"gaps": gaps, "whole": whole})
    encoded = transforms.encode({"gaps": np.array([np.nan, 3.0]), "whole": np.array([np.nan, 2.5])})
    assert transforms.width == 3
    np.testing.assert_allclose(encoded.numeric, [[0, 1, 0], [0, 0, 0]], atol=1e-7)


@pytest.mark.parametrize("wild", [np.inf, -np.inf, 1e300, -1e300])
def test_a_number_that_is_not_usable_counts_as_missing(wild: float) -> None:
    values = np.array([1.0, 2.0, 3.0, wild])
    transforms = fitted({"x": values})
    assert transforms.numbers[0].mean == 2.0
    np.testing.assert_allclose(transforms.encode({"x": values}).numeric[3], [0, 1])


def test_a_wild_number_is_cut_off_at_ten_deviations() -> None:
    transforms = fitted({"x": np.array([-1.0, 1.0])})
    np.testing.assert_allclose(transforms.encode({"x": np.array([1e100, -1e9])}).numeric[:, 0], [10, -10])


def test_missing_unknown_and_rare_categories_have_codes_of_their_own() -> None:
    values = ["a"] * 50 + ["b"] * 30 + ["rare"] * 2 + [None] * 5
    transforms = fitted({"c": categories(values)}, min_rows=10)
    assert transforms.categories == (Category(name="c", values=("a", "b")),)
    codes = transforms.encode({"c": categories(["b", "a", "rare", "never seen", None])}).categories
    assert codes[:, 0].tolist() == [3, 2, 1, 1, 0]


def test_the_most_frequent_categories_are_kept_and_ties_are_broken_by_name() -> None:
    values = ["z"] * 9 + ["b"] * 5 + ["a"] * 5 + ["y"]
    assert fitted({"c": categories(values)}, most=2).categories[0].values == ("z", "a")


@pytest.mark.parametrize("cuts", [[], [2], [1, 2, 3]])
def test_a_category_of_too_many_values_is_refused_however_its_rows_are_cut(cuts: list[int]) -> None:
    values = ["a", "b", "c", "b"]
    bounds = [0, *cuts, len(values)]

    def total(most: int) -> Fit:
        found = Fit({"c": "category"}, most=most)
        for first, last in pairwise(bounds):
            part = Fit({"c": "category"}, most=most)
            part.add({"c": categories(values[first:last])})
            found.merge(part.state)
        return found

    assert total(3).counts["counts"] == {"c": {"a": 1, "b": 2, "c": 1}}
    with pytest.raises(InputError, match="column 'c' has more than 2 different values"):
        total(2)


def test_codes_of_different_columns_never_meet() -> None:
    columns: dict[str, Values] = {"c": categories(["a", "b", None]), "d": categories(["a", "x", "y"])}
    transforms = fitted(columns)
    codes = transforms.encode(columns).categories
    assert set(codes[:, 0]).isdisjoint(codes[:, 1])
    assert codes.max() == transforms.vocabulary - 1


@pytest.mark.covers("F49")
def test_columns_that_tell_nothing_are_left_out_with_the_reason() -> None:
    nothing = np.full(4, np.nan)
    columns: dict[str, Values] = {
        "constant": np.full(4, 0.1),
        "empty": nothing,
        "one": categories(["a"] * 4),
        "none": categories([None] * 4),
        "never": times(None, None, None, None),
        "x": np.arange(4.0),
    }
    transforms = fitted(columns)
    assert list(transforms.inputs) == ["x"]
    assert transforms.unused == {
        "constant": "the same value in every row",
        "empty": "no value in any row",
        "one": "the same value in every row",
        "none": "no value in any row",
        "never": "no value in any row",
    }


def test_of_a_constant_with_gaps_only_the_gaps_are_read() -> None:
    values = np.array([5.0, np.nan, 5.0, 5.0])
    encoded = fitted({"x": values}).encode({"x": np.array([5.0, 7.0, np.nan])})
    np.testing.assert_allclose(encoded.numeric, [[0, 0], [0, 0], [0, 1]])


def test_a_time_is_where_it_lies_in_the_day_and_in_the_week() -> None:
    noon = datetime(2013, 3, 4, 12, tzinfo=UTC)
    moments = times(noon, noon + timedelta(days=7), noon + timedelta(hours=12), None)
    transforms = fitted({"t": moments})
    features = transforms.encode({"t": moments}).numeric
    assert transforms.width == 5
    np.testing.assert_allclose(features[0], features[1], atol=1e-6)
    np.testing.assert_allclose(features[0, :2], [0, -1], atol=1e-6)  # half a day round
    np.testing.assert_allclose(features[2, :2], [0, 1], atol=1e-6)
    np.testing.assert_allclose(features[3], [0, 0, 0, 0, 1], atol=1e-6)


def test_transforms_read_back_from_their_file_encode_the_same_bits(tmp_path: Path) -> None:
    columns: dict[str, Values] = {
        "x": RANDOM.normal(size=100),
        "c": categories([str(v) for v in RANDOM.integers(0, 9, 100)]),
        "t": times(*(datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=h) for h in range(100))),
    }
    transforms = fitted(columns)
    again = Transforms.read(transforms.write(tmp_path / Transforms.FILE))
    assert again == transforms
    assert again.digest == transforms.digest
    before, after = transforms.encode(columns), again.encode(columns)
    assert np.array_equal(before.numeric, after.numeric)
    assert np.array_equal(before.categories, after.categories)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InputError, match="'y'"):
        fitted({"x": np.arange(3.0), "y": np.arange(3.0)}).encode({"x": np.arange(3.0)})


def test_columns_of_unequal_length_are_refused() -> None:
    transforms = fitted({"x": np.arange(3.0), "y": np.arange(3.0)})
    with pytest.raises(InputError, match="not of one length"):
        transforms.encode({"x": np.arange(3.0), "y": np.arange(2.0)})


def level(values: NDArray[np.float64], value: float) -> float:
    """The share of values below one, and half of those at it, counted one by one."""
    return float(((values < value).sum() + (values == value).sum() / 2) / len(values))


def test_few_values_are_scaled_by_their_exact_place_among_the_training_rows() -> None:
    years = RANDOM.choice([1959.0, 1990.0, 2004.0, -3.5, 0.0, -0.0], 1000)
    features = fitted({"x": years}, scaling="quantile").encode({"x": years}).numeric[:, 0]
    expected = [(level(years, year) - 0.5) * np.sqrt(12) for year in years]
    np.testing.assert_allclose(features, np.array(expected, dtype=np.float32), rtol=0, atol=1e-7)
    assert abs(features.mean()) < 1e-6


@pytest.mark.parametrize("shape", ["normal", "log-normal", "far from 0", "tiny", "both signs and sizes"])
def test_many_values_are_scaled_by_their_place_to_less_than_a_step(shape: str) -> None:
    draw = RANDOM.normal(size=50_000)
    values = {
        "normal": draw,
        "log-normal": np.exp(5 * draw),
        "far from 0": 1e8 + draw,
        "tiny": draw * 1e-140,
        "both signs and sizes": draw * 10.0 ** RANDOM.integers(-100, 100, draw.size),
    }[shape]
    features = fitted({"x": values}, scaling="quantile").encode({"x": values}).numeric[:, 0]
    place = features / np.sqrt(12) + 0.5
    exact = (np.argsort(np.argsort(values)) + 0.5) / len(values)
    assert np.abs(place - exact).max() < 1 / STEPS
    assert np.abs(place - exact).mean() < 0.3 / STEPS


@pytest.mark.parametrize("cuts", [[1], [40_000], [100, 101, 59_999], list(range(0, 60_000, 7_000))])
def test_quantiles_are_the_same_to_the_bit_however_the_rows_are_cut_and_merged(cuts: list[int]) -> None:
    values = np.exp(RANDOM.normal(size=60_000))
    values[::7] = np.nan
    whole = Fit({"x": "number"}, "quantile")
    whole.add({"x": values})
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        part = Fit({"x": "number"}, "quantile")
        part.add({"x": values[start:end]})
        parts.append(part.state)
    for order in (parts, parts[::-1]):
        total = Fit({"x": "number"}, "quantile")
        for state in order:
            total.merge(state)
        assert total.finish(max_categories=2).digest == whole.finish(max_categories=2).digest


def test_a_distribution_keeps_a_bounded_number_of_counts_and_loses_no_row() -> None:
    values = RANDOM.normal(size=200_000) * 10.0 ** RANDOM.integers(-140, 140, 200_000)
    counted = Distribution.of(values)
    assert MOST / 4 < counted.number.size <= MOST
    assert counted.count.sum() == len(values)


def test_values_outside_the_training_rows_get_the_place_of_the_nearest_and_missing_ones_the_middle() -> None:
    values = np.array([1.0, 2.0, 3.0, np.nan])
    transforms = fitted({"x": values}, scaling="quantile")
    encoded = transforms.encode({"x": np.array([-1e9, 1.0, 2.0, 3.0, 1e9, np.nan, np.inf, -np.inf, 1e200])})
    low, high = encoded.numeric[1, 0], encoded.numeric[3, 0]
    assert (low, high) == (-high, -low)
    assert encoded.numeric[:, 0].tolist() == [low, low, 0, high, high, 0, 0, 0, 0]
    assert encoded.numeric[:, 1].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]


ODD = {
    "x": np.array([0.5, np.nan, np.inf, -np.inf, 1e300, -1e149, 5e-324, -0.0, 1e9]),
    "c": categories(["v1", None, "never seen", "", "v2", "v3", "v1", "ä", "V1"]),
    "t": times(
        *(datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=7 * h) for h in range(6)),
        None,
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(9999, 1, 1, tzinfo=UTC),
    ),
}


@pytest.mark.parametrize("scaling", ["standard", "quantile"])
def test_every_odd_value_is_encoded_to_the_same_bits_alone_in_a_crowd_and_after_the_file(
    scaling: Scaling, tmp_path: Path
) -> None:
    rows = 3000
    learned: dict[str, Values] = {
        "x": np.where(np.arange(rows) % 9 == 0, np.nan, RANDOM.normal(size=rows)),
        "c": categories([None if index % 8 == 0 else f"v{index % 4}" for index in range(rows)]),
        "t": times(None, *(datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=h) for h in range(rows - 1))),
    }
    transforms = fitted(learned, scaling=scaling)
    again = Transforms.read(transforms.write(tmp_path / Transforms.FILE))
    together = transforms.encode(ODD)
    assert np.isfinite(together.numeric).all()
    for place in range(9):
        odd = {
            "x": ODD["x"][[place]],
            "c": Categories(codes=ODD["c"].codes[[place]], values=ODD["c"].values),
            "t": ODD["t"][[place]],
        }
        alone = again.encode(odd)
        assert alone.numeric.tobytes() == together.numeric[[place]].tobytes()
        assert alone.categories.tolist() == together.categories[[place]].tolist()


def test_transforms_of_an_earlier_version_keep_their_digest_and_fields(tmp_path: Path) -> None:
    check(Transforms, "transforms", tmp_path)
