"""Names of classes, from the manifest's target, in metrics, rules, pages and documents."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.evaluate.conftest import BaselinePredictions, Step
from trainwright.artifacts.snapshot import SnapshotTarget
from trainwright.errors import InputError
from trainwright.evaluate.findings import MeasuredMetrics

SPECIES = ("setosa", "versicolor", "virginica")
IRISES = SnapshotTarget(kind="multiclass", classes=SPECIES)
Write = Callable[..., Step]


def irises(right: float = 0.9) -> dict[str, Any]:
    """100 rows of each species, of which so many have their own species as the highest score."""
    label = np.repeat([0, 1, 2], 100)
    chosen = np.where(np.arange(300) % 100 < 100 * right, label, (label + 1) % 3)
    scores = np.full((300, 3), 0.15)
    scores[np.arange(300), chosen] = 0.7
    spread = 0.04 * np.random.default_rng(0).random(300)
    scores[:, 0] += spread
    scores[:, 1] -= spread
    columns = {f"score_{k}": scores[:, k] for k in range(3)}
    return {"id": np.arange(300), "late": label, "site": np.tile(["north", "south"], 150), **columns}


def test_metrics_confusion_and_page_name_the_classes(written: Write) -> None:
    step = written(irises(), target=IRISES)
    found = step.judge(slices=["site"], min_rows=50)
    assert found.overall["recall/setosa"].candidate is not None
    assert found.overall["recall/setosa"].candidate.value == pytest.approx(0.9)
    assert found.sample.classes == tuple(f"late = {name}" for name in SPECIES)
    assert set(found.curves.roc) == set(SPECIES)
    page = (step.folder / "report.html").read_text()
    for text in ("By class", "late = virginica", '<th scope="row">setosa</th>'):
        assert text in page
    card = (step.folder / "verdict" / "card.md").read_text()
    assert "## Classes" in card
    assert "| versicolor | 100 |" in card
    measured = MeasuredMetrics.read(step.folder / "verdict")
    assert "recall/virginica" in {entry.name for entry in measured.measures}


@pytest.mark.parametrize("name", ["recall/setosa", "recall/0"])
def test_rule_on_a_class_takes_its_name_or_its_number(written: Write, name: str) -> None:
    step = written(irises(), target=IRISES)
    found = step.judge(rules=[{"metric": name, "at_least": 0.75}])
    assert found.decision == "PASS"
    assert found.headline.startswith("recall of setosa 0.900 ")
    slices = step.judge(
        slices=["site"],
        min_rows=50,
        rules=[{"metric": name, "at_least": 0.5, "scope": "slice"}],
        fairness={"by": ["site"], "group_minimum": {name: 0.5}},
    )
    assert slices.decision == "PASS"
    assert "recall of setosa of site north" in [rule.name for rule in step.verdict.rules]


def test_rule_on_a_class_that_does_not_exist_names_the_close_one(written: Write) -> None:
    step = written(irises(), target=IRISES)
    with pytest.raises(
        InputError, match="recall/setoza names class 'setoza', which does not exist"
    ) as caught:
        step.judge(rules=[{"metric": "recall/setoza", "at_least": 0.75}])
    assert caught.value.hint == ("Did you mean recall/setosa? The classes are setosa, versicolor, virginica.")
    with pytest.raises(InputError, match="names class '3'"):
        step.judge(rules=[{"metric": "recall/3", "at_least": 0.75}])


def test_classes_without_names_keep_their_numbers(written: Write) -> None:
    found = written(irises()).judge(rules=[{"metric": "recall/2", "at_least": 0.75}])
    assert found.headline.startswith("recall of class 2 0.900 ")


def test_gain_of_each_class_is_on_the_page_where_production_was_scored(
    written: Write, production: Callable[..., BaselinePredictions]
) -> None:
    step = written(irises(0.95), target=IRISES)
    step.judge(production(irises(0.8), target=IRISES))
    assert '<td class="number">+0.150' in (step.folder / "report.html").read_text()


def test_two_named_classes_are_named_at_the_threshold(written: Write) -> None:
    label = np.tile([0, 1], 100)
    columns = {"id": np.arange(200), "late": label, "score": np.where(label == 1, 0.7, 0.2)}
    columns["score"] = columns["score"] + np.linspace(0, 0.1, 200)
    step = written(columns, target=SnapshotTarget(classes=("no", "yes")))
    found = step.judge()
    assert found.sample.classes == ("late = no", "late = yes")
    page = (step.folder / "report.html").read_text()
    assert "A score of at least 0.5 predicts yes." in page
    assert "100 with late = yes" in (step.folder / "summary.md").read_text()


def test_names_of_other_classes_than_the_scores_are_rejected(written: Write) -> None:
    step = written(irises(), target=SnapshotTarget(kind="multiclass", classes=("a", "b")))
    with pytest.raises(InputError, match="the manifest names 2 classes, a, b; the scores are of 3"):
        step.judge()


def test_regression_predictions_need_no_time_and_no_classes(written: Write) -> None:
    label = np.linspace(0, 10, 100)
    columns = {"id": np.arange(100), "late": label, "estimate": label + np.tile([0.1, -0.1], 50)}
    step = written(columns, target=SnapshotTarget(kind="regression"))
    assert step.judge().decision == "PASS"
    assert json.loads((step.folder / "predictions" / "manifest.json").read_text())["target"] == {
        "kind": "regression",
        "classes": [],
    }


def test_baseline_with_the_classes_in_another_order_is_not_compared(
    written: Write, production: Callable[..., BaselinePredictions]
) -> None:
    turned = SnapshotTarget(kind="multiclass", classes=SPECIES[::-1])
    with pytest.raises(
        InputError, match="classes of the baseline are virginica, versicolor, setosa, in this"
    ):
        written(irises(), target=IRISES).judge(production(irises(), target=turned))
