"""The training loop: steps, guards, evaluation and checkpoints, in one order on every process."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trainwright.errors import Preempted
from trainwright.experiment import ResolvedTraining
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.train.checkpoint import Checkpointer
from trainwright.train.checkpoint.state import TrainState
from trainwright.train.comparison import CandidateComparison
from trainwright.train.feeding.loader import Batch, Loader
from trainwright.train.guards import DivergenceGuard, EarlyStop, add_skipped, skipped_batches, write_bad_batch
from trainwright.train.parallel import seed_step
from trainwright.train.process_group import Ranks, set_step_timeout
from trainwright.train.step import Gradients, Stepper

_WARM_UP_STEPS = 2
"""Steps that may take long: the first one compiles, and the second may compile again."""

_UNEVALUATED = "unwatched"
"""Fact: the loss of a saved step after which an evaluation of the watched split is still due."""


@dataclass(frozen=True)
class StepReport:
    """One step of ``total``, and the samples that all processes have seen so far; counts are from 1.

    ``unit`` names what is counted: a ``step``, or a ``round`` of trees.
    """

    number: int
    total: int
    epoch: int
    loss: float
    norm: float
    rate: float
    samples: int
    unit: str = "step"


class StepObserver(Protocol):
    """Receives a report of every step."""

    def on_step(self, step: StepReport) -> None:
        """Handle the report of a step."""


@dataclass(frozen=True)
class FitResult:
    """The result of a training loop.

    Attributes:
        losses: Mean training loss per sample of each epoch.
        samples_per_s: Over all processes.
        skipped: Numbers of the skipped batches since the beginning of the training.
        best_step: Step of the weights that are used.
        watched_loss: Loss of the watched split at that step; None if none is watched.
        importance: Share of the total gain of each input column, for trees.
        comparison: The candidates' losses, if there were several.
    """

    losses: tuple[float, ...]
    steps: int
    seconds: float
    samples_per_s: float
    skipped: tuple[int, ...] = ()
    best_step: int = 0
    watched_loss: float | None = None
    importance: Mapping[str, float] = field(default_factory=dict)
    comparison: CandidateComparison | None = None


@dataclass
class TrainingLoop:
    """A training loop, ready to run; all processes run it together.

    Attributes:
        checkpoints: Saves the state; None saves nothing.
        stop_requested: Returns whether this process received a stop signal.
        evaluate: Returns the loss of the watched split, or None after a stop signal.
        folder: The attempt's folder, for the samples of batches that are not finite.
    """

    stepper: Stepper
    feeder: Loader
    training: ResolvedTraining
    ranks: Ranks
    checkpoints: Checkpointer | None = None
    observers: Sequence[StepObserver] = ()
    stop_requested: Callable[[], bool] = lambda: False
    evaluate: Callable[[], float | None] | None = None
    folder: Path | None = None
    heartbeat: Heartbeat | None = None

    def __post_init__(self) -> None:
        guards = self.training.guards
        self._guard = DivergenceGuard(guards)
        watched = guards.early_stopping
        self._early = EarlyStop(watched, self.feeder.order.batches) if watched and self.evaluate else None

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.training.steps or self.training.epochs * self.feeder.order.batches

    def run(self) -> FitResult:
        """Train the module in place.

        Raises:
            Diverged: The loss diverged; or a loss or gradient is not finite, and no weight was updated by it.
            Preempted: A process received a stop signal; the state is saved.
        """
        state = TrainState(self.stepper.module, self.stepper.optimizer, facts={"sums": []})
        with self._during("resuming"):
            if self.checkpoints:
                self.checkpoints.resume(state)
        self.feeder.begin(state.step, skipped_batches(state.facts))
        first, started = state.step, time.monotonic()
        if (loss := state.facts.get(_UNEVALUATED)) is not None:
            self._end_step(state, loss, stop=False)  # an evaluation that the stop of the last start cut short
        while state.step < self.total and not (self._early and self._early.reached(state.facts)):
            gradients = self._take_step(state)
            if gradients is not None:
                self._end_step(state, gradients.loss, stop=gradients.stop_requested)
            if state.step - first == _WARM_UP_STEPS:
                set_step_timeout(self.ranks, self.stepper.layout.groups)
        return self._result(state, first, time.monotonic() - started)

    def _take_step(self, state: TrainState) -> Gradients | None:
        """Take one step; return None if the guard skipped its batch."""
        order, number = self.feeder.order, state.step
        # Seeded by the number of the step, so that a resumed training draws the same random numbers.
        seed_step(self.training.seed, number, self.stepper.layout.random_stream, self.ranks.device)
        batch = self.feeder.next()
        size, epoch = order.size_at(number), number // order.batches
        rate = learning_rate(number, self.total, self.training)
        self.stepper.scale.resume(state.facts)
        gradients = self.stepper.gradients(batch, size, stop=self.stop_requested())
        if not self._check_health(state, batch, gradients, rate):
            return None
        self.stepper.apply(gradients, rate)
        state.step += 1
        sums = state.facts["sums"]
        sums += [[0.0, 0] for _ in range(epoch + 1 - len(sums))]
        sums[epoch][0] += gradients.loss * size
        sums[epoch][1] += size
        report = StepReport(
            number=state.step,
            total=self.total,
            epoch=epoch + 1,
            loss=gradients.loss,
            norm=gradients.norm,
            rate=rate,
            samples=self._samples(state.step),
        )
        for observer in self.observers:
            observer.on_step(report)
        if self.heartbeat:
            self.heartbeat.beat(state.step)
        return gradients

    def _check_health(self, state: TrainState, batch: Batch, gradients: Gradients, rate: float) -> bool:
        """Judge a step before it is applied; skip its batch, after a rollback if configured, or accept it."""
        order, number = self.feeder.order, state.step
        if self.folder and not gradients.finite:
            write_bad_batch(self.folder, self.ranks.rank, number + 1, batch)
        decision = self._guard.judge(
            state.facts,
            gradients,
            step=number + 1,
            batch=order.position(number),
            epoch=number // order.batches + 1,
            rate=rate,
        )
        if decision.warning and self.ranks.leads:
            sys.stderr.write(f"{decision.warning}\n")
        if decision.action == "apply":
            return True
        skipped = skipped_batches(state.facts)
        if decision.action == "roll_back" and self.checkpoints:
            with self._during("rolling back"):
                self.checkpoints.roll_back(state)
            add_skipped(state.facts, skipped)
        self.feeder.begin(state.step, skipped)
        return False

    def _end_step(self, state: TrainState, loss: float, *, stop: bool) -> None:
        """Evaluate and save after a step if that is due; stop after a stop signal.

        An evaluation that a stop signal cuts short is noted in the saved state: the next start evaluates
        first, and so decides as if nothing had been interrupted.
        """
        reached = self._evaluate(state)
        cut_short = reached is None
        state.facts.pop(_UNEVALUATED, None)
        if cut_short:
            state.facts[_UNEVALUATED] = loss
        ends = reached or state.step == self.total
        with self._during("saving"):
            if self.checkpoints:
                self.checkpoints.after_step(state, loss, last=bool(ends or stop or cut_short))
        if cut_short or (stop and not ends):
            raise Preempted(f"stopped after step {state.step:,} of {self.total:,}, which is saved")

    def _evaluate(self, state: TrainState) -> bool | None:
        """Evaluate the watched split if that is due; return whether to end, None after a stop signal."""
        if self._early is None or self.evaluate is None or not self._early.due(state.step, self.total):
            return False
        with self._during("evaluating"):
            loss = self.evaluate()
        if loss is None:
            return None
        for observer in self.observers:
            if note := getattr(observer, "note", None):
                note(state.step, watched_loss=loss)
        return self._early.judge(state.facts, state.step, loss)

    def _result(self, state: TrainState, first: int, seconds: float) -> FitResult:
        """Describe the training, and load the best state if one was saved."""
        watched, steps = state.facts.get("watched") or {}, state.step
        losses = tuple(total / size for total, size in state.facts["sums"] if size)
        skipped = tuple(sorted(skipped_batches(state.facts)))
        best = int(watched.get("best_step", steps))
        if best < steps:
            with self._during("resuming"):
                keeps = self.training.checkpoints.keep_best and self.checkpoints
                best = best if keeps and keeps.load_best(state) else steps
        return FitResult(
            losses=losses,
            steps=steps,
            seconds=seconds,
            samples_per_s=(self._samples(steps) - self._samples(first)) / max(seconds, 1e-9),
            skipped=skipped,
            best_step=best,
            watched_loss=watched["best_loss" if best < steps else "loss"] if watched else None,
        )

    def _during(self, phase: str) -> AbstractContextManager[None]:
        return self.heartbeat.during(phase) if self.heartbeat else nullcontext()

    def _samples(self, step: int) -> int:
        """Return the samples seen before a step."""
        epochs, batches = divmod(step, self.feeder.order.batches)
        return epochs * self.feeder.order.samples + batches * self.feeder.order.batch_size


def learning_rate(step: int, total: int, training: ResolvedTraining) -> float:
    """Return the rate of a step, from 0: linear warm-up, then decay to almost 0, or constant."""
    peak = training.learning_rate
    warm_up = max(1, math.ceil(total * training.warmup))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = (step - warm_up + 1) / (total - warm_up + 1)
    match training.schedule:
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return peak * (1 - done)
        case "constant":
            return peak
