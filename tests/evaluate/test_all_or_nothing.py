"""What never varies from draw to draw is not certain for that, and what cannot be judged is not judged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.gates import even, grouped
from tests.evaluate.simulated import predictions as simulated
from tests.evaluate.test_kinds import examined, predictions
from trainwright.evaluate.findings import Disparity
from trainwright.evaluate.predictions import Predictions
from trainwright.significance import Rest, gap_to_whole, wilson

HALF = np.repeat([1, 0], 500)


def named(values: Any) -> Any:
    return pa.chunked_array([pa.array(list(values))])


def both(first: np.ndarray, second: np.ndarray, **rule: Any) -> Any:
    """Judge two models of 500 positives and 500 negatives."""
    models = [
        replace(predictions("binary", HALF, s[:, None]), key=named(range(1000))) for s in (first, second)
    ]
    return examined(*models, rules=[rule], constant_prediction="warn")


def selecting(*rows: int, seed: int) -> np.ndarray:
    score = np.random.default_rng(seed).uniform(0, 0.4, 1000)
    score[list(rows)] = 0.9
    return score


def test_two_precisions_of_a_few_rows_that_are_all_right_are_not_known_to_be_alike() -> None:
    few, others = selecting(*range(5), seed=1), selecting(*range(5, 12), seed=2)
    found = both(few, others, metric="precision", margin=0.01)
    assert found.decision == "INCONCLUSIVE"
    assert found.overall["precision"].gain.low == pytest.approx(wilson(5, 5).low - 1, abs=0.03)
    assert both(few, few, metric="precision", margin=0.01).decision == "PASS", "it is the same model"


def test_thirty_rows_that_are_all_right_do_not_beat_a_precision_of_95_percent() -> None:
    """Of a precision of 95 % that comes in one of five evaluations."""
    sure, many = selecting(*range(30), seed=1), selecting(*range(475), *range(500, 525), seed=2)
    found = both(sure, many, metric="precision", min_gain=0)
    assert found.overall["precision"].gain.value == pytest.approx(0.05)
    assert found.decision == "INCONCLUSIVE"


@pytest.mark.parametrize("metric", ["auc", "average_precision"])
def test_two_perfect_rankings_are_no_surer_to_be_alike_than_each_is_to_be_perfect(metric: str) -> None:
    one, two = (np.random.default_rng(s).uniform(0, 0.4, 1000) + 0.5 * HALF for s in (1, 2))
    assert both(one, two, metric=metric, margin=0.001).decision == "INCONCLUSIVE"
    assert both(one, two, metric=metric, margin=0.02).decision == "PASS"
    assert both(one, one, metric=metric, margin=0.001).decision == "PASS"


@pytest.mark.parametrize("right", [True, False])
def test_weights_whose_sums_are_rounded_are_judged(right: bool) -> None:
    label = np.tile([0, 1], 100)
    for seed in range(5):
        draw = np.random.default_rng(seed)
        score = np.where((label == 1) == right, 0.8, 0.2) + draw.uniform(0, 0.1, 200)
        heavy = draw.random(200)
        found = examined(predictions("binary", label, score[:, None], weight=heavy)).overall
        three = np.tile([0, 1, 2], 60)
        claims = np.eye(3)[three if right else (three + 1) % 3] * 0.6 + 0.4 / 3
        rows = predictions("multiclass", three, claims, weight=draw.random(180))
        more = examined(rows, rules=[{"metric": "accuracy", "at_least": 0.5}]).overall
        for accuracy in (found["accuracy"].candidate, more["accuracy"].candidate):
            assert accuracy is not None
            assert accuracy.value == pytest.approx(float(right))
            assert 0 <= accuracy.low < accuracy.high <= 1


def test_a_class_whose_rows_have_no_weight_has_no_figures_and_no_error() -> None:
    three, two = np.tile([0, 1, 2], 100), np.tile([0, 1], 150)
    rule = [{"metric": "accuracy", "at_least": 0.5}]
    claims = np.eye(3)[three] * 0.6 + 0.4 / 3
    heavy = (three != 2).astype(float)
    found = examined(predictions("multiclass", three, claims, weight=heavy), rules=rule)
    assert found.decision == "PASS"
    assert {"auc/0", "auc/1"} <= found.overall.keys()
    assert "auc/2" not in found.overall
    alone = (three == 1).astype(float)
    found = examined(predictions("multiclass", three, claims, weight=alone), rules=rule)
    assert found.overall["macro_auc"].candidate is None
    score = np.where(two == 1, 0.8, 0.2) + np.random.default_rng(0).uniform(0, 0.1, 300)
    rows = predictions("binary", two, score[:, None], weight=(two == 0).astype(float))
    found = examined(rows, rules=[{"metric": "recall", "at_least": 0.5}], constant_prediction="warn")
    assert found.decision == "INCONCLUSIVE"
    calibration = found.overall["calibration_error"].candidate
    assert calibration is not None
    assert 0 < calibration.low <= calibration.value <= calibration.high <= 1


def test_a_mean_over_classes_is_not_judged_in_a_slice_without_one_of_them() -> None:
    label = np.concatenate([np.tile([0, 1, 2], 200), np.tile([0, 1], 300)])
    rows = predictions("multiclass", label, np.eye(3)[label] * 0.6 + 0.4 / 3)
    rows = replace(rows, columns={"part": named(np.repeat(["all", "two"], 600).tolist())})
    limit: dict[str, Any] = {"metric": "macro_recall", "at_least": 0.8}
    found = examined(rows, slices=["part"], rules=[limit | {"scope": "slice"}])
    assert found.decision == "PASS"
    told = {entry.name: entry.reason for ruling in found.rulings for entry in ruling.undecided}
    assert told == {"macro recall of part two": "0 of at least 30 rows of class 2"}
    found = examined(rows, rules=[limit], fairness={"by": ["part"], "group_minimum": {"macro_recall": 0.8}})
    assert found.decision == "PASS"
    assert [entry.reason for ruling in found.rulings for entry in ruling.undecided] == [*told.values()]


def positives_of(customers: int) -> Predictions:
    """Rows of 100 customers, of whom so many have all 180 positives, most of which are found."""
    draw = np.random.default_rng(0)
    customer, label = np.repeat(np.arange(100), 20), np.zeros(2000, np.int64)
    of_them = np.flatnonzero(customer < customers)
    label[of_them[:: len(of_them) // 180]] = 1
    score = 0.2 + draw.uniform(0, 0.1, 2000) + 0.5 * label * (draw.random(2000) < 0.9)
    half = np.where(draw.random(2000) < 0.5, "odd", "even")
    columns = {"customer": named(customer.tolist()), "half": named(half.tolist())}
    return replace(predictions("binary", label, score[:, None]), columns=columns)


@pytest.mark.parametrize(("customers", "decision"), [(9, "INCONCLUSIVE"), (90, "PASS")])
def test_positives_of_a_few_customers_are_few_however_many_customers_there_are(
    customers: int, decision: str
) -> None:
    rows, limit = positives_of(customers), {"metric": "recall", "at_least": 0.7}
    found = examined(rows, cluster="customer", rules=[limit], constant_prediction="warn")
    assert found.decision == decision
    if customers < 30:
        reason = found.rulings[0].undecided[0].reason
        assert reason.startswith("9 values of customer with rows of the rarer label; its interval needs 30")
    by_half = examined(rows, cluster="customer", slices=["half"], rules=[limit | {"scope": "slice"}])
    assert bool(by_half.cuts[0].slices[0].reason) == (customers < 30)
    fair = {"by": ["half"], "limits": {"equal_opportunity": 1.0, "selection_rate_difference": 1.0}}
    unfair = examined(rows, cluster="customer", fairness=fair)
    measured = {entry.measure for entry in unfair.disparities if entry.value}
    assert ("equal_opportunity" in measured) == (customers >= 30)
    assert "selection_rate_difference" in measured


def disparities(one: Predictions, two: Predictions | None, against: str, **asked: Any) -> list[Disparity]:
    fairness = {"by": ["shop"], "against": against, "limits": {"equalized_odds": 1.0}}
    enough = {"resamples": 400, "min_rows": 100}
    return list(examined(one, two, **enough, fairness=fairness, **asked).disparities)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_whole_that_groups_are_compared_with_has_the_small_groups_in_it(weighted: bool) -> None:
    sizes = {"a": 600, "b": 600} | {f"s{index:02}": 30 for index in range(20)}
    shop = np.repeat(list(sizes), list(sizes.values()))
    draw = np.random.default_rng(1)
    selected = draw.random(len(shop)) < np.where(np.char.startswith(shop, "s"), 0.2, 0.6)
    heavy = np.full(len(shop), 3.0) if weighted else None
    label = draw.integers(0, 2, len(shop))
    rows = simulated(label, np.where(selected, 0.8, 0.2), columns={"shop": shop}, weight=heavy)
    found = disparities(rows, None, "overall", min_positives=1, min_negatives=1)[0].value
    assert found is not None
    counts = [selected[shop == name].sum() for name in ("a", "b")]
    others = [selected.sum() - count for count in counts]
    rest = Rest(np.array(others), np.full(2, len(shop) - 600.0), np.full(2, 600 / len(shop)))
    expected = gap_to_whole(counts, [600, 600], rest)
    assert found.value == pytest.approx(max(count / 600 for count in counts) - selected.mean())
    tolerance = 0.006 if weighted else 1e-9
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=tolerance)
    assert found.low < found.value < found.high


def test_a_worsening_from_perfection_is_not_bounded_by_the_draws_of_perfection() -> None:
    """A recall of 0.95 misses at most one of 80 in 9 % of all samples; a limit of 0.05 is not kept then."""
    shop = np.repeat(["a", "b", "c"], 200)
    label = np.tile(np.repeat([1, 0], [80, 120]), 3)
    before = np.where(label == 1, 0.9, 0.1)
    after = before.copy()
    after[0] = 0.1
    models = [simulated(label, score, columns={"shop": shop}) for score in (after, before)]
    for against in ("groups", "overall"):
        found = disparities(models[0], models[1], against)[2].worsening
        assert found is not None
        assert found.value <= 1 / 80
        assert found.high > 0.05, against
    many = grouped(even(3, 0.95), 2_400, even(3, 0.95))(np.random.default_rng(0))
    found = disparities(*many, "groups")[2].worsening
    assert found is not None
    assert found.high < 0.06, "with many rows it costs nothing"


def test_a_worse_calibration_does_not_pass_because_noise_enlarges_the_better_one() -> None:
    draw = np.random.default_rng(1)
    asked: dict[str, Any] = {"resamples": 200, "rules": [{"metric": "brier", "margin": 1}]}
    for _ in range(10):
        chance = draw.uniform(0.15, 0.85, 1000)
        label = (draw.random(1000) < chance).astype(np.int64)
        off = simulated(label, np.where(chance > 0.5, chance + 0.05, chance - 0.05))
        gain = examined(off, simulated(label, chance), **asked).overall["calibration_error"].gain
        assert gain is not None
        assert gain.low < -0.05 < gain.high, "it is worse by exactly 0.05"
        same = examined(off, off, **asked).overall["calibration_error"].gain
        assert same is not None
        assert (same.low, same.high) == (0, 0)
