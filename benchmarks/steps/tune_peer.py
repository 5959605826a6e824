"""The peer: Optuna's ``optimize`` with a plain torchrun subprocess per trial, of the same training.

``python tune_peer.py PYTHON TRAINING_SET FOLDER SECTIONS POINTS JOBS`` trains the points in their order.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna

from trainwright.artifacts import Model, Snapshot
from trainwright.experiment import Training, read_network
from trainwright.train.config import TrainConfig
from trainwright.train.defaults import resolve_training


def train(python: str, rows: Path, folder: Path, base: dict[str, Any], point: dict[str, Any]) -> float:
    """Train one point under torchrun, and return the loss that the training ended with."""
    folder.mkdir(parents=True)
    snapshot, network = Snapshot.read(rows), read_network(base["network"])
    chosen = {key.removeprefix("training."): value for key, value in point.items()}
    section = Training.check(base["training"] | chosen, "training")
    config = TrainConfig(
        attempt="1",
        home=str(folder),
        training_set=str(rows.absolute()),
        data_version=snapshot.digest,
        network=network.model_dump(mode="json"),
        training=resolve_training(section, network, snapshot, 1).model_dump(mode="json"),
        processes=1,
    )
    config.write(folder)
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command += ["-m", "trainwright.train", str(folder / TrainConfig.FILE)]
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
    return Model.read(folder / "model").metrics["train_loss"]


def main(python: str, rows: Path, folder: Path, base: dict[str, Any], points: list[Any], jobs: int) -> None:
    """Optimize over the points."""
    study = optuna.create_study()
    for point in points:
        study.enqueue_trial(point)

    def objective(trial: optuna.Trial) -> float:
        chosen = {
            key: trial.suggest_categorical(key, sorted({one[key] for one in points})) for key in points[0]
        }
        return train(python, rows, folder / str(trial.number), base, chosen)

    study.optimize(objective, n_trials=len(points), n_jobs=jobs)


if __name__ == "__main__":
    at, rows, folder, base, points, jobs = sys.argv[1:]
    main(at, Path(rows), Path(folder), json.loads(base), json.loads(points), int(jobs))
