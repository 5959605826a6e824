"""Defaults by the number of rows, and the share that is held out for early stopping."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.train import clean
from tests.train.auto_process import train_and_die
from tests.train.problems import source, submitted, write
from trainwright import tables
from trainwright.artifacts import Model, Snapshot, SnapshotFile, SnapshotTarget, TargetKind
from trainwright.errors import InputError
from trainwright.experiment import Mlp, ResolvedTraining, Training, Trees, read_network
from trainwright.train.defaults import resolve_training
from trainwright.train.feeding.target import HoldOut
from trainwright.train.process_group import Ranks
from trainwright.train.submit import TrainRequest
from trainwright.train.trainers import TrainingRows


def snapshot(rows: int, **figures: float) -> Snapshot:
    """Return the manifest of a table with a training split of so many rows."""
    file = SnapshotFile(uri="x", size=1, checksum="md5:0", rows=rows, split="train")
    return Snapshot(files=(file,), columns=(), roles={"key": "id", "label": "late"}, quality=figures)


def resolved(rows: int, network: Any = None, parts: int = 1, **training: Any) -> ResolvedTraining:
    return resolve_training(Training(**training), network or Mlp(), snapshot(rows), parts)


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "rate"),
    [
        (100, 32, 50, 0.00035),
        (2_000, 32, 48, 0.00035),
        (12_000, 128, 32, 0.00071),
        (250_000, 2048, 25, 0.0028),
        (10_000_000, 8192, 3, 0.0057),
    ],
)
def test_length_and_rate_follow_from_the_rows(rows: int, batch: int, epochs: int, rate: float) -> None:
    found = resolved(rows)
    assert (found.batch_size, found.epochs, found.learning_rate) == (batch, epochs, rate)


def test_explicit_values_win_and_decide_the_others() -> None:
    found = resolved(12_000, batch_size=1200)
    assert (found.batch_size, found.epochs, found.learning_rate) == (1200, 50, 0.0022)
    found = resolved(12_000, epochs=2, learning_rate=0.1)
    assert (found.batch_size, found.epochs, found.learning_rate) == (128, 2, 0.1)


def test_rows_without_a_label_do_not_count() -> None:
    training = resolve_training(Training(), Mlp(), snapshot(12_000, **{"nulls.late": 10_000}))
    assert (training.batch_size, training.epochs) == (32, 48)


def test_default_settings_are_the_same_for_32_and_24_processes() -> None:
    assert resolved(2_000, parts=32) == resolved(2_000, parts=24) == resolved(2_000)
    assert resolved(2_000, parts=40).batch_size == 40


def test_share_is_held_out_of_large_enough_tables_unless_switched_off() -> None:
    early = resolved(2_000).guards.early_stopping
    assert early is not None
    assert (early.share, early.split, early.patience, early.every_steps) == (0.1, None, 5, 76)
    trees = resolved(2_000, Trees()).guards.early_stopping
    assert trees is not None
    assert (trees.share, trees.patience, trees.every_steps) == (0.1, 10, None)
    assert resolved(499).guards.early_stopping is None
    assert resolved(2_000, guards={"early_stopping": "never"}).guards.early_stopping is None
    watched = resolved(2_000, guards={"early_stopping": {"split": "watch"}}).guards.early_stopping
    assert watched is not None
    assert (watched.split, watched.share) == ("watch", None)
    assert resolved(2_000, parallel={"pipeline": 2}).guards.early_stopping is None


def test_language_model_has_defaults_of_its_own_and_holds_no_rows_out() -> None:
    network = read_network({"kind": "lm", "text": "text", "context": 128})
    for size, expected in ((1_000, (8, 20)), (200_000, (16, 11)), (10**9, (64, 1))):
        file = SnapshotFile(uri="x", size=size, checksum="md5:0", rows=100_000, split="train")
        found = resolve_training(Training(), network, Snapshot(files=(file,), columns=()))
        assert (found.batch_size, found.epochs, found.guards.early_stopping) == (*expected, None)
    with pytest.raises(InputError, match="a language model is watched on a split of its own"):
        resolved(100_000, network, guards={"early_stopping": {"share": 0.2}})


def test_never_passes_through_a_parameter() -> None:
    off = Training(guards={"early_stopping": "never"})
    assert off.to_parameter() == {"guards": {"early_stopping": "never"}}
    assert Training.check(off.to_parameter(), "training") == off
    assert Training().to_parameter() == {}


def test_held_out_rows_are_a_share_by_key_and_no_others_are_trained_on(tmp_path: Path, alone: Ranks) -> None:
    write_table(tmp_path / "set", "binary", 2000)
    training = resolved(2000)
    prepared = TrainingRows.of(source(tmp_path / "set"), Mlp(), training, tmp_path, alone)
    watched = prepared.watched()
    assert watched is not None
    assert len(prepared.rows) + len(watched) == 2000
    assert 150 < len(watched) < 250
    assert prepared.metrics["rows_held_out"] == len(watched)
    keys = tables.read_split(tmp_path / "set", Snapshot.read(tmp_path / "set"), "train")["id"]
    inside = HoldOut(0.1, 0, inside=True).mask(keys).to_numpy(zero_copy_only=False)
    outside = HoldOut(0.1, 0, inside=False).mask(keys).to_numpy(zero_copy_only=False)
    assert inside.sum() == len(watched)
    assert (inside ^ outside).all()
    # Whichever rows stand beside it, a row stays where it is.
    assert HoldOut(0.1, 0, inside=True).mask(keys[5:]).to_numpy(zero_copy_only=False).tolist() == list(
        inside[5:]
    )
    other = HoldOut(0.1, 1, inside=True).mask(keys).to_numpy(zero_copy_only=False)
    assert (inside & other).sum() < 50


HELD_OUT = {"share": 0.1, "every_steps": 5, "patience": 4}


@pytest.mark.parametrize(("network", "kept"), [("mlp", "best_step"), ("trees", "rounds_kept")])
def test_killed_training_holds_the_same_rows_out_and_ends_alike(
    network: str, kept: str, tmp_path: Path
) -> None:
    """Killed before the best evaluation and after it: the same weights, figures and scores."""
    write_table(tmp_path / "set", "binary", 2000)
    training = {
        "epochs": 40,
        "batch_size": 100,
        "schedule": "constant",
        "checkpoints": {"every_steps": 4},
        "guards": {"early_stopping": HELD_OUT | ({"every_steps": None} if network == "trees" else {})},
    }

    def train(home: str, kill: int = 0) -> list[int]:
        started = [
            clean.start(
                train_and_die, tmp_path / "set", tmp_path / home, training, ("", kill), network, **place
            )
            for place in clean.places((0, 2), (1, 2))
        ]
        return [clean.ended(process) for process in started]

    assert train("whole") == [0, 0]
    whole = Model.read(tmp_path / "whole/model")
    best, last = (int(whole.metrics[name]) for name in (kept, "steps"))
    assert 10 < best < last < 720, "it stops early"
    for kill in (best - 3, best + 2):
        codes = train("killed", kill)
        assert codes[-1] == -signal.SIGKILL
        assert 0 not in codes
    assert train("killed") == [0, 0]
    assert Model.read(tmp_path / "killed/model") == whole
    assert whole.metrics["rows_held_out"] > 150
    steps = Counter((tmp_path / "killed/steps.txt").read_text().split())
    assert max(steps.values()) > 2
    assert steps["1"] == 2, "each life resumes"


def write_table(folder: Path, kind: TargetKind, rows: int) -> None:
    """Write a table whose label follows from two numbers and a category, with noise."""
    splits = {}
    for seed, (split, count) in enumerate({"train": rows, "evaluate": 1000}.items()):
        draw = np.random.default_rng(seed)
        x, y = draw.normal(size=count), draw.normal(size=count)
        carrier = draw.integers(0, 4, count)
        signal = 1.5 * x - y * (carrier > 1) + 0.5 * carrier + 0.5 * draw.normal(size=count)
        label = {
            "binary": (signal > 1).astype(np.int64),
            "multiclass": np.digitize(signal, [0, 1.5]),
            "regression": 100 + 10 * signal,
        }[kind]
        splits[split] = pa.table(
            {
                "id": pa.array([f"{split}-{number}" for number in range(count)]),
                "at": pa.array(np.arange(count) * 1_000_000, pa.timestamp("us", tz="UTC")),
                "late": pa.array(label),
                "x": x,
                "y": y,
                "carrier": pa.array([f"c{code}" for code in carrier]),
            }
        )
    write(folder, splits, target=SnapshotTarget(kind=kind))


def train_with_defaults(folder: Path, kind: TargetKind, rows: int, network: str) -> Model:
    write_table(folder / "set", kind, rows)
    request = TrainRequest(
        training_set=folder / "set",
        data_version=Snapshot.read(folder / "set").digest,
        network={"kind": network},
        training={},
        resources={"launcher": "local", "processes": 1},
        image="trainwright/torch:0.1.0",
        run="file:///runs/1/train/model",
    )
    return Model.read(submitted(request, folder).model)


def loss_of_predictions(folder: Path, kind: TargetKind) -> tuple[float, float]:
    """Return the loss of the predictions on the evaluation split, and that of a constant prediction."""
    rows = tables.read_split(folder, Snapshot.read(folder), "evaluate")
    label = rows["late"].to_numpy()
    if kind == "regression":
        return float(np.mean(np.square(rows["score"].to_numpy() - label))), float(np.var(label))
    several = kind == "multiclass"
    scores = [rows[f"score_{each}"].to_numpy() for each in range(3)] if several else []
    scores = scores or [1 - rows["score"].to_numpy(), rows["score"].to_numpy()]
    rates = np.bincount(label) / len(label)
    picked = np.column_stack(scores)[np.arange(len(label)), label]
    return float(-np.log(picked).mean()), float(-(rates * np.log(rates)).sum())


@pytest.mark.parametrize(
    ("kind", "network"),
    [("binary", "mlp"), ("multiclass", "mlp"), ("regression", "mlp"), ("binary", "trees")],
)
def test_defaults_learn_a_table(kind: TargetKind, network: str, tmp_path: Path) -> None:
    rows = 2_000
    model = train_with_defaults(tmp_path, kind, rows, network)
    loss, constant = loss_of_predictions(tmp_path / "predictions", kind)
    # The noise leaves about 0.36 of the entropy of two classes, and 0.07 of the variance of the number.
    assert loss < {"binary": 0.5, "multiclass": 0.5, "regression": 0.15}[kind] * constant
    assert model.metrics["rows"] + model.metrics["rows_held_out"] == rows
    assert model.metrics["watched_loss"] < model.metrics["base_rate_loss"]
    # The manifest has the values that were used.
    recorded = model.config["training"]
    assert recorded["batch_size"] == 32
    assert recorded["guards"]["early_stopping"]["share"] == 0.1
