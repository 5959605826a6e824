"""``network.kind: auto``: the comparison's numbers, the candidate that is kept, resume, page and checks."""

import math
import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.train import clean
from tests.train.auto_process import fit, train_and_die
from tests.train.problems import flights, request, resolved, submitted, write
from trainwright import serving
from trainwright.artifacts import Model, SnapshotTarget
from trainwright.errors import InputError
from trainwright.experiment import Auto
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory
from trainwright.train.comparison import CandidateComparison
from trainwright.train.process_group import Ranks
from trainwright.train.submit.checks import check_network

WATCH = {"guards": {"early_stopping": {"split": "watch", "patience": 3}}}
ROWS = {"train": 2000, "watch": 800, "evaluate": 400}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "set"
    write(folder, {name: flights(count, seed) for seed, (name, count) in enumerate(ROWS.items())})
    return folder


def compared(first: list[float], second: list[float], weight: list[float]) -> CandidateComparison:
    return CandidateComparison.of(
        "trees", "mlp", np.array([first, second, [1.0] * len(first)]), np.array(weight)
    )


def test_difference_above_its_standard_error_keeps_the_smaller_loss() -> None:
    # Differences 0.2, 0.4, 0.6: mean 0.4, deviation 0.2, standard error 0.2 / sqrt(3).
    found = compared([0.5, 0.5, 0.5], [0.7, 0.9, 1.1], [1, 1, 1])
    assert found.kept == "trees"
    assert found.gain == pytest.approx(0.4)
    assert found.error == pytest.approx(0.2 / math.sqrt(3))
    assert str(found) == "trees: loss 0.5000 on 3 held-out rows, 0.4000 (standard error 0.1155) below mlp"
    assert compared([0.7, 0.9, 1.1], [0.5, 0.5, 0.5], [1, 1, 1]).kept == "mlp"


def test_difference_within_its_standard_error_keeps_the_trees() -> None:
    found = compared([0.5, 0.5, 0.5], [0.1, 0.9, 0.2], [1, 1, 1])
    assert found.kept == "trees"
    assert found.gain == pytest.approx(-0.1)
    assert found.error > 0.1
    assert str(found).endswith("mlp 0.4000: no difference above one standard error, 0.2517")


def test_row_of_weight_two_counts_as_two_rows() -> None:
    assert compared([0, 0, 0], [1, 1, 4], [1, 1, 2]).losses == {"trees": 0, "mlp": 2.5}


def test_one_held_out_row_keeps_the_trees() -> None:
    found = compared([0.9], [0.1], [1])
    assert found.kept == "trees"
    assert "held_out_gain_error" not in found.metrics


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_losses_of_the_comparison_are_those_of_the_written_models(
    kind: str, rows: Path, tmp_path: Path, alone: Ranks
) -> None:
    """The manifest says what the predictions on the held-out rows cost, by the definition of the loss."""
    tables = {name: flights(count, seed) for seed, (name, count) in enumerate(ROWS.items())}
    if kind != "binary":
        tables = {name: with_label(table, kind) for name, table in tables.items()}
    write(tmp_path / "set", tables, SnapshotTarget(kind=kind))  # type: ignore[arg-type]
    result, save = fit(tmp_path / "set", tmp_path / "home", alone, WATCH)
    model, _ = save(tmp_path / "model", tmp_path / "predictions")
    assert result.comparison is not None
    assert model.kind == result.comparison.kept == model.config["network"]["kind"]
    held_out = tables["watch"].filter(tables["watch"]["late"].is_valid())
    score = serving.load(tmp_path / "model").predict(held_out)
    label, train = (table["late"].drop_null().to_numpy() for table in (held_out, tables["train"]))
    expected, constant = losses(kind, label, score, train)
    assert model.metrics[f"held_out_loss_{model.kind}"] == pytest.approx(expected, rel=1e-4)
    assert model.metrics["watched_loss"] == pytest.approx(expected, rel=1e-4)
    assert model.metrics["held_out_loss_constant"] == pytest.approx(constant)
    assert model.metrics["held_out_rows"] == len(label)


