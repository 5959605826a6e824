"""A process that trains as a job does, also both candidates of ``network.kind: auto``, and may be killed."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.train.problems import request
from trainwright.artifacts import Snapshot
from trainwright.errors import reported
from trainwright.experiment import Training, read_network
from trainwright.train.config import TrainConfig
from trainwright.train.fit import TrainingRun
from trainwright.train.loop import FitResult, StepReport
from trainwright.train.process_group import Ranks, process_group
from trainwright.train.recorder import TrainingRecorder
from trainwright.train.stop_signal import StopSignal
from trainwright.train.trainers import WriteModel, train


class Killing(TrainingRecorder):
    """Writes every step into a file, and kills its process at one of them, such as ``("mlp", 7)``.

    Without candidates, the name is empty.
    """

    kill: tuple[str, int] = ("", 0)

    def on_step(self, step: StepReport) -> None:
        super().on_step(step)
        with (self._folder / "steps.txt").open("a") as stream:
            stream.write(f"{self._candidate} {step.number}\n")
        if self.kill == (self._candidate, step.number):
            os.kill(os.getpid(), signal.SIGKILL)


def fit(
    training_set: Path,
    home: Path,
    group: Ranks,
    training: dict[str, Any],
    kill: tuple[str, int] = ("", 0),
    network: str = "auto",
) -> tuple[FitResult, WriteModel]:
    """Train in this process, as one of a group."""
    home.mkdir(parents=True, exist_ok=True)
    asked = request(training_set, training=training)
    config = TrainConfig(
        attempt="0001",
        home=str(home),
        training_set=str(training_set),
        data_version=asked.data_version,
        network=read_network({"kind": network}).model_dump(mode="json"),
        training=Training.parse(asked.training, "training").model_dump(mode="json"),
        processes=group.size,
    )
    with Killing(config, group, home) as recorder:
        recorder.kill = kill
        run = TrainingRun(config, Snapshot.read(training_set), home, group, recorder, StopSignal())
        result, write = train(run)
        recorder.draw("Done", [], result=result)
        return replace(result, seconds=0.0, samples_per_s=0.0), write


def train_and_die(
    training_set: Path, home: Path, training: dict[str, Any], kill: tuple[str, int], network: str = "auto"
) -> None:
    """Train as one process of a job, the last of which is killed; one that is not writes the model."""
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)
    with reported("test"), process_group(0) as group:
        dies = group.rank == group.size - 1
        _, write = fit(training_set, home, group, training, kill if dies else ("", 0), network)
        if group.leads:
            write(home / "model", home / "predictions")
