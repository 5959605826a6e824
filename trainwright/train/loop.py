"""The training loop: steps, guards, checkpoints, in one order on every process."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from trainwright.errors import Preempted
from trainwright.experiment import Training
from trainwright.launch.agent.heartbeat import Heartbeat
from trainwright.train.evidence import Witness, nobody
from trainwright.train.group import Group, limit_exchanges
from trainwright.train.guards import EarlyStop, Guard, Seen, keep_left_out, left_out
from trainwright.train.order import Order
from trainwright.train.parallel.arithmetic import seed_step
from trainwright.train.rates import learning_rate
from trainwright.train.samples import Batch
from trainwright.train.state import Keeper, NoKeeper, State
from trainwright.train.step import Gradients, Stepper

_FIRST = 2
"""Steps that may take long: the first one compiles, and the second may compile again."""

_UNWATCHED = "unwatched"
"""In the facts: the loss of a step after which a look at the watched split is still due."""


@dataclass(frozen=True)
class Step:
    """One step that was taken.

    Attributes:
        number: Steps taken so far, this one included.
        total: Steps of the whole training.
        epoch: Passes over the data begun so far.
        loss: Mean loss over the global batch.
        norm: Norm of the gradient.
        rate: Learning rate.
        samples: Samples seen so far, over all processes.
        waited_s: Seconds that this process waited for its share of the batch.
    """

    number: int
    total: int
    epoch: int
    loss: float
    norm: float
    rate: float
    samples: int
    waited_s: float = 0.0


class Watcher(Protocol):
    """Is told of every step."""

    def saw(self, step: Step) -> None:
        """Take note of a step."""
        ...


class Feeder(Protocol):
    """Gives the batches of this process in order."""

    order: Order

    def begin(self, step: int, skip: frozenset[int] | None = None) -> None:
        """Start at a step, whatever was given before; ``skip`` numbers the batches that are left out."""
        ...

    def next(self) -> Batch:
        """Return this process's share of the next batch."""
        ...


@dataclass(frozen=True)
class Fitted:
    """A training that has ended.

    Attributes:
        losses: Mean loss a sample of each epoch, while it was learned from.
        steps: Steps taken.
        seconds: Duration of the loop.
        samples_per_s: Samples learned from a second, over all processes.
        left_out: Numbers of the batches that were left out, counted from the beginning of the training.
        best_step: Steps after which the weights were those that are kept.
        watched_loss: Loss of the watched split then; absent if none is watched.
    """

    losses: tuple[float, ...]
    steps: int
    seconds: float
    samples_per_s: float
    left_out: tuple[int, ...] = ()
    best_step: int = 0
    watched_loss: float | None = None