def with_label(table: pa.Table, kind: str) -> pa.Table:
    wind = np.nan_to_num(table["wind"].to_numpy(zero_copy_only=False), nan=20)
    label = wind * 3.5 if kind == "regression" else np.digitize(wind, [15, 25])
    return table.set_column(2, "late", pa.array(label))


def losses(kind: str, label: Any, score: Any, train: Any) -> tuple[float, float]:
    """Return the loss of the scores and that of a constant, from their definitions."""
    if kind == "regression":
        variance = train.var()
        return np.mean((label - score) ** 2) / variance, np.mean((label - train.mean()) ** 2) / variance
    rates = np.bincount(train) / len(train)
    shares = np.column_stack([1 - score, score]) if kind == "binary" else score
    return -np.mean(np.log(shares[np.arange(len(label)), label])), -np.mean(np.log(rates[label]))


def test_killed_network_resumes_without_training_the_trees_again(
    rows: Path, tmp_path: Path, alone: Ranks
) -> None:
    training: dict[str, Any] = {**WATCH, "checkpoints": {"every_steps": 4}}
    (place,) = clean.places((0, 1))
    for kill in (("trees", 9), ("mlp", 10)):
        assert clean.ended(
            clean.start(train_and_die, rows, tmp_path / "killed", training, kill, **place)
        ) == (-signal.SIGKILL)
    resumed, save = fit(rows, tmp_path / "killed", alone, training)
    undisturbed, save_whole = fit(rows, tmp_path / "whole", alone, training)
    assert resumed == undisturbed
    kept, whole = save(tmp_path / "a", tmp_path / "b"), save_whole(tmp_path / "c", tmp_path / "d")
    assert [each.digest for each in kept] == [each.digest for each in whole]
    steps = Counter((tmp_path / "killed/steps.txt").read_text().splitlines())
    again = [step for step in steps if steps[step] > 1]
    assert [step for step in again if step.startswith("trees")] == ["trees 9"], "saved after round 8"
    assert {int(step.split()[1]) for step in again if step.startswith("mlp")} <= set(range(1, 11))


def test_two_processes_train_both_candidates_and_the_summary_says_which_is_kept(
    rows: Path, tmp_path: Path
) -> None:
    trained = submitted(replace(request(rows, training=WATCH), network={"kind": "auto"}), tmp_path)
    model, summary = Model.read(trained.model), (tmp_path / "summary.md").read_text()
    other = "mlp" if model.kind == "trees" else "trees"
    assert f"| Held-out loss, {other} | {model.metrics[f'held_out_loss_{other}']:.4f} |" in summary
    assert f"**{model.kind}: loss {model.metrics[f'held_out_loss_{model.kind}']:.4f} on" in summary
    page = (tmp_path / "report.html").read_text()
    for heading in ("Candidates", "Loss: trees", "Loss: mlp"):
        assert f">{heading}<" in page
    assert ">Starts<" not in page


def test_page_of_trees_shows_importance_and_the_held_out_curve(rows: Path, tmp_path: Path) -> None:
    trees = {"kind": "trees", "rounds": 30}
    made = submitted(replace(request(rows, training=WATCH), network=trees), tmp_path)
    page, history = (tmp_path / "report.html").read_text(), TrainingHistory.read(made.model / HISTORY_FILE)
    assert "Mean loss per sample, at logged rounds." in page
    assert ">held-out rows<" in page
    assert ">norm of the gradient<" not in page
    shares = dict(re.findall(r"<title>(wind|carrier|noise|holiday): ([\d.]+)%</title>", page))
    assert list(shares)[:2] == ["wind", "carrier"]
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=2)
    rounds, losses = history.curve("watched_loss")
    assert rounds == list(range(1, len(rounds) + 1))
    assert min(losses) == pytest.approx(Model.read(made.model).metrics["watched_loss"])


def test_training_without_held_out_rows_or_on_gpus_is_rejected() -> None:
    with pytest.raises(InputError) as caught:
        check_network(Auto(), resolved(), processes=1, gpus=1)
    assert "resources.gpus 1" in caught.value.what
    assert "training.guards.early_stopping is off" in caught.value.what
