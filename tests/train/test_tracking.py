"""A training whose tracking server is there, cut off, silent or lossy: the same weights, no point lost."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.tracking.server import Way, mlflow_server, way_to
from tests.train.problems import Outcome, run
from trainwright.artifacts import Progress
from trainwright.documents import digest_file
from trainwright.experiment import Tracking
from trainwright.launch.local import LocalLauncher
from trainwright.tracking.__main__ import replay
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory
from trainwright.train.loop import StepReport
from trainwright.train.recorder import TrainingRecorder

TRACKED = {"epochs": 2, "tracking": {"every_steps": 1}}
ALONE = {"processes": 1}


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    """A way to a running MLflow server."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as port, way_to(port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def untracked(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same training without a server."""
    return run(training_set, tmp_path_factory.mktemp("untracked"), training=TRACKED, resources=ALONE)


def weights(outcome: Outcome) -> str:
    return digest_file(outcome.model / "weights.safetensors")


@pytest.mark.parametrize("mode", ["open", "lossy", "cut", "silent"])
def test_a_training_is_the_same_whatever_the_server_does_and_replay_brings_every_point(
    training_set: Path,
    tmp_path: Path,
    untracked: Outcome,
    way: Way,
    mode: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    way.mode = mode
    tracking = TRACKED | {"tracking": {"every_steps": 1, "uri": way.uri, "experiment": mode}}
    outcome = run(training_set, tmp_path, training=tracking, resources=ALONE)
    assert weights(outcome) == weights(untracked)
    assert outcome.submitted.model_version == untracked.submitted.model_version
    if mode in {"cut", "silent"}:
        said = "the curves at MLflow are incomplete: trainwright curves sends the rest"
        assert said in capfd.readouterr().err
        assert "incomplete: trainwright curves sends the rest" in (outcome.folder / "report.html").read_text()

    way.mode = "open"
    client = MlflowClient(way.uri)
    replay(outcome.model, way.uri, experiment=mode)
    experiment = client.get_experiment_by_name(mode)
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    history = TrainingHistory.read(outcome.model / HISTORY_FILE)
    steps, losses = history.curve("loss")
    assert steps == list(range(1, 25)), "5,851 rows with a label: two epochs of 12 batches"
    sent = sorted((point.step, point.value) for point in client.get_metric_history(found.info.run_id, "loss"))
    assert sent == list(zip(steps, losses, strict=True))


def test_the_curves_of_two_trainings_that_are_alike_are_alike(
    trained: Outcome, trained_again: Outcome
) -> None:
    first, second = (
        TrainingHistory.read(outcome.model / HISTORY_FILE) for outcome in (trained, trained_again)
    )
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert first.curve(name) == second.curve(name)


def test_what_was_spent_before_a_restart_is_part_of_the_cost(tmp_path: Path) -> None:
    asked = Tracking(every_steps=1, gpu_hour=3600)
    for start in (0, 2):
        with TrainingRecorder(tmp_path, tmp_path, asked, None, leads=True, world=2) as curves:
            for step in (start + 1, start + 2):
                curves.on_step(StepReport(step, 4, 1, 0.5, 1.0, 0.1, 8 * step))
                time.sleep(0.02)
    steps, costs = TrainingHistory.read(tmp_path / HISTORY_FILE).curve("cost")
    assert steps == [1, 2, 3, 4]
    assert costs == sorted(costs), "two GPUs at one a second"
    assert costs[2] >= costs[1] >= 0.04


def test_the_use_of_the_machine_is_in_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.train.recorder._SAMPLE_S", 0.05)
    with TrainingRecorder(tmp_path, tmp_path, Tracking(every_steps=1), None, leads=True) as curves:
        end, number = time.monotonic() + 60, 0
        while (
            not TrainingHistory.read(tmp_path / HISTORY_FILE).curve("host_cpu")[0] and time.monotonic() < end
        ):
            number += 1
            curves.on_step(StepReport(number, 10**6, 1, 0.5, 1.0, 0.1, 8 * number))
            time.sleep(0.05)
    history = TrainingHistory.read(tmp_path / HISTORY_FILE)
    shares, memory = (history.curve(name)[1] for name in ("host_cpu", "host_memory_gib"))
    assert all(0 <= share <= 1 for share in shares)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    assert all(0 < gib <= total for gib in memory)
    assert shares
    assert len(shares) == len(memory)


def test_a_disk_that_refuses_the_progress_file_ends_no_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attempt").touch()
    with TrainingRecorder(tmp_path / "attempt" / "0001", tmp_path, Tracking(), None, leads=True) as curves:
        curves.on_step(StepReport(7, 7, 1, loss=0.5, norm=1.0, rate=0.1, samples=70))
    said = capfd.readouterr().err
    assert "the progress file could not be written" in said
    assert "step 7 of 7" in said


def test_progress_names_the_step_of_the_newest_checkpoint(training_set: Path, tmp_path: Path) -> None:
    """What a job on a shared volume leaves there has it still; beside an output it is removed in the end."""
    shared, settings = tmp_path / "shared", {"epochs": 2, "checkpoints": {"every_steps": 1}}
    shared.mkdir()
    resources = {**ALONE, "launcher": "pytorchjob", "claim": "team", "mount": str(shared)}
    run(training_set, tmp_path / "out", LocalLauncher(), training=settings, resources=resources)
    (path,) = shared.rglob("progress.json")
    progress = Progress.read(path)
    assert progress.step == progress.total, "written before the last checkpoint is"
    assert 0 < progress.checkpoint_step < progress.step


def test_the_page_shows_the_curves(trained: Outcome) -> None:
    page = (trained.folder / "report.html").read_text()
    assert "incomplete" not in page
    assert page.count("<svg") >= 3
    assert "Mean loss per sample, at logged steps." in page
