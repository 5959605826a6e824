"""A trial in its own process: stop and resume, shared samples, and what its folder keeps."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.tune.trainings import request
from trainwright.train.config import TrialMetrics
from trainwright.train.submit import TRIAL_DIRECTORY
from trainwright.tune.trial import TrialFailure, TrialProcess, TrialSpec

LONG: dict[str, Any] = {
    "steps": 1200,
    "guards": {"early_stopping": {"share": 0.2, "every_steps": 100, "patience": 50}},
    "tracking": {"every_steps": 50},
}


def trial(training_set: Path, folder: Path, **sections: Any) -> TrialProcess:
    asked = request(training_set, **sections)
    return TrialProcess(folder, TrialSpec.of(asked, folder.parent / "encoded"))


def finish(process: TrialProcess) -> TrialMetrics | TrialFailure | None:
    process.start()
    while not process.poll():
        time.sleep(0.05)
    process.curves.read()
    return process.result()


def wait_for_evaluation(process: TrialProcess) -> None:
    while not process.curves.evaluations:
        assert not process.poll(), (process.folder / "trial.log").read_text()
        process.curves.read()
        time.sleep(0.02)


def test_trial_stopped_and_resumed_ends_as_an_undisturbed_one(training_set: Path, tmp_path: Path) -> None:
    undisturbed = trial(training_set, tmp_path / "0", training=LONG)
    metrics = finish(undisturbed)
    assert isinstance(metrics, TrialMetrics)
    assert {"held_out_loss", "held_out_auc", "held_out_accuracy", "train_loss"} == metrics.metrics.keys()
    encoded = {path.name for path in (tmp_path / "encoded").iterdir()}

    stopped = trial(training_set, tmp_path / "1", training=LONG)
    stopped.start()
    wait_for_evaluation(stopped)
    stopped.stop()
    while not stopped.poll():
        time.sleep(0.05)
    failure = stopped.failure()
    assert failure
    assert failure.stopped, failure
    assert stopped.result() is None
    assert (tmp_path / "1" / TRIAL_DIRECTORY).is_dir()

    assert finish(stopped) == metrics
    assert stopped.curves.evaluations == undisturbed.curves.evaluations
    figures = stopped.figures(3600.0)
    assert figures["cost"] == stopped.curves.seconds > 0
    assert (figures["attempts"], figures["steps"], figures["total"]) == (2, 1200, 1200)
    assert {path.name for path in (tmp_path / "encoded").iterdir()} == encoded
    assert not (tmp_path / "1" / TRIAL_DIRECTORY).exists()


def test_killed_trial_may_be_resumed(training_set: Path, tmp_path: Path) -> None:
    killed = trial(training_set, tmp_path / "0", training=LONG)
    killed.start()
    assert killed._process
    os.kill(killed._process.pid, signal.SIGKILL)
    while not killed.poll():
        time.sleep(0.05)
    failure = killed.failure()
    assert failure
    assert failure.transient
    assert "SIGKILL" in failure.what


def test_diverged_trial_is_infeasible_and_does_not_start_again(training_set: Path, tmp_path: Path) -> None:
    diverged = trial(training_set, tmp_path / "0", training={"learning_rate": 1e30, "schedule": "constant"})
    failure = finish(diverged)
    assert isinstance(failure, TrialFailure)
    assert failure.infeasible
    assert not failure.rejected
    assert finish(diverged) == failure
    assert diverged.figures(None)["attempts"] == 1


def test_rejected_configuration_is_infeasible_without_a_job(training_set: Path, tmp_path: Path) -> None:
    failure = finish(trial(training_set, tmp_path / "0", training={"batch_size": 0}))
    assert isinstance(failure, TrialFailure)
    assert failure.rejected
    assert "batch_size" in failure.what
    assert not (tmp_path / "0" / TRIAL_DIRECTORY).exists()
