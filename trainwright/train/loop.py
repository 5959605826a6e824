"""The training loop: steps, guards, evaluation and checkpoints, in one order on every process."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from trainwright.errors import Diverged, Preempted
from trainwright.experiment import Training
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.train.checkpoint.state import TrainState
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.order import SampleOrder
from trainwright.train.guards import DivergenceGuard, EarlyStop, StepStats, add_skipped, skipped_batches
from trainwright.train.parallel import seed_step
from trainwright.train.process_group import Ranks, set_step_timeout
from trainwright.train.step import Gradients, Stepper

_WARM_UP_STEPS = 2
"""Steps that may take long: the first one compiles, and the second may compile again."""

_UNEVALUATED = "unwatched"
"""Fact: the loss of a saved step after which an evaluation of the watched split is still due."""


@dataclass(frozen=True)
class StepReport:
    """One step that was taken.

    Attributes:
        number: Steps taken so far, this one included.
        total: Steps of the whole training.
        epoch: Number of the pass over the data, from 1.
        loss: Mean loss over the global batch.
        norm: Norm of the gradient.
        rate: Learning rate.
        samples: Samples seen so far, over all processes.
    """

    number: int
    total: int
    epoch: int
    loss: float
    norm: float
    rate: float
    samples: int


class StepObserver(Protocol):
    """Receives a report of every step."""

    def on_step(self, step: StepReport) -> None:
        """Handle the report of a step."""
        ...


class BatchSource(Protocol):
    """Gives this process's share of each batch in order."""

    order: SampleOrder

    def begin(self, step: int, skip: frozenset[int] | None = None) -> None:
        """Start at a step; ``skip`` numbers the batches to skip from now on."""
        ...

    def next(self) -> Batch:
        """Return this process's share of the next batch."""
        ...


class StateStore(Protocol):
    """Saves and restores the state of a training; see :class:`.Checkpointer`."""

    def resume(self, state: TrainState) -> None:
        """Load the newest verified state, if there is one."""
        ...

    def after_step(self, state: TrainState, loss: float, *, last: bool) -> None:
        """Save the state if a save is due; with ``last``, save it and wait."""
        ...

    def roll_back(self, state: TrainState) -> None:
        """Load the newest verified state, or raise Diverged."""
        ...

    def load_best(self, state: TrainState) -> bool:
        """Load the state that was best on the watched split; return False if there is none."""
        ...


class NoCheckpoints:
    """A state store that saves nothing."""

    def resume(self, state: TrainState) -> None:
        """Leave the state as it is."""

    def after_step(self, state: TrainState, loss: float, *, last: bool) -> None:
        """Save nothing."""

    def roll_back(self, state: TrainState) -> None:
        """Raise Diverged: there is nothing to roll back to."""
        raise Diverged(f"nothing was saved before step {state.step:,}", where="training.checkpoints")

    def load_best(self, state: TrainState) -> bool:  # noqa: ARG002
        """Leave the state as it is."""
        return False


@dataclass(frozen=True)
class FitResult:
    """The result of a training loop.

    Attributes:
        losses: Mean training loss per sample of each epoch.
        steps: Steps taken.
        seconds: Duration of the loop.
        samples_per_s: Samples trained on per second, over all processes.
        skipped: Numbers of the skipped batches since the beginning of the training.
        best_step: Step of the weights that are used.
        watched_loss: Loss of the watched split at that step; None if none is watched.
    """

    losses: tuple[float, ...]
    steps: int
    seconds: float
    samples_per_s: float
    skipped: tuple[int, ...] = ()
    best_step: int = 0
    watched_loss: float | None = None


@dataclass
class TrainingLoop:
    """A training loop, ready to run; all processes run it together.

    Attributes:
        stepper: Takes the steps.
        feeder: Gives the batches.
        training: Number of steps, and rates.
        ranks: The processes.
        checkpoints: Saves the state.
        observers: Receive a report of every step.
        stop_requested: Returns whether this process received a stop signal.
        evaluate: Returns the loss of the watched split, or None after a stop signal.
        on_bad_batch: Records a batch with a loss or gradient that is not finite.
        pulse: The heartbeat that shows progress to this machine's agent.
    """

    stepper: Stepper
    feeder: BatchSource
    training: Training
    ranks: Ranks
    checkpoints: StateStore = field(default_factory=NoCheckpoints)
    observers: Sequence[StepObserver] = ()
    stop_requested: Callable[[], bool] = lambda: False
    evaluate: Callable[[], float | None] | None = None
    on_bad_batch: Callable[[int, Batch], None] = lambda _step, _batch: None
    pulse: Heartbeat | None = None

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
        self._add_loss(state, epoch, gradients.loss * size, size)
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
        if self.pulse:
            self.pulse.beat(state.step)
        return gradients

    def _check_health(self, state: TrainState, batch: Batch, gradients: Gradients, rate: float) -> bool:
        """Judge a step before it is applied; skip its batch, after a rollback if configured, or accept it."""
        if not gradients.finite:
            self.on_bad_batch(state.step + 1, batch)
        order, number = self.feeder.order, state.step
        stats = StepStats(
            step=number + 1,
            batch=order.position(number),
            epoch=number // order.batches + 1,
            loss=gradients.loss,
            norm=gradients.norm,
            rate=rate,
            overflowed=gradients.overflowed,
        )
        decision = self._guard.judge(state.facts, stats)
        if decision.warning and self.ranks.leads:
            sys.stderr.write(f"{decision.warning}\n")
        if decision.action == "apply":
            return True
        skipped = skipped_batches(state.facts)
        if decision.action == "roll_back":
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
        seen = self._samples(state.step) - self._samples(first)
        losses = tuple(total / size for total, size in state.facts["sums"] if size)
        watched, steps = state.facts.get("watched") or {}, state.step
        skipped = tuple(sorted(skipped_batches(state.facts)))
        best = int(watched.get("best_step", steps))
        if best < steps:
            with self._during("resuming"):
                loaded = self.training.checkpoints.keep_best and self.checkpoints.load_best(state)
            best = best if loaded else steps
        return FitResult(
            losses,
            steps,
            seconds,
            seen / max(seconds, 1e-9),
            skipped,
            best,
            (watched["best_loss"] if best < steps else watched["loss"]) if watched else None,
        )

    def _during(self, phase: str) -> AbstractContextManager[None]:
        return self.pulse.during(phase) if self.pulse else nullcontext()

    def _samples(self, step: int) -> int:
        """Return the samples seen before a step."""
        epochs, batches = divmod(step, self.feeder.order.batches)
        return epochs * self.feeder.order.samples + batches * self.feeder.order.batch_size

    @staticmethod
    def _add_loss(state: TrainState, epoch: int, loss: float, size: int) -> None:
        sums = state.facts["sums"]
        sums += [[0.0, 0] for _ in range(epoch + 1 - len(sums))]
        sums[epoch][0] += loss
        sums[epoch][1] += size


def learning_rate(step: int, total: int, training: Training) -> float:
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
