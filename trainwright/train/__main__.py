"""What each process of a training job runs: ``python -m trainwright.train SPEC.json``, under torchrun."""

import math
import os
import shutil
import sys
from pathlib import Path

import torch

from trainwright.artifacts import Record, Snapshot
from trainwright.errors import InputError
from trainwright.experiment import Network, Tabular, Training, read_network
from trainwright.launch.job import Completion
from trainwright.launch.ranks import reported_rank
from trainwright.tracking import Stopwatch
from trainwright.tracking.history import FILE as HISTORY
from trainwright.tracking.shipping import Destination
from trainwright.train import serving
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.curves import Curves
from trainwright.train.group import Group, joined
from trainwright.train.labels import Labels, total
from trainwright.train.loader import Loader
from trainwright.train.loop import Fitted, Loop
from trainwright.train.model import Trained, write_model
from trainwright.train.order import Order, default_streams
from trainwright.train.predictions import write_predictions
from trainwright.train.rows import Source, encode, fit
from trainwright.train.specification import Specification, input_kinds
from trainwright.train.step import Stepper


def main(path: Path) -> None:
    """Train, and leave the model, the predictions and the completion marker beside the specification."""
    watch = Stopwatch()
    specification = Specification.read(path)
    network = read_network(specification.network)
    training = Training.check(specification.training, "training")
    folder = Path(specification.training_set)
    snapshot = Snapshot.open(folder, specification.data_version)
    source = Source(folder, snapshot, training.split, input_kinds(snapshot))
    torch.use_deterministic_algorithms(mode=True)
    with joined(specification.gpus) as group, _curves(specification, training, group, path.parent) as curves:
        trained, fitted = _train(source, network, training, group, Path(specification.home), curves)
    if not group.leads:
        return
    model = write_model(path.parent / "model", trained)
    predictor = serving.load(path.parent / "model")
    scored = write_predictions(path.parent / "predictions", folder, snapshot, training.predict, predictor)
    headline = (
        f"loss {fitted.losses[-1]:.4f} after {fitted.steps:,} steps, {fitted.samples_per_s:,.0f} rows/s"
    )
    curves.draw(headline, [("model", model.digest[:12]), ("data", specification.data_version[:12])])
    watch.record(
        path.parent / "model",
        "train",
        headline,
        config={**trained.config, "launched_by": specification.launched_by},
        inputs={"training_set": specification.data_version},
        outputs={"model": model.digest, "predictions": scored.digest},
        parents=[folder],
    )
    shutil.copyfile(Path(specification.home) / HISTORY, path.parent / "model" / HISTORY)
    # The predictions are another step's input: their record leads that step back to the data.
    shutil.copyfile(path.parent / "model" / Record.FILE, path.parent / "predictions" / Record.FILE)
    Completion(
        attempt=specification.attempt, outputs={"model": model.digest, "predictions": scored.digest}
    ).write(path.parent)


def _train(
    source: Source, network: Network, training: Training, group: Group, home: Path, curves: Curves
) -> tuple[Trained, Fitted]:
    """Fit transforms and network; every process ends with the same ones."""
    if not isinstance(network, Tabular):
        raise InputError(f"no architecture {network.kind!r}", where="network.kind")
    transforms, labels = fit(source, network, group)
    counts = total(labels)
    rows = encode(source, transforms, labels, home / "encoded", group, training.feeding)
    torch.manual_seed(training.seed)
    rate = counts.positives / counts.rows
    architecture = make(network)
    inputs = Inputs(Target("binary", (1 - rate, rate)), transforms)
    module = architecture.build(inputs).to(group.device)
    stepper = Stepper(module, architecture, training, group)
    order = _order(len(rows), training, group)
    pin = group.device.type == "cuda"
    with Loader(rows, order, group.rank, group.size, prefetch=training.feeding.prefetch, pin=pin) as feeder:
        fitted = Loop(stepper, feeder, training, group, watchers=[curves]).run()
    config = {
        "network": network.model_dump(mode="json"),
        "training": training.model_dump(mode="json"),
        "processes": group.size,
    }
    trained = Trained(
        module, architecture, transforms, source, source.snapshot.digest, config, _metrics(fitted, counts)
    )
    return trained, fitted


def _curves(specification: Specification, training: Training, group: Group, folder: Path) -> Curves:
    destination = Destination(**specification.destination) if specification.destination else None
    return Curves(
        folder,
        Path(specification.home),
        training.tracking,
        destination,
        leads=group.leads,
        gpus=specification.gpus,
        world=group.size if specification.gpus else 0,
    )


def _order(samples: int, training: Training, group: Group) -> Order:
    feeding = training.feeding
    return Order(
        samples,
        training.batch_size,
        feeding.streams or default_streams(group.size),
        training.seed,
        feeding.block,
        feeding.window,
    )


def _metrics(fitted: Fitted, labels: Labels) -> dict[str, float]:
    """Return the figures that belong to the model: those that the same training gives again."""
    rate = labels.positives / labels.rows
    return {
        "train_loss": fitted.losses[-1],
        "first_epoch_loss": fitted.losses[0],
        "base_rate_loss": -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)),
        "steps": float(fitted.steps),
        "rows": float(labels.rows),
        "rows_without_label": float(labels.missing),
        "base_rate": rate,
    }


if __name__ == "__main__":
    spec = Path(sys.argv[1])
    with reported_rank(spec.parent, int(os.environ.get("RANK", "0"))):
        main(spec)
