"""Gradient-boosted trees: what they learn, that a kill changes nothing, and that no row is left out."""

import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
import xgboost
from numpy.typing import NDArray

from tests.train import clean
from tests.train.problems import flights, resolved, source, write
from tests.train.tree_process import node
from trainwright.artifacts import Model, SnapshotTarget
from trainwright.errors import DataRefused, Diverged, InputError, InternalError, Preempted
from trainwright.experiment import Trees
from trainwright.serving.trees import MatrixLayout, load_trees
from trainwright.train.loop import StepReport
from trainwright.train.process_group import Ranks
from trainwright.train.submit.checks import check_network
from trainwright.train.trainers import TrainingRows
from trainwright.train.tree_workers import row_losses
from trainwright.train.trees import TrainedTrees, TreeCheckpoints, train_trees
from trainwright.transforms import Category, Number, TimeOf, Transforms

NETWORK = {"kind": "trees", "rounds": 30, "depth": 3, "learning_rate": 0.3, "subsample": 1.0, "columns": 1.0}
CHANCE = {"subsample": 0.7, "columns": 0.6}
FLIGHTS = 3000


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "set"
    write(folder, {"train": flights(FLIGHTS, 0), "watch": flights(1000, 1), "evaluate": flights(500, 2)})
    return folder


def prepare(folder: Path, home: Path, group: Ranks, **training: Any) -> TrainingRows:
    return TrainingRows.of(source(folder), Trees().encoding, resolved(**training), home, group)


def grow(prepared: TrainingRows, *watchers: Any, **network: Any) -> TrainedTrees:
    config = {
        "network": Trees(**NETWORK | network).model_dump(mode="json"),
        "training": prepared.training.model_dump(mode="json"),
        "processes": prepared.ranks.size,
    }
    return train_trees(prepared, Trees(**NETWORK | network), watchers, config=config)


def sha256(trained: TrainedTrees) -> str:
    return hashlib.sha256(trained.booster.save_raw("ubj")).hexdigest()


def labelled(table: pa.Table) -> pa.Table:
    return table.filter(table["late"].is_valid())


def raw_matrix(table: pa.Table) -> NDArray[np.float32]:
    """The columns as they are, with categories numbered in the order of the alphabet."""
    wind = table["wind"].to_numpy(zero_copy_only=False)
    carrier = np.array([int(name[1:]) for name in table["carrier"].to_pylist()])
    holiday = np.array(table["holiday"].to_pylist())
    return np.column_stack([wind, table["noise"].to_numpy(), carrier, holiday]).astype(np.float32)


def plainly(table: pa.Table, weight: NDArray[np.float64] | None = None) -> xgboost.Booster:
    """Use XGBoost as its manual says, on the raw columns."""
    label = table["late"].to_numpy()
    matrix = xgboost.DMatrix(
        raw_matrix(table), label, weight=weight, feature_types=["q", "q", "c", "c"], enable_categorical=True
    )
    rate = np.average(label, weights=weight)
    told = {"objective": "binary:logistic", "max_depth": 3, "learning_rate": 0.3, "base_score": rate}
    return xgboost.train(told, matrix, num_boost_round=30)


def plain_scores(booster: xgboost.Booster, table: pa.Table) -> NDArray[np.float64]:
    types = ["q", "q", "c", "c"]
    matrix = xgboost.DMatrix(raw_matrix(table), feature_types=types, enable_categorical=True)
    return booster.predict(matrix).astype(np.float64)


