"""Boosting rounds: evaluated, saved, stopped and resumed, in step on all processes."""

import hashlib
import logging
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import xgboost
from torch import distributed
from xgboost.core import XGBoostError

from trainwright.documents import Document
from trainwright.errors import DataRefused, Diverged, InputError, InternalError, Preempted, TransientError
from trainwright.experiment import Training, Trees
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.serving.trees import DEVIATION, MEAN, MatrixLayout
from trainwright.train.architectures import Target
from trainwright.train.feeding.loader import SampleSource
from trainwright.train.feeding.target import class_weights
from trainwright.train.loop import StepObserver, StepReport
from trainwright.train.process_group import Ranks, set_step_timeout
from trainwright.train.trees.workers import (
    TreeWorker,
    machines,
    row_share,
    threads,
    xgboost_communicator,
)

_OBJECTIVES = {"binary": "binary:logistic", "multiclass": "multi:softprob", "regression": "reg:squarederror"}
_FILE = "trees.ubj"
_NAME = re.compile(r"trees-(\d{8})")
_log = logging.getLogger("trainwright.train")


@dataclass
class BoostingFacts:
    """The state of a training of trees beside the trees.

    Attributes:
        first: Mean loss after the first round.
        last: Mean loss after the last round.
        best: Least loss of the watched split.
        best_round: Rounds after which that was measured; all if no split is watched.
        best_fit: Mean loss of the training rows then.
        looks: Evaluations since then.
    """

    first: float = 0.0
    last: float = 0.0
    best: float | None = None
    best_round: int = 0
    best_fit: float = 0.0
    looks: int = 0


@dataclass(frozen=True)
class BoostedTrees:
    """The result of boosting.

    Attributes:
        booster: The trees up to the best round on the watched split.
        rounds: Rounds that were trained.
        facts: Losses.
        seconds: Duration.
        samples_per_s: Rows times rounds per second.
    """

    booster: xgboost.Booster
    rounds: int
    facts: BoostingFacts
    seconds: float
    samples_per_s: float


@dataclass(frozen=True)
class _Round:
    """Figures of a round, over all machines."""

    loss: float
    watched: float | None
    stop: bool


