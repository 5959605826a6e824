"""Every kind of label: figures by another method, intervals that hold, and rules that fit."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.conftest import FAIR, Step, rows_of
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.measurement import measure
from trainwright.evaluate.plot_data import POINTS, precision_recall, roc
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.evaluate.rows import Rows
from trainwright.evaluate.rules import metric_title
from trainwright.experiment import Evaluation
from trainwright.significance import ValueDistribution

Write = Callable[..., Step]
LABEL = np.array([0, 0, 1, 1])
SCORE = np.array([0.1, 0.4, 0.35, 0.8])


def predictions(kind: str, label: np.ndarray, scores: np.ndarray, **more: Any) -> Predictions:
    given = {"weight": None, "bounds": None, "threshold": None} | more
    return Predictions(
        kind=kind,
        label=label,
        scores=scores,
        key=None,
        columns={},
        label_name="late",
        unlabelled=0,
        snapshot=Snapshot(files=(), columns=()),
        **given,
    )


def examined(one: Predictions, two: Predictions | None = None, **asked: Any) -> Findings:
    return measure(Rows.of(PredictionPair(one, two)), Evaluation.check({"resamples": 1000} | asked, "test"))


def test_four_rows_by_hand() -> None:
    found = examined(predictions("binary", LABEL, SCORE[:, None]))
    value = {name: entry.candidate.value for name, entry in found.overall.items() if entry.candidate}
    assert value["auc"] == 0.75
    assert found.confusion == ((2, 0), (1, 1))
    assert (value["accuracy"], value["recall"], value["precision"]) == (0.75, 0.5, 1)
    assert value["f1"] == pytest.approx(2 / 3)
    assert value["false_positive_rate"] == 0
    assert value["brier"] == pytest.approx((0.1**2 + 0.4**2 + 0.65**2 + 0.2**2) / 4)
    likelihood = math.log(0.9) + math.log(0.6) + math.log(0.35) + math.log(0.8)
    assert value["log_loss"] == pytest.approx(-likelihood / 4)
    assert value["average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert found.decision == "INCONCLUSIVE"


def test_a_score_at_the_threshold_is_a_positive_prediction() -> None:
    rows = predictions("binary", LABEL, SCORE[:, None])
    assert examined(rows, threshold=0.8).confusion == ((2, 0), (1, 1))
    assert examined(rows, threshold=0.81).overall["precision"].candidate is None


def test_curves_have_a_point_for_each_distinct_score_and_ties_are_one_step() -> None:
    scores = ValueDistribution.of(SCORE, 10, LABEL, 2)
    curve = roc(scores)
    assert curve.x.tolist() == [0, 0, 0.5, 0.5, 1]
    assert curve.y.tolist() == [0, 0.5, 0.5, 1, 1]
    assert curve.threshold.tolist() == [1, 0.8, 0.4, 0.35, 0.1]
    tied = ValueDistribution.of(np.full(4, 0.5), 10, np.array([0, 1, 0, 1]), 2)
    assert roc(tied).y.tolist() == [0, 1]
    line = precision_recall(scores)
    assert line.x.tolist() == [0.5, 0.5, 1, 1]
    assert line.y.tolist() == pytest.approx([1, 0.5, 2 / 3, 0.5])


def drawn(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are the chances of label 1."""
    random = np.random.default_rng(seed)
    score = random.beta(2, 5, rows)
    return (random.random(rows) < score).astype(np.int64), score


def test_a_thinned_curve_keeps_its_ends_and_its_area() -> None:
    label, score = drawn(20_000)
    curve = roc(ValueDistribution.of(score, 1 << 20, label, 2)).thin(POINTS)
    area = float(np.sum(np.diff(curve.x) * (curve.y[1:] + curve.y[:-1]) / 2))
    assert len(curve.x) <= POINTS
    assert (curve.x[0], curve.y[0], curve.x[-1], curve.y[-1]) == (0, 0, 1, 1)
    auc = examined(predictions("binary", label, score[:, None])).overall["auc"].candidate
    assert auc is not None
    assert area == pytest.approx(auc.value, abs=0.001)


def test_average_precision_is_the_mean_precision_where_positives_are_found() -> None:
    label, score = drawn(500)
    order = np.argsort(-score)
    hits = np.cumsum(label[order])
    by_hand = np.mean([hits[at] / (at + 1) for at in range(500) if label[order][at]])
    found = examined(predictions("binary", label, score[:, None])).overall["average_precision"].candidate
    assert found is not None
    assert found.value == pytest.approx(by_hand)


def test_calibration_is_the_mean_distance_over_ten_bins_and_true_chances_are_not_held() -> None:
    label, score = drawn(5000)
    parts = np.array_split(np.argsort(score), 10)
    by_hand = sum(len(rows) / 5000 * abs(label[rows].mean() - score[rows].mean()) for rows in parts)
    found = examined(predictions("binary", label, score[:, None])).overall["calibration_error"].candidate
    assert found is not None
    assert found.value == pytest.approx(by_hand, abs=1e-12)
    assert found.low == 0
    twice = np.minimum(1, 2 * score)
    wrong = examined(predictions("binary", label, twice[:, None])).overall["calibration_error"].candidate
    assert wrong is not None
    assert 0.2 < wrong.low < np.mean(twice - score) < wrong.high


