"""Growing trees round by round: watched, saved, stopped and taken up again, in step on all processes."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import xgboost
from torch import distributed
from xgboost.core import XGBoostError

from trainwright.errors import DataRefused, Diverged, InternalError, Preempted, TransientError
from trainwright.experiment import Training, Trees
from trainwright.serving.trees import DEVIATION, MEAN, MatrixLayout
from trainwright.train.architectures import Target
from trainwright.train.group import Group, limit_exchanges
from trainwright.train.loop import Step, Watcher
from trainwright.train.samples import Samples
from trainwright.train.trees.kept import Grown, Kept
from trainwright.train.trees.settings import parameters
from trainwright.train.trees.worker import Worker
from trainwright.train.trees.workers import joined_workers, nodes, share, threads


@dataclass
class Facts:
    """What a training must know to go on, beside its trees.

    Attributes:
        first: Mean loss after the first round.
        last: Mean loss after the last.
        best: Least loss of the split that is watched.
        best_round: Rounds after which it was found; all if none is watched.
        best_fit: Mean loss of the training rows then.
        looks: Looks since then.
    """

    first: float = 0.0
    last: float = 0.0
    best: float | None = None
    best_round: int = 0
    best_fit: float = 0.0
    looks: int = 0


@dataclass(frozen=True)
class Forested:
    """Trees that were grown.

    Attributes:
        booster: Those that count: up to the round that was best on the split that was watched.
        rounds: Rounds that were grown.
        facts: What was seen.
        seconds: Duration.
        samples_per_s: Rows times rounds a second.
    """

    booster: xgboost.Booster
    rounds: int
    facts: Facts
    seconds: float
    samples_per_s: float


@dataclass
class _Seen:
    """Figures of a round, over all machines."""

    loss: float
    watched: float | None
    stop: bool


@dataclass
class Growth:
    """A training of trees, ready to run.

    Attributes:
        network: How trees are grown.
        training: Objective, guards, checkpoints and seed; what is said of steps and epochs is not for trees.
        target: What is to be predicted.
        layout: From encoded rows to columns.
        rows: The split that is learned from.
        watched: The split that ends the growth when it does not get better; absent if none is asked for.
        group: The processes.
        kept: Where trees are saved.
        watchers: Are told of every round.
        asked_to_stop: Says whether this process was told to stop.
    """

    network: Trees
    training: Training
    target: Target
    layout: MatrixLayout
    rows: Samples
    group: Group
    kept: Kept
    watched: Samples | None = None
    watchers: Sequence[Watcher] = ()
    asked_to_stop: Callable[[], bool] = lambda: False
    _saved: float = field(default_factory=time.monotonic)

    def run(self) -> Forested:
        """Grow the trees; all processes of the group call this together.

        Raises:
            DataRefused: There are fewer rows than machines.
            Diverged: A loss is not finite.
            Preempted: A process was told to stop; the trees are saved.
            TransientError: Another machine was lost.
        """
        told = parameters(self.network, self.training, self.target, threads(self.group))
        fewest = min(len(split) for split in (self.rows, self.watched) if split is not None)
        if fewest < nodes(self.group):
            raise DataRefused(f"{fewest} rows cannot be shared by {nodes(self.group)} machines")
        found = self._newest()
        facts = Facts(**found[0].facts) if found else Facts()
        begun = rounds = found[0].rounds if found else 0
        start = time.monotonic()
        with joined_workers(self.group, self.training.guards.collective_s):
            worker = self._worker(told, found[1] if found else None)
            while rounds < self.network.rounds and not self._enough(facts):
                if worker:
                    with self._telling(f"growing round {rounds + 1:,}"):
                        worker.grow(rounds)
                rounds += 1
                self._take(self._look(worker), rounds, facts, worker)
                limit_exchanges(self.group)
        seconds = time.monotonic() - start
        speed = len(self.rows) * (rounds - begun) / max(seconds, 1e-9)
        return Forested(self._chosen(worker, facts), rounds, facts, seconds, speed)

    def _newest(self) -> tuple[Grown, bytes] | None:
        """Find what was saved, once for all processes."""
        shared: list[Any] = [self.kept.newest() if self.group.leads else None]
        distributed.broadcast_object_list(shared)
        return shared[0]  # type: ignore[no-any-return]

    def _worker(self, told: dict[str, Any], trees: bytes | None) -> Worker | None:
        if self.group.local_rank:
            return None
        rows = self.rows, share(len(self.rows), self.group)
        watched = (self.watched, share(len(self.watched), self.group)) if self.watched is not None else None
        with self._telling("reading the rows"):
            return Worker(told, self.target, self.layout, rows, watched, trees)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Tell a machine that was lost from what is wrong here: XGBoost says both alike."""
        try:
            yield
        except XGBoostError as error:
            said = str(error).strip().partition("\n")[0]
            if nodes(self.group) == 1:
                raise InternalError(f"XGBoost failed while {what}: {said}") from error
            raise TransientError(
                f"XGBoost failed while {what}: {said}",
                where=f"rank {self.group.rank} of {self.group.size}",
                hint="Mostly another machine was lost; the training goes on from the last saved round.",
            ) from error

    def _look(self, worker: Worker | None) -> _Seen:
        """Add up what all processes see."""
        sums = [*worker.fit(), *worker.watch()] if worker else [0.0] * 4
        total = torch.tensor([*sums, float(self.asked_to_stop())], dtype=torch.float64)
        distributed.all_reduce(total)
        loss, weight, watched, others, stop = total.tolist()
        return _Seen(loss / weight, watched / others if others else None, stop > 0)

    def _take(self, seen: _Seen, rounds: int, facts: Facts, worker: Worker | None) -> None:
        """Judge a round, tell of it, save it if it is time to, and end if that was asked for."""
        if not math.isfinite(seen.loss) or (seen.watched is not None and not math.isfinite(seen.watched)):
            raise Diverged(
                f"the loss is not finite after round {rounds:,}: {seen.loss:g}",
                where="network.learning_rate",
                hint="Lower it, or raise network.penalty; if that does not help, look for extreme labels.",
            )
        self._note(seen, rounds, facts)
        total, rate = self.network.rounds, self.network.learning_rate
        step = Step(rounds, total, rounds, seen.loss, 0.0, rate, rounds * len(self.rows))
        for watcher in self.watchers:
            watcher.saw(step)
        stopped = seen.stop and rounds < total and not self._enough(facts)
        if worker and self.group.leads and (stopped or self._due(rounds, facts)):
            self.kept.save(rounds, worker.trees, asdict(facts))
            self._saved = time.monotonic()
        if stopped:
            distributed.barrier()  # nobody leaves before the trees are saved
            raise Preempted(f"stopped after round {rounds:,} of {total:,}, which is saved")

    def _note(self, seen: _Seen, rounds: int, facts: Facts) -> None:
        facts.first = facts.first if rounds > 1 else seen.loss
        facts.last = seen.loss
        stopping = self.training.guards.early_stopping
        if seen.watched is None or stopping is None:
            facts.best_round, facts.best_fit = rounds, seen.loss
            return
        if rounds % (stopping.every_steps or 1) and rounds != self.network.rounds:
            return
        if facts.best is None or seen.watched < facts.best - stopping.min_gain:
            facts.best, facts.best_round, facts.best_fit, facts.looks = seen.watched, rounds, seen.loss, 0
        else:
            facts.looks += 1

    def _enough(self, facts: Facts) -> bool:
        stopping = self.training.guards.early_stopping
        return stopping is not None and facts.looks >= stopping.patience

    def _due(self, rounds: int, facts: Facts) -> bool:
        if rounds == self.network.rounds or self._enough(facts):
            return True
        every, every_s = self.training.checkpoints.every_steps, self.training.checkpoints.every_s
        return rounds % every == 0 if every else time.monotonic() - self._saved >= every_s

    def _chosen(self, worker: Worker | None, facts: Facts) -> xgboost.Booster:
        """Return the trees up to the best round; the same on all processes."""
        shared: list[Any] = [None]
        if worker and self.group.leads:
            booster = worker.booster[: facts.best_round]
            if self.target.kind == "regression":
                mean, deviation = self.target.rates
                booster.set_attr(**{MEAN: repr(mean), DEVIATION: repr(deviation)})
            shared = [bytes(booster.save_raw("ubj"))]
        distributed.broadcast_object_list(shared)
        return xgboost.Booster(model_file=bytearray(shared[0]))
