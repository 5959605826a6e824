"""What each process of a training job runs: ``python -m trainwright.train SPEC.json``, under torchrun."""

import os
import shutil
import sys
from pathlib import Path

from trainwright.artifacts import Model, Record, Snapshot
from trainwright.experiment import LanguageModel, Training, read_network
from trainwright.launch.agent.rank_errors import reported_rank
from trainwright.launch.job import Completion
from trainwright.tracking import Stopwatch
from trainwright.tracking.history import HISTORY_FILE as HISTORY
from trainwright.tracking.history import TrackingDestination
from trainwright.train.curves import Curves
from trainwright.train.given import Finished, Given
from trainwright.train.group import Group, joined
from trainwright.train.on_rows import train_on_rows
from trainwright.train.on_tokens import train_on_tokens
from trainwright.train.parallel import settle_arithmetic
from trainwright.train.specification import Specification
from trainwright.train.stopping import Stop, leaving_at_once, listening


def main(path: Path, stop: Stop) -> None:
    """Train, and leave the model, the predictions and the completion marker beside the specification."""
    watch = Stopwatch()
    specification = Specification.read(path)
    network = read_network(specification.network)
    training = Training.check(specification.training, "training")
    snapshot = Snapshot.open(Path(specification.training_set), specification.data_version)
    settle_arithmetic()
    with (
        joined(specification.gpus, training.guards.collective_s) as group,
        _curves(specification, training, group, path.parent) as curves,
    ):
        given = Given(specification, network, training, snapshot, path.parent, group, curves, stop)
        finished = _train(given)
        stop.finish()
    if group.leads:
        _leave(given, finished, watch)


def _train(given: Given) -> Finished:
    if isinstance(given.network, LanguageModel):
        return train_on_tokens(given, given.network)
    return train_on_rows(given, given.network)


def _leave(given: Given, finished: Finished, watch: Stopwatch) -> None:
    """Write all that others read; the completion marker last."""
    folder, specification = given.folder, given.specification
    _clear(folder)
    model, scored = finished.write(folder / "model", folder / "predictions")
    headline = _headline(finished, given)
    given.curves.draw(headline, _facts(model, given))
    watch.record(
        folder / "model",
        "train",
        headline,
        config={**given.config, "launched_by": specification.launched_by},
        inputs={"training_set": specification.data_version},
        outputs=_digests(model, scored),
        parents=[given.training_set],
    )
    shutil.copyfile(given.home / HISTORY, folder / "model" / HISTORY)
    # The predictions are another step's input: their record leads that step back to the data.
    shutil.copyfile(folder / "model" / Record.FILE, folder / "predictions" / Record.FILE)
    Completion(attempt=specification.attempt, outputs=_digests(model, scored)).write(folder)


def _clear(folder: Path) -> None:
    """Remove what an earlier round that was lost while it wrote has left, the marker first."""
    (folder / Completion.FILE).unlink(missing_ok=True)
    for place in ("model", "predictions"):
        shutil.rmtree(folder / place, ignore_errors=True)


def _digests(model: Model, scored: Snapshot) -> dict[str, str]:
    return {"model": model.digest, "predictions": scored.digest}


def _facts(model: Model, given: Given) -> list[tuple[str, object]]:
    metrics = model.metrics
    return [
        ("model", model.digest[:12]),
        ("data", given.specification.data_version[:12]),
        ("kind", model.kind),
        ("processes", given.group.size),
        ("rows", f"{metrics['rows']:,.0f}"),
        ("loss of the last epoch", f"{metrics['train_loss']:.4f}"),
        ("loss of knowing nothing", f"{metrics['base_rate_loss']:.4f}"),
    ]


def _headline(finished: Finished, given: Given) -> str:
    fitted = finished.fitted
    unit = "sequences" if isinstance(given.network, LanguageModel) else "rows"
    return f"loss {fitted.losses[-1]:.4f} after {fitted.steps:,} steps, {fitted.samples_per_s:,.0f} {unit}/s"


def _curves(specification: Specification, training: Training, group: Group, folder: Path) -> Curves:
    destination = TrackingDestination(**specification.destination) if specification.destination else None
    return Curves(
        folder,
        Path(specification.home),
        training.tracking,
        destination,
        leads=group.leads,
        gpus=specification.gpus,
        world=group.size if specification.gpus else 0,
        keep=specification.failed_report,
    )


if __name__ == "__main__":
    spec = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", "0"))
    with leaving_at_once(), reported_rank(spec.parent, rank), listening() as told:
        main(spec, told)
