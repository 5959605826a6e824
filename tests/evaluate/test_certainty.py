"""Few rows are never taken for many: weights, clusters, rare classes and degenerate draws."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.test_kinds import examined, predictions
from trainwright.errors import InputError
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.predictions import Predictions, pair
from trainwright.significance import intervals, wilson


def binary(selected: np.ndarray, label: np.ndarray, **more: Any) -> Predictions:
    draw = np.random.default_rng(0).uniform(0, 0.4, len(label))
    return predictions("binary", label, np.where(selected, 0.6 + draw / 2, draw)[:, None], **more)


def interval(found: Findings, name: str) -> tuple[float, float]:
    estimate = found.overall[name].candidate
    assert estimate is not None
    return estimate.low, estimate.high


def test_a_precision_of_five_weighted_rows_is_that_of_five_rows() -> None:
    label = np.repeat([0, 1], [900, 100])
    selected = np.arange(1000) >= 995
    weighted = examined(binary(selected, label, weight=np.full(1000, 1000.0)), confidence=0.99)
    low, high = interval(weighted, "precision")
    assert low == pytest.approx(wilson(5, 5, 0.99).low, abs=0.03)
    assert high == 1


def test_a_class_of_eight_rows_that_are_all_right_is_not_known_to_be_right_always() -> None:
    label = np.repeat([0, 1, 2], [500, 492, 8])
    scores = np.eye(3)[label] * 0.6 + 0.4 / 3
    asked: dict[str, Any] = {"rules": [{"metric": "recall/2", "at_least": 0.9}]}
    found = examined(predictions("multiclass", label, scores), **asked)
    assert interval(found, "recall/2")[0] == pytest.approx(wilson(8, 8).low, abs=0.03)
    assert found.decision == "INCONCLUSIVE"
    more = np.repeat([0, 1, 2], [500, 500, 400])
    scores = np.eye(3)[more] * 0.6 + 0.4 / 3
    assert examined(predictions("multiclass", more, scores), **asked).decision == "PASS"


def in_clusters(count: int, size: int) -> Predictions:
    draw = np.random.default_rng(1)
    label = np.tile(np.repeat([0, 1], size // 2), count)
    score = np.clip(0.3 + 0.4 * label + draw.normal(0, 0.1, len(label)), 0, 1)
    customer = pa.chunked_array([[f"c{index:03d}" for index in np.repeat(np.arange(count), size)]])
    return replace(predictions("binary", label, score[:, None]), columns={"customer": customer})


@pytest.mark.parametrize(("count", "decision"), [(4, "INCONCLUSIVE"), (40, "PASS")])
def test_a_few_customers_are_not_many_rows(count: int, decision: str) -> None:
    asked: dict[str, Any] = {"cluster": "customer", "rules": [{"metric": "auc", "at_least": 0.8}]}
    assert examined(in_clusters(count, 200), **asked).decision == decision


def test_a_slice_of_a_few_customers_is_listed_and_not_judged() -> None:
    rows = in_clusters(40, 20)
    part = pa.chunked_array([["few"] * 400 + ["many"] * 400])
    few = pa.chunked_array([[f"f{index % 3}" for index in range(400)]
                            + rows.columns["customer"].to_pylist()[400:]])  # fmt: skip
    held = replace(rows, columns={"customer": few, "part": part})
    found = examined(held, cluster="customer", slices=["part"],
                     rules=[{"metric": "accuracy", "at_least": 0.5, "scope": "slice"}])  # fmt: skip
    assert [(entry.name, bool(entry.reason)) for entry in found.cuts[0].slices] == [
        ("few", True),
        ("many", True),
    ]
    assert found.cuts[0].slices[0].reason == "3 of at least 30 values of customer"


def test_a_group_in_which_nobody_is_selected_counts_its_rows_and_not_their_weight() -> None:
    label = np.tile([0, 1], 60)
    group = np.repeat(["A", "B"], 60)
    selected = (group == "A") & (np.arange(120) % 3 > 0)
    plain = binary(selected, label)
    plain = replace(plain, columns={"group": pa.chunked_array([group.tolist()])})
    heavy = replace(plain, weight=np.full(120, 500.0))
    fairness: dict[str, Any] = {"by": ["group"], "limits": {"selection_rate_difference": 1.0}}
    small: dict[str, Any] = {"min_rows": 20, "min_positives": 10, "min_negatives": 10}
    lows = []
    for rows in (plain, heavy):
        gap = examined(rows, fairness=fairness, **small).disparities[0].value
        assert gap is not None
        lows.append(gap.low)
    assert lows[1] == pytest.approx(lows[0], abs=0.01)


@pytest.mark.covers("F58")
def test_a_group_whose_metric_is_not_defined_is_told_and_no_pass() -> None:
    label = np.tile([0, 1], 400)
    group = np.repeat(["A", "B"], 400)
    rows = binary((group == "A") & (label == 1), label)
    held = replace(rows, columns={"group": pa.chunked_array([group.tolist()])})
    fairness = {"by": ["group"], "group_minimum": {"precision": 0.5}}
    found = examined(held, fairness=fairness, constant_prediction="warn")
    assert found.decision == "INCONCLUSIVE"
    assert [entry.name for ruling in found.rulings for entry in ruling.undecided] == ["precision of group B"]


def test_a_limit_that_no_figure_answers_to_is_an_error_and_not_left_out() -> None:
    label = np.random.default_rng(0).normal(0, 1, 100)
    numbers = predictions("regression", label, label[:, None] + 0.1)
    asked: dict[str, Any] = {"rules": [{"metric": "mae", "at_most": 1.0}], "max_calibration_error": 0.1}
    with pytest.raises(InputError, match="max_calibration_error"):
        examined(numbers, **asked)
    with pytest.raises(InputError, match="max_recall_gap"):
        examined(binary(np.ones(10) > 0, np.tile([0, 1], 5)), max_recall_gap=0.1)
    held = replace(numbers, columns={"group": pa.chunked_array([["a", "b"] * 50])})
    with pytest.raises(InputError, match="max_recall_gap"):
        examined(held, rules=asked["rules"], slices=["group"], max_recall_gap=0.1)


def test_both_models_have_the_weights_of_the_rows() -> None:
    label = np.tile([0, 1], 100)
    key = pa.chunked_array([list(range(200))])
    heavy = np.where(np.arange(200) < 100, 9.0, 1.0)
    ours = replace(binary(label == 1, label, weight=heavy), key=key)
    theirs = replace(binary((label == 1) & (np.arange(200) < 100), label), key=key)
    pairs = pair(ours, theirs)
    found = examined(*(entry for entry in (pairs.candidate, pairs.baseline) if entry)).overall["recall"]
    assert found.baseline is not None
    assert found.baseline.value == pytest.approx(0.9)
    tokens: dict[str, Any] = {"label": np.zeros(200), "scores": np.full((200, 1), 2.0)}
    one = replace(predictions("language_model", **tokens, weight=heavy), key=key)
    with pytest.raises(InputError, match="numbers of tokens"):
        pair(one, replace(one, weight=None))


def test_the_ends_of_a_bootstrap_interval_leave_out_as_much_as_they_say() -> None:
    draw = np.random.default_rng(3)
    drawn = draw.normal(0, 1, (199, 2000))
    low, high = intervals(np.zeros(2000), drawn)
    beyond = draw.normal(0, 1, (50, 2000))
    outside = float(((beyond < low) | (beyond > high)).mean())
    assert outside == pytest.approx(0.05, abs=0.002)


def test_a_group_of_a_few_customers_is_not_compared() -> None:
    rows = in_clusters(40, 20)
    group = pa.chunked_array([["few"] * 400 + ["many"] * 400])
    few = [f"f{index % 3}" for index in range(400)] + rows.columns["customer"].to_pylist()[400:]
    held = replace(rows, columns={"customer": pa.chunked_array([few]), "group": group})
    fairness: dict[str, Any] = {"by": ["group"], "limits": {"equal_opportunity": 0.5}}
    found = examined(held, cluster="customer", fairness=fairness, constant_prediction="warn")
    assert found.decision == "INCONCLUSIVE"
    assert found.rulings[-1].undecided[0].reason == "0 of 2 groups are large enough; two are needed"
