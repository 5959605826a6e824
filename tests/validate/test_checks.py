"""Volume, freshness and the balance of the label."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

Table = Callable[..., pa.Table]
Judge = Callable[..., Any]


@pytest.fixture
def clean(rows: Table) -> dict[str, pa.Table]:
    return {"train": rows(4_000, 1), "evaluate": rows(1_000, 2)}


def test_rows_as_new_as_they_have_to_be_pass_and_older_ones_hold(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    quality = {"time.newest": 1_773_144_000.0}  # 2026-03-10 12:00 UTC
    fresh = judge(clean, quality=quality, given={"newest_since": "2026-03-10T12:00:00+00:00"})
    assert fresh.verdict.decision == "PASS"
    stale = judge(clean, quality=quality, given={"newest_since": "2026-03-13T12:00:00Z"})
    assert stale.headline == (
        "HOLD: the newest row is of 2026-03-10 12:00 UTC, 3.0 days too old: "
        "it has to reach 2026-03-13 12:00 UTC"
    )
    (rule,) = [rule for rule in stale.verdict.rules if rule.name == "freshness"]
    assert (rule.passed, rule.limit - rule.value) == (False, 3 * 86_400)


def test_freshness_that_cannot_be_told_is_not_judged(judge: Judge, clean: dict[str, pa.Table]) -> None:
    judged = judge(clean, given={"newest_since": "2026-03-13T12:00:00Z"})
    assert judged.verdict.decision == "HOLD"
    assert [entry.name for entry in judged.verdict.not_judged] == ["freshness"]


@pytest.mark.covers("F49", "B42")
@pytest.mark.parametrize("split", ["train", "evaluate"])
def test_a_label_with_one_value_is_refused_with_its_count(
    judge: Judge, clean: dict[str, pa.Table], rows: Table, split: str
) -> None:
    size = clean[split].num_rows
    judged = judge(clean | {split: rows(size, 2, late=pa.array([0] * size))})
    assert judged.verdict.decision == "FAIL"
    assert judged.headline.startswith(f"FAIL: the label late is 0 in all {size:,} labelled rows of {split}")


def test_a_number_to_be_predicted_that_never_changes_is_refused(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    flat = {
        name: rows(table.num_rows, 1, delay=pa.array([3.0] * table.num_rows)) for name, table in clean.items()
    }
    judged = judge(flat, roles={"key": "id", "time": "at", "label": "delay"})
    assert "the label delay is 3 in every labelled row of train" in judged.headline


def test_a_label_that_is_too_rare_holds_with_its_counts(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    late = pa.array((np.arange(4_000) % 400 == 0).astype(np.int64))
    judged = judge(clean | {"train": rows(4_000, 1, late=late)}, min_label_share=0.01, ignore=["late"])
    assert judged.headline == (
        "HOLD: the label late is 1 in 0.25% of the labelled rows of train, at least 1.00% must be "
        "(0: 3,990, 1: 10)"
    )


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
