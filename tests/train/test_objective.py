"""Targets, weights of classes, focal loss, thresholds: each number by another method."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.train.problems import flights, resolved, run, source, write
from trainwright import tables
from trainwright.artifacts import Model, Snapshot, SnapshotTarget, TargetKind
from trainwright.errors import DataRefused, Diverged, InputError
from trainwright.experiment import Mlp
from trainwright.experiment.training import Objective
from trainwright.serving.outputs import Outputs
from trainwright.serving.predictions import write_predictions
from trainwright.tracking.history import HISTORY_FILE as HISTORY
from trainwright.tracking.history import TrainingHistory
from trainwright.train.architectures import Target, make
from trainwright.train.feeding.target import (
    LabelStats,
    base_loss,
    best_threshold,
    choose_threshold,
    class_weights,
    loss_of,
    require_learnable,
    target_of,
)
from trainwright.train.process_group import Ranks
from trainwright.train.submit.checks import check_target
from trainwright.train.trainers import TrainingRows


def learned(values: list[Any], kind: TargetKind, *names: str) -> Target:
    """Return the target that a training learns from these labels."""
    described = SnapshotTarget(kind=kind, classes=names)
    found = LabelStats.of(pa.array(values), classes=kind != "regression")
    require_learnable(found, described, "late", "train")
    return target_of(found, described, "late")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0, 1, 1, 1], "binary", Target("binary", (0.25, 0.75))),
        ([0, 1, 2, 2], "multiclass", Target("multiclass", (0.25, 0.25, 0.5))),
        ([1.0, 3.0], "regression", Target("regression", (2.0, 1.0))),
        ([1, 3], "regression", Target("regression", (2.0, 1.0))),
        ([0, 1], "multiclass", Target("multiclass", (0.5, 0.5))),
    ],
)
def test_target_is_as_the_snapshot_describes_it(
    values: list[Any], kind: TargetKind, expected: Target
) -> None:
    assert learned(values, kind) == expected


def test_class_without_rows_is_rejected_by_number_or_name() -> None:
    with pytest.raises(
        DataRefused, match=r"6 classes, and no row to train on of 3 of them: 1, 3, 4\n"
    ) as caught:
        learned([0, 2, 5], "multiclass")
    assert "label_kind: regression" in str(caught.value)
    with pytest.raises(DataRefused, match="3 classes, and no row to train on of 1 of them: virginica"):
        learned([0, 1], "multiclass", "setosa", "versicolor", "virginica")


@pytest.mark.covers("B58")
def test_label_beyond_the_named_classes_is_rejected() -> None:
    with pytest.raises(InputError, match=r"late' lies in \[0, 3\]; the snapshot names 3 classes"):
        learned([0, 1, 2, 3], "multiclass", "setosa", "versicolor", "virginica")


def check_objective(kind: TargetKind, **asked: Any) -> None:
    """Check an objective for a training set of a kind, as the step does before it starts anything."""
    snapshot = Snapshot(files=(), columns=(), roles={"label": "late"}, target=SnapshotTarget(kind=kind))
    check_target(snapshot, Mlp(), Objective(**asked))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"class_weights": "balanced"}, ["class_weights balanced"]),
        ({"sampling": "balanced", "focal": 2}, ["sampling balanced", "focal 2.0"]),
        ({"threshold": "f1"}, ["threshold f1"]),
    ],
)
def test_class_settings_are_rejected_for_regression(asked: dict[str, Any], named: list[str]) -> None:
    what = "; ".join(f"{each} is not defined for a model of kind regression" for each in named)
    with pytest.raises(InputError, match=f"^{what}, and label 'late' is regression"):
        check_objective("regression", **asked)


def test_evaluation_split_without_labels_is_rejected_before_training(tmp_path: Path) -> None:
    learned, judged = flights(300, 0), flights(60, 1)
    place = judged.schema.get_field_index("late")
    judged = judged.set_column(place, "late", pa.nulls(60, judged["late"].type))
    write(tmp_path / "set", {"train": learned, "evaluate": judged})
    with pytest.raises(DataRefused, match="no row of split 'evaluate' has a label"):
        run(tmp_path / "set", tmp_path / "out", resources={"processes": 1})
    assert not [path for path in (tmp_path / "out").rglob(HISTORY) if TrainingHistory.read(path).points]


def test_threshold_for_three_classes_is_rejected() -> None:
    with pytest.raises(InputError, match="threshold f1 is not defined for a model of kind multiclass"):
        check_objective("multiclass", threshold="f1")


def test_network_of_rows_without_a_label_is_rejected() -> None:
    with pytest.raises(InputError, match="the training set has no label"):
        check_objective("text")


def test_balanced_weights_are_equal_per_class_and_average_1(tmp_path: Path, alone: Ranks) -> None:
    table = flights(900, 0)
    classes = np.repeat([0, 1, 2], [600, 250, 50])
    several = SnapshotTarget(kind="multiclass")
    write(tmp_path / "set", {"train": table.set_column(2, "late", pa.array(classes))}, target=several)
    training = resolved(objective={"class_weights": "balanced"})
    prepared = TrainingRows.of(source(tmp_path / "set"), Mlp(), training, tmp_path, alone)
    batch = prepared.rows.take(np.arange(900))
    by_class = [float(batch.weight[batch.target == number].double().sum()) for number in range(3)]
    assert by_class == pytest.approx([300, 300, 300])
    assert batch.target.tolist() == classes.tolist()
    assert prepared.target.rates == (600 / 900, 250 / 900, 50 / 900)
    assert class_weights(prepared.target, Objective()) is None


def test_base_loss_is_that_of_a_constant_prediction() -> None:
    target = Target("binary", (0.9, 0.1))
    labels = np.array([0] * 9 + [1])
    assert base_loss(target, Objective()) == pytest.approx(-np.mean(np.log(np.where(labels, 0.1, 0.9))))
    assert base_loss(target, Objective(class_weights="balanced")) == pytest.approx(math.log(2))
    assert base_loss(target, Objective(sampling="balanced")) == pytest.approx(math.log(2))
    p = np.where(labels, 0.1, 0.9)
    assert base_loss(target, Objective(focal=2)) == pytest.approx(-np.mean((1 - p) ** 2 * np.log(p)))


class Given:
    """An architecture whose outputs are log-odds."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(output, target, reduction="none")


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_the_focal_loss_is_that_of_the_paper(gamma: float) -> None:
    logit = np.array([-6.0, -1.0, 0.0, 0.5, 4.0])
    loss = loss_of(Given(), Objective(focal=gamma))  # type: ignore[arg-type]
    for label in (0, 1):
        p = 1 / (1 + np.exp(-logit)) if label else 1 - 1 / (1 + np.exp(-logit))
        found = loss(torch.tensor(logit), torch.full((5,), float(label), dtype=torch.float64))
        np.testing.assert_allclose(found, -((1 - p) ** gamma) * np.log(p), rtol=1e-9)


