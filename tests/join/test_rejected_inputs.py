"""Rows, columns and features that cannot be joined, would leak or exceed a limit are rejected by name."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import PRICES, ViewSpec, at, make_repository
from tests.join.conftest import Joined, repository_of
from tests.join.sales import Join, sale
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.join.audit import Audit


def test_a_feature_that_is_known_only_afterwards_is_refused(join: Join, tmp_path: Path) -> None:
    refunds = replace(
        PRICES, features={"refund": pa.float64(), "returned": pa.float64(), "pieces": pa.float64()}
    )
    repository = make_repository(tmp_path / "repo", [refunds])
    with pytest.raises(InputError) as raised:
        join(repository, {"train": [sale("a", 1)]})
    assert (
        "'refund' of view 'prices' has the name of a column that is known only afterwards"
        in raised.value.what
    )
    assert "'returned' of view 'prices' has the name of the rows' label column" in raised.value.what
    assert "'pieces' of view 'prices' has the name of a request column" in raised.value.what
    assert not (tmp_path / "set" / Snapshot.FILE).exists()


def test_all_wrong_column_names_are_reported_at_once(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    wrong = {"request": ["shopp", "pieces"], "known_after": ["refunds"]}
    with pytest.raises(InputError) as raised:
        join(repository, {"train": [sale("a", 1)]}, **wrong)
    assert "features.request: no column 'shopp'; did you mean shop?" in raised.value.what
    assert "features.known_after: no column 'refunds'; did you mean refund?" in raised.value.what


def test_a_column_that_a_later_step_needs_is_missed_before_the_join(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    made, _, _, _ = join(repository, {"train": [sale("a", 1)]}, needed=["shop", "currency", "returned"])
    assert made.rows == 1
    with pytest.raises(InputError, match="no column 'curency'; did you mean currency"):
        join(repository, {"train": [sale("a", 1)]}, needed=["curency"])


def test_a_view_that_joins_by_what_is_known_only_afterwards_is_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="joins by 'product', which is known only afterwards"):
        join(repository, {"train": [sale("a", 1)]}, known_after=["product"])


def test_a_view_whose_key_the_rows_do_not_have_is_refused(join: Join, tmp_path: Path) -> None:
    view = ViewSpec("weather", {"shops": pa.string()}, {"rain": pa.float64()}, [])
    with pytest.raises(InputError, match="view 'weather' joins by: no column 'shops'; did you mean shop"):
        join(make_repository(tmp_path / "repo", [view]), {"train": [sale("a", 1)]})


def test_a_key_of_another_type_is_refused_with_both_types(join: Join, tmp_path: Path) -> None:
    view = ViewSpec("codes", {"product": pa.string()}, {"rain": pa.float64()}, [])
    with pytest.raises(InputError, match="joins by 'product', int64 in the rows but string in its files"):
        join(make_repository(tmp_path / "repo", [view]), {"train": [sale("a", 1)]})


def test_a_time_that_is_no_timestamp_is_refused_with_its_type(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    roles = {"key": "sale", "time": "pieces", "label": "returned"}
    with pytest.raises(InputError, match="'pieces' is int64, not a timestamp"):
        join(repository, {"train": [sale("a", 1)]}, roles=roles, request=["shop"])


def test_rows_without_a_time_role_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="the rows have no time column"):
        join(repository, {"train": [sale("a", 1)]}, roles={"key": "sale"})


def test_a_row_without_a_time_is_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="1 rows have no 'sold'"):
        join(repository, {"train": [sale("a", 1), {**sale("b", 1), "sold": None}]})


KEYLESS = {"1 rows repeat another's": ["a", "b", "a"], "1 rows have none": ["a", "b", None]}


@pytest.mark.parametrize("problem", KEYLESS)
def test_rows_that_cannot_be_told_apart_are_refused(problem: str, join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    first, second, third = (sale(name, 1) for name in KEYLESS[problem])
    with pytest.raises(InputError, match=f"'sale' is no key: {problem}"):
        join(repository, {"train": [first, second], "evaluate": [third]})


def test_rows_from_the_cutoff_on_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = {"train": [sale("a", 1), sale("b", 2)]}
    assert join(repository, sales, cutoff=at(2.001).isoformat())[0].rows == 2
    with pytest.raises(InputError, match=r"1 rows are not before 2024-03-01T02:00:00\+00:00, such as .*'b'"):
        join(repository, sales, cutoff=at(2).isoformat())


def test_a_view_that_fans_out_is_refused(join: Join, tmp_path: Path) -> None:
    twin = {**PRICES.rows[0], "price": 10.01}
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, twin])])
    with pytest.raises(InputError, match=r"view 'prices' fans out: 1 pairs of its rows .* such as product=1"):
        join(repository, {"train": [sale("a", 1)]})


def test_a_view_without_creation_times_needs_a_reason(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, has_created=False)])
    sales = {"train": [sale("a", 25)]}
    with pytest.raises(InputError, match=r"views \['prices'\] have no created timestamp"):
        join(repository, sales)
    _, rows, headline, summary = join(repository, sales, allow_backfill_leak="prices are printed in advance")
    assert rows["price"].to_pylist() == [11.0]
    assert headline == "1 rows, 2 features, 0 leaks, not proven for prices"
    assert "Not proven for prices" in summary


@pytest.mark.covers("B48")
def test_a_row_of_a_view_without_its_time_is_refused_with_the_column_and_their_number(
    join: Join, tmp_path: Path
) -> None:
    odd = replace(PRICES, rows=[*PRICES.rows, PRICES.rows[0] | {"event": None}], renamed={"when": "event"})
    with pytest.raises(InputError, match="event timestamp column 'when' of view 'prices' has 1 nulls"):
        join(make_repository(tmp_path / "repo", [odd]), {"train": [sale("a", 1)]})


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


def test_a_feature_that_is_missing_more_often_than_allowed_is_refused_after_the_audit_is_written(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = {"train": [sale("a", 1), sale("b", 1), sale("c", 1, product=77)]}
    made, _, _, summary = join(repository, sales, limits={"max_missing": {"price": 0.4}})
    assert made.quality["missing_share.price"] == pytest.approx(1 / 3, abs=1e-6)
    assert "| price | prices | 33.33% |" in summary
    shutil.rmtree(tmp_path / "set")
    with pytest.raises(
        DataRefused, match=r"price: no value in 33\.33% of the rows > max_missing 30\.00%"
    ) as raised:
        join(repository, sales, limits={"max_missing": {"price": 0.3}})
    assert raised.value.code == 11
    assert raised.value.hint.startswith("Leave the column out with features.exclude")
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    [line] = Audit.read(tmp_path / "set").refusals
    assert line.endswith("if that is right, set features.limits.max_missing: {price: 0.34}")
    assert "Refused: 1 limit does not hold" in (tmp_path / "summary.md").read_text()


def test_a_default_limit_holds_for_every_feature_that_has_none_of_its_own(join: Join, tmp_path: Path) -> None:
    odd = [{"product": 1, "price": math.nan, "currency": None, "event": at(0), "created": at(0)}]
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=odd)])
    limits = {"max_missing": {"currency": 1}, "max_missing_default": 0.5}
    with pytest.raises(
        DataRefused, match=r"1 limit does not hold\n.*price: no value in 100\.00% of the rows"
    ):
        join(repository, {"train": [sale("a", 1)]}, limits=limits)


def test_values_that_are_too_old_or_past_their_ttl_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, ttl=timedelta(hours=6))])
    sales = {"train": [sale("a", 1), sale("b", 5), sale("c", 20), sale("d", 29)]}
    made, _, _, _ = join(repository, sales)
    assert made.quality["median_age_s.prices"] == made.quality["max_age_s.prices"] == 5 * 3600
    assert made.quality["expired_share.prices"] == 0.25
    with pytest.raises(DataRefused) as raised:
        join(repository, sales, limits={"max_age_s": {"prices": 3600}, "max_expired": {"prices": 0.2}})
    assert "view prices: newest value past its TTL in 25.00% of rows > 20.00%" in raised.value.what
    assert "view prices: oldest joined value 18,000 s > 3,600 s" in raised.value.what


def test_limits_on_what_is_not_joined_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    limits = {"max_missing": {"pric": 0.1}, "max_age_s": {"weather": 60}}
    with pytest.raises(InputError) as raised:
        join(repository, {"train": [sale("a", 1)]}, limits=limits)
    assert "features.limits.max_missing: no column 'pric'; did you mean price?" in raised.value.what
    assert "features.limits.max_age_s: no view 'weather'; known are prices" in raised.value.what
