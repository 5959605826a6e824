"""The gate against a constant prediction: which models pass, fail and stay open, and how often by chance."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.evaluate.conftest import Step
from tests.evaluate.simulated import predictions
from trainwright.evaluate.findings import Findings
from trainwright.evaluate.measurement import measure
from trainwright.evaluate.predictions import PredictionPair, Predictions
from trainwright.evaluate.rows import Rows
from trainwright.experiment import Evaluation

Draw = np.random.Generator
DRAWS = 100


def judged(rows: Predictions, **section: Any) -> Findings:
    return measure(Rows.of(PredictionPair(rows)), Evaluation.check({"resamples": 200} | section, "test"))


def binary(draw: Draw, rows: int, *, signal: float, noise: float, shift: float = 0.0) -> Predictions:
    """Scores around the base rate of 0.3, in log odds; ``signal`` is what they know of the label."""
    known = draw.normal(0, 1, rows)
    label = (draw.random(rows) < 1 / (1 + np.exp(0.85 - signal * known))).astype(np.int64)
    odds = -0.85 + shift + signal * known + noise * draw.normal(0, 1, rows)
    return predictions(label, 1 / (1 + np.exp(-odds)))


def test_gain_is_the_entropy_of_the_labels_less_the_log_loss() -> None:
    label = np.repeat([0, 1], [60, 40])
    score = np.where(label == 1, 0.7, 0.2) + np.tile([0.0, 0.1], 50)
    found = judged(predictions(label, score)).constant
    entropy = -(0.6 * np.log(0.6) + 0.4 * np.log(0.4))
    loss = -np.mean(np.log(np.where(label == 1, score, 1 - score)))
    assert found.gain is not None
    assert (found.constant, found.model) == (pytest.approx(entropy), pytest.approx(loss))
    assert found.gain.value == pytest.approx(entropy - loss)
    assert found.gain.low > 0


def test_weights_move_the_constant_to_the_weighted_share() -> None:
    label = np.repeat([0, 1], [60, 40])
    weight = np.where(label == 1, 3.0, 2.0)  # half of the weight is label 1
    found = judged(predictions(label, np.where(label == 1, 0.7, 0.2), weight=weight)).constant
    assert found.constant == pytest.approx(np.log(2))


def test_model_that_knows_the_label_passes_without_any_other_rule() -> None:
    found = judged(binary(np.random.default_rng(0), 2_000, signal=1.0, noise=0.0))
    assert found.decision == "PASS"
    assert [ruling.kind for ruling in found.rulings] == ["constant"]
    assert found.headline == (
        f"log loss {found.constant.model:.3f} below {found.constant.constant:.3f} of a constant prediction"
    )


def test_model_that_is_worse_than_a_constant_fails_with_the_reason() -> None:
    found = judged(binary(np.random.default_rng(0), 2_000, signal=0.0, noise=0.5))
    assert found.decision == "FAIL"
    assert " not below " in found.headline
    (rule,) = found.rulings[0].rules
    assert rule.interval[1] < 0
    assert "the share of the positive class as every score" in rule.detail


def test_model_that_is_hardly_better_stays_open_and_names_the_rows_needed() -> None:
    found = judged(binary(np.random.default_rng(4), 300, signal=0.15, noise=0.0))
    assert found.decision == "INCONCLUSIVE"
    assert "not clearly below" in found.headline
    assert found.rulings[0].needed > 300


def test_few_rows_of_a_class_are_not_judged() -> None:
    label = np.repeat([0, 1], [200, 29])
    found = judged(predictions(label, np.where(label == 1, 0.9, 0.05) + np.linspace(0, 0.01, 229)))
    assert found.decision == "INCONCLUSIVE"
    assert found.headline == (
        "INCONCLUSIVE: too few rows to compare with a constant prediction: "
        "29 rows of the rarer label; its interval needs 30 of each"
    )
    assert found.rulings[0].undecided[0].reason == "29 rows of the rarer label; its interval needs 30 of each"


@pytest.mark.parametrize(("policy", "decision"), [("fail", "FAIL"), ("hold", "HOLD"), ("warn", "PASS")])
def test_constant_prediction_decides_as_configured(policy: str, decision: str) -> None:
    rows = binary(np.random.default_rng(0), 2_000, signal=1.0, noise=0.0, shift=3.0)
    found = judged(rows, constant_prediction=policy, rules=[{"metric": "auc", "at_least": 0.6}])
    assert found.decision == decision
    assert any("of a constant prediction" in warning for warning in found.warnings) == (policy == "warn")


def constant_and_noise(kind: str, noise: float) -> Callable[[Draw], Predictions]:
    """Predictions of a model that has learned nothing: the truth's constant, and noise."""

    def make(draw: Draw) -> Predictions:
        if kind == "binary":
            return binary(draw, 400, signal=0.0, noise=noise)
        if kind == "regression":
            return predictions(draw.gamma(2, 1, 300), 2 + noise * draw.normal(0, 1, 300), kind=kind)
        label = draw.choice(3, 400, p=[0.5, 0.3, 0.2])
        odds = np.log([0.5, 0.3, 0.2]) + noise * draw.normal(0, 1, (400, 3))
        scores = np.exp(odds) / np.exp(odds).sum(axis=1, keepdims=True)
        return predictions(label, scores, kind=kind)

    return make


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("noise", [0.01, 0.2])
def test_a_constant_with_noise_passes_in_at_most_one_of_twenty_draws(kind: str, noise: float) -> None:
    make = constant_and_noise(kind, noise)
    passed = sum(judged(make(np.random.default_rng(seed))).decision == "PASS" for seed in range(DRAWS))
    # Level 2.5 %, one-sided: 5 % is refuted where so many passes would be a chance of 1 in 100.
    assert passed <= stats.binom.ppf(0.99, DRAWS, 0.05)
    assert passed / DRAWS <= 0.05


def test_a_language_model_is_compared_with_the_frequencies_of_the_tokens(
    written: Callable[..., Step],
) -> None:
    draw = np.random.default_rng(0)
    texts = ["ab" * int(count) for count in draw.integers(5, 40, 100)]  # both letters are half of all bytes
    columns = {"id": list(range(100)), "text": texts, "tokens_scored": [len(text) - 1 for text in texts]}
    roles = {"roles": {"tokens": "text"}}
    learned = written(columns | {"loss": 0.5 + 0.1 * draw.random(100)}, **roles).judge()
    assert learned.constant.constant == pytest.approx(np.log(2), abs=1e-3)
    assert learned.decision == "PASS"
    assert written(columns | {"loss": 0.7 + 0.1 * draw.random(100)}, **roles).judge().decision == "FAIL"
    untold = written(
        {name: column for name, column in columns.items() if name != "text"} | {"loss": [0.5] * 99 + [0.6]}
    )
    assert (
        untold.judge().rulings[0].undecided[0].reason.startswith("the predictions have no column of tokens")
    )
