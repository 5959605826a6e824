"""A training set holds what was known at each row's time: against a join in plain Python."""

import contextlib
import math
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import PRICES, UTC_US, ViewSpec, at, make_repository, write_table
from tests.join.conftest import Joined, features_of, repository_of, write_sales
from trainwright import tables
from trainwright.artifacts import Record, Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.featurestore import open_service
from trainwright.join import joining, referee
from trainwright.join.asof import History
from trainwright.join.audit import Audit
from trainwright.join.left_out import read_left_out
from trainwright.join.source import Source
from trainwright.join.training_set import make_training_set
from trainwright.storage import take_listing

Join = Callable[..., Joined]
Row = dict[str, Any]


def sale(name: str, hours: float, **values: Any) -> Row:
    return {
        "sale": name,
        "sold": at(hours),
        "returned": 0,
        "shop": "north",
        "product": 1,
        "pieces": 1,
    } | values


def known_value(view: ViewSpec, row: Row, feature: str) -> Any:
    """Search every row of a view for the newest event, then creation, that was known and not expired."""
    best: tuple[datetime, datetime] | None = None
    value = None
    for entry in view.rows:
        if any(row[key] is None or entry[key] != row[key] for key in view.keys):
            continue
        event, created, moment = entry["event"], entry["created"], row["sold"]
        if event > moment or created > moment or (view.ttl and event < moment - view.ttl):
            continue
        if best is None or (event, created) > best:
            best, value = (event, created), entry[feature]
    return value


def random_views(seed: int) -> list[ViewSpec]:
    """Three views with late creations, corrections, missing values and expired ones."""
    rng = np.random.default_rng(seed)

    def rows(keys: dict[str, list[Any]], feature: str, count: int) -> list[Row]:
        made, seen = [], set()
        for _ in range(count):
            event = round(float(rng.uniform(0, 100)) * 2) / 2
            entry: Row = {name: values[rng.integers(len(values))] for name, values in keys.items()}
            entry |= {"event": at(event), "created": at(event + float(rng.choice([0, 0, 1, 5, 40])))}
            entry[feature] = None if rng.random() < 0.1 else float(rng.normal())
            identity = tuple(value for name, value in entry.items() if name != feature)
            if identity not in seen:
                made.append(entry)
            seen.add(identity)
        return made

    shops, products = ["north", "south", "east"], [1, 2, 3, 4]
    return [
        ViewSpec(
            "visits",
            {"shop": pa.string()},
            {"visitors": pa.float64()},
            rows({"shop": shops}, "visitors", 150),
        ),
        ViewSpec(
            "costs",
            {"product": pa.int64()},
            {"cost": pa.float64()},
            rows({"product": products}, "cost", 120),
            ttl=timedelta(hours=10),
        ),
        ViewSpec(
            "stock",
            {"shop": pa.string(), "product": pa.int64()},
            {"in_stock": pa.float64()},
            rows({"shop": shops, "product": products}, "in_stock", 250),
            ttl=timedelta(days=1),
        ),
    ]