@dataclass
class Boosting:
    """A training of trees, ready to run.

    Attributes:
        network: Settings of the trees.
        training: Objective, guards, checkpoints and seed; steps and epochs do not apply.
        target: The target.
        layout: Maps encoded rows to columns.
        rows: The training split.
        ranks: The processes.
        checkpoints: Saves the trees.
        watched: The split for early stopping; None without.
        observers: Receive a report of every round.
        stop_requested: Returns whether this process received a stop signal.
        pulse: The heartbeat that shows progress to this machine's agent.
    """

    network: Trees
    training: Training
    target: Target
    layout: MatrixLayout
    rows: SampleSource
    ranks: Ranks
    checkpoints: "TreeCheckpoints"
    watched: SampleSource | None = None
    observers: Sequence[StepObserver] = ()
    stop_requested: Callable[[], bool] = lambda: False
    pulse: Heartbeat | None = None
    _saved_at: float = field(default_factory=time.monotonic)

    def run(self) -> BoostedTrees:
        """Train the trees; all processes call this together.

        Raises:
            DataRefused: There are fewer rows than machines.
            Diverged: A loss is not finite.
            Preempted: A process received a stop signal; the trees are saved.
            TransientError: Another machine was lost.
        """
        fewest = min(len(split) for split in (self.rows, self.watched) if split is not None)
        if fewest < machines(self.ranks):
            raise DataRefused(f"{fewest} rows cannot be shared by {machines(self.ranks)} machines")
        shared: list[Any] = [self.checkpoints.newest() if self.ranks.leads else None]
        distributed.broadcast_object_list(shared)
        saved: tuple[SavedTrees, bytes] | None = shared[0]
        facts = BoostingFacts(**saved[0].facts) if saved else BoostingFacts()
        first = rounds = saved[0].rounds if saved else 0
        started = time.monotonic()
        with xgboost_communicator(self.ranks, self.training.guards.collective_s):
            worker = self._worker(saved[1] if saved else None)
            while rounds < self.network.rounds and not self._patience_used_up(facts):
                if worker:
                    with self._translated_errors(f"training round {rounds + 1:,}"):
                        worker.boost(rounds)
                rounds += 1
                self._end_round(self._evaluate(worker), rounds, facts, worker)
                set_step_timeout(self.ranks)
        seconds = time.monotonic() - started
        speed = len(self.rows) * (rounds - first) / max(seconds, 1e-9)
        return BoostedTrees(self._best_trees(worker, facts), rounds, facts, seconds, speed)

    def _worker(self, trees: bytes | None) -> TreeWorker | None:
        if self.ranks.local_rank:
            return None
        parameters = xgboost_parameters(self.network, self.training, self.target, threads(self.ranks))
        rows = self.rows, row_share(len(self.rows), self.ranks)
        watched = (
            (self.watched, row_share(len(self.watched), self.ranks)) if self.watched is not None else None
        )
        with self._translated_errors("reading the rows"):
            return TreeWorker(parameters, self.target, self.layout, rows, watched, trees)

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        """Tell a lost machine from an error of this one: XGBoost reports both alike."""
        try:
            yield
        except XGBoostError as error:
            message = str(error).strip().partition("\n")[0]
            if machines(self.ranks) == 1:
                raise InternalError(f"XGBoost failed while {what}: {message}") from error
            raise TransientError(
                f"XGBoost failed while {what}: {message}",
                where=f"rank {self.ranks.rank} of {self.ranks.size}",
                hint="Mostly another machine was lost; the training resumes from the last saved round.",
            ) from error

    def _evaluate(self, worker: TreeWorker | None) -> _Round:
        """Sum the losses of all machines."""
        sums = [*worker.training_loss(), *worker.watched_loss()] if worker else [0.0] * 4
        total = torch.tensor([*sums, float(self.stop_requested())], dtype=torch.float64)
        distributed.all_reduce(total)
        loss, weight, watched, watched_weight, stop = total.tolist()
        return _Round(loss / weight, watched / watched_weight if watched_weight else None, stop > 0)

    def _end_round(self, found: _Round, rounds: int, facts: BoostingFacts, worker: TreeWorker | None) -> None:
        """Check and report a round, save it if that is due, and stop after a stop signal."""
        if not math.isfinite(found.loss) or (found.watched is not None and not math.isfinite(found.watched)):
            raise Diverged(
                f"the loss is not finite after round {rounds:,}: {found.loss:g}",
                where="network.learning_rate",
                hint="Lower it, or raise network.penalty; if that does not help, look for extreme labels.",
            )
        self._update_facts(found, rounds, facts)
        total, rate = self.network.rounds, self.network.learning_rate
        report = StepReport(rounds, total, rounds, found.loss, 0.0, rate, rounds * len(self.rows))
        for observer in self.observers:
            observer.on_step(report)
        if self.pulse:
            self.pulse.beat(rounds)
        stopped = found.stop and rounds < total and not self._patience_used_up(facts)
        if worker and self.ranks.leads and (stopped or self._save_due(rounds, facts)):
            self.checkpoints.save(rounds, worker.trees, asdict(facts))
            self._saved_at = time.monotonic()
        if stopped:
            distributed.barrier()  # no process exits before the trees are saved
            raise Preempted(f"stopped after round {rounds:,} of {total:,}, which is saved")

    def _update_facts(self, found: _Round, rounds: int, facts: BoostingFacts) -> None:
        facts.first = facts.first if rounds > 1 else found.loss
        facts.last = found.loss
        stopping = self.training.guards.early_stopping
        if found.watched is None or stopping is None:
            facts.best_round, facts.best_fit = rounds, found.loss
            return
        if rounds % (stopping.every_steps or 1) and rounds != self.network.rounds:
            return
        if facts.best is None or found.watched < facts.best - stopping.min_gain:
            facts.best, facts.best_round, facts.best_fit, facts.looks = found.watched, rounds, found.loss, 0
        else:
            facts.looks += 1

    def _patience_used_up(self, facts: BoostingFacts) -> bool:
        stopping = self.training.guards.early_stopping
        return stopping is not None and facts.looks >= stopping.patience

    def _save_due(self, rounds: int, facts: BoostingFacts) -> bool:
        if rounds == self.network.rounds or self._patience_used_up(facts):
            return True
        every, every_s = self.training.checkpoints.every_steps, self.training.checkpoints.every_s
        return rounds % every == 0 if every else time.monotonic() - self._saved_at >= every_s

    def _best_trees(self, worker: TreeWorker | None, facts: BoostingFacts) -> xgboost.Booster:
        """Return the trees up to the best round, on all processes."""
        shared: list[Any] = [None]
        if worker and self.ranks.leads:
            booster = worker.booster[: facts.best_round]
            if self.target.kind == "regression":
                mean, deviation = self.target.rates
                booster.set_attr(**{MEAN: repr(mean), DEVIATION: repr(deviation)})
            shared = [bytes(booster.save_raw("ubj"))]
        distributed.broadcast_object_list(shared)
        return xgboost.Booster(model_file=bytearray(shared[0]))