def test_three_classes_have_figures_of_all_and_of_each() -> None:
    random = np.random.default_rng(0)
    scores = random.dirichlet([1, 1, 1], 900)
    label = np.array([random.choice(3, p=row) for row in scores])
    chosen = scores.argmax(axis=1)
    found = examined(
        predictions("multiclass", label, scores), rules=[{"metric": "macro_recall", "at_least": 0.4}]
    )
    value = {name: entry.candidate.value for name, entry in found.overall.items() if entry.candidate}
    recall = [np.mean(chosen[label == k] == k) for k in range(3)]
    precision = [np.mean(label[chosen == k] == k) for k in range(3)]
    f1 = [2 * r * p / (r + p) for r, p in zip(recall, precision, strict=True)]
    assert value["macro_recall"] == pytest.approx(np.mean(recall))
    assert value["macro_precision"] == pytest.approx(np.mean(precision))
    assert value["macro_f1"] == pytest.approx(np.mean(f1))
    assert value["accuracy"] == value["micro_f1"] == pytest.approx(np.mean(chosen == label))
    assert value["recall/2"] == pytest.approx(recall[2])
    assert value["log_loss"] == pytest.approx(-np.mean(np.log(scores[np.arange(900), label])))
    pairs = [(scores[label == k, k][:, None] > scores[label != k, k][None, :]).mean() for k in range(3)]
    assert value["macro_auc"] == pytest.approx(np.mean(pairs))
    assert np.array(found.confusion).sum() == 900
    assert found.confusion[1][2] == int(((label == 1) & (chosen == 2)).sum())
    assert found.decision == "PASS"


def test_a_number_has_its_errors_its_share_explained_and_its_coverage() -> None:
    random = np.random.default_rng(0)
    label = random.normal(50, 10, 800)
    estimate = label + random.normal(0, 5, 800)
    bounds = np.stack([estimate - 8, estimate + 8], axis=1)
    found = examined(
        predictions("regression", label, estimate[:, None], bounds=bounds),
        rules=[{"metric": "rmse", "at_most": 5.5}, {"metric": "coverage", "at_least": 0.8}],
    )
    value = {name: entry.candidate for name, entry in found.overall.items()}
    error = estimate - label
    expected = {
        "mae": np.abs(error).mean(),
        "rmse": np.sqrt((error**2).mean()),
        "r2": 1 - (error**2).sum() / ((label - label.mean()) ** 2).sum(),
        "coverage": np.mean(np.abs(error) <= 8),
    }
    for name, number in expected.items():
        assert value[name] is not None
        assert value[name].value == pytest.approx(number), name
        assert value[name].low < number < value[name].high, name
    assert value["rmse"].low < 5 < value["rmse"].high
    assert found.decision == "PASS"


def test_a_paired_gain_is_known_better_than_either_model() -> None:
    random = np.random.default_rng(0)
    label = random.normal(0, 1, 2000)
    noise = random.normal(0, 1, 2000)
    one, two = label + noise, label + noise * 1.1 + random.normal(0, 0.1, 2000)
    found = examined(
        predictions("regression", label, one[:, None]),
        predictions("regression", label, two[:, None]),
        rules=[{"metric": "mae", "min_gain": 0.0}],
    ).overall["mae"]
    assert found.candidate is not None
    assert found.baseline is not None
    assert found.gain is not None
    assert found.gain.value == pytest.approx(found.baseline.value - found.candidate.value)
    assert 0 < found.gain.high - found.gain.low < 0.3 * (found.candidate.high - found.candidate.low)


@pytest.mark.covers("B65")
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"metric": "aux", "at_least": 0.5}], "no metric 'aux'; known are auc, "),
        ([{"metric": "auc"}], "a rule on auc needs one of at_least, at_most, margin, min_gain"),
        ([{"metric": "auc", "at_least": 0.5, "margin": 0.1}], "it has \\['at_least', 'margin'\\]"),
        ([{"metric": "log_loss", "at_least": 0.5}], "set at_most, not at_least"),
        ([{"metric": "auc", "at_most": 0.5}], "a higher auc is better: set at_least"),
        ([{"metric": "auc", "at_least": 70}], "auc lies in \\[0, 1\\]"),
        ([{"metric": "auc", "at_least": 1.0}], "auc lies in \\[0, 1\\]; with at_least 1 no model passes"),
        ([{"metric": "recall", "at_least": -0.5}], "with at_least -0.5 no model passes, or every"),
        ([{"metric": "recall", "min_gain": 1.0}], "with min_gain 1 no model passes"),
        ([{"metric": "false_positive_rate", "at_most": 0}], "no model has a false_positive_rate below 0"),
        ([{"metric": "selection_rate", "at_least": 0.1}], "limit it with fairness"),
        ([{"metric": "recall", "at_least": 0.1, "scope": "slice"}], "slices and crosses are empty"),
        ([{"metric": "rmse", "at_most": 5}], "rmse is not defined for a model of kind binary"),
        ([{"metric": "auc", "margin": -0.1}], "greater than 0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(
    rules: list[dict[str, Any]], message: str, written: Write
) -> None:
    with pytest.raises(InputError, match=message):
        written(rows_of(FAIR)).judge(rules=rules)