def test_the_focal_loss_has_a_finite_slope_where_the_loss_is_0() -> None:
    output = torch.tensor([200.0, -200.0], requires_grad=True)
    loss = loss_of(Given(), Objective(focal=0.5))  # type: ignore[arg-type]
    loss(output, torch.tensor([1.0, 0.0])).sum().backward()
    assert output.grad is not None
    assert bool(torch.isfinite(output.grad).all())


def test_without_focal_the_loss_is_the_architectures_own() -> None:
    architecture = make(Mlp())
    assert loss_of(architecture, Objective()) == architecture.loss


def brute(label: NDArray[Any], score: NDArray[Any], rule: str) -> float:
    """Try every cut."""
    best = -np.inf
    for cut in [*np.unique(score), 2.0]:
        picked = score >= cut
        hit, false = (picked & (label == 1)).sum(), (picked & (label == 0)).sum()
        missed, right = (label == 1).sum() - hit, (label == 0).sum() - false
        f1 = 2 * hit / (2 * hit + false + missed)
        youden = hit / (hit + missed) - false / (false + right)
        best = max(best, f1 if rule == "f1" else youden)
    return float(best)


@pytest.mark.parametrize(("rule", "seed"), list(itertools.product(["f1", "youden"], range(6))))
def test_best_threshold_matches_brute_force(rule: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    label = (draw.random(60) < 0.3).astype(np.int64)
    score = np.round(np.clip(draw.normal(0.3 + 0.2 * label, 0.2), 0, 1), 2)  # with ties
    value, gain = best_threshold(label, score, rule)
    assert gain == pytest.approx(brute(label, score, rule))
    picked = score >= value
    hit, false = (picked & (label == 1)).sum(), (picked & (label == 0)).sum()
    f1 = 2 * hit / (picked.sum() + label.sum())
    youden = hit / label.sum() - false / (1 - label).sum()
    assert gain == pytest.approx(f1 if rule == "f1" else youden)
    assert value == 0 or value not in set(score.tolist())


def test_neighbouring_floats_are_cut_at_the_upper_one() -> None:
    low, high = 0.5, float(np.nextafter(0.5, 1))
    value, gain = best_threshold(np.array([0, 1]), np.array([low, high]), "f1")
    assert (value, gain) == (high, 1.0)


def chosen(tmp_path: Path, **training: Any) -> Any:
    tables_ = {"train": flights(300, 0), "watch": flights(300, 1), "evaluate": flights(300, 2)}
    snapshot = write(tmp_path / "set", tables_)

    def predict(rows: pa.RecordBatch) -> NDArray[np.float64]:
        wind = np.nan_to_num(rows.column("wind").to_numpy(zero_copy_only=False), nan=20)
        return 1 / (1 + np.exp(-(wind - 20) / 7))

    asked = resolved(objective={"threshold": "youden"}, **training)
    return choose_threshold(tmp_path / "set", snapshot, asked, Outputs("binary", "late"), predict), predict


def test_the_threshold_is_chosen_on_the_watched_split_where_there_is_one(tmp_path: Path) -> None:
    for split, seed, guards in (
        ("evaluate", 2, {}),
        ("watch", 1, {"early_stopping": {"split": "watch", "patience": 3}}),
    ):
        found, predict = chosen(tmp_path / split, guards=guards)
        table = flights(300, seed)
        table = table.filter(table["late"].is_valid()).combine_chunks()
        value, gain = best_threshold(table["late"].to_numpy(), predict(table.to_batches()[0]), "youden")
        assert (found.value, found.gain, found.split, found.rule) == (value, gain, split, "youden")


def test_a_split_with_one_class_chooses_no_threshold(tmp_path: Path) -> None:
    ones = pa.array(np.ones(100, dtype=np.int64))
    table = flights(100, 0).set_column(2, "late", ones)
    snapshot = write(tmp_path / "set", {"train": flights(100, 0), "evaluate": table})
    asked = resolved(objective={"threshold": "f1"})
    with pytest.raises(DataRefused, match="100 ones and 0 zeros: no threshold can be chosen by f1"):
        choose_threshold(
            tmp_path / "set", snapshot, asked, Outputs("binary", "late"), lambda rows: np.zeros(len(rows))
        )


class Fixed:
    """A model that gives what it is told to."""

    def __init__(self, scores: NDArray[np.float64]) -> None:
        self.model = Model(files=(), kind="mlp", inputs=(), label="late", training_data="", config={})
        self._scores = scores

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        return self._scores[: rows.num_rows]


def predicted(tmp_path: Path, label: pa.Array, outputs: Outputs, scores: NDArray[np.float64]) -> Path:
    table = flights(len(label), 0).set_column(2, "late", label)
    snapshot = write(tmp_path / "set", {"train": table, "evaluate": table})
    place = tmp_path / "predictions"
    write_predictions(place, tmp_path / "set", snapshot, ["evaluate"], Fixed(scores), outputs)
    return place


def test_classes_have_a_column_each_and_a_number_keeps_its_label(tmp_path: Path) -> None:
    shares = np.tile([0.2, 0.3, 0.5], (30, 1))
    place = predicted(tmp_path / "many", pa.array([0, 1, 2] * 10), Outputs("multiclass", "late", 3), shares)
    snapshot = Snapshot.read(place)
    table = tables.read_split(place, snapshot, "evaluate")
    assert [table[f"score_{number}"][0].as_py() for number in range(3)] == [0.2, 0.3, 0.5]
    assert "score" not in snapshot.roles
    assert "score" not in table.column_names
    amounts = pa.array([1.5, None, float("nan")] * 10)
    place = predicted(tmp_path / "one", amounts, Outputs("regression", "late", 0), np.arange(30.0))
    snapshot = Snapshot.read(place)
    table = tables.read_split(place, snapshot, "evaluate")
    assert table["late"].to_pylist() == [1.5] * 10
    assert table["score"].to_pylist() == [float(value) for value in range(10)]
    assert snapshot.roles["estimate"] == "score"


def test_non_finite_score_raises_diverged(tmp_path: Path) -> None:
    scores = np.array([0.5, np.nan] * 15)
    with pytest.raises(Diverged, match=r"the model gives \[nan\] for a row of split 'evaluate'"):
        predicted(tmp_path, pa.array([0, 1] * 15), Outputs("binary", "late"), scores)


def test_three_classes_train_in_two_processes_end_to_end(tmp_path: Path) -> None:
    def classes(table: pa.Table) -> pa.Table:
        wind = np.nan_to_num(table["wind"].to_numpy(zero_copy_only=False), nan=20)
        missing = ~table["late"].is_valid().to_numpy()
        return table.set_column(2, "late", pa.array(np.digitize(wind, [15, 25]), mask=missing))

    splits = {name: classes(flights(1500, seed)) for seed, name in enumerate(["train", "watch", "evaluate"])}
    described = SnapshotTarget(kind="multiclass", classes=("calm", "breeze", "storm"))
    write(tmp_path / "set", splits, target=described)
    training = {
        "epochs": 25,
        "objective": {"sampling": "balanced"},
        "guards": {"early_stopping": {"split": "watch"}},
    }
    made = run(tmp_path / "set", tmp_path / "out", training=training)
    judged = tables.read_split(made.predictions, Snapshot.read(made.predictions), "evaluate")
    scores = np.column_stack([judged[f"score_{number}"].to_numpy() for number in range(3)])
    assert np.mean(scores.argmax(axis=1) == judged["late"].to_numpy()) > 0.9
    assert scores.sum(axis=1) == pytest.approx(1)
    assert Snapshot.read(made.predictions).target == described
    assert "base_rate" not in made.submitted.metrics
    signature = json.loads((made.model / "signature.json").read_text())
    assert signature["target"]["names"] == ["calm", "breeze", "storm"]
    assert signature["outputs"][2]["meaning"] == "probability of late = storm"
    assert Outputs.read(made.model).names == described.classes
    card = (made.model / "README.md").read_text()
    assert "Its scores are the estimated probabilities that `late` is calm, breeze, storm." in card
    assert "The scores are not frequencies: sampling of the objective moved them" in card
    outputs = json.loads((made.model / "signature.json").read_text())["outputs"]
    assert [entry["name"] for entry in outputs] == ["score_0", "score_1", "score_2"]