def xgboost_parameters(network: Trees, training: Training, target: Target, threads: int) -> dict[str, Any]:
    """Return XGBoost's parameters for a training.

    The seed of every round is a function of the seed and the round, so that a resumed training draws the same
    rows and columns.
    """
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
        "base_score": _base_score(target, training),
        "seed": training.seed,
        "seed_per_iteration": True,
        "nthread": threads,
        "validate_parameters": True,
    }
    return parameters | ({"num_class": len(target.rates)} if target.kind == "multiclass" else {})


def _base_score(target: Target, training: Training) -> float | list[float]:
    """Return the prediction without trees: the weighted base rate, or the mean."""
    if target.kind == "regression":
        return 0.0
    weights = class_weights(target, training.objective)
    rates = np.array(target.rates) * np.array(weights or 1.0)
    if target.kind == "binary":
        return float(rates[1])
    return [math.log(rate) for rate in rates]


@dataclass(frozen=True, kw_only=True)
class SavedTrees(Document):
    """The manifest of saved trees.

    Attributes:
        rounds: Rounds that were trained.
        sha256: Digest of the file of the trees.
        facts: The state of the training beside the trees, as plain JSON data.
        xgboost: The version that trained them; another one does not resume them.
    """

    FILE: ClassVar[str] = "manifest.json"
    rounds: int
    sha256: str
    facts: dict[str, Any] = field(default_factory=dict)
    xgboost: str = xgboost.__version__


class TreeCheckpoints:
    """The saved trees of one training, each in a folder that appears atomically.

    Every attempt at a training grows the same trees, so two that save the same round save the same bytes, and
    no fencing is needed.

    Args:
        folder: Their folder, shared by all attempts.
        keep: Newest ones that stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def save(self, rounds: int, trees: bytes, facts: dict[str, Any]) -> None:
        """Save trees durably, and remove old ones."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".trees-", dir=self._folder))
        with (fresh / _FILE).open("wb") as stream:
            stream.write(trees)
            stream.flush()
            os.fsync(stream.fileno())
        digest = hashlib.sha256(trees).hexdigest()
        SavedTrees(rounds=rounds, sha256=digest, facts=facts).write(fresh / SavedTrees.FILE)
        target = self._folder / f"trees-{rounds:08}"
        if target.exists() and _verified(target):
            shutil.rmtree(fresh)  # another attempt has saved the same
        else:
            shutil.rmtree(target, ignore_errors=True)
            fresh.replace(target)
        for old in self._newest_first()[self._keep :]:
            shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> tuple[SavedTrees, bytes] | None:
        """Return the newest saved trees that verify."""
        return next((found for folder in self._newest_first() if (found := _verified(folder))), None)

    def _newest_first(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted((path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)


def _verified(folder: Path) -> tuple[SavedTrees, bytes] | None:
    """Return saved trees, if their digest holds and this XGBoost can resume them."""
    try:
        saved, trees = SavedTrees.read(folder), (folder / _FILE).read_bytes()
    except (InputError, OSError) as error:
        _log.warning("%s is skipped: %s", folder.name, error)
        return None
    if hashlib.sha256(trees).hexdigest() != saved.sha256:
        _log.warning("%s is skipped: its SHA-256 differs", folder.name)
        return None
    if saved.xgboost != xgboost.__version__:
        _log.warning("%s is skipped: it is of XGBoost %s", folder.name, saved.xgboost)
        return None
    return saved, trees
