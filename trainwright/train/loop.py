"""The training loop: the same loss whatever the number of processes, and the same weights at every repeat."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import Diverged
from trainwright.experiment import Training
from trainwright.train.group import Group
from trainwright.train.network import TabularNetwork
from trainwright.train.rows import Rows

_WARM_UP = 0.05
"""Share of all steps in which the learning rate rises to its peak; then it falls like a cosine."""


@dataclass(frozen=True)
class Step:
    """One step that was taken.

    Attributes:
        number: Steps taken so far, this one included.
        total: Steps of the whole training.
        epoch: Passes over the data begun so far.
        loss: Mean loss over the global batch.
        samples: Rows seen so far, over all processes.
    """

    number: int
    total: int
    epoch: int
    loss: float
    samples: int


class Watcher(Protocol):
    """Is told of every step."""

    def saw(self, step: Step) -> None:
        """Take note of a step."""
        ...


@dataclass(frozen=True)
class Fitted:
    """A training that has ended.

    Attributes:
        losses: Mean loss a row of each epoch, while it was learned from.
        steps: Steps taken.
        seconds: Duration of the loop.
        rows_per_s: Rows learned from a second, over all processes.
    """

    losses: tuple[float, ...]
    steps: int
    seconds: float
    rows_per_s: float


def learning_rate(step: int, total: int, peak: float) -> float:
    """Return the rate of a step: up in a line for the first twentieth, then down a cosine to almost 0.

    Args:
        step: Number of the step, from 0.
        total: Number of steps.
        peak: Largest rate.
    """
    rising = max(1, math.ceil(total * _WARM_UP))
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising + 1) / (total - rising + 1)))


def batches(rows: int, size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """Give the rows of each global batch of an epoch: every row once, in an order drawn from the seed.

    The order has a generator of its own and is drawn over all rows by every process alike, so it depends
    neither on the number of processes nor on what else was random.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    order = torch.randperm(rows, generator=generator)
    for start in range(0, rows, size):
        yield order[start : start + size]


def fit_network(
    network: TabularNetwork, rows: Rows, training: Training, group: Group, watcher: Watcher
) -> Fitted:
    """Fit the network in place; all processes of the group call this together.

    Raises:
        Diverged: A loss or a gradient is not finite; no weight has been changed by it.
    """
    # Masks of dropout differ between processes, as their rows do.
    torch.manual_seed((training.seed * 1_000_003 + group.rank + 1) % 2**63)
    shared = DistributedDataParallel(network.train(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, foreach=True
    )
    total = training.epochs * math.ceil(len(rows) / training.batch_size)
    losses: list[float] = []
    number, samples, start = 0, 0, time.monotonic()
    for epoch in range(training.epochs):
        epoch_loss = 0.0
        for index in batches(len(rows), training.batch_size, training.seed, epoch):
            rate = learning_rate(number, total, training.learning_rate)
            loss = _step(shared, optimizer, rows, index, rate, group)
            number, samples, epoch_loss = number + 1, samples + len(index), epoch_loss + loss * len(index)
            if not math.isfinite(loss):
                raise _diverged(number, epoch, rate, losses)
            watcher.saw(Step(number, total, epoch + 1, loss, samples))
        losses.append(epoch_loss / len(rows))
    seconds = time.monotonic() - start
    return Fitted(tuple(losses), number, seconds, samples / seconds)


def _step(
    network: nn.Module, optimizer: torch.optim.Optimizer, rows: Rows, index: Tensor, rate: float, group: Group
) -> float:
    """Take one step, unless it is not finite, and return the mean loss over the global batch.

    The processes may have unequal shares of a batch, none at the end of an epoch. So each weighs its sum
    of losses such that the mean of all gradients is that of the global batch. Every process sees the same
    loss and the same gradients, hence all of them take the step or none does.
    """
    first, last = (len(index) * part // group.size for part in (group.rank, group.rank + 1))
    batch = rows.take(index[first:last])
    logit = network(batch.numeric.to(group.device), batch.categories.to(group.device))
    loss_sum = nn.functional.binary_cross_entropy_with_logits(
        logit, batch.label.to(group.device), reduction="sum"
    )
    optimizer.zero_grad(set_to_none=True)
    (loss_sum * (group.size / len(index))).backward()  # type: ignore[no-untyped-call]
    total = loss_sum.detach().double()
    distributed.all_reduce(total)
    gradients = [entry.grad for entry in network.parameters() if entry.grad is not None]
    norm = float(nn.utils.get_total_norm(gradients))
    if not (math.isfinite(norm) and math.isfinite(loss := float(total) / len(index))):
        return math.nan
    for settings in optimizer.param_groups:
        settings["lr"] = rate
    optimizer.step()
    return loss


def _diverged(number: int, epoch: int, rate: float, losses: list[float]) -> Diverged:
    before = f"the epoch before ended at {losses[-1]:.4f}" if losses else "no epoch was finished before"
    return Diverged(
        f"the loss or a gradient is not finite at step {number:,}, epoch {epoch + 1}, "
        f"learning rate {rate:.3g}; {before}",
        where="training.learning_rate",
        hint="Lower the learning rate; if that does not help, look for extreme values in the inputs.",
    )
