"""One step: gradients of a global batch, and their use; the same sums whatever the number of processes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from trainwright.experiment import Training
from trainwright.train.architectures import Architecture
from trainwright.train.group import Group
from trainwright.train.parallel.cutting import cut
from trainwright.train.parallel.division import divide
from trainwright.train.parallel.layout import lay_out
from trainwright.train.parallel.norm import local_gradients, local_square, scale_gradients
from trainwright.train.parallel.optimizer import make_optimizer
from trainwright.train.parallel.passes import make_passes
from trainwright.train.parallel.scaling import Scale
from trainwright.train.samples import Batch


@dataclass(frozen=True)
class Gradients:
    """What a backward pass found, the same on every process.

    Attributes:
        loss: Mean loss over the global batch.
        norm: Norm of the gradient of that loss, before any clipping; 0 if it overflowed.
        asked_to_stop: Whether any process was.
        overflowed: Whether the gradient is beyond float16 while the loss is not: the step is left out and the
            scale of the loss halved. This is how the right scale is found, not a failure.
    """

    loss: float
    norm: float
    asked_to_stop: bool
    overflowed: bool = False

    @property
    def finite(self) -> bool:
        """Whether a step may be taken with them."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Stepper:
    """Holds this process's part of a module and its optimizer, and takes steps with them.

    Args:
        module: The untrained module, the same on every process; it is divided in place.
        architecture: Its loss, and how it can be divided.
        training: Batches, rates, precision and degrees of parallelism.
        group: The processes.

    Attributes:
        layout: Where this process stands among the others, and which share of a batch is its own.
        module: This process's part of the module: all of it, a stage, or one whose parameters are DTensors.
        optimizer: Its optimizer.
        scale: Scale of the loss, for float16.

    Raises:
        InputError: The module cannot be divided as it is asked for.
    """

    def __init__(
        self, module: nn.Module, architecture: Architecture, training: Training, group: Group
    ) -> None:
        self.layout = lay_out(group, training.parallel)
        self.module, runner = divide(module, architecture, training, self.layout)
        self.optimizer = make_optimizer(self.module, training)
        self._parameters = list(self.module.parameters())
        self.scale = Scale(active=training.precision == "fp16")
        self._passes = make_passes(runner, architecture, training, self.layout)
        self._training, self._group = training, group
        self._held: dict[int, list[Tensor]] = {}

    def gradients(self, batch: Batch, size: int, *, stop: bool) -> Gradients:
        """Compute the gradients of this process's share of a global batch, and add them up over all.

        The processes may have unequal shares, none at the end of an epoch. So each weighs its sum of losses
        such that the mean of all gradients is that of the global batch. Beside the gradients, one small sum
        goes over all processes, and this is the one place where the device is waited for.

        Args:
            batch: This process's share.
            size: Samples of the global batch.
            stop: Whether this process was asked to stop.
        """
        for entry in self._parameters:
            entry.grad = None
        degrees = self.layout.degrees
        parts = cut(batch, size, degrees.parts, self._training)
        total = self._passes.run(parts, self.scale.value * degrees.parts / size)
        with torch.no_grad():
            self._held = local_gradients(self._parameters, self.layout)
            square = local_square(self._held, self._group.device)
        # Those that divide the same matrices have all computed the same losses.
        sums = torch.stack([total / degrees.tensor, square, square.new_full((), float(stop))])
        if self._group.size > 1:
            distributed.all_reduce(sums)
        loss, square_sum, stops = sums.tolist()
        loss /= size
        overflowed = self.scale.overflowed(loss, square_sum)
        norm = 0.0 if overflowed else math.sqrt(square_sum) / self.scale.value
        return Gradients(loss, norm, stops > 0, overflowed)

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Change the weights by the gradients that were just computed."""
        factor = 1 / self.scale.value
        self.scale.saw(overflowed=gradients.overflowed)
        if gradients.overflowed:
            return
        if self._training.clip and gradients.norm > self._training.clip:
            factor *= self._training.clip / gradients.norm
        if factor != 1:
            with torch.no_grad():
                scale_gradients(self._held, factor)
        for settings in self.optimizer.param_groups:
            settings["lr"] = rate
        self.optimizer.step()