def test_scores_equal_plain_xgboost_on_raw_columns(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    trained = grow(prepare(rows, tmp_path, alone))
    judged = flights(500, 2)
    expected = plain_scores(plainly(labelled(flights(FLIGHTS, 0))), judged)
    np.testing.assert_allclose(trained.predict(judged.combine_chunks().to_batches()[0]), expected, atol=1e-4)


def test_balanced_weights_equal_counted_ones(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    trained = grow(prepare(rows, tmp_path, alone, objective={"class_weights": "balanced"}))
    table = labelled(flights(FLIGHTS, 0))
    label = table["late"].to_numpy()
    weight = np.where(label == 1, len(label) / (2 * label.sum()), len(label) / (2 * (1 - label).sum()))
    expected = plain_scores(plainly(table, weight), flights(500, 2))
    found = trained.predict(flights(500, 2).combine_chunks().to_batches()[0])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert trained.metrics["base_rate_loss"] == pytest.approx(np.log(2))


def test_the_known_odds_are_learned_better_than_the_base_rate(
    rows: Path, tmp_path: Path, alone: Ranks
) -> None:
    trained = grow(prepare(rows, tmp_path, alone))
    judged = labelled(flights(500, 2)).combine_chunks()
    label, score = judged["late"].to_numpy(), trained.predict(judged.to_batches()[0])
    found = -np.mean(np.where(label == 1, np.log(score), np.log(1 - score)))
    assert found < 0.52 < trained.metrics["base_rate_loss"] < 0.6932
    assert trained.metrics["train_loss"] < trained.metrics["first_epoch_loss"]
    gains = trained.gains
    assert sum(gains.values()) == pytest.approx(1)
    assert gains["wind"] > gains["carrier"] > 5 * gains["noise"]


class Killing:
    """Ends a training after a round, as a kill would: nothing else is done any more."""

    def __init__(self, after: int) -> None:
        self._after = after

    def on_step(self, step: StepReport) -> None:
        if step.number == self._after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("network", [{}, CHANCE], ids=["all rows", "drawn rows and columns"])
def test_resumed_trees_have_the_same_bytes(
    network: dict[str, Any], rows: Path, tmp_path: Path, alone: Ranks
) -> None:
    undisturbed = grow(prepare(rows, tmp_path / "a", alone), **network)
    prepared = prepare(rows, tmp_path / "b", alone, checkpoints={"every_steps": 4})
    for after in (11, 23):
        with pytest.raises(KeyboardInterrupt):
            grow(prepared, Killing(after), **network)
    seen: list[int] = []
    again = train_trees(prepared, Trees(**NETWORK | network), [_Noting(seen)])
    assert seen == list(range(21, 31))
    assert sha256(again) == sha256(undisturbed)
    assert again.metrics == undisturbed.metrics


class _Noting:
    def __init__(self, seen: list[int]) -> None:
        self._seen = seen

    def on_step(self, step: StepReport) -> None:
        self._seen.append(step.number)


@pytest.mark.covers("F14")
def test_damaged_trees_are_skipped(
    rows: Path, tmp_path: Path, alone: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = prepare(rows, tmp_path, alone, checkpoints={"every_steps": 4})
    with pytest.raises(KeyboardInterrupt):
        grow(prepared, Killing(14))
    saved = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name for path in saved] == [f"trees-{rounds:08}.saved" for rounds in (4, 8, 12)]
    data = bytearray(saved[2].read_bytes())
    data[len(data) // 2] ^= 1
    saved[2].write_bytes(data)
    saved[1].write_text("{")
    found = TreeCheckpoints(tmp_path / "checkpoints", 3).newest()
    assert found is not None
    assert found[0] == 4
    assert "trees-00000012.saved is skipped" in caplog.text
    assert "trees-00000008.saved is skipped" in caplog.text
    whole = grow(prepare(rows, tmp_path / "whole", alone))
    assert sha256(grow(prepared)) == sha256(whole)


def test_the_number_of_threads_does_not_change_the_trees(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    prepared = prepare(rows, tmp_path, alone)
    found = set()
    for count in (1, 2):
        torch.set_num_threads(count)
        found.add(sha256(grow(replace(prepared, job_directory=tmp_path / str(count)), **CHANCE)))
    torch.set_num_threads(1)
    assert len(found) == 1


@pytest.mark.covers("F4")
def test_stop_signal_saves_the_round(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    prepared = prepare(rows, tmp_path, alone)
    seen: list[int] = []
    with pytest.raises(Preempted, match=r"stopped after round 7 of 30, which is saved") as caught:
        train_trees(prepared, Trees(**NETWORK), [_Noting(seen)], lambda: len(seen) == 6)
    assert caught.value.code == 40
    train_trees(prepared, Trees(**NETWORK), [_Noting(seen)])
    assert seen == list(range(1, 31))


def test_boosting_stops_early_on_the_watched_split(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    guards = {"early_stopping": {"split": "watch", "patience": 4}}
    prepared = prepare(rows, tmp_path, alone, guards=guards)
    trained = grow(prepared, rounds=200, depth=6)
    kept = int(trained.metrics["rounds_kept"])
    assert trained.metrics["steps"] == kept + 4 < 200
    table = labelled(flights(1000, 1)).combine_chunks()
    label, score = table["late"].to_numpy(), trained.predict(table.to_batches()[0])
    watched = -np.mean(np.where(label == 1, np.log(score), np.log(1 - score)))
    assert watched == pytest.approx(trained.metrics["watched_loss"], rel=1e-5)
    # Killed on the way, it ends with the same trees.
    disturbed = replace(
        prepare(rows, tmp_path, alone, guards=guards, checkpoints={"every_steps": 3}),
        job_directory=tmp_path / "b",
    )
    with pytest.raises(KeyboardInterrupt):
        grow(disturbed, Killing(kept + 2), rounds=200, depth=6)
    assert sha256(grow(disturbed, rounds=200, depth=6)) == sha256(trained)


def test_trees_learn_three_classes_and_a_number(tmp_path: Path, alone: Ranks) -> None:
    table = flights(2000, 0)
    wind = np.nan_to_num(table["wind"].to_numpy(zero_copy_only=False), nan=20)
    classes = np.digitize(wind, [15, 25])
    several, number = SnapshotTarget(kind="multiclass"), SnapshotTarget(kind="regression")
    write(tmp_path / "classes", {"train": table.set_column(2, "late", pa.array(classes))}, target=several)
    trained = grow(prepare(tmp_path / "classes", tmp_path / "a", alone))
    scores = trained.predict(table.combine_chunks().to_batches()[0])
    assert scores.shape == (2000, 3)
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-6)
    assert np.mean(scores.argmax(axis=1) == classes) > 0.97
    rates = np.bincount(classes) / 2000
    assert trained.metrics["base_rate_loss"] == pytest.approx(-(rates * np.log(rates)).sum())
    numbers = pa.array(1e6 + 3 * wind)
    write(tmp_path / "numbers", {"train": table.set_column(2, "late", numbers)}, target=number)
    trained = grow(prepare(tmp_path / "numbers", tmp_path / "b", alone), rounds=60)
    found = trained.predict(table.combine_chunks().to_batches()[0])
    error = np.sqrt(np.mean(np.square(found - numbers.to_numpy())))
    assert error < 0.1 * np.std(numbers.to_numpy())
    # The squared error in units of the variance, with what float32 loses of labels around a million.
    assert trained.metrics["train_loss"] == pytest.approx((error / numbers.to_numpy().std()) ** 2, rel=0.05)


def test_losses_are_those_of_the_definitions() -> None:
    random = np.random.default_rng(0)
    margin, label = random.normal(0, 3, 50), random.integers(0, 2, 50).astype(np.float32)
    p = 1 / (1 + np.exp(-margin))
    np.testing.assert_allclose(
        row_losses(margin, label, "binary"), -np.log(np.where(label == 1, p, 1 - p)), rtol=1e-9
    )
    many, number = random.normal(0, 3, (50, 4)), random.integers(0, 4, 50).astype(np.float32)
    shares = np.exp(many) / np.exp(many).sum(axis=1, keepdims=True)
    picked = shares[np.arange(50), number.astype(int)]
    np.testing.assert_allclose(row_losses(many, number, "multiclass"), -np.log(picked), rtol=1e-9)


def test_a_missing_number_is_missing_to_a_tree_and_its_indicator_is_gone() -> None:
    transforms = Transforms(
        numbers=(
            Number(name="a", mean=1, scale=1, indicator=True),
            Number(name="b", mean=0, scale=1, indicator=False),
        ),
        times=(TimeOf(name="t", indicator=True),),
        categories=(Category(name="c", values=("x",)), Category(name="d", values=("y", "z"))),
    )
    layout = MatrixLayout.of(transforms)
    numeric = np.array([[7, 0, 8, 1, 2, 3, 4, 0], [0, 1, 8, 0, 0, 0, 0, 1]], dtype=np.float32)
    codes = np.array([[2, 3 + 3], [0, 3 + 1]])
    nan = np.nan
    expected = [[7, 8, 1, 2, 3, 4, 2, 3], [nan, 8, nan, nan, nan, nan, nan, 1]]
    np.testing.assert_array_equal(layout.matrix(numeric, codes), expected)
    assert layout.types == ("q",) * 6 + ("c",) * 2
    assert layout.names[0] == "a"
    assert layout.inputs == ("a", "b", "t", "t", "t", "t", "c", "d")
    assert layout.names[-2:] == ("c", "d")


def test_the_folder_is_loaded_and_scores_alike_without_torch(
    rows: Path, tmp_path: Path, alone: Ranks
) -> None:
    trained = grow(prepare(rows, tmp_path, alone))
    model = trained.write(tmp_path / "model", trained.rows.outputs)
    judged = flights(200, 5)
    columns = {name: judged[name].to_pylist() for name in ("wind", "noise", "carrier", "holiday")}
    (tmp_path / "rows.json").write_text(json.dumps(columns))
    code = (
        "import json, sys, pathlib; from trainwright.serving.trees import load_trees;"
        "folder = pathlib.Path(sys.argv[1]);"
        "scores = load_trees(folder / 'model').predict(json.loads((folder / 'rows.json').read_text()));"
        "(folder / 'scores.bin').write_bytes(scores.tobytes()); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    expected = trained.predict(judged.combine_chunks().to_batches()[0])
    assert (tmp_path / "scores.bin").read_bytes() == expected.tobytes()
    assert np.array_equal(load_trees(tmp_path / "model").predict(judged), expected)
    assert model.kind == "trees"
    assert {entry.path for entry in model.files} == {
        "README.md",
        "input_example.json",
        "model.ubj",
        "signature.json",
        "transforms.json",
    }
    assert not [path for path in (tmp_path / "model").iterdir() if path.read_bytes()[:2] in {b"\x80\x02"}]
    assert "Gradient-boosted trees (XGBoost) over 4 columns" in (tmp_path / "model/README.md").read_text()


def test_the_same_training_gives_the_same_folder(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    digests = set()
    for name in ("a", "b"):
        trained = grow(prepare(rows, tmp_path / name, alone), **CHANCE)
        digests.add(trained.write(tmp_path / name / "model", trained.rows.outputs).digest)
    assert len(digests) == 1
    assert Model.read(tmp_path / "a" / "model").digest in digests


def test_folder_without_valid_trees_is_rejected(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    trained = grow(prepare(rows, tmp_path, alone))
    trained.write(tmp_path / "model", trained.rows.outputs)
    (tmp_path / "model" / "model.ubj").write_bytes(b"no trees")
    with pytest.raises(InputError, match="these are no trees of XGBoost"):
        load_trees(tmp_path / "model")


def test_unsupported_settings_of_trees_are_reported_together() -> None:
    objective = {"focal": 2.0, "sampling": "balanced"}
    asked = resolved(objective=objective, precision="bf16", checkpoints={"store": "gs://bucket"})
    with pytest.raises(InputError) as caught:
        check_network(Trees(), asked, processes=3, gpus=2)
    for name in ("gpus 2", "focal 2", "sampling balanced", "store 'gs://bucket'", "precision"):
        assert name in caught.value.what


def test_non_finite_loss_ends_boosting(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    prepared = prepare(rows, tmp_path, alone)
    weights = torch.tensor([1.0, 1e300]).float()  # infinite in float32
    prepared.rows._weights = weights  # no section can ask for it
    with pytest.raises((Diverged, InternalError)):
        grow(prepared)


def processes(folder: Path, home: Path, places: list[tuple[int, int]], **sections: Any) -> list[Any]:
    """Start processes by hand, each with its number on its machine and that machine's number of processes."""
    home.mkdir(parents=True, exist_ok=True)
    told = {"training": {}, "network": NETWORK} | sections
    return [
        clean.start(node, folder, home, told, said=home / f"said-{rank}", **place)
        for rank, place in enumerate(clean.places(*places))
    ]


def outcomes(folder: Path, home: Path, places: list[tuple[int, int]], **sections: Any) -> list[bytes]:
    codes = [clean.ended(process) for process in processes(folder, home, places, **sections)]
    assert codes == [0] * len(places)
    return [(home / f"out-{rank}.ubj").read_bytes() for rank in range(len(places))]


def root_rows(trees: bytes) -> set[float]:
    """Rows at the root of every tree: the sum of second derivatives, which is 1 a row for squared errors."""
    booster = xgboost.Booster(model_file=bytearray(trees))
    dumped = booster.get_dump(dump_format="json", with_stats=True)
    return {json.loads(tree)["cover"] for tree in dumped}


def test_two_machines_use_all_rows_and_are_reproducible(tmp_path: Path, alone: Ranks) -> None:
    rows = tmp_path / "set"
    write(rows, {"train": flights(FLIGHTS, 0)}, target=SnapshotTarget(kind="regression"))
    apart = [(0, 1), (0, 1)]
    first = outcomes(rows, tmp_path / "first", apart)
    again = outcomes(rows, tmp_path / "again", apart)
    assert first[0] == first[1] == again[0] == again[1]
    known = labelled(flights(FLIGHTS, 0)).num_rows
    assert root_rows(first[0]) == {float(known)}
    one = grow(prepare(rows, tmp_path, alone))
    two = xgboost.Booster(model_file=bytearray(first[0]))
    changed = replace(one, booster=two)
    batch = flights(500, 2).combine_chunks().to_batches()[0]
    assert np.abs(changed.predict(batch) - one.predict(batch)).mean() < 0.02


def test_two_processes_on_a_machine_give_the_trees_of_one(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    both = outcomes(rows, tmp_path / "two", [(0, 2), (1, 2)], network=NETWORK | CHANCE)
    one = grow(prepare(rows, tmp_path / "one", alone), **CHANCE)
    assert both[0] == both[1] == bytes(one.booster.save_raw("ubj"))


def test_killed_process_resumes_with_the_same_trees(rows: Path, tmp_path: Path, alone: Ranks) -> None:
    sections: dict[str, Any] = {
        "training": {"checkpoints": {"every_steps": 5}},
        "network": NETWORK | CHANCE,
    }
    (killed,) = processes(rows, tmp_path / "home", [(0, 1)], kill=17, **sections)
    assert clean.ended(killed) == -signal.SIGKILL
    (found,) = outcomes(rows, tmp_path / "home", [(0, 1)], **sections)
    undisturbed = grow(prepare(rows, tmp_path / "whole", alone), **CHANCE)
    assert found == bytes(undisturbed.booster.save_raw("ubj"))


def test_lost_machine_ends_the_other_and_both_resume(rows: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {"training": {"checkpoints": {"every_steps": 5}}}
    apart = [(0, 1), (0, 1)]
    undisturbed = outcomes(rows, tmp_path / "whole", apart, **sections)
    left, killed = processes(rows, tmp_path / "home", apart, kill=12, killed=1, **sections)
    assert clean.ended(killed) == -signal.SIGKILL
    # XGBoost may crash on the way out; by then the process has told what happened.
    assert clean.ended(left) != 0
    said = (tmp_path / "home" / "said-0").read_text()
    assert '"error": "TransientError", "code": 20' in said
    assert outcomes(rows, tmp_path / "home", apart, **sections) == undisturbed


def test_fewer_rows_than_machines_are_rejected(tmp_path: Path, alone: Ranks) -> None:
    rows = flights(500, 0)
    few = pa.array([1, 0], pa.int64())
    write(tmp_path / "set", {"train": rows.slice(0, 2).set_column(2, "late", few)})
    prepared = prepare(tmp_path / "set", tmp_path, alone)
    many = replace(prepared, ranks=replace(alone, size=3))
    with pytest.raises(DataRefused, match="2 rows cannot be shared by 3 machines"):
        grow(many)
    assert pc.sum(few).as_py() == 1
