"""Forward and backward passes over the micro-batches of a step: in one piece, or in stages."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from trainwright.errors import InternalError
from trainwright.experiment import Training
from trainwright.train.architectures import Architecture, InStages
from trainwright.train.objective import Loss, loss_of
from trainwright.train.parallel.division import synchronised
from trainwright.train.parallel.layout import Layout
from trainwright.train.samples import Batch


class Passes(Protocol):
    """Adds the gradients of some micro-batches to the parameters'."""

    def run(self, parts: Sequence[Batch], factor: float) -> Tensor:
        """Run all micro-batches of a step.

        Args:
            parts: This process's micro-batches.
            factor: What each sample's loss is multiplied by before its gradient is taken.

        Returns:
            The weighted sum of the losses that this process computed, without the factor, float64, on the
            device; 0 on a process that is not of the last stage.
        """
        ...


def make_passes(runner: nn.Module, architecture: Architecture, training: Training, layout: Layout) -> Passes:
    """Return what runs a module that was divided."""
    loss = loss_of(architecture, training.objective)
    loss = torch.compile(loss) if training.compile else loss
    if layout.degrees.pipeline == 1:
        return Whole(runner, loss, layout)
    if not isinstance(architecture, InStages):
        raise InternalError("stages of an architecture that has none")
    # Loading torch's pipelining takes a second, which every start and restart would pay.
    from trainwright.train.parallel.staged import Staged

    return Staged(runner, architecture, loss, training, layout)


class Whole:
    """Runs a module that is not cut into stages."""

    def __init__(self, runner: nn.Module, loss: Loss, layout: Layout) -> None:
        self._runner, self._loss, self._device = runner, loss, layout.group.device

    def run(self, parts: Sequence[Batch], factor: float) -> Tensor:
        """Run one micro-batch after the other."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for index, part in enumerate(parts):
            batch = part.to(self._device)
            with synchronised(self._runner, last=index == len(parts) - 1):
                loss = (self._loss(self._runner(*batch.inputs), batch.target) * batch.weight).sum()
                loss.backward(loss.new_full((), factor))  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total
