"""Train every point of a search space once, and write its curve of losses on held-out rows, as JSON lines.

``torchrun --nproc-per-node=1 tune_curves.py TRAINING_SET OUTPUT``. Studies are then replayed from these
curves: ten studies need the curve of the same point many times, and it is the same each time.
"""

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, EVERY = 270, 10
SPACE: dict[str, list[Any]] = {
    "training.learning_rate": [0.0001, 0.0003, 0.001, 0.003, 0.006, 0.012, 0.025, 0.05],
    "training.batch_size": [64, 256],
    "training.weight_decay": [0.0001, 0.1],
    "network.hidden": [[16], [64, 32], [256, 128]],
}
TRAINING = {
    "steps": STEPS,
    "guards": {"early_stopping": {"share": 0.25, "every_steps": EVERY, "patience": 1000}},
}


def sections(point: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sections network and training of a point."""
    made: dict[str, dict[str, Any]] = {"network": {"kind": "mlp"}, "training": dict(TRAINING)}
    for key, value in point.items():
        section, name = key.split(".")
        made[section][name] = value
    return made


def train_all(training_set: Path, output: Path) -> None:
    """Train all points in this process."""
    import torch

    from trainwright.artifacts import Snapshot
    from trainwright.experiment import Training, read_network
    from trainwright.tracking.history import HISTORY_FILE, TrainingHistory
    from trainwright.train.config import TrainConfig
    from trainwright.train.defaults import resolve_training
    from trainwright.train.fit import TrainingRun
    from trainwright.train.parallel import make_deterministic
    from trainwright.train.process_group import process_group
    from trainwright.train.recorder import TrainingRecorder
    from trainwright.train.stop_signal import StopSignal
    from trainwright.train.trainers import train

    torch.set_num_threads(1)
    make_deterministic()
    snapshot = Snapshot.read(training_set)
    points = [dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())]
    with output.open("w") as stream, process_group(0) as ranks:
        for point in points:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name, "attempts", "1")
                folder.mkdir(parents=True)
                chosen = sections(point)
                network = read_network(chosen["network"])
                settings = resolve_training(
                    Training.check(chosen["training"], "training"), network, snapshot, 1
                )
                config = TrainConfig(
                    attempt="1",
                    home=name,
                    training_set=str(training_set.absolute()),
                    data_version=snapshot.digest,
                    network=network.model_dump(mode="json"),
                    training=settings.model_dump(mode="json"),
                    processes=1,
                )
                config.write(folder)
                with TrainingRecorder(config, ranks, folder) as recorder:
                    train(TrainingRun(config, snapshot, folder, ranks, recorder, StopSignal()))
                steps, losses = TrainingHistory.read(Path(name, HISTORY_FILE)).curve("watched_loss")
            curve = {"point": point, "curve": list(zip(steps, losses, strict=True))}
            print(json.dumps(curve), file=stream, flush=True)


if __name__ == "__main__":
    train_all(Path(sys.argv[1]), Path(sys.argv[2]))