def random_sales(seed: int, count: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [
        sale(
            f"s{number}",
            round(float(rng.uniform(-2, 110)) * 2) / 2,
            shop=["north", "south", "east", "west", None][rng.integers(5)],
            product=[1, 2, 3, 4, 9, None][rng.integers(6)],
            returned=int(rng.integers(2)),
        )
        for number in range(count)
    ]


def test_every_value_is_the_one_that_a_search_in_plain_python_finds(join: Join, tmp_path: Path) -> None:
    views, sales = random_views(1), random_sales(2, 400)
    repository = make_repository(tmp_path / "repo", views)
    made, rows, headline, _ = join(repository, {"train": sales[:300], "evaluate": sales[300:]})
    for view in views:
        for feature in view.features:
            expected = [known_value(view, row, feature) for row in sales]
            assert rows[feature].to_pylist() == expected
            assert 0 < sum(value is None for value in expected) < len(expected)
    assert headline == "400 rows, 3 features, 0 leaks"
    assert made.splits == {"train": 300, "evaluate": 100}


def test_order_count_and_splits_are_those_of_the_rows(join: Join, tmp_path: Path) -> None:
    sales = random_sales(3, 90)
    repository = make_repository(tmp_path / "repo", random_views(4))
    made, rows, _, _ = join(
        repository, {"train": sales[:50], "evaluate": sales[50:80], "unassigned": sales[80:]}
    )
    assert rows["sale"].to_pylist() == [row["sale"] for row in sales]
    assert rows["sold"].to_pylist() == [row["sold"] for row in sales]
    assert made.splits == {"train": 50, "evaluate": 30, "unassigned": 10}
    assert made.roles == {"key": "sale", "time": "sold", "label": "returned"}


@pytest.mark.parametrize("pairs_per_span", [10**9, 1])
def test_feast_asked_about_many_short_spans_of_time_says_the_same(
    tmp_path: Path, pairs_per_span: int
) -> None:
    views, sales = random_views(1), random_sales(2, 400)
    repository = make_repository(tmp_path / "repo", views)
    write_sales(tmp_path / "sales", {"train": sales})
    rows = tables.read_split(tmp_path / "sales", Snapshot.read(tmp_path / "sales"), "train")
    service = open_service(str(repository), "shop_v1")
    for view, spec in zip(service.views, views, strict=True):
        found = referee.feast_values(service, Source(view), rows, "sold", pairs_per_span=pairs_per_span)
        [feature] = spec.features
        assert found.column(0).to_pylist() == [known_value(spec, row, feature) for row in sales]


def test_chunks_of_rows_change_nothing(tmp_path: Path) -> None:
    sales = random_sales(5, 60)
    snapshot = write_sales(tmp_path / "sales", {"train": sales[:40], "evaluate": sales[40:]})
    features = features_of(make_repository(tmp_path / "repo", random_views(6)))
    service = open_service(features.repository, features.service)

    def joined(chunk_rows: int | None) -> tuple[list[tuple[str, Row]], Audit, int]:
        nothing = read_left_out(None, "", snapshot.digest, "sale")
        join = joining.Join(snapshot, service, features, nothing, chunk_rows=chunk_rows)
        pieces = list(join.rows(tmp_path / "sales"))
        rows = [(split, row) for split, piece in pieces for row in piece.to_pylist()]
        return rows, join.audit(), len(pieces)

    whole, audit, _ = joined(None)
    rows, same, pieces = joined(7)
    assert pieces == 9
    assert [row["sale"] for _, row in rows] == [row["sale"] for row in sales]
    assert (rows, same) == (whole, audit)


def test_only_the_roles_the_request_columns_and_the_features_go_on(join: Join, tmp_path: Path) -> None:
    made, rows, _, summary = join(make_repository(tmp_path / "repo", [PRICES]), {"train": [sale("a", 1)]})
    assert rows.column_names == ["sale", "sold", "returned", "shop", "pieces", "price", "currency"]
    assert "Left behind: product, refund." in summary
    assert [column.name for column in made.columns] == rows.column_names


def test_a_time_that_is_no_timestamp_is_refused_with_its_type(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    roles = {"key": "sale", "time": "pieces", "label": "returned"}
    with pytest.raises(InputError, match="'pieces' is int64, not a timestamp"):
        join(repository, {"train": [sale("a", 1)]}, roles=roles, request=["shop"])


def test_a_value_that_was_filled_in_later_does_not_leak(join: Join, tmp_path: Path) -> None:
    late = {"product": 1, "price": 99.0, "currency": "EUR", "event": at(10), "created": at(30)}
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, late])])
    sales = [sale("before", 20), sale("after", 30)]
    made, rows, headline, _ = join(repository, {"train": sales})
    assert rows["price"].to_pylist() == [10.0, 11.0]
    assert headline.endswith("0 leaks")
    assert made.quality["held_back_share.prices"] == 0.5


def test_a_correction_is_used_from_its_creation_on(join: Join, tmp_path: Path) -> None:
    fixed = {"product": 1, "price": 10.5, "currency": "EUR", "event": at(0), "created": at(5)}
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, fixed])])
    sales = [sale("early", 4.9), sale("late", 5)]
    assert join(repository, {"train": sales})[1]["price"].to_pylist() == [10.0, 10.5]


def test_a_ttl_counts_from_the_row_and_includes_its_end(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, ttl=timedelta(hours=6))])
    sales = [sale("fresh", 6), sale("stale", 6.1), sale("renewed", 24)]
    made, rows, _, _ = join(repository, {"train": sales})
    assert rows["price"].to_pylist() == [10.0, None, 11.0]
    assert made.quality["expired_share.prices"] == pytest.approx(1 / 3, abs=1e-6)
    assert made.quality["max_age_s.prices"] == 6 * 3600


