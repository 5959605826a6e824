"""How grave a finding is, what a person has set aside, and until when."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainwright.drift.findings import (
    JENSEN_SHANNON,
    L_INFINITY,
    DataFinding,
    Limit,
    SeverityPolicy,
    moment_of,
)
from trainwright.errors import InputError
from trainwright.experiment import Validation
from trainwright.validate.judgement import plan
from trainwright.validate.schema import parse_schema

Table = Callable[..., pa.Table]
Judge = Callable[..., Any]
NEWEST = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()

USUAL = {
    "BLOCK": (
        *("SCHEMA_MISSING_COLUMN", "FEATURE_TYPE_NOT_PRESENT", "UNEXPECTED_DATA_TYPE", "FLOAT_TYPE_HAS_NAN"),
        *("FLOAT_TYPE_HAS_INF", "DATASET_LOW_NUM_EXAMPLES", "LABEL_CONSTANT", "QUARANTINE_SHARE_HIGH"),
    ),
    "HOLD": (
        *("COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH", "COMPARATOR_L_INFTY_HIGH", "COMPARISON_NOT_DONE"),
        *("FEATURE_TYPE_LOW_FRACTION_PRESENT", "BASELINE_MISSING", "DATA_STALE", "MISSING_SHARE_HIGH"),
        *("NEW_VALUES_HIGH", "COMPARATOR_LOW_NUM_EXAMPLES", "LABEL_SHARE_LOW", "INT_TYPE_BIG_INT"),
    ),
    "WARN": ("SCHEMA_NEW_COLUMN", "ENUM_TYPE_UNEXPECTED_STRING_VALUES"),
}


def graded(
    finding: DataFinding, label: str = "", newest: float | None = NEWEST, **section: Any
) -> DataFinding:
    policy = SeverityPolicy(Validation.check(section, "test"), moment_of(newest, "", ""), label)
    return policy.judge(finding)


@pytest.mark.parametrize(("severity", "kind"), [(s, kind) for s, kinds in USUAL.items() for kind in kinds])
def test_every_kind_has_the_gravity_of_the_house(severity: str, kind: str) -> None:
    assert graded(DataFinding(kind=kind, what="x")).severity == severity


def test_whatever_the_schema_says_is_wrong_with_the_label_blocks_and_its_drift_holds() -> None:
    wrong = DataFinding(kind="SCHEMA_NEW_COLUMN", column="late", what="x", of_schema=True)
    moved = DataFinding(kind="COMPARATOR_L_INFTY_HIGH", column="late", what="x", against="previous")
    assert graded(wrong, label="late").severity == "BLOCK"
    assert graded(moved, label="late").severity == "HOLD"


def test_the_last_rule_that_fits_counts_by_kind_column_and_what_is_compared_with() -> None:
    rules = [
        {"kind": "COMPARATOR_*_HIGH", "severity": "BLOCK"},
        {"kind": "COMPARATOR_L_INFTY_HIGH", "column": "plan", "against": "previous", "severity": "WARN"},
    ]
    plan = DataFinding(kind="COMPARATOR_L_INFTY_HIGH", column="plan", what="x", against="previous")
    other = DataFinding(kind="COMPARATOR_L_INFTY_HIGH", column="hour", what="x", against="previous")
    baseline = DataFinding(kind="COMPARATOR_L_INFTY_HIGH", column="plan", what="x", against="baseline")
    found = [graded(entry, severity=rules).severity for entry in (plan, other, baseline)]
    assert found == ["WARN", "BLOCK", "BLOCK"]


@pytest.mark.parametrize("kind", ["COMPARISON_NOT_DONE", "BASELINE_MISSING"])
def test_what_was_not_judged_is_never_made_a_pass_by_a_rule(kind: str) -> None:
    with pytest.raises(InputError, match="needs severity HOLD or BLOCK, found WARN"):
        Validation.check({"severity": [{"kind": kind, "severity": "WARN"}]}, "test")


@pytest.mark.parametrize(("how", "severity"), [("hold", "HOLD"), ("fail", "BLOCK"), ("bootstrap", "WARN")])
def test_a_missing_baseline_is_as_grave_as_asked(how: str, severity: str) -> None:
    assert (
        graded(DataFinding(kind="BASELINE_MISSING", what="x"), on_missing_baseline=how).severity == severity
    )


@pytest.fixture
def moved(rows: Table) -> dict[str, pa.Table]:
    """An hour that moved, in rows up to 14 November 2023, as all rows of these tests."""
    hour = pa.array(np.random.default_rng(2).integers(16, 24, 1_000))
    return {"train": rows(4_000, 1), "evaluate": rows(1_000, 2, hour=hour)}


def suppression(until: str, **more: str) -> dict[str, str]:
    entry = {"kind": "COMPARATOR_*_HIGH", "column": "hour", "reason": "winter timetable, ticket 12"}
    return entry | {"until": until} | more


def test_a_suppression_passes_what_it_names_and_shows_it_everywhere(
    judge: Judge, moved: dict[str, pa.Table]
) -> None:
    quality = {"time.newest": NEWEST}
    judged = judge(moved, quality=quality, suppressions=[suppression("2026-03-10")])
    assert judged.verdict.decision == "PASS"
    assert judged.headline.endswith("; 1 suppressed")
    (rule,) = [rule for rule in judged.verdict.rules if rule.name == "drift/hour"]
    assert rule.passed
    assert rule.value > rule.limit
    assert rule.detail.endswith("suppressed until 2026-03-10: winter timetable, ticket 12")
    for text in (judged.page, judged.summary):
        assert "winter timetable, ticket 12" in text


def test_an_expired_suppression_no_longer_suppresses_and_says_so(
    judge: Judge, moved: dict[str, pa.Table]
) -> None:
    """It ends with a day of the data: the same rows are judged alike whenever the cache is asked."""
    quality = {"time.newest": NEWEST}
    judged = judge(moved, quality=quality, suppressions=[suppression("2026-03-09")])
    assert judged.verdict.decision == "HOLD"
    (told,) = [entry for entry in judged.account["found"] if entry["kind"] == "SUPPRESSION_EXPIRED"]
    assert told["what"] == (
        "the suppression of COMPARATOR_*_HIGH in hour ended with 2026-03-09, and this run is of 2026-03-10 "
        "(it said: winter timetable, ticket 12)"
    )
    assert "ended with 2026-03-09" in judged.page


@pytest.mark.parametrize(
    ("given", "decision"),
    [({}, "HOLD"), ({"date": "2026-03-10"}, "PASS"), ({"date": "2026-03-11"}, "HOLD")],
    ids=["nothing tells the time", "the run's date", "the day after"],
)
def test_where_the_rows_have_no_time_the_runs_date_ends_a_suppression_and_without_any_it_never_counts(
    judge: Judge, moved: dict[str, pa.Table], given: dict[str, str], decision: str
) -> None:
    judged = judge(moved, given=given, suppressions=[suppression("2026-03-10")])
    assert judged.verdict.decision == decision


def test_the_latest_time_that_the_run_was_told_of_ends_a_suppression() -> None:
    since = "2026-03-12T00:00:00+00:00"
    assert moment_of(NEWEST, since, "2026-03-01") == datetime.fromisoformat(since)
    assert moment_of(NEWEST, "", "2026-03-01") == datetime.fromtimestamp(NEWEST, UTC)
    assert moment_of(None, "", "") is None
    with pytest.raises(InputError, match="'tomorrow' is no time"):
        moment_of(None, "", "tomorrow")


def test_a_comparison_that_could_not_be_made_can_be_suppressed_with_a_reason_but_stays_in_the_verdict(
    judge: Judge, rows: Table
) -> None:
    splits = {
        "train": rows(4_000, 1),
        "evaluate": rows(1_000, 2, delay=pa.array([None] * 1_000, pa.float64())),
    }
    kinds = ("COMPARISON_NOT_DONE", "MISSING_SHARE_HIGH", "FEATURE_TYPE_*")
    entries = [suppression("2099-01-01", kind=kind, column="delay") for kind in kinds]
    judged = judge(splits, quality={"time.newest": NEWEST}, suppressions=entries)
    assert judged.verdict.decision == "PASS"
    assert [entry.name for entry in judged.verdict.not_judged] == ["drift/delay"]


def test_a_finding_that_only_warns_leaves_its_rule_passed_and_says_that_it_was_told(
    judge: Judge, moved: dict[str, pa.Table]
) -> None:
    rule = {"kind": "COMPARATOR_*_HIGH", "column": "hour", "severity": "WARN"}
    judged = judge(moved, severity=[rule])
    assert judged.verdict.decision == "PASS"
    (found,) = [rule for rule in judged.verdict.rules if rule.name == "drift/hour"]
    assert (found.passed, found.detail.endswith("beyond its limit: only told")) == (True, True)


def test_a_drift_can_be_made_to_refuse(judge: Judge, moved: dict[str, pa.Table]) -> None:
    judged = judge(moved, severity=[{"kind": "COMPARATOR_*_HIGH", "severity": "BLOCK"}])
    assert judged.verdict.decision == "FAIL"
    assert judged.headline.startswith("FAIL: hour moved by ")


def test_rules_that_could_never_fit_are_refused_with_all_their_faults(judge: Judge, rows: Table) -> None:
    splits = {"train": rows(50, 1), "evaluate": rows(50, 2)}
    with pytest.raises(InputError) as error:
        judge(
            splits,
            severity=[{"kind": "SCHEMA_NEW_COLUM", "severity": "HOLD"}],
            suppressions=[suppression("2026-01-01", column="huor")],
        )
    assert error.value.what.splitlines()[1:] == [
        "  severity.0.kind: no kind of finding is called 'SCHEMA_NEW_COLUM'",
        "  suppressions.0.column: no column 'huor' in the schema",
    ]


def test_rule_on_a_joined_feature_is_accepted(judge: Judge, rows: Table) -> None:
    splits = {"train": rows(300, 1), "evaluate": rows(300, 2)}
    rule = {"kind": "NEW_VALUES_HIGH", "column": "price", "severity": "BLOCK"}
    with pytest.raises(InputError, match=r"severity\.0\.column: no column 'price' in the schema"):
        judge(splits, severity=[rule])
    assert judge(splits, severity=[rule], joined=["price"]).verdict.decision == "PASS"


def test_label_of_a_kind_that_lacks_a_metric_of_the_run_is_rejected(judge: Judge, rows: Table) -> None:
    splits = {"train": rows(300, 1), "evaluate": rows(300, 2)}
    assert judge(splits, kinds=["binary", "multiclass"]).verdict.decision == "PASS"
    with pytest.raises(InputError, match=r"of kind regression, .* its values make it binary"):
        judge(splits, kinds=["regression"])


def test_a_suppression_needs_a_reason_and_an_end() -> None:
    with pytest.raises(InputError) as error:
        Validation.check({"suppressions": [{"kind": "DATA_STALE"}]}, "test")
    assert "suppressions.0.reason: missing" in error.value.what
    assert "suppressions.0.until: missing" in error.value.what
    assert json.loads(Validation().to_json())["suppressions"] == []


SCHEMA = parse_schema(
    """
    feature { name: "id" type: BYTES } feature { name: "at" type: INT }
    feature { name: "tenure_days" type: INT } feature { name: "plan" type: BYTES }
    feature { name: "weekday" type: INT int_domain { is_categorical: true } }
    """,
    where="here",
)
ROLES = {"key": "id", "time": "at", "label": "weekday"}
STRICT = {"comparator": L_INFINITY, "threshold": 0.01}


def limits(**section: object) -> tuple[Limit, ...]:
    return plan(SCHEMA, Validation.check(section, "test"), ROLES)


def test_every_column_but_key_and_time_has_a_limit_that_fits_what_it_holds() -> None:
    assert limits(numeric_threshold=0.2, categorical_threshold=0.03) == (
        Limit("tenure_days", "numbers", JENSEN_SHANNON, 0.2),
        Limit("plan", "categories", L_INFINITY, 0.03),
        Limit("weekday", "categories", L_INFINITY, 0.03),
    )


def test_a_column_keeps_its_own_limit_and_an_ignored_one_has_none() -> None:
    own = {"plan": {"comparator": JENSEN_SHANNON, "threshold": 0.4}, "weekday": STRICT}
    assert limits(drift=own, ignore=["tenure_days"]) == (
        Limit("plan", "categories", JENSEN_SHANNON, 0.4),
        Limit("weekday", "categories", L_INFINITY, 0.01),
    )


@pytest.mark.covers("F50")
def test_an_infinity_norm_on_numbers_is_refused_because_tfdv_reports_0_for_ever() -> None:
    with pytest.raises(InputError, match=r"tenure_days: .*use jensen_shannon_divergence for numeric"):
        limits(drift={"tenure_days": STRICT})


def test_all_faults_of_the_section_are_named_at_once_with_close_matches() -> None:
    with pytest.raises(InputError) as error:
        limits(
            current="train",
            drift={"plam": STRICT, "plan": STRICT, "tenure_days": STRICT},
            ignore=["plan", "week_day"],
        )
    lines = error.value.what.splitlines()
    assert lines[0] == "found 5 errors"
    assert "current and previous are both 'train'" in lines[1]
    assert lines[2] == "  drift.plam: no column 'plam' in the schema; did you mean plan?"
    assert lines[3] == "  drift.plan: also in ignore"
    assert "tenure_days" in lines[4]
    assert lines[5] == "  ignore: no column 'week_day' in the schema; did you mean weekday, tenure_days?"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"serving": "train"}, "serving is 'train', which the model learns from"),
        ({"serving": "fit", "trained_on": "fit"}, "serving is 'fit', which the model learns from"),
        ({"serving": "logged"}, ""),
    ],
)
def test_a_split_that_would_be_compared_with_itself_is_a_fault(changes: dict[str, str], fault: str) -> None:
    if fault:
        with pytest.raises(InputError, match=fault):
            limits(**changes)
    else:
        assert limits(**changes) == limits()
