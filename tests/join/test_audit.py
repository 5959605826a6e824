"""The leakage audit, and the join beside Feast's own."""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contracts.frozen import check
from tests.featurestore.repository import PRICES, ViewSpec, at, make_repository
from tests.join.conftest import Joined, repository_of, write_sales
from tests.join.sales import Join, Row, known_value, random_sales, random_views, sale
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.featurestore import open_service
from trainwright.join import chunks, reference
from trainwright.join.audit import Audit, scored_rows, single_column_scores
from trainwright.join.history import AsOfResult, FileHistory, Ints


def by_pairs(score: np.ndarray, label: np.ndarray) -> float:
    """AUC by its meaning: the share of pairs that are in the right order, ties counting half."""
    wins = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in score[label == 1]
        for low in score[label == 0]
    ]
    return float(np.mean(wins))


def test_a_score_is_the_share_of_pairs_in_order_whichever_way_round() -> None:
    rng = np.random.default_rng(7)
    label = rng.integers(0, 2, 200)
    score = np.round(label * 0.6 + rng.normal(size=200), 1)
    table = pa.table({"label": label, "score": score, "minus": -score})
    expected = by_pairs(score, label)
    scores = single_column_scores(table, "label", ["score", "minus"])
    assert scores == pytest.approx({"score": expected, "minus": expected})


def test_a_null_counts_as_the_lowest_value() -> None:
    table = pa.table({"label": [1, 1, 0, 0], "x": pa.array([5.0, 6.0, None, None])})
    assert single_column_scores(table, "label", ["x"]) == {"x": 1.0}


def test_rows_without_a_label_are_left_out() -> None:
    table = pa.table({"label": pa.array([1, 0, None]), "x": [2.0, 1.0, 0.0]})
    assert single_column_scores(table, "label", ["x"]) == {"x": 1.0}


def test_a_category_that_names_each_row_gives_nothing_away_and_one_that_names_the_label_does() -> None:
    label = np.random.default_rng(3).integers(0, 2, 1000)
    table = pa.table(
        {
            "label": label,
            "name": [str(number) for number in range(1000)],
            "answer": [["no", "yes"][value] for value in label],
        }
    )
    scores = single_column_scores(table, "label", ["name", "answer"])
    assert scores["name"] == 0.5
    assert scores["answer"] == 1.0


def test_labels_of_one_kind_and_columns_of_other_types_give_no_score() -> None:
    table = pa.table({"label": [1, 1], "x": [1.0, 2.0], "parts": [[0], [1]]})
    assert single_column_scores(table, "label", ["x"]) == {}
    assert single_column_scores(table.set_column(0, "label", pa.array([0, 1])), "label", ["parts"]) == {}


def test_time_that_is_there_for_one_label_only_gives_it_away() -> None:
    when = pa.array([5, 6, None, None], pa.timestamp("us", "UTC"))
    table = pa.table({"label": [1, 1, 0, 0], "left_at": when, "left_on": when.cast(pa.date32())})
    assert single_column_scores(table, "label", ["left_at", "left_on"]) == {"left_at": 1.0, "left_on": 1.0}


def test_several_classes_score_the_one_that_is_separated_worst() -> None:
    """Class 2 alone has x = 1, and 0 and 1 are alike. Class 3 is as 0 in the copy, but has 20 rows."""
    label = [0] * 100 + [1] * 100 + [2] * 50 + [3] * 20
    noise = np.random.default_rng(0).integers(0, 2, 250).tolist()
    table = pa.table(
        {
            "label": label,
            "x": [each == 2 for each in label],
            "noise": [*noise, *[7] * 20],
            "copy": [each % 3 for each in label],
            "text": [f"class {each}" for each in label],
        }
    )
    scores = single_column_scores(table, "label", ["x", "noise", "copy", "text"], "multiclass")
    assert 0.5 < scores["x"] < 0.75
    assert scores["noise"] < 0.7
    assert scores["copy"] > 0.9
    assert scores["text"] == 1.0
    assert scored_rows(table, "label", "multiclass") == (100, 100, 50, 20)