def test_rows_that_match_nothing_stay_with_nulls(join: Join, tmp_path: Path) -> None:
    sales = [sale("unknown", 5, product=77), sale("none", 5, product=None), sale("too soon", -1)]
    _, rows, _, _ = join(make_repository(tmp_path / "repo", [PRICES]), {"train": sales})
    assert rows["sale"].to_pylist() == ["unknown", "none", "too soon"]
    assert rows["price"].null_count == 3


def test_a_snapshot_in_which_nothing_has_a_key_is_joined_to_nothing(join: Join, tmp_path: Path) -> None:
    sales = [sale("a", 5, product=None), sale("b", 6, product=None)]
    _, rows, _, _ = join(make_repository(tmp_path / "repo", [PRICES]), {"train": sales})
    assert rows["price"].to_pylist() == [None, None]
    assert rows.schema.field("price").type == pa.float64()


def test_one_key_and_time_in_many_rows_gives_each_row_its_value(join: Join, tmp_path: Path) -> None:
    sales = [sale(f"s{number}", 25, product=1 + number % 2) for number in range(10)]
    _, rows, _, _ = join(make_repository(tmp_path / "repo", [PRICES]), {"train": sales})
    assert rows["price"].to_pylist() == [11.0, 20.0] * 5


def test_an_empty_split_stays_an_empty_split(join: Join, tmp_path: Path) -> None:
    made, _, _, _ = join(
        make_repository(tmp_path / "repo", [PRICES]), {"train": [sale("a", 1)], "evaluate": []}
    )
    assert made.splits == {"train": 1, "evaluate": 0}


def test_nan_is_a_value_and_null_is_none(join: Join, tmp_path: Path) -> None:
    odd = [{"product": 1, "price": math.nan, "currency": None, "event": at(0), "created": at(0)}]
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=odd)])
    _, rows, headline, _ = join(repository, {"train": [sale("a", 1)]})
    assert math.isnan(rows["price"][0].as_py())
    assert rows["currency"].to_pylist() == [None]
    assert headline.endswith("0 leaks")


def test_lists_are_joined_and_compared_like_any_value(join: Join, tmp_path: Path) -> None:
    view = ViewSpec(
        "vectors",
        {"product": pa.int64()},
        {"vector": pa.list_(pa.float64())},
        [{"product": 1, "vector": [1.0, 2.0], "event": at(0), "created": at(0)}],
    )
    _, rows, headline, _ = join(make_repository(tmp_path / "repo", [view]), {"train": [sale("a", 1)]})
    assert rows["vector"].to_pylist() == [[1.0, 2.0]]
    assert headline == "1 rows, 1 features, 0 leaks"


def test_columns_that_the_source_names_otherwise_are_joined_by_their_feature_name(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, renamed={"amount": "price"})])
    assert "amount" in pq.read_schema(repository / "offline" / "prices.parquet").names
    assert join(repository, {"train": [sale("a", 1)]})[1]["price"].to_pylist() == [10.0]


def test_the_manifest_names_the_rows_and_the_service_and_the_same_inputs_give_the_same_bytes(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    first, _, _, _ = join(repository, {"train": [sale("a", 1)]})
    again, _, _, _ = join(repository, {"train": [sale("a", 1)]})
    record = Record.read(tmp_path / "set")
    assert first.digest == again.digest == record.outputs["training_set"]
    assert first.parents["entities"] == Snapshot.read(tmp_path / "sales").digest
    assert first.parents["features"] == record.outputs["service"]


def test_a_join_opens_no_connection(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    opened: list[Any] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in {"socket.connect", "socket.getaddrinfo"}:
            opened.append((event, arguments))

    sys.addaudithook(watch)
    join(repository, {"train": [sale("a", 1)]})
    watching = False
    assert opened == []


# What is refused


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


def test_a_key_that_the_files_could_not_hold_matches_nothing(join: Join, tmp_path: Path) -> None:
    view = ViewSpec("codes", {"product": pa.int64()}, {"code": pa.float64()}, [])
    repository = make_repository(tmp_path / "repo", [view])
    times = pa.array([at(0)], UTC_US)
    small = {"product": pa.array([7], pa.int32()), "code": [1.5], "event": times, "created": times}
    pq.write_table(pa.table(small), repository / "offline" / "codes.parquet")
    sales = [sale("a", 1, product=7), sale("b", 1, product=7 + 2**32)]
    assert join(repository, {"train": sales})[1]["code"].to_pylist() == [1.5, None]


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(days=1)])
def test_a_folder_of_offline_files_is_joined_like_one_file(
    ttl: timedelta, join: Join, tmp_path: Path
) -> None:
    view = ViewSpec("codes", {"product": pa.int64()}, {"code": pa.float64()}, [], ttl=ttl)
    repository = make_repository(tmp_path / "repo", [view])
    folder = repository / "offline" / "codes.parquet"
    folder.unlink()
    folder.mkdir()
    for product in (1, 2):
        row = {"product": product, "code": product / 2, "event": at(0), "created": at(0)}
        write_table(folder / f"{product}.parquet", replace(view, rows=[row]))
    (folder / "README.txt").write_text("what this is")
    sales = [sale("a", 1, product=1), sale("b", 1, product=2)]
    assert join(repository, {"train": sales})[1]["code"].to_pylist() == [0.5, 1.0]


