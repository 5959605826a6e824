"""A training set holds what was known at each row's time, for the rows that are not in quarantine."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.featurestore.repository import PRICES, UTC_US, ViewSpec, at, make_repository, write_table
from tests.join.conftest import features_of, write_sales
from tests.join.sales import Join, Row, known_value, random_sales, random_views, sale
from tests.storage.stores import Bucket
from trainwright import tables
from trainwright.artifacts import Record, Snapshot
from trainwright.errors import InputError
from trainwright.featurestore import open_service
from trainwright.join import chunks
from trainwright.join.audit import Audit
from trainwright.join.chunks import QuarantinedKeys
from trainwright.join.join import make_training_set
from trainwright.storage import take_listing


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


def test_chunks_of_rows_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sales = random_sales(5, 60)
    snapshot = write_sales(tmp_path / "sales", {"train": sales[:40], "evaluate": sales[40:]})
    features = features_of(make_repository(tmp_path / "repo", random_views(6)))
    service = open_service(features.repository, features.service)

    def joined() -> tuple[list[tuple[str, Row]], Audit, int]:
        nothing = QuarantinedKeys.read(None, "", snapshot.digest, "sale")
        join = chunks.Join(snapshot, service, features, nothing)
        pieces = list(join.rows(tmp_path / "sales"))
        rows = [(split, row) for split, piece in pieces for row in piece.to_pylist()]
        return rows, join.audit(), len(pieces)

    whole, audit, _ = joined()
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 7)
    rows, same, pieces = joined()
    assert pieces == 9
    assert [row["sale"] for _, row in rows] == [row["sale"] for row in sales]
    assert (rows, same) == (whole, audit)


def test_only_the_roles_the_request_columns_and_the_features_go_on(join: Join, tmp_path: Path) -> None:
    made, rows, _, summary = join(make_repository(tmp_path / "repo", [PRICES]), {"train": [sale("a", 1)]})
    assert rows.column_names == ["sale", "sold", "returned", "shop", "pieces", "price", "currency"]
    assert "Left behind: product, refund." in summary
    assert [column.name for column in made.columns] == rows.column_names


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


def test_a_row_that_stands_twice_with_the_same_values_is_harmless(join: Join, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, PRICES.rows[0]])])
    _, rows, _, _ = join(repository, {"train": [sale("a", 1)]})
    assert rows["price"].to_pylist() == [10.0]


def test_a_row_of_which_nobody_knows_since_when_it_is_known_is_never_taken_and_counted(
    join: Join, tmp_path: Path
) -> None:
    odd = [
        {"product": 1, "price": 99.0, "currency": "EUR", "event": at(1), "created": None},
        {"product": None, "price": 98.0, "currency": "EUR", "event": at(1), "created": at(1)},
    ]
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, *odd])])
    made, rows, _, summary = join(repository, {"train": [sale("a", 2), sale("b", 2, product=None)]})
    assert rows["price"].to_pylist() == [10.0, None]
    assert made.quality["unusable_rows.prices"] == 2
    assert "which no row gets: 2 of prices." in summary


def test_offline_files_in_a_bucket_are_joined_as_those_of_a_disk(
    join: Join, bucket: Bucket, tmp_path: Path
) -> None:
    def put(view: ViewSpec) -> None:
        write_table(tmp_path / "prices.parquet", view)
        bucket.put("offline/prices.parquet", (tmp_path / "prices.parquet").read_bytes())

    put(PRICES)
    path = f"{bucket.uri}/offline/prices.parquet"
    repository = make_repository(tmp_path / "repo", [replace(PRICES, path=path)])
    sales = {"train": [sale("a", 1), sale("b", 25), sale("c", -1)]}
    made, rows, headline, _ = join(repository, sales, source=f"{bucket.uri}/offline/*.parquet")
    assert rows["price"].to_pylist() == [10.0, 11.0, None]
    assert headline == "3 rows, 2 features, 0 leaks"
    put(replace(PRICES, rows=PRICES.rows[:1]))
    other, rows, _, _ = join(repository, sales, source=f"{bucket.uri}/offline/*.parquet")
    assert rows["price"].to_pylist() == [10.0, 10.0, None]
    assert other.parents["features.prices"] != made.parents["features.prices"]


Make = Callable[..., Snapshot]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Join to three sales of train and one of test, but for some in quarantine."""

    def run(keys: dict[str, list[str | None]], parent: str | None = None, **sales: Any) -> Snapshot:
        rows = {"train": [sale("a", 1), sale("b", 2), sale("c", 3)], "test": [sale("d", 4)]} | sales
        snapshot = write_sales(tmp_path / "sales", rows)
        out = {split: [pa.table({"sale": pa.array(some, pa.string())})] for split, some in keys.items()}
        parents = {"snapshot": parent or snapshot.digest}
        quarantine = tables.write_snapshot(tmp_path / "out", out, parents=parents, roles={"key": "sale"})
        features = features_of(make_repository(tmp_path / "repo", [PRICES]))
        version = take_listing(features.source).content_digest
        return make_training_set(
            tmp_path / "sales", snapshot.digest, features, version, tmp_path / "set", tmp_path / "summary.md",
            quarantine=tmp_path / "out", quarantine_version=quarantine.digest,
        )  # fmt: skip

    return run


def kept(folder: Path, made: Snapshot) -> dict[str, list[str]]:
    return {name: tables.read_split(folder, made, name)["sale"].to_pylist() for name in made.splits}


def test_rows_in_quarantine_are_left_out_of_their_splits_and_named_as_a_parent(
    make: Make, tmp_path: Path
) -> None:
    made = make({"train": ["b"], "test": []})
    assert kept(tmp_path / "set", made) == {"train": ["a", "c"], "test": ["d"]}
    quarantine = Snapshot.read(tmp_path / "out").digest
    assert made.parents["quarantine"] == quarantine
    assert made.quality["left_out.train"] == 1
    record = Record.read(tmp_path / "set")
    assert record.inputs["quarantine"] == quarantine
    assert "1 rows of the quarantine left out" in record.headline
    assert "1 rows are in quarantine and were left out: 1 of train" in (tmp_path / "summary.md").read_text()


def test_an_empty_quarantine_changes_nothing_and_is_no_parent(make: Make, tmp_path: Path) -> None:
    made = make({"train": []})
    assert kept(tmp_path / "set", made) == {"train": ["a", "b", "c"], "test": ["d"]}
    assert "quarantine" not in made.parents


def test_a_row_without_a_key_can_be_in_quarantine(make: Make, tmp_path: Path) -> None:
    made = make({"train": [None]}, train=[sale("a", 1), sale(None, 2)])
    assert kept(tmp_path / "set", made)["train"] == ["a"]


def test_the_quarantine_of_other_rows_is_refused(make: Make) -> None:
    with pytest.raises(InputError, match="the quarantine was taken from data 000000000000"):
        make({"train": ["b"]}, parent="0" * 64)


def test_a_row_in_quarantine_that_is_not_among_the_entities_is_refused(make: Make) -> None:
    with pytest.raises(InputError, match="2 rows are in quarantine, and 1 of the entities"):
        make({"train": ["b", "x"]})


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


def test_features_that_changed_since_they_were_looked_at_are_refused(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo", [PRICES])
    sales = write_sales(tmp_path / "sales", {"train": [sale("a", 1)]})
    version = take_listing(features_of(repository).source).content_digest
    make_repository(repository, [replace(PRICES, rows=PRICES.rows[:1])])
    with pytest.raises(InputError, match="changed after `resolve`"):
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
