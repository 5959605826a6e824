"""Gradient-boosted trees, by XGBoost: trained here, read and scored by :mod:`trainwright.serving.trees`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import Model
from trainwright.experiment import Trees
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.serving.columns import to_values
from trainwright.serving.outputs import Outputs
from trainwright.serving.trees import TREES_FILE, Forest, MatrixLayout
from trainwright.train.loop import FitResult, StepObserver
from trainwright.train.model_folder import RowModelDescription
from trainwright.train.trees.boosting import BoostedTrees, Boosting, TreeCheckpoints

if TYPE_CHECKING:
    from trainwright.train.trainers import TrainingRows


@dataclass(frozen=True)
class TrainedTrees:
    """Trained trees.

    Attributes:
        rows: The training split.
        grown: The trees.
        config: Configuration of the training.
    """

    rows: "TrainingRows"
    grown: BoostedTrees
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Figures for the model's manifest: those that the same training gives again."""
        facts = self.grown.facts
        return {
            "train_loss": facts.best_fit,
            "first_epoch_loss": facts.first,
            "steps": float(self.grown.rounds),
            "rounds_kept": float(self.grown.booster.num_boosted_rounds()),
            **({} if facts.best is None else {"watched_loss": facts.best}),
            **self.rows.metrics,
        }

    @property
    def gains(self) -> dict[str, float]:
        """Share of the total gain of each column."""
        layout = MatrixLayout.of(self.rows.transforms)
        found = self.grown.booster.get_score(importance_type="total_gain")
        gains = {layout.names[int(name[1:])]: float(np.sum(gain)) for name, gain in found.items()}
        whole = sum(gains.values())
        return {name: gain / whole for name, gain in gains.items()} if whole else {}

    @property
    def outputs(self) -> Outputs:
        """Outputs of the trees, without a threshold."""
        return self.rows.outputs

    @property
    def result(self) -> FitResult:
        """The result of the fit, as for any training."""
        grown, facts = self.grown, self.grown.facts
        return FitResult(
            (facts.first, facts.best_fit),
            grown.rounds,
            grown.seconds,
            grown.samples_per_s,
            best_step=facts.best_round,
            watched_loss=facts.best,
        )

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        """Score raw rows."""
        transforms = self.rows.transforms
        encoded = transforms.encode(to_values(rows, transforms.inputs))
        forest = Forest(self.grown.booster, MatrixLayout.of(transforms))
        return forest.score(encoded.numeric, encoded.categories)

    def write(self, folder: Path, outputs: Outputs) -> Model:
        """Write the model's folder and return its manifest, which is written last."""
        folder.mkdir(parents=True)
        (folder / TREES_FILE).write_bytes(self.grown.booster.save_raw("ubj"))
        rows = self.rows
        description = RowModelDescription(
            rows.source, rows.transforms, outputs, self.config, self.metrics, self.gains
        )
        return description.write(folder, _program(MatrixLayout.of(rows.transforms), outputs))


def _program(layout: MatrixLayout, outputs: Outputs) -> dict[str, Any]:
    """Describe the matrix that the trees read, column by column, and their scores."""
    kinds = {"q": "number", "c": "category"}
    columns = [
        {"name": name, "type": kinds[kind]} for name, kind in zip(layout.names, layout.types, strict=True)
    ]
    shape = ["rows"] if len(outputs.columns) == 1 else ["rows", len(outputs.columns)]
    return {
        "inputs": [
            {"name": "matrix", "type": "float32", "shape": ["rows", len(columns)], "columns": columns}
        ],
        "outputs": [{"name": "score", "type": "float32", "shape": shape}],
    }


def train_trees(
    rows: "TrainingRows",
    network: Trees,
    observers: Sequence[StepObserver] = (),
    stop_requested: Callable[[], bool] = lambda: False,
    *,
    config: Mapping[str, Any] | None = None,
    pulse: Heartbeat | None = None,
) -> TrainedTrees:
    """Train trees on rows; all processes call this together, and all get the same trees.

    Args:
        rows: The training split.
        network: Settings of the trees.
        observers: Receive a report of every round.
        stop_requested: Returns whether this process received a stop signal.
        config: Configuration for the model's manifest.
        pulse: The heartbeat that shows progress to this machine's agent.

    Raises:
        DataRefused: There are fewer rows than machines.
        Diverged: A loss is not finite.
        Preempted: A process received a stop signal; the trees are saved.
    """
    training = rows.training
    grown = Boosting(
        network,
        training,
        rows.target,
        MatrixLayout.of(rows.transforms),
        rows.rows,
        rows.ranks,
        TreeCheckpoints(rows.job_directory / "checkpoints", training.checkpoints.keep),
        rows.watched(),
        observers,
        stop_requested,
        pulse,
    ).run()
    return TrainedTrees(rows, grown, config or {})