def test_what_feast_itself_cannot_join_is_refused_with_its_reason(join: Join, tmp_path: Path) -> None:
    """Feast's DuckDB store gives times of day in nanoseconds as text."""
    opened = pa.array([time(8, 30)], pa.time64("ns"))
    repository = repository_of(tmp_path, {"product": pa.array([1]), "opens": opened})
    with pytest.raises(InputError, match=r"Feast could not join view 'codes': .* string to time64"):
        join(repository, {"train": [sale("a", 1)]})


def test_a_view_that_fans_out_is_refused(join: Join, tmp_path: Path) -> None:
    twin = {**PRICES.rows[0], "price": 10.01}
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, twin])])
    with pytest.raises(InputError, match=r"view 'prices' fans out: 1 pairs of its rows .* such as product=1"):
        join(repository, {"train": [sale("a", 1)]})


def test_a_row_that_stands_twice_with_the_same_values_is_harmless(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, PRICES.rows[0]])])
    _, rows, _, _ = join(repository, {"train": [sale("a", 1)]})
    assert rows["price"].to_pylist() == [10.0]


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


def test_a_row_without_a_time_is_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="1 rows have no 'sold'"):
        join(repository, {"train": [sale("a", 1), {**sale("b", 1), "sold": None}]})


def test_a_view_without_creation_times_needs_a_reason(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, has_created=False)])
    sales = {"train": [sale("a", 25)]}
    with pytest.raises(InputError, match=r"views \['prices'\] have no created timestamp"):
        join(repository, sales)
    _, rows, headline, summary = join(repository, sales, allow_backfill_leak="prices are printed in advance")
    assert rows["price"].to_pylist() == [11.0]
    assert headline == "1 rows, 2 features, 0 leaks, not proven for prices"
    assert "Not proven for prices" in summary


def test_rows_without_a_time_role_are_refused(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(InputError, match="the rows have no time column"):
        join(repository, {"train": [sale("a", 1)]}, roles={"key": "sale"})


def test_features_that_changed_since_they_were_looked_at_are_refused(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = write_sales(tmp_path / "sales", {"train": [sale("a", 1)]})
    version = take_listing(features_of(repository).source).content_digest
    make_repository(repository, [replace(PRICES, rows=PRICES.rows[:1])])
    with pytest.raises(InputError, match="they changed after they were looked at"):
        make_training_set(
            tmp_path / "sales",
            sales.digest,
            features_of(repository),
            version,
            tmp_path / "set",
            tmp_path / "summary.md",
        )


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("offline", "feature_store.yaml, the definitions of the views"),
        ("offline/visits.parquet", "prices.parquet, feature_store.yaml"),
        ("**/*.[py]*", "the definitions of the views"),
    ],
)
def test_a_source_of_features_that_would_not_show_a_change_of_them_is_refused(
    source: str, missing: str, join: Join, tmp_path: Path
) -> None:
    """A cached join knows nothing of what its source does not hold, such as a TTL in the registry."""
    visits = ViewSpec("visits", {"shop": pa.string()}, {"visitors": pa.float64()}, [])
    repository = make_repository(tmp_path / "repo", [visits, PRICES])
    with pytest.raises(InputError, match="a change of the features would go unseen") as raised:
        join(repository, {"train": [sale("a", 1)]}, source=str(repository / source))
    assert missing in raised.value.what
    assert raised.value.hint.endswith(f"{repository}/**/*[!c]")
    assert not (tmp_path / "set").exists()


