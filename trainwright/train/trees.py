"""Trains trees by XGBoost: rounds are evaluated, saved, stopped and resumed, in step on all processes."""

import hashlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
import xgboost
from numpy.typing import NDArray
from torch import distributed
from xgboost.core import XGBoostError

from trainwright.artifacts import Model
from trainwright.documents import canonical, read_json
from trainwright.errors import DataRefused, Diverged, InternalError, Preempted, TransientError
from trainwright.experiment import ResolvedTraining, Trees
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.serving.columns import to_values
from trainwright.serving.outputs import Outputs
from trainwright.serving.trees import DEVIATION, MEAN, TREES_FILE, Forest, MatrixLayout
from trainwright.storage import AlreadyExists
from trainwright.storage.local import create_file
from trainwright.train.architectures import Target
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.target import class_weights
from trainwright.train.loop import FitResult, StepObserver, StepReport
from trainwright.train.model_folder import ModelDescription
from trainwright.train.process_group import set_step_timeout
from trainwright.train.tree_workers import (
    TreeWorker,
    machines,
    row_losses,
    xgboost_communicator,
    xgboost_labels,
)

if TYPE_CHECKING:
    from trainwright.train.trainers import TrainingRows

_OBJECTIVES = {"binary": "binary:logistic", "multiclass": "multi:softprob", "regression": "reg:squarederror"}
_log = logging.getLogger("trainwright.train")


@dataclass
class BoostingFacts:
    """The state of a training of trees beside the trees.

    ``best`` is the least loss of the watched split, ``best_round`` the rounds after which that was measured
    (all if no split is watched), ``best_fit`` the training loss then, ``looks`` the evaluations since.
    """

    first: float = 0.0
    best: float | None = None
    best_round: int = 0
    best_fit: float = 0.0
    looks: int = 0


