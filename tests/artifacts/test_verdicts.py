"""A verdict's decision follows from its numbers, and a reader sees where it does not."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainwright.errors import InputError, InternalError
from trainwright.verdicts import (
    ABOVE,
    AT_LEAST,
    AT_MOST,
    BELOW,
    RATIO,
    SIZE,
    UP_TO,
    NotJudged,
    Rule,
    Verdict,
    worst,
)


def rule(test: str, value: float, low: float, high: float, limit: float, **more: Any) -> Rule:
    kept: dict[str, Any] = {"name": "auc", "test": test, "interval": (low, high)} | more
    return Rule(value=value, limit=limit, **kept)


@pytest.mark.parametrize(
    ("test", "low", "value", "high", "outcome"),
    [
        (ABOVE, 0.71, 0.8, 0.9, "PASS"),
        (ABOVE, 0.7, 0.8, 0.9, "INCONCLUSIVE"),
        (ABOVE, 0.6, 0.65, 0.7, "FAIL"),
        (BELOW, 0.6, 0.65, 0.69, "PASS"),
        (BELOW, 0.6, 0.69, 0.7, "INCONCLUSIVE"),
        (BELOW, 0.7, 0.8, 0.9, "FAIL"),
        (BELOW, 0.71, 0.8, 0.9, "FAIL"),
        (UP_TO, 0.5, 0.6, 0.69, "PASS"),
        (UP_TO, 0.5, 0.6, 0.7, "PASS"),
        (UP_TO, 0.5, 0.6, 0.71, "INCONCLUSIVE"),
        (UP_TO, 0.7, 0.8, 0.9, "INCONCLUSIVE"),
        (UP_TO, 0.71, 0.8, 0.9, "FAIL"),
        (SIZE, 0.0, 0.6, 0.9, "PASS"),
        (SIZE, 0.0, 0.7, 0.9, "PASS"),
        (SIZE, 0.69, 0.8, 0.9, "INCONCLUSIVE"),
        (SIZE, 0.7, 0.8, 0.9, "INCONCLUSIVE"),
        (SIZE, 0.71, 0.8, 0.9, "FAIL"),
        (RATIO, 0.5, 0.8, 0.9, "PASS"),
        (RATIO, 0.5, 0.7, 0.9, "PASS"),
        (RATIO, 0.5, 0.6, 0.71, "INCONCLUSIVE"),
        (RATIO, 0.5, 0.6, 0.7, "INCONCLUSIVE"),
        (RATIO, 0.5, 0.6, 0.69, "FAIL"),
    ],
)
def test_a_rule_follows_from_its_numbers(
    test: str, low: float, value: float, high: float, outcome: str
) -> None:
    assert rule(test, value, low, high, 0.7).outcome() == outcome


@pytest.mark.parametrize(
    ("test", "value", "outcome"),
    [
        (AT_LEAST, 6, "FAIL"), (AT_LEAST, 7, "PASS"), (AT_LEAST, 8, "PASS"),
        (AT_MOST, 6, "PASS"), (AT_MOST, 7, "PASS"), (AT_MOST, 8, "FAIL"),
    ],
)  # fmt: skip
def test_an_exact_number_holds_at_its_limit(test: str, value: float, outcome: str) -> None:
    exact = Rule(name="rows", value=value, limit=7, test=test)
    assert (exact.outcome(), exact.excused) == (outcome, False)
    assert replace(exact, broken="PASS").excused == (outcome == "FAIL")


@pytest.mark.parametrize("field", ["value", "limit", "p_value", "level"])
def test_a_number_that_is_not_finite_is_rejected_where_it_is_read(field: str) -> None:
    kept = Verdict(decision="PASS", rules=(rule(ABOVE, 0.8, 0.75, 0.85, 0.7),), judged={})
    data = json.loads(json.dumps(kept.to_json()))
    data["rules"][0][field] = math.inf
    with pytest.raises(InputError):
        Verdict.from_json(data)


def test_a_broken_rule_among_many_slices_is_claimed_only_below_its_level() -> None:
    broken = rule(ABOVE, 0.6, 0.55, 0.65, 0.7, level=0.025, p_value=0.024)
    assert broken.outcome() == "FAIL"
    assert replace(broken, p_value=0.025).outcome() == "FAIL"
    assert replace(broken, p_value=0.026).outcome() == "INCONCLUSIVE"
    assert replace(broken, broken="HOLD").outcome() == "HOLD"


def test_a_changed_decision_or_number_is_seen_by_deciding_again() -> None:
    kept = Verdict(decision="PASS", rules=(rule(ABOVE, 0.8, 0.75, 0.85, 0.7),), judged={})
    assert kept.recomputed() == kept.decision
    assert replace(kept, decision="FAIL").recomputed() == "PASS"
    raised = replace(kept.rules[0], limit=0.76)
    changed = replace(kept, rules=(raised,))
    assert changed.recomputed() == "INCONCLUSIVE"
    assert changed.digest != kept.digest


def test_what_could_not_be_judged_counts_and_nothing_judged_is_no_pass() -> None:
    left = NotJudged(name="x", reason="few", decision="INCONCLUSIVE")
    passed = rule(ABOVE, 0.8, 0.75, 0.85, 0.7)
    assert Verdict(decision="PASS", rules=(passed,), judged={}, not_judged=(left,)).recomputed() == (
        "INCONCLUSIVE"
    )
    assert Verdict(decision="PASS", rules=(), judged={}).recomputed() == "INCONCLUSIVE"
    assert worst([]) == "INCONCLUSIVE"
    excused = NotJudged(name="x", reason="few", decision="PASS")
    assert Verdict(decision="PASS", rules=(), judged={}, not_judged=(excused,)).recomputed() == "INCONCLUSIVE"
    for decision, verdict in (("", "PASS"), ("PASS", "PASS"), ("HOLD", "HOLD"), ("FAIL", "FAIL")):
        entry = replace(left, decision=decision)
        assert (
            Verdict(decision="PASS", rules=(passed,), judged={}, not_judged=(entry,)).recomputed() == verdict
        )


def test_a_verdict_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = Verdict(
        decision="PASS",
        rules=(rule(ABOVE, 0.8, 0.75, 0.85, 0.7, needed=4000),),
        judged={"predictions": "ab"},
        baseline_version="7",
    )
    kept.write(tmp_path)
    assert Verdict.read(tmp_path) == kept


def test_a_verdicts_document_has_every_number_of_the_decision() -> None:
    found = Verdict(
        decision="HOLD",
        rules=(Rule(name="rows", value=1.0, limit=2.0, test=AT_LEAST),),
        judged={"snapshot": "ab"},
        not_judged=(NotJudged(name="x", reason="few"),),
    )
    rule = {"name": "rows", "value": 1.0, "limit": 2.0, "test": "at least", "detail": "", "interval": ()}
    assert found.to_json() == {
        "schema_version": 2,
        "decision": "HOLD",
        "rules": (
            rule | {"broken": "FAIL", "unsure": "INCONCLUSIVE", "p_value": 0, "level": 1, "needed": 0},
        ),
        "judged": {"snapshot": "ab"},
        "not_judged": ({"name": "x", "reason": "few", "decision": "", "needed": 0},),
        "baseline_version": "",
    }


@pytest.mark.parametrize(
    ("place", "field"), [((), "decision"), (("rules", 0), "unsure"), (("not_judged", 0), "decision")]
)
def test_an_unknown_decision_in_a_document_is_bad_input(place: tuple[Any, ...], field: str) -> None:
    left = NotJudged(name="x", reason="few", decision="HOLD")
    kept = Verdict(decision="HOLD", rules=(rule(ABOVE, 0.8, 0.75, 0.85, 0.7),), judged={}, not_judged=(left,))
    data = json.loads(json.dumps(kept.to_json()))
    entry = data
    for key in place:
        entry = entry[key]
    entry[field] = "MAYBE"
    with pytest.raises(InputError, match="MAYBE") as caught:
        Verdict.from_json(data, where="verdict.json")
    assert caught.value.where == "verdict.json"


@pytest.mark.parametrize(
    "wrong", [{"test": "about"}, {"interval": ()}, {"broken": "MAYBE"}, {"broken": "NO"}]
)
def test_a_rule_that_no_reader_could_decide_again_is_our_bug(wrong: dict[str, Any]) -> None:
    with pytest.raises(InternalError, match="cannot be decided again"):
        replace(rule(ABOVE, 0.8, 0.75, 0.85, 0.7), **wrong)
