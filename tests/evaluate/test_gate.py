"""The whole step, from a snapshot to a verdict: each decision, what it leaves, and what it never leaves."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.evaluate.conftest import FAIR, UNFAIR, Group, Step, rows_of
from trainwright.artifacts import Record
from trainwright.errors import InternalError
from trainwright.verdicts import Verdict

Write = Callable[..., Step]

DECIDED = {
    "PASS": (FAIR, {"min_auc": 0.8, "max_recall_gap": 0.05}),
    "HOLD": (UNFAIR, {"min_auc": 0.7, "max_recall_gap": 0.1}),
    "FAIL": (UNFAIR, {"min_auc": 0.95, "max_recall_gap": 0.1}),
    "INCONCLUSIVE": (FAIR[:1], {"min_auc": 0.8, "max_recall_gap": 1.0}),
}


@pytest.mark.parametrize("decision", DECIDED)
def test_each_decision_leaves_a_report_a_summary_a_record_and_a_verdict(
    decision: str, written: Write
) -> None:
    groups, limits = DECIDED[decision]
    step = written(rows_of(groups))
    judged = step.judge(slices=["origin"], **limits)
    assert judged.decision == decision
    verdict = Verdict.read(step.folder / "verdict")
    record = Record.read(step.folder / "verdict")
    assert verdict.decision == record.decision == decision
    assert record.outputs == {"verdict": verdict.digest}
    assert record.headline == judged.headline
    assert verdict.judged["predictions"] == step.version
    assert verdict.recomputed() == decision
    assert f"<strong>{decision}</strong>" in (step.folder / "report.html").read_text()
    assert (step.folder / "summary.md").read_text().startswith(f"# Evaluate: {decision}\n")
    if decision == "INCONCLUSIVE":
        assert verdict.not_judged


def test_a_gap_is_held_with_the_numbers_a_reader_can_check(written: Write) -> None:
    step = written(rows_of(UNFAIR))
    judged = step.judge(slices=["origin"], max_recall_gap=0.1)
    assert judged.headline == "HOLD: recall gap over origin 0.400 > 0.100: EWR 0.500, LGA 0.900"
    assert judged.details["slice/origin/EWR/recall"] == 200 / 400
    assert judged.details["slice/origin/LGA/recall"] == 360 / 400
    assert judged.details["slice/origin/JFK/rows"] == 100
    assert judged.metrics["precision"] == 590 / 645
    assert not [name for name in judged.metrics if "/" in name or name.endswith(("_low", "_high"))]
    assert judged.details["precision_low"] < 590 / 645 < judged.details["precision_high"]
    assert judged.confusion == ((555, 55), (250, 590))
    rule = next(rule for rule in Verdict.read(step.folder / "verdict").rules if "origin" in rule.name)
    assert (rule.value, rule.limit, rule.passed) == (pytest.approx(0.4), 0.1, False)


def test_a_single_judged_slice_is_refused_not_passed(written: Write) -> None:
    groups = (Group("EWR", 200, 160, 300, 30), Group("LGA", 10, 1, 300, 30))
    step = written(rows_of(groups))
    judged = step.judge(slices=["origin"], max_recall_gap=1.0)
    reasons = {entry.name: entry.reason for entry in Verdict.read(step.folder / "verdict").not_judged}
    assert judged.decision == "INCONCLUSIVE"
    assert "needs 2 slices" in reasons["recall gap over origin"]
    assert reasons["origin = LGA"] == "10 of at least 30 positives"


def test_without_slices_only_the_whole_is_judged(written: Write) -> None:
    judged = written(rows_of(UNFAIR)).judge(min_auc=0.7)
    assert judged.decision == "PASS"
    assert not [name for name in {**judged.metrics, **judged.details} if name.startswith("slice/")]


def test_the_same_predictions_give_the_same_verdict_and_the_same_report(written: Write) -> None:
    step = written(rows_of(UNFAIR))
    names = ("verdict/verdict.json", "report.html", "summary.md")
    step.judge(slices=["origin"])
    first = [(step.folder / name).read_bytes() for name in names]
    step.judge(slices=["origin"])
    assert [(step.folder / name).read_bytes() for name in names] == first


def test_no_verdict_is_given_where_its_report_cannot_be_written(written: Write) -> None:
    step = written(rows_of(UNFAIR))
    with pytest.raises(InternalError, match="a page stays below 1,000"):
        step.judge(slices=["origin"], most_bytes=1000)
    assert not (step.folder / "verdict").exists()


def test_every_figure_that_is_passed_on_is_finite_json(written: Write) -> None:
    groups = (*UNFAIR, Group("none", 0, 0, 20, 0), Group("all", 20, 20, 0, 0))
    judged = written(rows_of(groups)).judge(slices=["origin"], threshold=1.0)
    roc = [axis.tolist() for axis in (judged.roc.x, judged.roc.y, judged.roc.threshold)]
    figures = [*judged.metrics.values(), *(value for axis in roc for value in axis)]
    assert all(math.isfinite(value) for value in figures)
    assert "precision" not in judged.metrics
    json.dumps([judged.metrics, judged.details, judged.confusion, roc], allow_nan=False)


def test_the_most_slices_that_can_be_asked_for_stay_below_two_megabytes(written: Write) -> None:
    draw = np.random.default_rng(0)
    rows = rows_of((Group("EWR", 3000, 2000, 6000, 1000),))
    names = [f"<column {index}>" for index in range(20)]
    for name in names:
        rows[name] = [f"{'<&' * 38}{value:03d}" for value in draw.integers(0, 70, 9000)]
    step = written(rows)
    judged = step.judge(slices=names, min_positives=1)
    assert judged.decision in {"PASS", "HOLD", "INCONCLUSIVE"}
    page = (step.folder / "report.html").read_text()
    assert len(page) < 2_000_000
    assert all(f"By &lt;column {index}&gt;" in page for index in range(20))
