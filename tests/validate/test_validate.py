"""The whole gate on small snapshots: every trap it stands before, and what it leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from trainwright.documents import digest_file
from trainwright.errors import InputError

Table = Callable[..., pa.Table]
Judge = Callable[..., Any]


@pytest.fixture
def clean(rows: Table) -> dict[str, pa.Table]:
    return {"train": rows(4_000, 1), "evaluate": rows(1_000, 2), "holdout": rows(10, 3)}


def test_a_snapshot_that_fits_and_has_not_moved_passes_and_names_the_closest_column(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    judged = judge(clean)
    assert judged.verdict.decision == "PASS"
    assert judged.headline.startswith("0 of 4 columns moved; closest ")
    assert {rule.name for rule in judged.verdict.rules} == {
        *("rows/train", "rows/evaluate", "schema", "label/train/values", "label/evaluate/values"),
        *("drift/hour", "drift/delay", "drift/plan", "drift/late"),
        *("missing/hour", "missing/delay", "missing/plan", "missing/late"),
        *("new/plan", "new/late"),
    }
    assert all(rule.passed for rule in judged.verdict.rules)
    assert judged.verdict.not_judged == ()


def test_the_verdict_stands_beside_its_evidence_and_the_record_of_the_step(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    judged = judge(clean)
    folder = judged.folder / "verdict"
    assert {path.name for path in folder.iterdir()} == {
        *("verdict.json", "record.json", "anomalies.json", "baseline.json"),
        *("statistics-train.pb", "statistics-evaluate.pb"),
    }
    for name in ("anomalies.json", "statistics-train.pb", "statistics-evaluate.pb"):
        assert judged.verdict.judged[name] == digest_file(folder / name)
    assert judged.record.outputs["verdict"] == judged.verdict.digest
    assert judged.record.decision == "PASS"


def test_the_same_snapshot_gives_the_same_verdict_and_the_same_page(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    one, other = judge(clean), judge(clean)
    assert one.verdict.digest == other.verdict.digest
    assert one.page == other.page


def test_split_without_rows_fails_by_its_own_rule(judge: Judge, clean: dict[str, pa.Table]) -> None:
    for name in ("train", "evaluate"):
        judged = judge(clean | {name: clean[name].slice(0, 0)})
        assert judged.verdict.decision == "FAIL"
        found = {rule.name: (rule.value, rule.limit, rule.passed) for rule in judged.verdict.rules}
        assert found[f"rows/{name}"] == (0, 1, False)


def test_a_column_that_moved_holds_the_snapshot_with_its_number_beside_the_limit(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    moved = rows(1_000, 2, hour=pa.array(np.random.default_rng(2).integers(16, 24, 1_000)))
    judged = judge(clean | {"evaluate": moved})
    assert judged.verdict.decision == "HOLD"
    (broken,) = [rule for rule in judged.verdict.rules if not rule.passed]
    assert (broken.name, broken.limit) == ("drift/hour", 0.1)
    assert judged.headline == f"HOLD: 1 of 4 columns moved: hour {broken.value:.3f} > 0.100"
    assert "hour moved by" in judged.page


def test_without_a_previous_split_every_comparison_is_not_judged_and_the_snapshot_is_held(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    del clean["train"]
    judged = judge(clean)
    assert judged.verdict.decision == "HOLD"
    assert [entry.name for entry in judged.verdict.not_judged] == [
        *("drift/hour", "missing/hour", "drift/delay", "missing/delay"),
        *("drift/plan", "missing/plan", "new/plan", "drift/late", "missing/late", "new/late"),
    ]
    assert "split train has no rows, or is not there" in judged.page


@pytest.mark.covers("F48")
@pytest.mark.parametrize("split", ["train", "evaluate"])
def test_an_empty_split_is_refused(judge: Judge, clean: dict[str, pa.Table], split: str) -> None:
    judged = judge(clean | {split: clean[split].slice(0, 0)})
    assert judged.verdict.decision == "FAIL"
    assert judged.headline == f"FAIL: split {split} has no rows"
    assert len(judged.verdict.not_judged) == 10


def test_a_current_split_that_is_not_there_is_refused_with_the_splits_that_are(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    judged = judge(clean, current="test")
    assert judged.headline == (
        "FAIL: there is no split test; "
        "the snapshot has train (4,000 rows), evaluate (1,000 rows), holdout (10 rows)"
    )


@pytest.mark.covers("F47")
@pytest.mark.parametrize(
    "presence", ["presence { min_fraction: 1 min_count: 1 }", ""], ids=["with", "without"]
)
def test_a_column_that_is_gone_is_refused_by_name_even_where_the_schema_asks_for_no_presence(
    judge: Judge, clean: dict[str, pa.Table], schema_text: str, presence: str
) -> None:
    """TFDV alone says nothing about a missing column without a presence."""
    line = 'name: "plan" type: BYTES domain: "plan" '
    schema = schema_text.replace(line + "presence { min_fraction: 1 min_count: 1 }", line + presence)
    assert presence in schema
    judged = judge({name: table.drop(["plan"]) for name, table in clean.items()}, schema)
    assert judged.verdict.decision == "FAIL"
    assert judged.headline == (
        "FAIL: column plan is missing: the schema expects BYTES, the snapshot has no such column"
    )
    assert [entry.name for entry in judged.verdict.not_judged] == ["drift/plan", "missing/plan", "new/plan"]


@pytest.mark.covers("F47")
def test_a_column_of_another_type_is_refused_with_expected_got_and_an_example(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    place = clean["train"].schema.get_field_index("hour")
    retyped = {
        name: table.set_column(place, "hour", table["hour"].cast(pa.string()))
        for name, table in clean.items()
    }
    judged = judge(retyped)
    assert judged.verdict.decision == "FAIL"
    assert judged.headline.startswith(
        "FAIL: column hour has another type: expected INT, got BYTES (string), such as '"
    )
    assert "drift/hour" in [entry.name for entry in judged.verdict.not_judged]


def test_a_column_that_became_a_struct_is_refused(judge: Judge, clean: dict[str, pa.Table]) -> None:
    nested = {
        name: table.set_column(2, "hour", pa.array([{"h": 1}] * table.num_rows))
        for name, table in clean.items()
    }
    judged = judge(nested)
    assert judged.headline == "FAIL: column hour has another type: expected INT, got struct<h: int64>"


@pytest.mark.covers("F47")
@pytest.mark.parametrize("value", [7, {"deep": 7}], ids=["plain", "struct"])
def test_a_new_column_warns_and_passes(judge: Judge, clean: dict[str, pa.Table], value: object) -> None:
    wider = {
        name: table.append_column("gate", pa.array([value] * table.num_rows)) for name, table in clean.items()
    }
    judged = judge(wider)
    assert judged.verdict.decision == "PASS"
    (warning,) = judged.account["found"]
    kind = "int64" if value == 7 else "struct<deep: int64>"
    assert (warning["severity"], warning["what"]) == (
        "WARN",
        f"column gate is new: {kind}, not in the schema",
    )
    assert "column gate is new" in judged.page
    assert "WARN" in judged.summary


@pytest.mark.covers("B42")
def test_a_label_that_is_not_there_is_refused_by_name(judge: Judge, clean: dict[str, pa.Table]) -> None:
    unlabelled = {name: table.drop(["late"]) for name, table in clean.items()}
    judged = judge(unlabelled, roles={"key": "id", "time": "at"})
    assert judged.headline.startswith("FAIL: column late is missing")


def test_what_would_only_hold_another_column_refuses_the_label(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    half = pa.array([0, None] * 500)
    judged = judge(clean | {"evaluate": rows(1_000, 2, late=half)})
    assert judged.verdict.decision == "FAIL"
    assert (
        "column late: 50.00% of rows have a value, at least 90.00% must; it is the label" in judged.headline
    )


def test_a_share_of_values_below_the_minimum_holds(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    sparse = pa.array([1.0] + [None] * 3, pa.float64()).take(pa.array(np.arange(1_000) % 4))
    judged = judge(clean | {"evaluate": rows(1_000, 2, delay=sparse)}, ignore=["delay"])
    assert judged.verdict.decision == "HOLD"
    assert judged.headline == "HOLD: column delay: 25.00% of rows have a value, at least 50.00% must"


def test_more_missing_values_than_before_hold_although_tfdv_counts_none_of_them(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    table = rows(1_000, 2)
    holes = pa.array(table["delay"].to_numpy(), mask=np.arange(1_000) % 3 == 0)
    judged = judge(clean | {"evaluate": rows(1_000, 2, delay=holes)})
    assert judged.headline == "HOLD: 1 of 4 columns moved: delay missing 0.334 > 0.050"


def test_every_comparison_that_chance_can_move_has_its_share_of_the_rate_of_false_alarms(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    """Four distances and no more: nothing is missing, and every value is too common to be new by chance."""
    judged = judge(clean, categorical_threshold=0, false_alarm_rate=0.08)
    (rule,) = [rule for rule in judged.verdict.rules if rule.name == "drift/plan"]
    plan = pa.chunked_array([*clean["train"]["plan"].chunks, *clean["evaluate"]["plan"].chunks])
    shares = pc.value_counts(plan).field("counts").to_numpy() / 5_000
    spread = np.sqrt(shares * (1 - shares) * (1 / 1_000 + 1 / 4_000))
    beyond = sum(2 * (1 - NormalDist().cdf(rule.limit / width)) for width in spread)
    assert beyond == pytest.approx(0.08 / 4, rel=0.05)


def test_new_values_warn_unless_the_schema_says_how_many_it_bears(
    judge: Judge, clean: dict[str, pa.Table], rows: Table, schema_text: str
) -> None:
    plan = pa.array(["family"] * 3 + rows(1_000, 2)["plan"].to_pylist()[3:])
    splits = clean | {"evaluate": rows(1_000, 2, plan=plan)}
    told = judge(splits)
    assert told.verdict.decision == "PASS"
    assert "family" in told.account["found"][0]["what"]
    strict = schema_text.replace(
        'domain: "plan"', 'domain: "plan" distribution_constraints { min_domain_mass: 0.999 }'
    )
    assert judge(splits, strict).verdict.decision == "HOLD"
    lenient = strict.replace("0.999", "0.99")
    assert judge(splits, lenient).verdict.decision == "PASS"


def test_a_nan_is_refused_where_the_schema_forbids_it(
    judge: Judge, clean: dict[str, pa.Table], rows: Table, schema_text: str
) -> None:
    schema = schema_text.replace(
        '"delay" type: FLOAT', '"delay" type: FLOAT float_domain { disallow_nan: true }'
    )
    delay = rows(1_000, 2)["delay"].to_numpy().copy()
    delay[0] = np.nan
    splits = clean | {"evaluate": rows(1_000, 2, delay=pa.array(delay))}
    assert judge(splits).verdict.decision == "PASS"
    assert judge(splits, schema).headline == "FAIL: column delay: Float feature has NaN values."


def test_too_few_rows_for_the_schema_are_refused_although_they_belong_to_no_column(
    judge: Judge, clean: dict[str, pa.Table], schema_text: str
) -> None:
    """TFDV keeps such anomalies apart, and its own display once left them out."""
    judged = judge(clean, schema_text + "dataset_constraints { min_examples_count: 1001 }")
    assert judged.headline == (
        "FAIL: split evaluate: The dataset has 1000 examples, which is fewer than expected."
    )


def test_a_number_under_a_boolean_domain_holds_although_tfdv_does_not_look(
    judge: Judge, clean: dict[str, pa.Table], rows: Table, schema_text: str
) -> None:
    schema = schema_text.replace("int_domain { min: 0 max: 23 }", "bool_domain {}")
    flags = {name: table.num_rows for name, table in clean.items()}
    fair = {name: rows(count, 5, hour=pa.array([0, 1] * (count // 2))) for name, count in flags.items()}
    assert judge(fair, schema).verdict.decision == "PASS"
    odd = rows(1_000, 5, hour=pa.array([0, 1] * 499 + [0, 2]))
    assert judge(fair | {"evaluate": odd}, schema).headline == (
        "HOLD: column hour: a boolean domain, but the values 2 are there"
    )


def test_what_is_wrong_in_both_splits_is_told_once(judge: Judge, clean: dict[str, pa.Table]) -> None:
    wider = {
        name: table.append_column("gate", pa.array([1] * table.num_rows)) for name, table in clean.items()
    }
    (found,) = judge(wider).account["found"]
    assert found["split"] == ""


def test_a_refused_snapshot_still_has_its_report_and_its_statistics(
    judge: Judge, clean: dict[str, pa.Table]
) -> None:
    judged = judge({name: table.drop(["plan"]) for name, table in clean.items()})
    assert "FAIL" in judged.page
    assert "column plan is missing" in judged.summary
    assert json.loads((judged.folder / "verdict" / "anomalies.json").read_text())["tfdv"].keys() == {
        "schema/train",
        "schema/evaluate",
        "drift",
    }


def test_a_snapshot_that_changed_since_it_was_made_is_not_judged(
    judge: Judge, clean: dict[str, pa.Table], tmp_path: Path
) -> None:
    from trainwright.experiment import Validation
    from trainwright.validate.validate import ValidationContext, ValidationOutputs, validate_snapshot

    again = tmp_path / "again"
    places = ValidationOutputs(*(again / name for name in ("verdict", "quarantine", "report", "summary")))
    with pytest.raises(InputError, match="cached input changed"):
        validate_snapshot(judge(clean).snapshot, "0" * 64, Validation(), ValidationContext(""), places)
    assert not (tmp_path / "again").exists()


def test_a_page_shows_what_a_stranger_wrote_as_text(
    judge: Judge, clean: dict[str, pa.Table], rows: Table
) -> None:
    plan = pa.array(["<script>alert(1)</script>"] * 600 + ["team"] * 400)
    judged = judge(clean | {"evaluate": rows(1_000, 2, plan=plan)})
    assert "<script" not in judged.page
    assert "&lt;script&gt;" in judged.page
    assert "<script" not in judged.summary
