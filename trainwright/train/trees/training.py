"""A training of trees from its rows to its folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.experiment import Trees
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.serving.columns import to_values
from trainwright.serving.outputs import Outputs
from trainwright.serving.trees import TREES_FILE, Forest, MatrixLayout
from trainwright.train.description import Description
from trainwright.train.loop import Fitted, Step, Watcher
from trainwright.train.prepared import Prepared
from trainwright.train.trees.growing import Forested, Growth
from trainwright.train.trees.kept import Kept


@dataclass(frozen=True)
class TrainedTrees:
    """Trees that were grown, and all that their folder is made from.

    Attributes:
        prepared: What they were grown on.
        grown: The trees.
        config: What was asked of the training.
    """

    prepared: Prepared
    grown: Forested
    config: Mapping[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        """The figures that belong to the model: those that the same training gives again."""
        facts = self.grown.facts
        return {
            "train_loss": facts.best_fit,
            "first_epoch_loss": facts.first,
            "steps": float(self.grown.rounds),
            "rounds_kept": float(self.grown.booster.num_boosted_rounds()),
            **({} if facts.best is None else {"watched_loss": facts.best}),
            **self.prepared.metrics,
        }

    @property
    def gains(self) -> dict[str, float]:
        """Share of the total gain of each column."""
        layout = MatrixLayout.of(self.prepared.transforms)
        found = self.grown.booster.get_score(importance_type="total_gain")
        gains = {layout.names[int(name[1:])]: float(np.sum(gain)) for name, gain in found.items()}
        whole = sum(gains.values())
        return {name: gain / whole for name, gain in gains.items()} if whole else {}

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        """Score raw rows."""
        transforms = self.prepared.transforms
        encoded = transforms.encode(to_values(rows, transforms.inputs))
        forest = Forest(self.grown.booster, MatrixLayout.of(transforms))
        return forest.score(encoded.numeric, encoded.categories)

    @property
    def outputs(self) -> Outputs:
        """What the trees give, but for a threshold."""
        return self.prepared.outputs

    @property
    def fitted(self) -> Fitted:
        """What the trainer tells of any training."""
        grown, facts = self.grown, self.grown.facts
        return Fitted(
            (facts.first, facts.best_fit),
            grown.rounds,
            grown.seconds,
            grown.samples_per_s,
            best_step=facts.best_round,
            watched_loss=facts.best,
        )

    def write(self, folder: Path, outputs: Outputs) -> Model:
        """Write the model's folder and return its manifest, which is written last."""
        folder.mkdir(parents=True)
        (folder / TREES_FILE).write_bytes(self.grown.booster.save_raw("ubj"))
        prepared = self.prepared
        description = Description(
            prepared.source, prepared.transforms, outputs, self.config, self.metrics, self.gains
        )
        return description.write(folder, _program(MatrixLayout.of(prepared.transforms), outputs))


@dataclass(frozen=True)
class Beating:
    """Shows this machine's agent that the growth gets on."""

    pulse: Heartbeat

    def saw(self, step: Step) -> None:
        """Take note of a round."""
        self.pulse.beat(step.number)


def _program(layout: MatrixLayout, outputs: Outputs) -> dict[str, Any]:
    """Describe the matrix that the trees read, column by column, and what they give."""
    words = {"q": "number", "c": "category"}
    columns = [
        {"name": name, "type": words[kind]} for name, kind in zip(layout.names, layout.types, strict=True)
    ]
    shape = ["rows"] if len(outputs.columns) == 1 else ["rows", len(outputs.columns)]
    return {
        "inputs": [
            {"name": "matrix", "type": "float32", "shape": ["rows", len(columns)], "columns": columns}
        ],
        "outputs": [{"name": "score", "type": "float32", "shape": shape}],
    }


def train_trees(
    prepared: Prepared,
    network: Trees,
    watchers: Sequence[Watcher] = (),
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> TrainedTrees:
    """Grow trees on rows; all processes call this together, and all get the same trees.

    Args:
        prepared: The rows.
        network: How the trees are grown.
        watchers: Are told of every round.
        asked_to_stop: Says whether this process was told to stop.

    Raises:
        DataRefused: There are fewer rows than machines.
        Diverged: A loss is not finite.
        Preempted: A process was told to stop; the trees are saved.
    """
    training = prepared.training
    grown = Growth(
        network,
        training,
        prepared.target,
        MatrixLayout.of(prepared.transforms),
        prepared.rows,
        prepared.group,
        Kept(prepared.home / "checkpoints", training.checkpoints.keep),
        prepared.watched(),
        watchers,
        asked_to_stop,
    ).run()
    config = {
        "network": network.model_dump(mode="json"),
        "training": training.model_dump(mode="json"),
        "processes": prepared.group.size,
    }
    return TrainedTrees(prepared, grown, config)
