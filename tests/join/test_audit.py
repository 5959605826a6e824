"""What single columns give away, against its meaning, pair by pair."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.featurestore.repository import ViewSpec, at, make_repository
from tests.join.conftest import Joined
from trainwright.errors import DataRefused
from trainwright.join.audit import single_column_scores


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
    table = pa.table({"label": [1, 1], "x": [1.0, 2.0], "when": pa.array([0, 1], pa.timestamp("us"))})
    assert single_column_scores(table, "label", ["x"]) == {}
    assert single_column_scores(table.set_column(0, "label", pa.array([0, 1])), "label", ["when"]) == {}


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
