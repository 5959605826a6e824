"""The join beside Feast's own: where they must agree, and where Feast does what nobody wants."""

import contextlib
import warnings
from dataclasses import replace
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import PRICES, at, make_repository
from tests.join.conftest import repository_of, write_sales
from tests.join.sales import Join, Row, known_value, random_sales, random_views, sale
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.featurestore import open_service
from trainwright.join import reference
from trainwright.join.audit import Audit
from trainwright.join.history import AsOfResult, FileHistory, Ints


@pytest.mark.parametrize("pairs_per_span", [10**9, 100])
def test_feast_asked_about_many_short_spans_of_time_says_the_same(
    tmp_path: Path, pairs_per_span: int
) -> None:
    views, sales = random_views(1), random_sales(2, 400)
    repository = make_repository(tmp_path / "repo", views)
    write_sales(tmp_path / "sales", {"train": sales})
    rows = tables.read_split(tmp_path / "sales", Snapshot.read(tmp_path / "sales"), "train")
    service = open_service(str(repository), "shop_v1")
    for view, spec in zip(service.views, views, strict=True):
        found = reference.feast_values(
            service, FileHistory(view), rows, "sold", pairs_per_span=pairs_per_span
        )
        [feature] = spec.features
        assert found.column(0).to_pylist() == [known_value(spec, row, feature) for row in sales]


@pytest.mark.parametrize(("most", "checked"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (9, 5)])
def test_feast_joins_as_many_rows_again_as_are_asked_for_at_most(
    most: int, checked: int, join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    splits = {"train": [sale(name, 1) for name in "abc"], "evaluate": [sale("d", 1), sale("e", 30)]}
    made, _, _, summary = join(repository, splits, checked_rows=most)
    assert made.quality["checked_by_feast.prices"] == checked
    assert f"{checked:,} rows were joined again by Feast itself" in summary


LATE = {"product": 1, "price": 99.0, "currency": "EUR", "event": at(10), "created": at(30)}


class Mistaken(FileHistory):
    """A view's rows, where one row of the history is taken for every row that is joined to."""

    taken = 0

    def find(self, rows: pa.Table, at: Ints) -> AsOfResult:  # noqa: ARG002
        nothing = np.zeros(at.size, dtype=bool)
        return AsOfResult(np.full(at.size, self.taken), nothing, nothing)


class Leaking(Mistaken):
    """The last one, which became known after them."""

    taken = 3


def test_a_join_that_lets_later_values_in_is_refused_and_leaves_no_training_set(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, LATE])])
    with pytest.raises(DataRefused, match=r"prices: 1 rows, such as b has .*99\.0"):
        join(
            repository, {"train": [sale("b", 20), sale("c", 31)]}, open_history=lambda view, _: Leaking(view)
        )
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    assert "**1 values leak: refused.**" in (tmp_path / "summary.md").read_text()
    assert Audit.read(tmp_path / "set").views[0].leaks == 1


def test_a_join_unlike_that_of_feast_is_refused_with_both_values(join: Join, tmp_path: Path) -> None:
    """An older value than the newest known one is no leak: only a second join can tell."""
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(DataRefused, match=r"prices: 1 rows, such as b has .*10\.0.*Feast gives .*11\.0"):
        join(
            repository, {"train": [sale("a", 5), sale("b", 30)]}, open_history=lambda view, _: Mistaken(view)
        )
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    found = Audit.read(tmp_path / "set").views[0]
    assert (found.leaks, found.differing_from_feast) == (0, 1)


def feast_gives(repository: Path, sales: list[Row], *, store: str, known_only: bool) -> dict[str, Any]:
    """What Feast itself gives with one of its offline stores: the price by sale."""
    from feast import FeatureStore

    settings = repository / "feature_store.yaml"
    settings.write_text(settings.read_text().replace("type: duckdb", f"type: {store}"))
    frame = pa.Table.from_pylist(
        [{"sale": row["sale"], "product": row["product"], "event_timestamp": row["sold"]} for row in sales]
    )
    feast = FeatureStore(repo_path=str(repository))
    try:
        with warnings.catch_warnings(), contextlib.chdir(repository):
            warnings.simplefilter("ignore")
            found = feast.get_historical_features(
                frame.to_pandas(),
                feast.get_feature_service("shop_v1"),
                filter_by_created_timestamp=known_only,
            ).to_arrow()
    finally:
        settings.write_text(settings.read_text().replace(f"type: {store}", "type: duckdb"))
    return dict(zip(found["sale"].to_pylist(), found["price"].to_pylist(), strict=True))


def test_feast_by_default_lets_a_backfilled_row_in_and_this_join_does_not(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, LATE])])
    sales = [sale("a", 5), sale("b", 20)]
    assert feast_gives(repository, sales, store="duckdb", known_only=False) == {"a": 10.0, "b": 99.0}
    assert feast_gives(repository, sales, store="duckdb", known_only=True) == {"a": 10.0, "b": 10.0}
    made, rows, _, _ = join(repository, {"train": sales})
    assert rows["price"].to_pylist() == [10.0, 10.0]
    assert made.quality["held_back_rows.prices"] == 1


def test_feasts_default_store_drops_rows_that_match_nothing_and_this_join_keeps_them(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, ttl=timedelta(hours=6))])
    sales = [sale("fresh", 5), sale("unknown", 5, product=77), sale("too soon", -1), sale("stale", 20)]
    assert len(feast_gives(repository, sales, store="dask", known_only=True)) < len(sales)
    _, rows, _, _ = join(repository, {"train": sales})
    assert rows["sale"].to_pylist() == ["fresh", "unknown", "too soon", "stale"]
    expected = feast_gives(repository, sales, store="duckdb", known_only=True)
    assert dict(zip(rows["sale"].to_pylist(), rows["price"].to_pylist(), strict=True)) == expected


def test_offline_files_with_nanoseconds_are_refused_before_duckdb_fails_on_them(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    path = repository / "offline" / "prices.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("event")
    nanoseconds = table["event"].cast(pa.timestamp("ns", tz="UTC"))
    pq.write_table(table.set_column(place, "event", nanoseconds), path)
    with pytest.raises(InputError, match=r"'event' of view 'prices' is timestamp\[ns, tz=UTC\]"):
        join(repository, {"train": [sale("a", 1)]})


def test_what_feast_itself_cannot_join_is_refused_with_its_reason(join: Join, tmp_path: Path) -> None:
    """Feast's DuckDB store gives times of day in nanoseconds as text."""
    opened = pa.array([time(8, 30)], pa.time64("ns"))
    repository = repository_of(tmp_path, {"product": pa.array([1]), "opens": opened})
    with pytest.raises(InputError, match=r"Feast could not join view 'codes': .* string to time64"):
        join(repository, {"train": [sale("a", 1)]})
