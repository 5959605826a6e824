"""Rows as they were served, against those that the model learned from."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

Table = Callable[..., pa.Table]
Judge = Callable[..., Any]


def served(rows: Table, **columns: Any) -> dict[str, pa.Table]:
    """Rows as served have no label yet."""
    unknown = pa.array([None] * 1_500, pa.int64())
    return {
        "train": rows(4_000, 1),
        "evaluate": rows(1_000, 2),
        "served": rows(1_500, 3, late=unknown, **columns),
    }


def test_served_rows_are_checked_as_serving_and_compared_in_what_is_known_then(
    judge: Judge, rows: Table
) -> None:
    """The label is empty there: under TRAINING that would refuse the data."""
    judged = judge(served(rows), serving="served")
    assert judged.verdict.decision == "PASS", judged.headline
    names = {rule.name for rule in judged.verdict.rules}
    assert {"serving/drift/hour", "serving/drift/plan", "serving/missing/delay", "serving/new/plan"} <= names
    assert "serving/drift/late" not in names


def test_skew_between_training_and_serving_holds(judge: Judge, rows: Table) -> None:
    hour = pa.array(np.random.default_rng(2).integers(16, 24, 1_500))
    judged = judge(served(rows, hour=hour), serving="served")
    assert judged.headline.startswith("HOLD: 1 of 4 columns moved: hour against serving 0.")
    assert "Against rows as they were served" in judged.page


def test_a_column_that_is_wrong_in_serving_is_found_there(judge: Judge, rows: Table) -> None:
    judged = judge(served(rows, plan=pa.array([None] * 1_500, pa.string())), serving="served")
    assert judged.verdict.decision == "FAIL"
    assert "plan" in judged.headline


def test_serving_rows_that_are_not_there_refuse_the_data_and_nothing_with_them_is_judged(
    judge: Judge, rows: Table
) -> None:
    judged = judge({"train": rows(400, 1), "evaluate": rows(100, 2)}, serving="served")
    assert judged.headline.startswith("FAIL: there is no split served")
    assert "serving/drift/hour" in [entry.name for entry in judged.verdict.not_judged]


def test_with_a_split_of_its_own_to_learn_from_skew_is_measured_against_that_one(
    judge: Judge, rows: Table
) -> None:
    splits = served(rows) | {"learned": rows(2_000, 9, hour=pa.array(np.full(2_000, 7)))}
    judged = judge(splits, serving="served", trained_on="learned")
    (rule,) = [rule for rule in judged.verdict.rules if rule.name == "serving/drift/hour"]
    assert rule.value > 0.5
    assert "1,500 rows against 2,000" in rule.detail
