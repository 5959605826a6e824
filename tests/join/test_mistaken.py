"""Keys, names and values that are easily mistaken for others."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import PRICES, ViewSpec, at, make_repository
from tests.join.conftest import Joined, repository_of
from tests.join.sales import sale
from trainwright.errors import InputError

Join = Callable[..., Joined]


def test_a_key_of_floats_is_refused_because_nan_and_zero_are_not_surely_told_apart(
    join: Join, tmp_path: Path
) -> None:
    repository = repository_of(tmp_path, {"product": pa.array([1.0]), "code": pa.array([1.5])})
    with pytest.raises(InputError, match="joins by 'product', double in its files"):
        join(repository, {"train": [sale("a", 1)]})


def test_nan_within_a_list_is_equal_to_itself(join: Join, tmp_path: Path) -> None:
    vector = pa.array([[1.0, math.nan]], pa.list_(pa.float64()))
    repository = repository_of(tmp_path, {"product": pa.array([1]), "vector": vector})
    _, rows, headline, _ = join(repository, {"train": [sale("a", 1)]})
    assert headline == "1 rows, 1 features, 0 leaks"
    assert math.isnan(rows["vector"].to_pylist()[0][1])


def test_an_integer_that_no_double_holds_is_joined_exactly_and_scored(join: Join, tmp_path: Path) -> None:
    codes = pa.array([2**63 + 1, 2**53 + 1], pa.uint64())
    repository = repository_of(tmp_path, {"product": pa.array([1, 2]), "code": codes})
    sales = [sale("a", 1), sale("b", 1, product=2, returned=1), sale("c", 1, product=3)]
    assert join(repository, {"train": sales})[1]["code"].to_pylist() == [2**63 + 1, 2**53 + 1, None]


def test_a_service_that_renames_one_key_of_two_still_joins_by_both(join: Join, tmp_path: Path) -> None:
    """Feast's DuckDB store joins by the renamed one alone, and gives the rows of any shop."""
    from feast import FeatureService, FeatureStore

    view = ViewSpec(
        "stock",
        {"place": pa.string(), "product": pa.int64()},
        {"in_stock": pa.float64()},
        [
            {"place": place, "product": product, "in_stock": stock, "event": at(0), "created": at(0)}
            for place, product, stock in (("north", 1, 1.0), ("north", 2, 2.0), ("south", 1, 3.0))
        ],
    )
    repository = make_repository(tmp_path / "repo", [view])
    store = FeatureStore(repo_path=str(repository))
    renamed = store.get_feature_view("stock").with_join_key_map({"place": "shop"})
    store.apply([FeatureService(name="shop_v1", features=[renamed])])
    sales = [sale("a", 1, product=2), sale("b", 1, shop="south"), sale("c", 1, shop="south", product=2)]
    assert join(repository, {"train": sales})[1]["in_stock"].to_pylist() == [2.0, 3.0, None]


def test_keys_and_times_that_the_source_names_otherwise_are_found(join: Join, tmp_path: Path) -> None:
    renamed = {"article": "product", "moment": "event", "known": "created"}
    repository = make_repository(tmp_path / "repo", [replace(PRICES, renamed=renamed)])
    assert "article" in pq.read_schema(repository / "offline" / "prices.parquet").names
    sales = [sale("a", 1), sale("b", 30), sale("c", -1)]
    assert join(repository, {"train": sales})[1]["price"].to_pylist() == [10.0, 11.0, None]


def test_features_whose_names_feast_loses_are_joined_and_checked_all_the_same(
    join: Join, tmp_path: Path
) -> None:
    """Its DuckDB store drops every column that ends with _y, and has names of its own for some."""
    names = ("drift_y", "rn", "entity_row_id")
    row = {name: 1.5 + place for place, name in enumerate(names)}
    view = ViewSpec(
        "odd",
        {"product": pa.int64()},
        dict.fromkeys(names, pa.float64()),
        [row | {"product": 1, "event": at(0), "created": at(0)}],
        ttl=timedelta(hours=2),
    )
    rows = join(make_repository(tmp_path / "repo", [view]), {"train": [sale("a", 1), sale("b", 3)]})[1]
    assert [rows[name].to_pylist() for name in names] == [[1.5, None], [2.5, None], [3.5, None]]


@pytest.mark.parametrize(("own", "mine"), [(pa.uint64(), -1), (pa.uint32(), -1), (pa.int32(), 2**32 - 1)])
def test_a_number_that_only_looks_like_a_key_after_a_conversion_matches_nothing(
    own: pa.DataType, mine: int, join: Join, tmp_path: Path
) -> None:
    """2^64 - 1 is -1 in 64 signed bits, and back."""
    other = mine % 2**own.bit_width if mine < 0 else mine - 2**32
    repository = repository_of(tmp_path, {"product": pa.array([other, 7], own), "code": pa.array([1.5, 2.5])})
    sales = [sale("a", 1, product=mine), sale("b", 1, product=7)]
    assert join(repository, {"train": sales})[1]["code"].to_pylist() == [None, 2.5]
