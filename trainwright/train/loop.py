"""The training loop: steps, guards, checkpoints, in one order on every process."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from trainwright.errors import Diverged, Preempted
from trainwright.experiment import Training
from trainwright.train.group import Group
from trainwright.train.order import Order
from trainwright.train.samples import Batch
from trainwright.train.state import Keeper, NoKeeper, State
from trainwright.train.step import Gradients, Stepper


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
    """

    number: int
    total: int
    epoch: int
    loss: float
    norm: float
    rate: float
    samples: int


class Watcher(Protocol):
    """Is told of every step."""

    def saw(self, step: Step) -> None:
        """Take note of a step."""
        ...


class Feeder(Protocol):
    """Gives the batches of this process in order."""

    order: Order

    def begin(self, step: int) -> None:
        """Start at a step, whatever was given before."""
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
    """

    losses: tuple[float, ...]
    steps: int
    seconds: float
    samples_per_s: float


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
    """

    stepper: Stepper
    feeder: Feeder
    training: Training
    group: Group
    keeper: Keeper = field(default_factory=NoKeeper)
    watchers: Sequence[Watcher] = ()
    asked_to_stop: Callable[[], bool] = lambda: False

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.training.steps or self.training.epochs * self.feeder.order.batches

    def run(self) -> Fitted:
        """Fit the module in place; all processes of the group call this together.

        Raises:
            Diverged: A loss or a gradient is not finite; no weight has been changed by it.
            Preempted: A process was told to stop; the state is saved.
        """
        state = State(self.stepper.module, self.stepper.optimizer, facts={"sums": []})
        self.keeper.resume(state)
        self.feeder.begin(state.step)
        begun, start = state.step, time.monotonic()
        while state.step < self.total:
            gradients = self._step(state)
            last = state.step == self.total or gradients.asked_to_stop
            self.keeper.saw(state, gradients.loss, last=last)
            if gradients.asked_to_stop and state.step < self.total:
                raise Preempted(f"stopped after step {state.step:,} of {self.total:,}, which is saved")
        seconds = time.monotonic() - start
        seen = self._samples(state.step) - self._samples(begun)
        return Fitted(self._epoch_losses(state), state.step, seconds, seen / max(seconds, 1e-9))

    def _step(self, state: State) -> Gradients:
        order, number = self.feeder.order, state.step
        # A step's random numbers depend on the step, so that a training which is resumed draws the same.
        torch.manual_seed(_mixed(self.training.seed, number, self.group.rank))
        batch = self.feeder.next()
        size = order.size(number % order.batches)
        rate = learning_rate(number, self.total, self.training)
        gradients = self.stepper.gradients(batch, size, stop=self.asked_to_stop())
        if not gradients.finite:
            raise _diverged(number, number // order.batches, rate)
        self.stepper.apply(gradients, rate)
        state.step += 1
        self._add(state, number // order.batches, gradients.loss * size)
        epoch, samples = number // order.batches + 1, self._samples(state.step)
        told = Step(state.step, self.total, epoch, gradients.loss, gradients.norm, rate, samples)
        for watcher in self.watchers:
            watcher.saw(told)
        return gradients

    def _samples(self, step: int) -> int:
        """Return how many samples were seen before a step."""
        epochs, batches = divmod(step, self.feeder.order.batches)
        return epochs * self.feeder.order.samples + batches * self.feeder.order.batch_size

    def _add(self, state: State, epoch: int, loss: float) -> None:
        sums = state.facts["sums"]
        sums += [0.0] * (epoch + 1 - len(sums))
        sums[epoch] += loss

    def _epoch_losses(self, state: State) -> tuple[float, ...]:
        order, rest = self.feeder.order, self._samples(state.step) % self.feeder.order.samples
        sums = state.facts["sums"]
        sizes = [order.samples] * (len(sums) - 1) + [rest or order.samples]
        return tuple(total / size for total, size in zip(sums, sizes, strict=True))


def learning_rate(step: int, total: int, training: Training) -> float:
    """Return the rate of a step: up in a line during the warm-up, then down to almost 0, or flat.

    Args:
        step: Number of the step, from 0.
        total: Number of steps.
        training: Peak, share of warm-up, and form of the fall.
    """
    peak = training.learning_rate
    rising = max(1, math.ceil(total * training.warmup))
    if step < rising:
        return peak * (step + 1) / rising
    done = (step - rising + 1) / (total - rising + 1)
    match training.schedule:
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return peak * (1 - done)
        case "constant":
            return peak


def _mixed(seed: int, step: int, rank: int) -> int:
    """Return a seed for one step of one process."""
    from numpy.random import SeedSequence

    return int(SeedSequence([seed, 2, step, rank]).generate_state(1, "uint64")[0] >> 1)


def _diverged(number: int, epoch: int, rate: float) -> Diverged:
    return Diverged(
        f"the loss or a gradient is not finite at step {number + 1:,}, epoch {epoch + 1}, "
        f"learning rate {rate:.3g}",
        where="training.learning_rate",
        hint="Lower the learning rate; if that does not help, look for extreme values in the inputs.",
    )
