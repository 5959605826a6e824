"""One step: gradients of a global batch, and their use; the same sums whatever the number of processes."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trainwright.experiment import Training
from trainwright.train.architectures import Architecture
from trainwright.train.group import Group
from trainwright.train.samples import Batch


@dataclass(frozen=True)
class Gradients:
    """What a backward pass found, the same on every process.

    Attributes:
        loss: Mean loss over the global batch.
        norm: Norm of the gradient of that loss, before any clipping.
        asked_to_stop: Whether any process was.
    """

    loss: float
    norm: float
    asked_to_stop: bool

    @property
    def finite(self) -> bool:
        """Whether a step may be taken with them."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Stepper:
    """Holds the module and its optimizer, and takes steps with them.

    Args:
        module: The untrained module, on its device.
        architecture: Its loss.
        training: Batches and rates.
        group: The processes.
    """

    def __init__(
        self, module: nn.Module, architecture: Architecture, training: Training, group: Group
    ) -> None:
        self.module, self._architecture = module, architecture
        self._training, self._group = training, group
        self._shared = DistributedDataParallel(module.train(), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(
            module.parameters(),
            lr=training.learning_rate,
            betas=training.betas,
            weight_decay=training.weight_decay,
            foreach=True,
        )

    def gradients(self, batch: Batch, size: int, *, stop: bool) -> Gradients:
        """Compute the gradients of this process's share of a global batch, and add them up over all.

        The processes may have unequal shares, none at the end of an epoch. So each weighs its sum of losses
        such that the mean of all gradients is that of the global batch.

        Args:
            batch: This process's share.
            size: Samples of the global batch.
            stop: Whether this process was asked to stop.
        """
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64, device=self._group.device)
        parts = self._micro_batches(batch)
        for index, part in enumerate(parts):
            with self._synchronised(last=index == len(parts) - 1):
                loss = self._loss(part.to(self._group.device))
                (loss * (self._group.size / size)).backward()  # type: ignore[no-untyped-call]
            total += loss.detach().double()
        sums = torch.stack([total, total.new_tensor(float(stop))])
        distributed.all_reduce(sums)
        gradients = [entry.grad for entry in self.module.parameters() if entry.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients))
        return Gradients(float(sums[0]) / size, norm, bool(sums[1]))

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Change the weights by the gradients that were just computed."""
        if self._training.clip and gradients.norm > self._training.clip:
            for entry in self.module.parameters():
                if entry.grad is not None:
                    entry.grad.mul_(self._training.clip / gradients.norm)
        for settings in self.optimizer.param_groups:
            settings["lr"] = rate
        self.optimizer.step()

    def _loss(self, batch: Batch) -> Tensor:
        output = self._shared(*batch.inputs)
        return (self._architecture.loss(output, batch.target) * batch.weight).sum()

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        """Cut a share into micro-batches; every process makes as many, so that all join in each sum."""
        most = self._training.micro_batch
        if most is None or len(batch) <= most:
            return [batch]
        return [batch.part(first, first + most) for first in range(0, len(batch), most)]

    def _synchronised(self, *, last: bool) -> AbstractContextManager[None]:
        """Leave the sum over processes to the last micro-batch."""
        context: AbstractContextManager[None] = nullcontext() if last else self._shared.no_sync()
        return context
