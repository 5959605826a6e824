"""Models, samples in memory and loops that train: what ``train_step.py`` measures, where there is torch."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.experiment import LanguageModel, ResolvedTraining
from trainwright.train.architectures import Architecture, Inputs
from trainwright.train.feeding.loader import Batch, SampleOrder
from trainwright.train.loop import TrainingLoop
from trainwright.train.process_group import Ranks
from trainwright.train.step import Stepper

SEED = 7
ROWS, FEATURES = 65_536, 14

Run = Callable[[int], float]
"""Trains for some steps more, and returns the seconds that they took."""


class Memory:
    """Samples that lie in memory, given in the order of a training.

    Attributes:
        order: The order.
        part: Number of the share that this process is given.
        parts: Shares of a batch.
    """

    def __init__(self, inputs: tuple[Tensor, ...], target: Tensor, batch_size: int) -> None:
        self.inputs, self.target = inputs, target
        self._weight = torch.ones(batch_size)
        self.order = SampleOrder(len(target), batch_size, 8, SEED)
        self.part, self.parts, self._step = 0, 1, 0

    def begin(self, step: int, without: object = ()) -> None:  # noqa: ARG002 - nothing is left out here
        """Start at a step."""
        self._step = step

    def next(self) -> Batch:
        """Return the next share."""
        index = torch.from_numpy(self.order.share(self._step, self.part, self.parts))
        self._step += 1
        inputs = tuple(entry[index] for entry in self.inputs)
        return Batch(inputs, self.target[index], self._weight[: len(index)], index)


def rows(batch_size: int) -> Memory:
    """Draw rows of numbers with a label."""
    generator = torch.Generator().manual_seed(SEED)
    numeric = torch.randn(ROWS, FEATURES, generator=generator)
    label = (torch.rand(ROWS, generator=generator) < torch.sigmoid(numeric[:, 0])).float()
    return Memory((numeric,), label, batch_size)


def sequences(network: LanguageModel, count: int, batch_size: int) -> Memory:
    """Draw sequences of tokens."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(0, network.vocabulary, (count, network.context + 1), generator=generator)
    return Memory((tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous(), batch_size)


class Perceptron:
    """A multilayer perceptron over plain numbers, as an architecture of one's own.

    Args:
        hidden: Units a layer.
    """

    def __init__(self, *hidden: int) -> None:
        self._sizes = (FEATURES, *hidden)

    def build(self, inputs: Inputs) -> nn.Module:  # noqa: ARG002 - the sizes say all of it
        """Make the untrained module."""
        layers: list[nn.Module] = []
        for width, units in zip(self._sizes, self._sizes[1:], strict=False):
            layers += [nn.Linear(width, units), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self._sizes[-1], 1), nn.Flatten(0))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy of each row."""
        return nn.functional.binary_cross_entropy_with_logits(output, target, reduction="none")

    def predict(self, output: Tensor) -> Tensor:
        """Return the probability of label 1."""
        return torch.sigmoid(output.double())


def ours(architecture: Architecture, module: nn.Module, memory: Memory, group: Ranks, **asked: Any) -> Run:
    """Prepare our loop."""
    size = memory.order.batch_size
    usual = {"epochs": 1, "learning_rate": 1e-3, "schedule": "constant", "seed": SEED}
    training = ResolvedTraining(batch_size=size, **usual | asked)
    stepper = Stepper(module, architecture, training, group)
    memory.part, memory.parts = stepper.layout.part, stepper.layout.parts

    def run(steps: int) -> float:
        return (
            TrainingLoop(stepper, memory, training.model_copy(update={"steps": steps}), group).run().seconds
        )

    return run


def bare(architecture: Architecture, module: nn.Module, memory: Memory) -> Run:
    """Prepare a loop that does nothing but train: gather, forward, loss, backward, AdamW."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    size, samples = memory.order.batch_size, len(memory.target)

    def run(steps: int) -> float:
        start = time.monotonic()
        for step in range(steps):
            first = step * size % samples
            if first == 0:
                order = torch.randperm(samples)
            index = order[first : first + size]
            optimizer.zero_grad()
            output = module(*(entry[index] for entry in memory.inputs))
            architecture.loss(output, memory.target[index]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return time.monotonic() - start

    return run