def test_with_its_registry_elsewhere_the_definitions_show_a_change_of_the_features(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    (repository / "registry.db").rename(tmp_path / "registry.db")
    settings = repository / "feature_store.yaml"
    settings.write_text(settings.read_text().replace("registry.db", "../registry.db"))
    with pytest.raises(InputError, match="does not hold the definitions of the views"):
        join(repository, {"train": [sale("a", 1)]})
    (repository / "definitions.py").write_text("# as they were applied")
    assert join(repository, {"train": [sale("a", 1)]})[0].rows == 1


LATE = {"product": 1, "price": 99.0, "currency": "EUR", "event": at(10), "created": at(30)}


def test_a_join_that_lets_later_values_in_is_refused_and_leaves_no_training_set(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, LATE])])
    monkeypatch.setattr(History, "_known", lambda _, place, __: place)
    with pytest.raises(DataRefused, match=r"prices: 1 rows, such as b has .*99\.0"):
        join(repository, {"train": [sale("a", 5), sale("b", 20)]})
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    assert "**1 values leak: refused.**" in (tmp_path / "summary.md").read_text()
    assert Audit.read(tmp_path / "set").views[0].leaks == 1


def test_a_join_unlike_that_of_feast_is_refused_with_both_values(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, LATE])])
    monkeypatch.setitem(referee.feast_values.__kwdefaults__, "known_only", False)
    with pytest.raises(DataRefused, match=r"prices: 1 rows, such as b has .*10\.0.*Feast gives .*99\.0"):
        join(repository, {"train": [sale("a", 5), sale("b", 20)]})
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    assert Audit.read(tmp_path / "set").views[0].differing_from_feast == 1


@pytest.mark.parametrize(("most", "checked"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (9, 5)])
def test_feast_joins_as_many_rows_again_as_are_asked_for_at_most(
    most: int, checked: int, join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    splits = {"train": [sale(name, 1) for name in "abc"], "evaluate": [sale("d", 1), sale("e", 30)]}
    made, _, _, summary = join(repository, splits, checked_rows=most)
    assert made.quality["checked_by_feast.prices"] == checked
    assert f"{checked:,} rows were joined again by Feast itself" in summary


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


# What limits refuse


def test_a_feature_that_is_missing_more_often_than_allowed_is_refused_after_the_audit_is_written(
    join: Join, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = {"train": [sale("a", 1), sale("b", 1), sale("c", 1, product=77)]}
    made, _, _, summary = join(repository, sales, limits={"max_missing": {"price": 0.4}})
    assert made.quality["missing_share.price"] == pytest.approx(1 / 3, abs=1e-6)
    assert "| price | prices | 33.33% |" in summary
    shutil.rmtree(tmp_path / "set")
    with pytest.raises(DataRefused, match=r"price: no value in 33\.33% of the rows > 30\.00%") as raised:
        join(repository, sales, limits={"max_missing": {"price": 0.3}})
    assert raised.value.code == 11
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    assert Audit.read(tmp_path / "set").refusals == ("price: no value in 33.33% of the rows > 30.00%",)
    assert "Refused: 1 limits do not hold" in (tmp_path / "summary.md").read_text()


def test_a_default_limit_holds_for_every_feature_that_has_none_of_its_own(join: Join, tmp_path: Path) -> None:
    odd = [{"product": 1, "price": math.nan, "currency": None, "event": at(0), "created": at(0)}]
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=odd)])
    limits = {"max_missing": {"currency": 1}, "max_missing_default": 0.5}
    with pytest.raises(DataRefused, match=r"1 limits do not hold\n.*price: no value in 100\.00% of the rows"):
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
    assert "features.limits.max_age_s: no view 'weather'; the service has prices" in raised.value.what


# Where the features come from


def test_the_digests_of_the_service_and_of_every_view_are_on_the_training_set(
    join: Join, tmp_path: Path
) -> None:
    visits = ViewSpec("visits", {"shop": pa.string()}, {"visitors": pa.float64()}, [])
    first = join(make_repository(tmp_path / "repo", [visits, PRICES]), {"train": [sale("a", 1)]})[0].parents
    assert set(first) == {"entities", "features", "features.visits", "features.prices"}
    assert Record.read(tmp_path / "set").inputs["features.prices"] == first["features.prices"]
    longer = replace(PRICES, ttl=timedelta(days=9))
    second = join(make_repository(tmp_path / "repo", [visits, longer]), {"train": [sale("a", 1)]})[0].parents
    assert second["features.visits"] == first["features.visits"]
    assert second["features.prices"] != first["features.prices"]
    assert second["features"] != first["features"]