@dataclass
class Loop:
    """A training, ready to run.

    Attributes:
        stepper: Takes the steps.
        feeder: Gives the batches.
        training: How long, and at which rates.
        group: The processes.
        keeper: Saves the state.
        watchers: Are told of every step.
        asked_to_stop: Says whether this process was told to stop.
        evaluate: Measures the loss of the split that is watched; gives none when a process was told to stop.
        witness: Takes note of a batch that a step went wrong on.
        pulse: Shows this machine's agent that the training gets on.
    """

    stepper: Stepper
    feeder: Feeder
    training: Training
    group: Group
    keeper: Keeper = field(default_factory=NoKeeper)
    watchers: Sequence[Watcher] = ()
    asked_to_stop: Callable[[], bool] = lambda: False
    evaluate: Callable[[], float | None] | None = None
    witness: Witness = nobody
    pulse: Heartbeat | None = None

    def __post_init__(self) -> None:
        """Set up what judges the steps."""
        guards = self.training.guards
        self._guard = Guard(guards)
        watched = guards.early_stopping
        self._early = EarlyStop(watched, self.feeder.order.batches) if watched and self.evaluate else None

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.training.steps or self.training.epochs * self.feeder.order.batches

    def run(self) -> Fitted:
        """Fit the module in place; all processes of the group call this together.

        Raises:
            Diverged: The loss ran away; or it or a gradient is not finite, and no weight was changed by it.
            Preempted: A process was told to stop; the state is saved.
        """
        state = State(self.stepper.module, self.stepper.optimizer, facts={"sums": []})
        with self._during("resuming"):
            self.keeper.resume(state)
        self.feeder.begin(state.step, left_out(state.facts))
        begun, start = state.step, time.monotonic()
        if (loss := state.facts.get(_UNWATCHED)) is not None:
            self._close(state, loss, stop=False)
        while state.step < self.total and not self._enough(state):
            before = state.step
            gradients = self._step(state)
            if state.step > before:
                self._close(state, gradients.loss, stop=gradients.asked_to_stop)
            if state.step - begun == _FIRST:
                limit_exchanges(self.group, self.stepper.layout.groups)
        return self._fitted(state, begun, time.monotonic() - start)

    def _close(self, state: State, loss: float, *, stop: bool) -> None:
        """End a step that was taken: look at the watched split and save, if it is time to; stop, if told to.

        A look that is cut short leaves a note in what is saved: who goes on from there looks first, and so
        decides as if nothing had been cut.
        """
        enough = self._look(state)
        cut = enough is None
        state.facts.pop(_UNWATCHED, None)
        if cut:
            state.facts[_UNWATCHED] = loss
        ends = enough or state.step == self.total
        with self._during("saving"):
            self.keeper.saw(state, loss, last=bool(ends or stop or cut))
        if cut or (stop and not ends):
            raise Preempted(f"stopped after step {state.step:,} of {self.total:,}, which is saved")

    def _step(self, state: State) -> Gradients:
        """Take a step; the state stays where it is, or goes back, when the batch is left out."""
        order, number = self.feeder.order, state.step
        # A step's random numbers depend on the step, so that a training which is resumed draws the same.
        seed_step(self.training.seed, number, self.stepper.layout.dice, self.group.device)
        waiting = time.perf_counter()
        batch = self.feeder.next()
        waited_s = time.perf_counter() - waiting
        size, epoch = order.size_at(number), number // order.batches
        rate = learning_rate(number, self.total, self.training)
        self.stepper.scale.take_up(state.facts)
        gradients = self.stepper.gradients(batch, size, stop=self.asked_to_stop())
        if not self._healthy(state, batch, gradients, rate):
            return gradients
        self.stepper.apply(gradients, rate)
        state.step += 1
        self._add(state, epoch, gradients.loss * size, size)
        samples = self._samples(state.step)
        told = Step(
            state.step, self.total, epoch + 1, gradients.loss, gradients.norm, rate, samples, waited_s
        )
        for watcher in self.watchers:
            watcher.saw(told)
        if self.pulse:
            self.pulse.beat(state.step)
        return gradients

    def _healthy(self, state: State, batch: Batch, gradients: Gradients, rate: float) -> bool:
        """Judge a step; when its batch is to be left out, do so."""
        if not gradients.finite:
            self.witness(state.step + 1, batch)
        order, number = self.feeder.order, state.step
        place, epoch = order.position(number), number // order.batches + 1
        seen = Seen(
            number + 1, place, epoch, gradients.loss, gradients.norm, rate, overflowed=gradients.overflowed
        )
        verdict = self._guard.judge(state.facts, seen)
        if verdict.warning and self.group.leads:
            sys.stderr.write(f"{verdict.warning}\n")
        if verdict.action == "apply":
            return True
        without = left_out(state.facts)
        if verdict.action == "roll_back":
            with self._during("rolling back"):
                self.keeper.roll_back(state)
            keep_left_out(state.facts, without)
        self.feeder.begin(state.step, without)
        return False

    def _look(self, state: State) -> bool | None:
        """Measure the loss of the watched split if it is time to; tell whether enough is learned.

        Nothing is known, and None returned, if a process was told to stop meanwhile.
        """
        if self._early is None or self.evaluate is None or not self._early.due(state.step, self.total):
            return False
        with self._during("evaluating"):
            loss = self.evaluate()
        if loss is None:
            return None
        for watcher in self.watchers:
            if note := getattr(watcher, "note", None):
                note(state.step, watched_loss=loss)
        return self._early.judge(state.facts, state.step, loss)

    def _enough(self, state: State) -> bool:
        return self._early is not None and self._early.enough(state.facts)

    def _fitted(self, state: State, begun: int, seconds: float) -> Fitted:
        """Describe the training, and bring the best state back where one is known."""
        seen = self._samples(state.step) - self._samples(begun)
        watched = state.facts.get("watched") or {}
        losses, steps, without = self._epoch_losses(state), state.step, tuple(sorted(left_out(state.facts)))
        best = int(watched.get("best_step", steps))
        if best < steps:
            with self._during("resuming"):
                best = best if self.training.checkpoints.keep_best and self.keeper.best(state) else steps
        return Fitted(
            losses,
            steps,
            seconds,
            seen / max(seconds, 1e-9),
            without,
            best,
            (watched["best_loss"] if best < steps else watched["loss"]) if watched else None,
        )

    def _during(self, phase: str) -> AbstractContextManager[None]:
        return self.pulse.during(phase) if self.pulse else nullcontext()

    def _samples(self, step: int) -> int:
        """Return how many samples were seen before a step."""
        epochs, batches = divmod(step, self.feeder.order.batches)
        return epochs * self.feeder.order.samples + batches * self.feeder.order.batch_size

    def _add(self, state: State, epoch: int, loss: float, size: int) -> None:
        sums = state.facts["sums"]
        sums += [[0.0, 0] for _ in range(epoch + 1 - len(sums))]
        sums[epoch][0] += loss
        sums[epoch][1] += size

    def _epoch_losses(self, state: State) -> tuple[float, ...]:
        return tuple(total / size for total, size in state.facts["sums"] if size)