@dataclass(frozen=True)
class TrainedTrees:
    """Trained trees: those up to the best round on the watched split, of ``rounds`` that were trained.

    ``comparison`` has the figures of a comparison with another candidate.
    """

    rows: "TrainingRows"
    booster: xgboost.Booster
    rounds: int
    facts: BoostingFacts
    seconds: float
    samples_per_s: float
    config: Mapping[str, Any] = field(default_factory=dict)
    comparison: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Figures for the model's manifest: those that the same training gives again."""
        facts = self.facts
        return {
            "train_loss": facts.best_fit,
            "first_epoch_loss": facts.first,
            "steps": float(self.rounds),
            "rounds_kept": float(self.booster.num_boosted_rounds()),
            **({} if facts.best is None else {"watched_loss": facts.best}),
            **self.rows.metrics,
            **self.comparison,
        }

    @property
    def gains(self) -> dict[str, float]:
        """Share of the total gain of each input column."""
        layout, gains = MatrixLayout.of(self.rows.transforms), defaultdict[str, float](float)
        for name, gain in self.booster.get_score(importance_type="total_gain").items():
            gains[layout.inputs[int(name[1:])]] += float(np.sum(gain))
        whole = sum(gains.values())
        return {name: gain / whole for name, gain in gains.items()} if whole else {}

    @property
    def result(self) -> FitResult:
        """The result of the fit, as for any training."""
        facts = self.facts
        return FitResult(
            (facts.first, facts.best_fit),
            self.rounds,
            self.seconds,
            self.samples_per_s,
            best_step=facts.best_round,
            watched_loss=facts.best,
            importance=self.gains,
        )

    def losses(self, batch: Batch) -> NDArray[np.float64]:
        """Return the loss of each row of a batch, shape (rows,); see :func:`row_losses`."""
        forest = Forest(self.booster, MatrixLayout.of(self.rows.transforms))
        target, (numeric, categories) = self.rows.target, (part.numpy() for part in batch.inputs)
        return row_losses(forest.margins(numeric, categories), xgboost_labels(batch, target), target.kind)

    def predict(self, rows: pa.RecordBatch) -> NDArray[np.float64]:
        """Score raw rows."""
        transforms = self.rows.transforms
        encoded = transforms.encode(to_values(rows, transforms.inputs))
        return Forest(self.booster, MatrixLayout.of(transforms)).score(encoded.numeric, encoded.categories)

    def with_comparison(self, metrics: Mapping[str, float]) -> Self:
        """Return these trees with the figures of a comparison for the model's manifest."""
        return replace(self, comparison=metrics)

    def write(self, folder: Path, outputs: Outputs) -> Model:
        """Write the model's folder and return its manifest, which is written last."""
        folder.mkdir(parents=True)
        (folder / TREES_FILE).write_bytes(self.booster.save_raw("ubj"))
        rows, layout = self.rows, MatrixLayout.of(self.rows.transforms)
        kinds = {"q": "number", "c": "category"}
        columns = [
            {"name": name, "type": kinds[kind]} for name, kind in zip(layout.names, layout.types, strict=True)
        ]
        matrix = {"name": "matrix", "type": "float32", "shape": ["rows", len(columns)], "columns": columns}
        shape = ["rows"] if len(outputs.columns) == 1 else ["rows", len(outputs.columns)]
        program = {"inputs": [matrix], "outputs": [{"name": "score", "type": "float32", "shape": shape}]}
        return ModelDescription(
            rows.source, rows.transforms, outputs, self.config, self.metrics, self.gains
        ).write(folder, program)


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
        TransientError: Another machine was lost.
    """
    return _Boosting(rows, network, observers, stop_requested, pulse).run(config or {})


class _Boosting:
    """A training of trees."""

    def __init__(
        self,
        rows: "TrainingRows",
        network: Trees,
        observers: Sequence[StepObserver],
        stop_requested: Callable[[], bool],
        pulse: Heartbeat | None,
    ) -> None:
        self._rows, self._network, self._observers = rows, network, observers
        self._stop_requested, self._pulse = stop_requested, pulse
        self._ranks, self._stopping = rows.ranks, rows.training.guards.early_stopping
        self._saves = rows.training.checkpoints
        self._checkpoints = TreeCheckpoints(rows.job_directory / "checkpoints", self._saves.keep)
        self._saved_at = time.monotonic()

    def run(self, config: Mapping[str, Any]) -> TrainedTrees:
        """Train the trees; all processes call this together."""
        ranks, rows, watched = self._ranks, self._rows.rows, self._rows.watched()
        fewest = min(len(split) for split in (rows, watched) if split is not None)
        if fewest < machines(ranks):
            raise DataRefused(f"{fewest} rows cannot be shared by {machines(ranks)} machines")
        shared: list[Any] = [self._checkpoints.newest() if ranks.leads else None]
        distributed.broadcast_object_list(shared)
        rounds, facts, trees = shared[0] or (0, BoostingFacts(), None)
        first, started, worker = rounds, time.monotonic(), None
        with xgboost_communicator(ranks, self._rows.training.guards.collective_s):
            if ranks.local_rank == 0:
                # The threads of all processes of this machine; the trees do not depend on their number.
                threads = max(1, ranks.local_size * torch.get_num_threads())
                parameters = xgboost_parameters(
                    self._network, self._rows.training, self._rows.target, threads
                )
                with self._translated_errors("reading the rows"):
                    worker = TreeWorker(parameters, self._rows, watched, trees)
            while rounds < self._network.rounds and not self._patience_used_up(facts):
                if worker:
                    with self._translated_errors(f"training round {rounds + 1:,}"):
                        worker.boost(rounds)
                rounds += 1
                self._end_round(rounds, facts, worker)
                set_step_timeout(ranks)
        seconds = time.monotonic() - started
        speed = len(rows) * (rounds - first) / max(seconds, 1e-9)
        return TrainedTrees(
            self._rows, self._best_trees(worker, facts), rounds, facts, seconds, speed, config
        )

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        """Tell a lost machine from an error of this one: XGBoost reports both alike."""
        try:
            yield
        except XGBoostError as error:
            message = str(error).strip().partition("\n")[0]
            if machines(self._ranks) == 1:
                raise InternalError(f"XGBoost failed while {what}: {message}") from error
            raise TransientError(
                f"XGBoost failed while {what}: {message}",
                where=f"rank {self._ranks.rank} of {self._ranks.size}",
                hint="Mostly another machine was lost; the training resumes from the last saved round.",
            ) from error

    def _end_round(self, rounds: int, facts: BoostingFacts, worker: TreeWorker | None) -> None:
        """Evaluate, check and report a round, save it if that is due, and stop after a stop signal."""
        sums = worker.losses() if worker else [0.0] * 4
        sum_of_all = torch.tensor([*sums, float(self._stop_requested())], dtype=torch.float64)
        distributed.all_reduce(sum_of_all)
        loss, weight, watched, watched_weight, stop = sum_of_all.tolist()
        loss, watched = loss / weight, watched / watched_weight if watched_weight else None
        if not math.isfinite(loss) or (watched is not None and not math.isfinite(watched)):
            raise Diverged(
                f"the loss is not finite after round {rounds:,}: {loss:g}",
                where="network.learning_rate",
                hint="Lower it, or raise network.penalty; if that does not help, look for extreme labels.",
            )
        if self._update_facts(facts, rounds, loss, watched) and watched is not None:
            for observer in self._observers:
                if note := getattr(observer, "note", None):
                    note(rounds, watched_loss=watched)
        total, rate = self._network.rounds, self._network.learning_rate
        report = StepReport(rounds, total, rounds, loss, 0.0, rate, rounds * len(self._rows.rows), "round")
        for observer in self._observers:
            observer.on_step(report)
        if self._pulse:
            self._pulse.beat(rounds)
        ends = rounds == total or self._patience_used_up(facts)
        every, since_s = self._saves.every_steps, time.monotonic() - self._saved_at
        due = stop or ends or (rounds % every == 0 if every else since_s >= self._saves.every_s)
        if worker and self._ranks.leads and due:
            self._checkpoints.save(rounds, worker.trees, facts)
            self._saved_at = time.monotonic()
        if stop and not ends:
            distributed.barrier()  # no process exits before the trees are saved
            raise Preempted(f"stopped after round {rounds:,} of {total:,}, which is saved")

    def _update_facts(self, facts: BoostingFacts, rounds: int, loss: float, watched: float | None) -> bool:
        """Update the facts; return whether the watched split was due."""
        facts.first = facts.first if rounds > 1 else loss
        if watched is None or self._stopping is None:
            facts.best_round, facts.best_fit = rounds, loss
            return False
        if rounds % (self._stopping.every_steps or 1) and rounds != self._network.rounds:
            return False
        if facts.best is None or watched < facts.best - self._stopping.min_gain:
            facts.best, facts.best_round, facts.best_fit, facts.looks = watched, rounds, loss, 0
        else:
            facts.looks += 1
        return True

    def _patience_used_up(self, facts: BoostingFacts) -> bool:
        return self._stopping is not None and facts.looks >= self._stopping.patience

    def _best_trees(self, worker: TreeWorker | None, facts: BoostingFacts) -> xgboost.Booster:
        """Return the trees up to the best round, on all processes."""
        shared: list[Any] = [None]
        if worker and self._ranks.leads:
            booster = worker.booster[: facts.best_round]
            if self._rows.target.kind == "regression":
                mean, deviation = self._rows.target.rates
                booster.set_attr(**{MEAN: repr(mean), DEVIATION: repr(deviation)})
            shared = [bytes(booster.save_raw("ubj"))]
        distributed.broadcast_object_list(shared)
        return xgboost.Booster(model_file=bytearray(shared[0]))


def xgboost_parameters(
    network: Trees, training: ResolvedTraining, target: Target, threads: int
) -> dict[str, Any]:
    """Return XGBoost's parameters for a training.

    The seed of every round is a function of the seed and the round, so that a resumed training draws the same
    rows and columns.
    """
    base: float | list[float] = 0.0  # the prediction without trees: the weighted base rate, or the mean
    if target.kind != "regression":
        rates = np.array(target.rates) * np.array(class_weights(target, training.objective) or 1.0)
        base = float(rates[1]) if target.kind == "binary" else [math.log(rate) for rate in rates]
    parameters = {
        "objective": _OBJECTIVES[target.kind],
        "tree_method": "hist",
        "max_depth": network.depth,
        "learning_rate": network.learning_rate,
        "subsample": network.subsample,
        "colsample_bytree": network.columns,
        "min_child_weight": network.min_child_weight,
        "reg_lambda": network.penalty,
        "max_bin": network.bins,
        "base_score": base,
        "seed": training.seed,
        "seed_per_iteration": True,
        "nthread": threads,
        "validate_parameters": True,
    }
    return parameters | ({"num_class": len(target.rates)} if target.kind == "multiclass" else {})


class TreeCheckpoints:
    """The saved trees of one training: files ``trees-00000100.saved``, each complete or not there.

    A file is a line with the SHA-256 of the rest, a line of JSON, and the trees. Every attempt at a training
    grows the same trees, so two that save the same round save the same bytes, and no fencing is needed.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def save(self, rounds: int, trees: bytes, facts: BoostingFacts) -> None:
        """Save trees durably, and remove old ones."""
        header = {"rounds": rounds, "facts": asdict(facts), "xgboost": xgboost.__version__}
        content = canonical(header).encode() + b"\n" + trees
        path = self._folder / f"trees-{rounds:08}.saved"
        if path.exists() and not self._read(path):
            path.unlink()
        with suppress(AlreadyExists), create_file(path) as stream:  # another attempt may have saved the same
            stream.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        for old in self._newest_first()[self._keep :]:
            old.unlink(missing_ok=True)

    def newest(self) -> tuple[int, BoostingFacts, bytes] | None:
        """Return rounds, facts and trees of the newest file that verifies."""
        return next((found for path in self._newest_first() if (found := self._read(path))), None)

    def _newest_first(self) -> list[Path]:
        return sorted(self._folder.glob("trees-*.saved"), reverse=True)

    @staticmethod
    def _read(path: Path) -> tuple[int, BoostingFacts, bytes] | None:
        try:
            digest, _, content = path.read_bytes().partition(b"\n")
        except OSError as error:
            _log.warning("%s is skipped: %s", path.name, error)
            return None
        if hashlib.sha256(content).hexdigest().encode() != digest:
            _log.warning("%s is skipped: its SHA-256 differs", path.name)
            return None
        first, _, trees = content.partition(b"\n")
        header = read_json(first)
        if header["xgboost"] != xgboost.__version__:
            _log.warning("%s is skipped: it is of XGBoost %s", path.name, header["xgboost"])
            return None
        return header["rounds"], BoostingFacts(**header["facts"]), trees
