"""The loss on a split that is not learned from, the same on every process and at every number of them."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from trainwright.errors import InputError
from trainwright.experiment import Training
from trainwright.train.architectures import Architecture
from trainwright.train.group import Group
from trainwright.train.samples import Samples
from trainwright.train.step import Stepper


class Evaluation:
    """Measures the loss of a split; all processes call it together.

    Args:
        stepper: Holds the module.
        architecture: Its loss.
        samples: The split.
        training: Size of a batch.
        group: The processes.
        asked_to_stop: Says whether this process was told to stop.

    Raises:
        InputError: The module is cut into stages: these can only be run to learn.
    """

    def __init__(
        self,
        stepper: Stepper,
        architecture: Architecture,
        samples: Samples,
        training: Training,
        group: Group,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        if (stages := stepper.layout.degrees.pipeline) > 1:
            raise InputError(
                f"a split cannot be watched while the model is cut into {stages} stages",
                where="training.guards.early_stopping",
                hint="Set parallel.pipeline: 1, or leave early_stopping out.",
            )
        self._stepper, self._architecture, self._samples = stepper, architecture, samples
        self._group, self._asked_to_stop = group, asked_to_stop
        share = math.ceil(training.batch_size / stepper.layout.parts)
        self._size = min(training.micro_batch or share, share)

    def __call__(self) -> float | None:
        """Return the mean loss of the split, each sample counting by its weight.

        Nothing of the training changes: no gradient is taken, and dropout is off. When a process was told to
        stop, all of them learn of it at the same batch, and there is no result.
        """
        module, sums = self._stepper.module, torch.zeros(2, dtype=torch.float64, device=self._group.device)
        module.eval()
        try:
            with torch.no_grad():
                for index in self._batches():
                    if self._stopped():
                        return None
                    batch = self._samples.take(index).to(self._group.device)
                    loss = self._architecture.loss(module(*batch.inputs), batch.target)
                    sums += torch.stack([(loss.double() * batch.weight).sum(), batch.weight.double().sum()])
        finally:
            module.train()
        if self._group.size > 1:
            # Those that divide the same matrices saw the same samples: they count as often above and below.
            distributed.all_reduce(sums)
        total, weight = sums.tolist()
        return float(total / weight)

    def _stopped(self) -> bool:
        """Tell whether any process was told to stop: one small sum over all of them, as at every step."""
        told = torch.tensor(float(self._asked_to_stop()), device=self._group.device)
        if self._group.size > 1:
            distributed.all_reduce(told)
        return bool(told)

    def _batches(self) -> list[NDArray[np.int64]]:
        """Cut this process's share; all have as many batches, so that all join in what each one needs."""
        layout, samples = self._stepper.layout, len(self._samples)
        share = math.ceil(samples / layout.parts)
        first, last = min(layout.part * share, samples), min((layout.part + 1) * share, samples)
        starts = range(first, first + share, self._size)
        return [np.arange(start, max(start, min(start + self._size, last))) for start in starts]
