"""What one process of a training has in hand, from its first line to its last."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainwright.artifacts import Model, Snapshot
from trainwright.experiment import Network, Training
from trainwright.train.curves import Curves
from trainwright.train.group import Group
from trainwright.train.loop import Fitted
from trainwright.train.specification import Specification
from trainwright.train.stopping import Stop

_WHERE: dict[str, bool | set[str]] = {
    "tracking": True,
    "checkpoints": True,
    "feeding": {"cache", "cache_gib", "prefetch"},
}
"""Settings that say where things lie or how fast they come: no part of what a model is."""


@dataclass(frozen=True)
class Given:
    """A training, as one process sees it.

    Attributes:
        specification: What every process was told.
        network: Which model.
        training: How it is fitted.
        snapshot: Manifest of the training set.
        folder: The attempt's folder.
        group: The processes.
        curves: Takes note of the steps.
        stop: Knows whether this process was told to stop.
    """

    specification: Specification
    network: Network
    training: Training
    snapshot: Snapshot
    folder: Path
    group: Group
    curves: Curves
    stop: Stop

    @property
    def training_set(self) -> Path:
        """Folder of the training set."""
        return Path(self.specification.training_set)

    @property
    def home(self) -> Path:
        """Folder that all attempts at this training share."""
        return Path(self.specification.home)

    @property
    def config(self) -> dict[str, Any]:
        """What was asked for, as the model says it."""
        return {
            "network": self.network.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json", exclude=_WHERE),
            "processes": self.group.size,
        }


class Finished(Protocol):
    """A training that has ended well, and what is left to write."""

    @property
    def fitted(self) -> Fitted:
        """How it went."""
        ...

    def write(self, model: Path, predictions: Path) -> tuple[Model, Snapshot]:
        """Write the model's folder, and the scores of the splits that are kept for evaluation.

        Raises:
            DataRefused: There is nothing to be scored.
            Diverged: A score is not finite.
        """
        ...


def figures(fitted: Fitted) -> dict[str, float]:
    """Return the figures of a fit that belong to the model: those that the same training gives again."""
    return {
        "train_loss": fitted.losses[-1],
        "first_epoch_loss": fitted.losses[0],
        "steps": float(fitted.steps),
        "batches_left_out": float(len(fitted.left_out)),
        **(
            {}
            if fitted.watched_loss is None
            else {"watched_loss": fitted.watched_loss, "best_step": float(fitted.best_step)}
        ),
    }
