"""What may be judged: rows that had no part in the model, and what a comparison with itself says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.conftest import FAIR, Step, rows_of
from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.evaluate.evaluate import BaselinePredictions
from trainwright.experiment import Evaluation
from trainwright.tracking import environment

Write = Callable[..., Step]


def trained(step: Step, **training: Any) -> None:
    """Lay the record of a training beside predictions, as train does."""
    record = Record(
        step="train",
        headline="",
        started="2026-11-20T10:00:00+00:00",
        seconds=1,
        environment=environment(),
        config={"training": training},
    )
    record.write(step.folder / "predictions")


def split_in_two(written: Write, **names: str) -> Step:
    rows = rows_of(FAIR)
    judged, other = names["judged"], names["other"]
    return written(rows, split=judged, splits={other: [pa.table(rows_of(FAIR, seed=1))]})


def test_a_split_that_is_called_train_is_refused_where_nothing_says_what_was_learned_from(
    written: Write,
) -> None:
    step = split_in_two(written, judged="train", other="new")
    with pytest.raises(InputError, match=r"split 'train' is what a model is fitted on") as caught:
        step.judge(split="train", min_auc=0.5)
    assert caught.value.code == 10
    assert "had no part in the training" in caught.value.hint
    assert not (step.folder / "verdict" / "verdict.json").exists()
    assert step.judge(split="new", min_auc=0.5).decision == "PASS"


def test_the_record_says_what_was_learned_from_and_what_ended_the_training(written: Write) -> None:
    step = split_in_two(written, judged="train", other="tune")
    trained(step, split="tune")
    assert step.judge(split="train", min_auc=0.5).decision == "PASS"
    with pytest.raises(InputError, match="split 'tune' is what the model was fitted on"):
        step.judge(split="tune", min_auc=0.5)
    trained(step, split="early", guards={"early_stopping": {"split": "tune"}})
    with pytest.raises(InputError, match="split 'tune' ended the training, and chose the model"):
        step.judge(split="tune", min_auc=0.5)


def test_the_section_refuses_to_judge_what_overfitting_calls_fitted() -> None:
    asked = {"split": "early", "overfitting": {"at_most": 0.1, "split": "early"}}
    with pytest.raises(InputError, match="is the training split"):
        Evaluation.check(asked, "evaluation")


def known_and_new(draw: np.random.Generator, customers: int, each: int) -> list[dict[str, Any]]:
    """Rows of customers who are alike in themselves, better told apart where the model knows them."""
    found = []
    for better in (0.25, 0.0):
        customer = np.repeat(np.arange(customers), each)
        label = draw.integers(0, 2, customers)[customer]
        shared = draw.normal(0, 0.5, customers)[customer]
        score = 1 / (1 + np.exp(-((1 + better) * label + shared + draw.normal(0, 0.6, len(label)))))
        found.append({"id": np.arange(len(label)), "late": label, "score": score, "customer": customer})
    return found


def test_overfitting_is_judged_by_its_interval_and_that_by_clusters_on_both_sides(written: Write) -> None:
    known, new = known_and_new(np.random.default_rng(52), 90, 20)
    step = written(new, splits={"train": [pa.table(known)]})
    asked = {"min_auc": 0.5, "overfitting": {"at_most": 0.04}}
    rows = step.judge(**asked)
    alone = next(rule for rule in step.verdict.rules if "overfitting" in rule.name)
    step.judge(cluster="customer", **asked)
    together = next(rule for rule in step.verdict.rules if "overfitting" in rule.name)
    assert (rows.decision, together.outcome()) == ("PASS", "INCONCLUSIVE")
    assert together.value == pytest.approx(alone.value)
    assert together.value < together.limit, "the number is within the limit, its interval is not"
    one, two = (rule.interval[1] - rule.interval[0] for rule in (alone, together))
    assert two > 2 * one, "customers of 20 rows that are alike count for far fewer rows"


def test_of_too_few_clusters_that_were_fitted_on_overfitting_is_not_judged(written: Write) -> None:
    known, _ = known_and_new(np.random.default_rng(3), 20, 60)
    _, new = known_and_new(np.random.default_rng(4), 60, 20)
    step = written(new, splits={"train": [pa.table(known)]})
    assert step.judge(cluster="customer", overfitting={"at_most": 0.9}).decision == "INCONCLUSIVE"
    reasons = {entry.name: entry.reason for entry in step.verdict.not_judged}
    assert reasons["AUC overfitting"] == (
        "7 values of customer with rows of the rarer label; its interval needs 30 of each"
    )


def test_a_worsening_within_its_limit_by_luck_is_open(
    written: Write, production: Callable[..., BaselinePredictions]
) -> None:
    step = written(rows_of(FAIR))
    before = production(rows_of([replace(group, hits=int(group.positives * 0.8)) for group in FAIR]))
    asked: dict[str, Any] = {"fairness": {"by": ["origin"], "worsening": {"equal_opportunity": 0.03}}}
    assert step.judge(before, **asked).decision == "INCONCLUSIVE"
    rule = next(rule for rule in step.verdict.rules if rule.name.startswith("worsening"))
    assert rule.interval[0] < rule.value <= rule.limit < rule.interval[1]
    asked["fairness"]["worsening"] = {"equal_opportunity": 0.3, "selection_rate_ratio": 0.5}
    assert step.judge(before, **asked).decision == "PASS"


def test_the_model_in_production_is_no_worse_than_itself_and_no_better(
    written: Write, production: Callable[..., BaselinePredictions]
) -> None:
    rows = rows_of(FAIR)
    step = written(rows)
    fair = {"fairness": {"by": ["origin"], "worsening": {"equal_opportunity": 0.01}}}
    assert step.judge(production(rows), rules=[{"metric": "auc", "margin": 0.001}], **fair).decision == "PASS"
    assert step.judge(production(rows), rules=[{"metric": "auc", "min_gain": 0.001}]).decision == "FAIL"
