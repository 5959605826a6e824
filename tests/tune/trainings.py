"""Requests for small trainings, and their training set."""

import subprocess
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.launch.local import sibling_python
from trainwright.train.submit import TrainRequest

NETWORK = {"kind": "mlp", "hidden": [8], "dropout": 0.0, "embedding": 4}
TRAINING = {
    "steps": 24,
    "batch_size": 64,
    "learning_rate": 0.02,
    "seed": 3,
    "guards": {"early_stopping": {"share": 0.2, "every_steps": 4, "patience": 50}},
    "tracking": {"every_steps": 1},
}


def write_training_set(folder: Path) -> Path:
    command = [sibling_python("torch"), "-m", "tests.tune.training_set", folder]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    return folder


def request(training_set: Path, run: str = "study/0", **sections: Any) -> TrainRequest:
    """Ask for 24 steps with an evaluation every 4; sections are merged into the usual ones."""
    return TrainRequest(
        training_set=training_set,
        data_version=Snapshot.read(training_set).digest,
        network=NETWORK | sections.get("network", {}),
        training=TRAINING | sections.get("training", {}),
        resources={"launcher": "local", "processes": 1, **sections.get("resources", {})},
        image="trainwright/torch:0.1.0",
        run=run,
    )