def test_number_as_label_is_scored_by_rank_correlation() -> None:
    """A copy has rank correlation 1, also through a monotone function; half of the scale is no relation."""
    rng = np.random.default_rng(1)
    price = rng.lognormal(size=500)
    table = pa.table(
        {
            "price": [*price, float("nan")],
            "log": [*np.log(price), 0.0],
            "minus": [*-price, 0.0],
            "noise": rng.normal(size=501),
            "one": [1] * 501,
            "size": [*np.where(price > 1, "large", "small"), "small"],
        }
    )
    names = ["log", "minus", "noise", "one", "size"]
    scores = single_column_scores(table, "price", names, "regression")
    assert scores["log"] == scores["minus"] == pytest.approx(1.0)
    assert scores["noise"] < 0.55
    assert scores["one"] == 0.5
    assert 0.9 < scores["size"] < 0.97
    assert scored_rows(table, "price", "regression") == (500,)


def test_a_feature_that_knows_the_answer_is_refused_unless_it_may(
    join: Callable[..., Joined], tmp_path: Path
) -> None:
    labels = np.random.default_rng(5).integers(0, 2, 100)
    rows = [
        {"product": number, "verdict": float(label), "event": at(0), "created": at(0)}
        for number, label in enumerate(labels)
    ]
    view = ViewSpec("answers", {"product": pa.int64()}, {"verdict": pa.float64()}, rows)
    sales = [
        {
            "sale": f"s{number}",
            "sold": at(1),
            "returned": int(label),
            "product": number,
            "shop": "north",
            "pieces": 1,
        }
        for number, label in enumerate(labels)
    ]
    repository = make_repository(tmp_path / "repo", [view])
    with pytest.raises(
        DataRefused, match=r"verdict: alone orders the labels of train with AUC 1\.0000 > 0\.99"
    ):
        join(repository, {"train": sales})
    assert "| verdict | answers | 0.00% | 1.000 | suspicious |" in (tmp_path / "summary.md").read_text()
    made, _, _, _ = join(repository, {"train": sales}, limits={"max_single_feature_auc": 1})
    assert made.quality["auc.verdict"] == 1.0
    few = join(repository, {"train": sales[:20]})[0]
    assert few.quality["auc.verdict"] == 1.0, "20 rows are too few to refuse for"


@pytest.mark.parametrize("pairs_per_span", [10**9, 100])
def test_feast_asked_about_many_short_spans_of_time_says_the_same(
    pairs_per_span: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "PAIRS_PER_SPAN", pairs_per_span)
    views, sales = random_views(1), random_sales(2, 400)
    repository = make_repository(tmp_path / "repo", views)
    write_sales(tmp_path / "sales", {"train": sales})
    rows = tables.read_split(tmp_path / "sales", Snapshot.read(tmp_path / "sales"), "train")
    service = open_service(str(repository), "shop_v1")
    for view, spec in zip(service.views, views, strict=True):
        found = reference.feast_values(service, FileHistory(view), rows, "sold")
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
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "open_history", lambda view, _: Leaking(view))
    repository = make_repository(tmp_path / "repo", [replace(PRICES, rows=[*PRICES.rows, LATE])])
    with pytest.raises(DataRefused, match=r"prices: 1 rows, such as b has .*99\.0"):
        join(repository, {"train": [sale("b", 20), sale("c", 31)]})
    assert not (tmp_path / "set" / Snapshot.FILE).exists()
    assert "**1 values leak: refused.**" in (tmp_path / "summary.md").read_text()
    assert Audit.read(tmp_path / "set").views[0].leaks == 1


def test_a_join_unlike_that_of_feast_is_refused_with_both_values(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older value than the newest known one is no leak: only a second join can tell."""
    monkeypatch.setattr(chunks, "open_history", lambda view, _: Mistaken(view))
    repository = make_repository(tmp_path / "repo", [PRICES])
    with pytest.raises(DataRefused, match=r"prices: 1 rows, such as b has .*10\.0.*Feast gives .*11\.0"):
        join(repository, {"train": [sale("a", 5), sale("b", 30)]})
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


def test_audit_of_an_earlier_version_keeps_its_digest_and_fields(tmp_path: Path) -> None:
    check(Audit, "leakage-audit", tmp_path)
