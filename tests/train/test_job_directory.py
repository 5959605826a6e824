"""Homes of trainings: found again by what was told, and left with a word when that has changed."""

from pathlib import Path
from typing import Any

import pytest

from tests.train.problems import resolved
from trainwright.errors import DependencyError, Diverged, InputError, PermissionRefused, TrainwrightError
from trainwright.experiment import Resources
from trainwright.launch.job_directory import Completion
from trainwright.train.config import TrainConfig
from trainwright.train.submit import next_attempt_folder


def told(**training: Any) -> dict[str, Any]:
    return {
        "data_version": "d",
        "network": {"kind": "mlp", "hidden": [8]},
        "training": resolved(**training).model_dump(mode="json"),
    }


def config(attempt: str = "", home: str = "", **sections: Any) -> TrainConfig:
    return TrainConfig(attempt=attempt, home=home, training_set="s", processes=2, **sections)


def begin(folder: Path, launcher: str = "local", run: str = "r", **training: Any) -> Path:
    """Begin a training, and fail; return its home."""
    given, resources = told(**training), Resources(mount=str(folder / "volume"))
    where: list[Path] = []

    def fail() -> None:
        with next_attempt_folder(
            run, config(**given).decisive, launcher, resources, folder / "model"
        ) as attempt:
            home = attempt.parent.parent
            where.append(home)
            config(attempt.name, str(home), **given).write(attempt)
            raise Diverged("the loss ran away")

    with pytest.raises(Diverged):
        fail()
    return where[0]


@pytest.mark.parametrize("launcher", ["local", "pytorchjob"])
def test_what_does_not_decide_the_result_leads_to_the_same_home(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "volume").mkdir()
    home = begin(tmp_path, launcher)
    changes: list[dict[str, Any]] = [
        {"checkpoints": {"every_steps": 5}},
        {"guards": {"spike": None}},
        {"micro_batch": 64},
        {"parallel": {"shard": 2}},
        {"predict": ["evaluate", "test"]},
    ]
    assert {begin(tmp_path, launcher, **change) for change in changes} == {home}
    assert sorted(path.name for path in (home / "attempts").iterdir())[-1] == "0006"
    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"learning_rate": 0.1},
        {"epochs": 4},
        {"precision": "bf16"},
        {"guards": {"early_stopping": {"share": 0.2, "patience": 5}}},  # other rows are trained on
    ]
    assert home not in {begin(tmp_path, launcher, **change) for change in others}
    assert begin(tmp_path, launcher, run="other") != home


def test_a_training_that_starts_afresh_beside_another_says_what_differs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begin(tmp_path)
    assert capfd.readouterr().err == ""
    begin(tmp_path, seed=5)
    said = capfd.readouterr().err
    assert "this output is not resumed: training.seed was 0 and is 5. This one starts from step 0." in said
    begin(tmp_path, seed=5)
    assert capfd.readouterr().err == ""


def test_success_leaves_no_home(tmp_path: Path) -> None:
    begin(tmp_path)
    begin(tmp_path, seed=5)
    resources = Resources(mount=str(tmp_path / "volume"))
    with next_attempt_folder(
        "r", config(**told()).decisive, "local", resources, tmp_path / "model"
    ) as attempt:
        assert attempt.name == "0002"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "volume").mkdir()
    with next_attempt_folder("r", config(**told()).decisive, "pytorchjob", resources, tmp_path / "model"):
        pass
    assert list((tmp_path / "volume" / "trainwright" / "jobs").iterdir()) == []


def test_on_a_cluster_what_was_made_outlives_the_step_and_its_state_does_not(tmp_path: Path) -> None:
    resources = Resources(mount=str(tmp_path))
    with next_attempt_folder(
        "r", config(**told()).decisive, "pytorchjob", resources, tmp_path / "model"
    ) as folder:
        (folder / "model").mkdir()
        Completion(attempt=folder.name, outputs={}).write(folder)
        home = folder.parent.parent
        (home / "checkpoints").mkdir()
    assert [path.name for path in home.iterdir()] == ["attempts"]
    assert sorted(path.name for path in folder.iterdir()) == ["model", "result.json"]


def test_a_volume_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    resources = Resources(mount=str(tmp_path / "volume"))
    with (
        pytest.raises(DependencyError, match="'trainwright-shared' is not mounted"),
        next_attempt_folder("r", config(**told()).decisive, "pytorchjob", resources, tmp_path / "model"),
    ):
        pass


@pytest.mark.parametrize(
    ("place", "kind", "what"),
    [
        ("file/below", InputError, "the job directory cannot be created"),
        ("/sys/trainwright", PermissionRefused, "may not do that here"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_and_no_bug(
    tmp_path: Path, place: str, kind: type[TrainwrightError], what: str
) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(kind, match=what) as caught,
        next_attempt_folder("r", config(**told()).decisive, "local", Resources(), tmp_path / place / "model"),
    ):
        pass
    assert place in caught.value.where