def test_a_limit_at_the_end_of_its_range_that_no_model_keeps_is_refused() -> None:
    for asked, message in (
        ({"min_auc": 1.0}, "no model has an AUC above 1"),
        ({"fairness": {"by": ["sex"], "group_minimum": {"recall": 1.5}}}, "group_minimum is 1.5"),
    ):
        with pytest.raises(InputError, match=message):
            Evaluation.check(asked, "test")
    assert Evaluation.check({"min_auc": 0.0}, "test").all_rules[0].limit == 0


@pytest.mark.covers("B63")
def test_probabilities_that_do_not_add_up_name_the_first_row(written: Write) -> None:
    columns = {f"score_{k}": [1 / 3] * 60 for k in range(3)} | {"id": list(range(60)), "late": [0, 1, 2] * 20}
    columns["score_1"] = [1 / 3] * 7 + [0.9] + [1 / 3] * 52
    with pytest.raises(InputError, match="the scores of 1 of 60 rows do not add up to 1") as caught:
        written(columns).judge(rules=[{"metric": "accuracy", "at_least": 0.1}])
    assert caught.value.where.endswith("row 7")


def test_a_number_without_a_rule_is_not_judged_by_accident(written: Write) -> None:
    columns = {"id": list(range(50)), "late": np.arange(50.0), "estimate": np.arange(50.0) + 1.5}
    columns["estimate"][0] = 0
    with pytest.raises(InputError, match="no rule says what a model of kind regression must reach"):
        written(columns).judge(constant_prediction="warn")
    assert written(columns).judge().headline == "RMSE 1.485 below 14.431 of a constant prediction"
    assert written(columns).judge(rules=[{"metric": "mae", "at_most": 2}]).decision == "PASS"


def test_the_same_rows_in_another_order_have_the_same_digest() -> None:
    label, score = drawn(100)
    rows = predictions("binary", label, score[:, None])
    keyed = replace(rows, key=pa.chunked_array([pa.array(np.arange(100))]))
    turned = replace(
        keyed,
        key=pa.chunked_array([pa.array(np.arange(100)[::-1])]),
        label=label[::-1],
        scores=score[::-1, None],
    )
    assert examined(keyed).sample.digest == examined(turned).sample.digest
    assert examined(replace(keyed, label=1 - label)).sample.digest != examined(keyed).sample.digest


@pytest.mark.parametrize("kind", ["multiclass", "regression", "language_model"])
def test_page_says_what_is_not_applicable_to_a_kind_and_why(written: Write, kind: str) -> None:
    label, columns = np.tile([0, 1, 2], 100), {"id": list(range(300)), "sex": ["f", "m"] * 150}
    spread = np.random.default_rng(0).random(300) / 10
    more: dict[str, Any] = {
        "multiclass": {f"score_{k}": np.where(label == k, 0.8, 0.1) for k in range(3)} | {"late": label},
        "regression": {"late": label * 1.0, "estimate": label + spread},
        "language_model": {"loss": 1 + spread, "tokens_scored": [9] * 300},
    }[kind]
    step = written(columns | more)
    asked: dict[str, Any] = {"slices": ["sex"], "min_rows": 50, "constant_prediction": "hold"}
    if kind == "multiclass":
        asked["fairness"] = {"by": ["sex"], "group_minimum": {"macro_recall": 0.5}}
    step.judge(**asked)
    page = (step.folder / "report.html").read_text()
    assert "<h2>Not applicable</h2>" in page
    assert (
        "selection rates, equal opportunity, equalized odds and the calibration gap are measures of" in page
    )
    assert "<h2>By sex</h2>" in page
    if kind == "multiclass":
        assert "macro recall" in page.rpartition("groups by sex")[2]
    with pytest.raises(InputError, match=f"are measures of two classes, not of kind {kind}"):
        step.judge(fairness={"by": ["sex"], "limits": {"equal_opportunity": 0.1}})


@pytest.mark.parametrize(
    ("kind", "metric"), [("multiclass", "macro_auc"), ("regression", "rmse"), ("language_model", "loss")]
)
def test_overfitting_without_a_metric_takes_the_one_of_the_kind(kind: str, metric: str) -> None:
    label = np.tile([0, 1, 2], 100)
    spread = np.random.default_rng(0).random(300)
    scores = {
        "multiclass": np.eye(3)[label] * 0.6 + 0.4 / 3,
        "regression": (label + spread / 10)[:, None],
        "language_model": (1 + spread / 10)[:, None],
    }[kind]
    rows = predictions(kind, label * 1.0 if kind == "regression" else label, scores)
    section = Evaluation.check({"overfitting": {"at_most": 0.5}, "constant_prediction": "warn"}, "test")
    source = Rows.of(PredictionPair(rows))
    found = measure(source, section, fitted=source)
    assert [entry.name for entry in found.rulings] == [f"{metric_title(metric)} overfitting"]
    assert found.decision == "PASS"
