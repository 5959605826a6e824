"""Rows that violate the schema go to a snapshot of their own, each with its reasons; the others go on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.tables import read_split
from trainwright.validate.quarantine import REASONS

Table = Callable[..., pa.Table]
Judge = Callable[..., Any]


def changed(table: pa.Table, column: str, values: dict[int, Any]) -> pa.Table:
    """Put values into some rows of a column."""
    entries = table[column].to_pylist()
    for row, value in values.items():
        entries[row] = value
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(entries, table.schema.field(column).type))


@pytest.fixture
def dirty(rows: Table) -> dict[str, pa.Table]:
    """Six rows of train and one of evaluate that the schema forbids, one of them twice over."""
    train = changed(rows(4_000, 1), "plan", {3: "family", 7: None})
    train = changed(changed(train, "hour", {7: 24, 11: -1}), "delay", {20: float("nan"), 21: float("inf")})
    return {"train": train, "evaluate": changed(rows(1_000, 2), "late", {5: 2}), "holdout": rows(10, 3)}


@pytest.fixture
def strict(schema_text: str) -> str:
    return schema_text.replace(
        '"delay" type: FLOAT', '"delay" type: FLOAT float_domain { disallow_nan: true disallow_inf: true }'
    )


def taken_out(judged: Any) -> tuple[Snapshot, dict[str, list[dict[str, Any]]]]:
    folder = judged.folder / "quarantine"
    snapshot = Snapshot.read(folder)
    found = {name: read_split(folder, snapshot, name).to_pylist() for name in snapshot.splits}
    return snapshot, found


def test_rows_that_violate_the_schema_are_taken_out_with_every_reason_and_the_rest_passes(
    judge: Judge, dirty: dict[str, pa.Table], strict: str
) -> None:
    judged = judge(dirty, strict, quarantine={"max_share": 0.01})
    assert judged.verdict.decision == "PASS", judged.headline
    snapshot, rows = taken_out(judged)
    assert {row["id"]: row[REASONS] for row in rows["train"]} == {
        "1-3": "plan is not in its domain",
        "1-7": "hour is too large; plan is missing",
        "1-11": "hour is too small",
        "1-20": "delay is not a number",
        "1-21": "delay is infinite",
    }
    assert [row["id"] for row in rows["evaluate"]] == ["2-5"]
    assert judged.outcome.quarantined.snapshot.digest == snapshot.digest
    assert snapshot.parents == {"snapshot": judged.verdict.judged["data"]}
    assert judged.headline.endswith("; 6 rows in quarantine")
    assert judged.outcome.metrics()["rows_in_quarantine"] == 6
    shares = {rule.name: rule.value for rule in judged.verdict.rules if rule.name.startswith("quarantine/")}
    assert shares == {
        "quarantine/train": 5 / 4_000,
        "quarantine/evaluate": 1 / 1_000,
        "quarantine/holdout": 0,
    }
    assert "1 rows are in quarantine" in judged.page


def test_without_a_quarantine_the_same_rows_refuse_the_data_and_the_snapshot_is_empty(
    judge: Judge, dirty: dict[str, pa.Table], strict: str
) -> None:
    judged = judge(dirty, strict)
    assert judged.verdict.decision == "FAIL"
    snapshot, _ = taken_out(judged)
    assert snapshot.rows == 0
    assert snapshot.columns[-1].name == REASONS


def test_more_rows_than_may_be_taken_out_refuse_the_data(
    judge: Judge, dirty: dict[str, pa.Table], strict: str
) -> None:
    judged = judge(dirty, strict, quarantine={"max_share": 0.001})
    assert judged.verdict.decision == "FAIL"
    assert "5 rows of train (0.12%) violate the schema, at most 0.10% may" in judged.page
    assert {entry["kind"] for entry in judged.account["found"] if entry["severity"] == "BLOCK"} >= {
        *("QUARANTINE_SHARE_HIGH", "FLOAT_TYPE_HAS_NAN", "FLOAT_TYPE_HAS_INF")
    }


def test_every_row_taken_out_breaks_a_rule_and_no_other_row_does(
    judge: Judge, rows: Table, strict: str
) -> None:
    """An independent method: the rules written out in Python, over rows with faults everywhere."""
    draw = np.random.default_rng(8)
    hour = draw.integers(-3, 27, 2_000).tolist()
    delay = [None, float("nan"), float("inf"), 1.0] * 500
    plan = draw.choice(["basic", "team", "free", "FREE", "", "ü"], 2_000).tolist()
    table = rows(2_000, 4, hour=pa.array(hour), delay=pa.array(delay, pa.float64()), plan=pa.array(plan))
    judged = judge({"train": table, "evaluate": rows(500, 5)}, strict, quarantine={"max_share": 1.0})
    wrong = [
        f"4-{row}"
        for row in range(2_000)
        if not 0 <= hour[row] <= 23 or plan[row] not in ("basic", "team", "free") or row % 4 in (1, 2)
    ]
    assert [row["id"] for row in taken_out(judged)[1]["train"]] == wrong


def test_a_domain_that_rows_may_leave_takes_none_out(
    judge: Judge, dirty: dict[str, pa.Table], schema_text: str
) -> None:
    borne = schema_text.replace(
        'domain: "plan"', 'domain: "plan" distribution_constraints { min_domain_mass: 0.9 }'
    )
    judged = judge(dirty, borne, quarantine={"max_share": 0.01})
    assert "1-3" not in [row["id"] for row in taken_out(judged)[1]["train"]]


def test_a_quarantine_of_rows_without_a_key_is_refused(judge: Judge, dirty: dict[str, pa.Table]) -> None:
    with pytest.raises(InputError, match="the rows have no key"):
        judge(dirty, roles={"time": "at"}, quarantine={"max_share": 0.01})
