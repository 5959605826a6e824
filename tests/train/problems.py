"""A small training set whose answer is known, and how it is trained on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from tests.train.forked import ForkedLauncher
from trainwright import tables
from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.experiment import Mlp, ResolvedTraining
from trainwright.launch.job import JobReference, Launcher
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.config import TrainConfig, input_kinds
from trainwright.train.feeding.loader import Loader, SampleOrder
from trainwright.train.feeding.rows import RowSource, encode, fit
from trainwright.train.loop import FitResult, StepObserver, StepReport, TrainingLoop
from trainwright.train.process_group import Ranks
from trainwright.train.recorder import TrainingRecorder
from trainwright.train.step import Stepper
from trainwright.train.submit import Submitted, TrainRequest, submit

ROWS = {"train": 6001, "evaluate": 2000}
"""6,001 rows in batches of 500 end with a batch of one row: one of two processes has none of it."""

NETWORK = {"hidden": [32], "dropout": 0.0, "embedding": 4}
TRAINING = {"epochs": 6, "batch_size": 500, "learning_rate": 0.02, "seed": 3}
RESOURCES = {"launcher": "local", "processes": 2}
ROLES = {"key": "id", "time": "at", "label": "late"}


def flights(rows: int, seed: int) -> pa.Table:
    """Draw rows whose log-odds of ``late`` are ``wind + carrier`` (and nothing else)."""
    random = np.random.default_rng(seed)
    wind, noise = random.normal(size=rows), random.normal(50, 10, size=rows)
    carrier = random.integers(0, 4, rows)
    odds = 1.5 * wind + np.array([-1.5, -0.5, 0.5, 1.5])[carrier]
    late = (random.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    unlabelled = np.zeros(rows, dtype=bool)
    unlabelled[1:rows:40] = True
    return pa.table(
        {
            "id": pa.array([f"f{index}" for index in range(rows)]),
            "at": pa.array(np.arange(rows) * 1_000_000, pa.timestamp("us", tz="UTC")),
            "late": pa.array(late, mask=unlabelled),
            "wind": pa.array(wind * 7 + 20, mask=random.random(rows) < 0.05),
            "noise": pa.array(np.round(noise).astype(np.int64)),
            "carrier": pa.array([f"c{code}" for code in carrier]),
            "holiday": pa.array(random.random(rows) < 0.1),
            "year": pa.array(np.full(rows, 2013)),
            "gate": pa.nulls(rows, pa.string()),
        }
    )


def write(
    folder: Path, splits: dict[str, pa.Table], target: SnapshotTarget | None = None, **roles: str
) -> Snapshot:
    """Write a training set in files of 2,000 rows."""
    parts = {name: [table] for name, table in splits.items()}
    return tables.write_snapshot(
        folder, parts, parents={}, roles=ROLES | roles, rows_per_file=2000, target=target
    )


def note_job(name: str, folder: Path) -> None:
    """Note a job as the launcher of a cluster does, which this environment has no client for."""
    commands = (
        f"kubectl logs -n team-a -l training.kubeflow.org/job-name={name}",
        f"kubectl describe {name}",
    )
    JobReference(kind="PyTorchJob", namespace="team-a", name=name, commands=commands).write(folder)


@dataclass(frozen=True)
class Outcome:
    """Where a training left what it made."""

    folder: Path
    submitted: Submitted

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def predictions(self) -> Path:
        return self.folder / "predictions"


def resolved(**training: Any) -> ResolvedTraining:
    """Return the settings of a training that starts; without early stopping by default."""
    usual = {"epochs": 3, "batch_size": 8192, "learning_rate": 1e-3}
    return ResolvedTraining(**usual | training)


def request(training_set: Path, **sections: Any) -> TrainRequest:
    """Ask for a training, without early stopping by default; sections are merged into the usual ones."""
    training = TRAINING | sections.get("training", {})
    training["guards"] = {"early_stopping": "never"} | training.get("guards", {})
    return TrainRequest(
        training_set=training_set,
        data_version=Snapshot.read(training_set).digest,
        network=json.dumps(NETWORK | sections.get("network", {})),
        training=json.dumps(training),
        resources=json.dumps(RESOURCES | sections.get("resources", {})),
        image="trainwright/torch:0.1.0",
        run="file:///runs/1/train/model",
    )


def run(training_set: Path, folder: Path, launcher: Launcher | None = None, **sections: Any) -> Outcome:
    """Train in a job of several processes, as the component does; without an agent by default."""
    return submitted(request(training_set, **sections), folder, launcher)


def submitted(asked: TrainRequest, folder: Path, launcher: Launcher | None = None) -> Outcome:
    """Train as asked for, without an agent by default."""
    places = (folder / name for name in ("model", "predictions", "summary.md", "report.html"))
    return Outcome(folder, submit(asked, *places, launcher=launcher or ForkedLauncher()))


class Silent:
    """Watches a training and keeps its losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, step: StepReport) -> None:
        self.losses.append(step.loss)


def recorder(
    folder: Path,
    job_directory: Path,
    *,
    gpus: int = 0,
    world: int = 1,
    failed_report: str = "",
    **tracking: Any,
) -> TrainingRecorder:
    """Return the recorder of rank 0 of a training."""
    config = TrainConfig(
        attempt=folder.name,
        home=str(job_directory),
        training_set="",
        data_version="",
        network={},
        training=resolved(tracking=tracking).model_dump(mode="json"),
        processes=world,
        gpus=gpus,
        failed_report=failed_report,
    )
    return TrainingRecorder(config, Ranks(0, world, 0, world, torch.device("cpu")), folder)


def source(training_set: Path, split: str = "train") -> RowSource:
    """Read a split as training does."""
    snapshot = Snapshot.read(training_set)
    return RowSource(training_set, snapshot, split, input_kinds(snapshot))


def ready_alone(
    training_set: Path, scratch: Path, group: Ranks, watcher: StepObserver, **sections: Any
) -> TrainingLoop:
    """Prepare a training in this process, without a launcher."""
    network = Mlp(**NETWORK | sections.get("network", {}))
    training = resolved(**TRAINING | sections.get("training", {}))
    transforms, labels = fit(source(training_set), network, group)
    rows = encode(source(training_set), transforms, labels, scratch / "encoded", group)
    torch.manual_seed(training.seed)
    rate = sum(part.counts.get(1, 0) for part in labels) / len(rows)
    architecture = make(network)
    module = architecture.build(Inputs(Target("binary", (1 - rate, rate)), transforms))
    order = SampleOrder(len(rows), training.batch_size, training.feeding.streams, training.seed)
    stepper = Stepper(module, architecture, training, group)
    return TrainingLoop(stepper, Loader(rows, order, 0, 1), training, group, observers=[watcher])


def train_alone(
    training_set: Path, scratch: Path, group: Ranks, watcher: StepObserver, **sections: Any
) -> tuple[nn.Module, FitResult]:
    """Train in this process, without a launcher."""
    loop = ready_alone(training_set, scratch, group, watcher, **sections)
    return loop.stepper.module, loop.run()
