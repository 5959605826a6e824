"""Candidate and baseline are compared on the same rows, or not at all."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.conftest import FAIR, Step, rows_of
from trainwright.errors import InputError
from trainwright.evaluate.evaluate import BaselinePredictions

Write = Callable[..., Step]
Produce = Callable[..., BaselinePredictions]
RULES = [{"metric": "auc", "margin": 0.02}]


def shuffled(rows: dict[str, list[Any]], seed: int = 1) -> dict[str, list[Any]]:
    order = np.random.default_rng(seed).permutation(len(rows["id"]))
    return {name: [values[index] for index in order] for name, values in rows.items()}


def test_rows_are_joined_by_their_key_whatever_their_order(written: Write, production: Produce) -> None:
    step, rows = written(rows_of(FAIR)), rows_of(FAIR)
    judged = step.judge(production(shuffled(rows)), rules=RULES)
    assert judged.decision == "PASS"
    assert judged.metrics["gain/auc"] == 0
    assert judged.metrics["auc"] == judged.metrics["baseline/auc"]
    verdict = step.verdict
    assert verdict.baseline_version == "7"
    assert verdict.judged["baseline.model"] == "cd" * 32
    assert verdict.judged["predictions.model"] == "ab" * 32


def test_a_thousandth_may_be_missing_and_is_left_out_of_both(written: Write, production: Produce) -> None:
    rows = rows_of(FAIR)
    step = written(rows)
    step.judge(production({name: values[1:] for name, values in rows.items()}), rules=RULES)
    reasons = {entry.name: entry.reason for entry in step.verdict.not_judged}
    assert reasons["rows that only one model scored"].startswith("1 rows")


def without(rows: dict[str, list[Any]], count: int) -> dict[str, list[Any]]:
    return {name: values[count:] for name, values in rows.items()}


def other_label(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return rows | {"late": [1 - rows["late"][0], *rows["late"][1:]]}


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "too few rows in both": (lambda rows: without(rows, 2), {}, r"only 1,198 of 1,200 rows \(99.83%\)"),
    "another label": (other_label, {}, r"1 of 1,200 rows have other labels .* first has key 0"),
    "other data": (
        lambda rows: rows,
        {"parents": {"training_set": "ef" * 32}},
        "numbers of different data are never compared",
    ),
    "another split": (lambda rows: rows, {"split": "holdout"}, "no split 'evaluate'"),
    "keys of another type": (
        lambda rows: rows | {"id": [str(key) for key in rows["id"]]},
        {},
        "keys of type string cannot be matched with keys of type int64",
    ),
    "rows scored twice": (
        lambda rows: rows | {"id": [1, *rows["id"][1:]]},
        {},
        "1,200 rows have 1,199 keys in 'id'",
    ),
    "another kind": (
        lambda rows: {**{k: v for k, v in rows.items() if k != "score"}, "estimate": rows["score"]},
        {},
        "the baseline predicts regression, the candidate binary",
    ),
    "no key": (lambda rows: {k: v for k, v in rows.items() if k != "id"}, {}, "without a key"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_baseline_that_is_not_of_the_same_rows_is_refused(
    case: str, written: Write, production: Produce
) -> None:
    change, more, message = REFUSED[case]
    step = written(rows_of(FAIR), parents={"training_set": "aa" * 32, "model": "ab" * 32})
    with pytest.raises(InputError, match=message) as caught:
        step.judge(production(change(rows_of(FAIR)), **more), rules=RULES)
    assert caught.value.code == 10
    assert not (step.folder / "verdict" / "verdict.json").exists()


@pytest.mark.covers("B66")
@pytest.mark.parametrize(("policy", "decision"), [("fail", "FAIL"), ("hold", "HOLD"), ("bootstrap", "PASS")])
def test_a_missing_baseline_decides_what_the_section_says(policy: str, decision: str, written: Write) -> None:
    step = written(rows_of(FAIR))
    judged = step.judge(rules=[{"metric": "auc", "at_least": 0.7}, *RULES], missing_baseline=policy)
    assert judged.decision == decision
    assert "AUC against the baseline" in [entry.name for entry in step.verdict.not_judged]


def test_a_version_in_production_that_could_not_score_the_rows_is_no_first_model(written: Write) -> None:
    judged = written(rows_of(FAIR)).judge(
        BaselinePredictions(registered="7"), rules=RULES, missing_baseline="bootstrap"
    )
    assert judged.decision == "HOLD"
    assert "version 7 is in production" in judged.headline


def test_a_missing_baseline_holds_unless_the_section_says_more(written: Write) -> None:
    assert written(rows_of(FAIR)).judge(rules=RULES).decision == "HOLD"
    assert written(rows_of(FAIR)).judge(min_auc=0.7).decision == "PASS"


def test_a_language_model_is_compared_over_the_same_tokens_only(written: Write, production: Produce) -> None:
    draw = np.random.default_rng(0)
    rows = {
        "id": list(range(400)),
        "loss": draw.gamma(9, 0.3, 400),
        "tokens_scored": draw.integers(5, 90, 400),
    }
    step = written(rows)
    worse = production(rows | {"loss": rows["loss"] * 1.2})
    judged = step.judge(worse, rules=[{"metric": "loss", "min_gain": 0.1}], constant_prediction="warn")
    expected = float(np.average(rows["loss"], weights=rows["tokens_scored"]))
    assert judged.decision == "PASS"
    assert judged.metrics["loss"] == pytest.approx(expected)
    assert judged.metrics["perplexity"] == pytest.approx(np.exp(expected))
    assert judged.metrics["gain/loss"] == pytest.approx(0.2 * expected)
    tokens = np.where(np.arange(400) == 3, 1, rows["tokens_scored"])
    with pytest.raises(InputError, match="1 of 400 rows have other numbers of tokens"):
        step.judge(
            production(rows | {"tokens_scored": pa.array(tokens)}), rules=[{"metric": "loss", "margin": 0.1}]
        )
