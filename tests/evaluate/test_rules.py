"""Rules applied to estimates: what is undecided, how many rows would decide it, and how a page says it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.evaluate.conftest import UNFAIR, rows_of
from tests.evaluate.made_findings import around, made
from tests.evaluate.test_gate import Write
from trainwright.evaluate.findings import ComparedMetric, ConstantComparison, Findings
from trainwright.evaluate.rules import (
    RuleTerms,
    apply_rules,
    constant_warning,
    fact_line,
    judge_estimate,
    metric_title,
)
from trainwright.significance import Estimate, rows_needed
from trainwright.verdicts import ABOVE, BELOW, RATIO, SIZE, UP_TO, NotJudged, Verdict

NEAR, FAR = Estimate(0.78, 0.74, 0.82), Estimate(0.9, 0.88, 0.92)


def test_an_undecided_rule_names_the_rows_that_would_decide_it() -> None:
    terms = RuleTerms(0.8, ABOVE, 0.95)
    rule, (left,) = judge_estimate("AUC", NEAR, 1000, terms)
    assert rule.needed == left.needed == rows_needed(NEAR, 0.8, 1000, 0.95) > 1000
    assert left.reason == (
        f"the interval 0.7400 to 0.8200 holds the limit 0.8000; "
        f"about {left.needed:,} rows like these 1,000 would tell"
    )
    assert rule.detail == "INCONCLUSIVE; 95% interval 0.7400 to 0.8200"
    rule, left_of_decided = judge_estimate("AUC", FAR, 1000, terms, detail="of both")
    assert (rule.outcome(), rule.needed, left_of_decided) == ("PASS", 0, ())
    assert rule.detail == "PASS; 95% interval 0.8800 to 0.9200; of both"


def test_a_slice_that_may_be_beyond_its_limit_by_chance_needs_more_rows_for_each_other_slice() -> None:
    terms = RuleTerms(0.95, ABOVE, 0.95)
    found = Estimate(0.9, 0.85, 0.949)
    alone = terms.tail_probability(found)
    rule, (left,) = judge_estimate("x", found, 1000, terms, p_value=4 * alone)
    assert rule.outcome() == "INCONCLUSIVE"
    assert left.needed == rows_needed(found, 0.95, 1000, 0.95, tests=4) > rows_needed(found, 0.95, 1000, 0.95)
    assert "among so many slices it may be by chance" in left.reason


def test_a_rule_that_only_finds_harm_leaves_a_note_that_decides_nothing() -> None:
    rule, (left,) = judge_estimate("AUC", NEAR, 1000, RuleTerms(0.8, ABOVE, 0.95, unsure="PASS"))
    assert (rule.outcome(), left.decision) == ("PASS", "")
    rule, (left,) = judge_estimate("AUC", NEAR, 1000, RuleTerms(0.8, ABOVE, 0.95, unsure="HOLD"))
    assert (rule.outcome(), left.decision) == ("HOLD", "HOLD")


@pytest.mark.parametrize(
    ("test", "found", "limit", "line"),
    [
        (ABOVE, FAR, 0.8, "x 0.900 [0.880, 0.920] > 0.800"),
        (ABOVE, FAR, 0.95, "x 0.900 [0.880, 0.920] <= 0.950: a and b"),
        (ABOVE, FAR, 0.91, "x 0.900 [0.880, 0.920] around 0.910: a and b"),
        (BELOW, FAR, 0.95, "x 0.900 [0.880, 0.920] < 0.950"),
        (BELOW, FAR, 0.8, "x 0.900 [0.880, 0.920] >= 0.800: a and b"),
        (UP_TO, FAR, 0.95, "x 0.900 [0.880, 0.920] <= 0.950"),
        (UP_TO, FAR, 0.8, "x 0.900 [0.880, 0.920] > 0.800: a and b"),
        (SIZE, FAR, 0.95, "x 0.900 of 0.950"),
        (SIZE, FAR, 0.8, "x 0.900 > 0.800: a and b"),
        (RATIO, FAR, 0.8, "x 0.900 of 0.800"),
        (RATIO, FAR, 0.95, "x 0.900 < 0.950: a and b"),
    ],
)
def test_a_fact_has_the_sign_of_its_outcome(test: str, found: Estimate, limit: float, line: str) -> None:
    rule, _ = judge_estimate("x", found, 1000, RuleTerms(limit, test, 0.95))
    assert fact_line("x", rule, "a and b") == line


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("auc", "AUC"),
        ("log_loss", "log loss"),
        ("macro_recall", "macro recall"),
        ("recall/2", "recall of class 2"),
    ],
)
def test_a_metric_has_the_name_that_readers_know(metric: str, title: str) -> None:
    assert metric_title(metric) == title


def test_calibration_error_is_held_above_its_limit_only(written: Write) -> None:
    step = written(rows_of(UNFAIR))
    error = step.judge().metrics["calibration_error"]
    for limit, decision in ((error + 0.1, "PASS"), (error / 3, "HOLD")):
        judged = step.judge(max_calibration_error=limit)
        (rule,) = [
            rule for rule in Verdict.read(step.folder / "verdict").rules if rule.name == "calibration error"
        ]
        assert (judged.decision, rule.value, rule.limit) == (decision, error, limit)


def ruled(name: str, findings: Findings) -> Any:
    (found,) = [ruling for ruling in apply_rules(findings) if ruling.name == name]
    return found


def test_calibration_error_that_is_not_defined_is_no_pass() -> None:
    findings = made(asked={"max_calibration_error": 0.1})
    undefined = ComparedMetric("calibration_error", "lower", None, None, None, "", None)
    findings = replace(findings, overall=findings.overall | {"calibration_error": undefined})
    assert ruled("calibration error", findings).undecided == (
        NotJudged(
            name="calibration error", reason="it is not defined on these rows", decision="INCONCLUSIVE"
        ),
    )


@pytest.mark.parametrize(
    ("policy", "unscored", "decision", "fact"),
    [
        ("fail", "", "FAIL", "there is no baseline to compare with"),
        ("hold", "", "HOLD", "there is no baseline to compare with"),
        ("bootstrap", "", "PASS", "no baseline: the first model, as missing_baseline says"),
        ("fail", "7", "FAIL", "version 7 is in production, and could not score these rows"),
        ("bootstrap", "7", "HOLD", "version 7 is in production, and could not score these rows"),
    ],
)
def test_only_a_first_model_is_excused_from_its_baseline(
    policy: str, unscored: str, decision: str, fact: str
) -> None:
    asked = {"missing_baseline": policy, "rules": [{"metric": "auc", "min_gain": 0}]}
    found = ruled("baseline", replace(made(baseline=False, asked=asked), unscored=unscored))
    (rule,) = found.rules
    assert (found.decision, rule.outcome(), found.fact) == (decision, decision, fact)
    assert (rule.value, rule.limit, rule.excused) == (0, 1, decision == "PASS")
    assert [(entry.name, entry.decision) for entry in found.undecided] == [("AUC against the baseline", "")]


@pytest.mark.parametrize(
    ("gain", "warning"),
    [
        (around(0.053), ()),
        (around(-0.053), ("log loss 0.399 not below 0.452 of a constant prediction",)),
    ],
)
def test_a_model_that_no_rule_compares_with_a_constant_is_warned_about(
    gain: Estimate, warning: tuple[str, ...]
) -> None:
    findings = made(asked={"constant_prediction": "warn"})
    constant = ConstantComparison("log_loss", 0.399, 0.452, gain)
    assert constant_warning(replace(findings, constant=constant)) == warning


def test_a_warning_of_a_doubtful_gain_ends_with_the_reason_once() -> None:
    findings = made(asked={"constant_prediction": "warn"})
    doubtful = ConstantComparison("log_loss", 0.399, 0.402, Estimate(0.003, -0.007, 0.013))
    (warning,) = constant_warning(replace(findings, constant=doubtful))
    assert warning.startswith(
        "log loss 0.3990 not clearly below 0.4020 of a constant prediction: the interval "
    )
    few = replace(findings, sample=replace(findings.sample, counts=(23_820, 20)))
    (warning,) = constant_warning(replace(few, constant=doubtful))
    assert warning.count("its interval needs") == 1


@pytest.mark.parametrize(
    ("limit", "decision", "end"),
    [
        (0.3, "PASS", "the worst of 3 slices"),
        (0.5, "INCONCLUSIVE", "the worst of 3 slices"),
        (0.55, "FAIL", "the worst of 3 slices"),
        (0.69, "FAIL", "the worst of 2 such slices"),
        (0.95, "FAIL", "the worst of 3 such slices"),
    ],
)
def test_slices_are_told_by_the_worst_one(limit: float, decision: str, end: str) -> None:
    slices = [(("origin",), ("EWR", "JFK", "LGA"))]
    asked = {"slices": ["origin"], "rules": [{"metric": "auc", "at_least": limit, "scope": "slice"}]}
    findings = made(slices=slices, asked=asked)
    found = next(ruling for ruling in apply_rules(findings) if ruling.scope == "slice")
    values = [rule.value for rule in found.rules]
    assert (found.decision, values) == (decision, sorted(values))
    assert found.fact.endswith(end)
