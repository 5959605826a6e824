"""One training step: gradients of a global batch, and their use; equal for every number of processes."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from trainwright.experiment import ResolvedTraining
from trainwright.train.architectures import Architecture, InStages
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.target import Loss, loss_of
from trainwright.train.parallel import MeshLayout, gradient_sync, parallelize
from trainwright.train.process_group import Ranks

_FIRST_SCALE, _LEAST_SCALE, _MOST_SCALE = 2.0**16, 1.0, 2.0**24
_GROWTH_STEPS = 2000


@dataclass(frozen=True)
class Gradients:
    """The result of a backward pass, the same on every process.

    Attributes:
        loss: Mean loss over the global batch.
        norm: Norm of the gradient of that loss, before any clipping; 0 if it overflowed.
        stop_requested: Whether any process received a stop signal.
        overflowed: Whether the gradient exceeds float16 while the loss is finite: the step is skipped and the
            loss scale halved, which is how the right scale is found.
    """

    loss: float
    norm: float
    stop_requested: bool
    overflowed: bool = False

    @property
    def finite(self) -> bool:
        """True if loss and norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Stepper:
    """Holds this process's part of a module and its optimizer, and takes steps with them.

    The untrained module, equal on every process, is parallelized in place, or InputError is raised. This
    process's part of it is the whole module, a stage, or a module whose parameters are DTensors.
    """

    def __init__(
        self, module: nn.Module, architecture: Architecture, training: ResolvedTraining, ranks: Ranks
    ) -> None:
        self.layout = MeshLayout.of(ranks, training.parallel)
        self.module, runner = parallelize(module, architecture, training, self.layout)
        self.optimizer = make_optimizer(self.module, training)
        self._parameters = list(self.module.parameters())
        self.scale = LossScale(active=training.precision == "fp16")
        loss = loss_of(architecture, training.objective)
        loss = torch.compile(loss) if training.compile else loss
        if self.layout.degrees.pipeline == 1:
            self._runner: Any = WholeRunner(runner, loss, self.layout)
        else:
            # Importing torch's pipelining takes a second, which every start and restart would pay.
            from trainwright.train.pipeline import PipelineRunner

            self._runner = PipelineRunner(runner, cast(InStages, architecture), loss, training, self.layout)
        self._training, self._ranks = training, ranks
        self._local: dict[int, list[Tensor]] = {}

    def gradients(self, batch: Batch, size: int, *, stop: bool) -> Gradients:
        """Compute the gradients of a share of a global batch of ``size``, summed over all processes.

        Shares may differ in size, and be empty at the end of an epoch, so each process weights its sum of
        losses such that the mean of all gradients is that of the global batch. One small all-reduce goes over
        all processes, with their stop signals; it is the only place that waits for the device.
        """
        for entry in self._parameters:
            entry.grad = None
        degrees = self.layout.degrees
        parts = micro_batches(batch, size, degrees.parts, self._training)
        total = self._runner.run(parts, self.scale.value * degrees.parts / size)
        with torch.no_grad():
            self._local = _local_gradients(self._parameters, self.layout)
            square = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
            for copies, tensors in self._local.items():
                # torch.nn.utils.get_total_norm without its sorting by device, which takes longer.
                square += torch.stack(torch._foreach_norm(tensors)).double().square().sum() / copies
        # Processes that share matrices have all computed the same losses.
        sums = torch.stack([total / degrees.tensor, square, square.new_full((), float(stop))])
        if self._ranks.size > 1:
            distributed.all_reduce(sums)
        loss, square_sum, stops = sums.tolist()
        loss /= size
        overflowed = self.scale.overflowed(loss, square_sum)
        norm = 0.0 if overflowed else math.sqrt(square_sum) / self.scale.value
        return Gradients(loss, norm, stops > 0, overflowed)

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Update the weights with the gradients of the last call of :meth:`gradients`."""
        factor = 1 / self.scale.value
        self.scale.update(overflowed=gradients.overflowed)
        if gradients.overflowed:
            return
        if self._training.clip and gradients.norm > self._training.clip:
            factor *= self._training.clip / gradients.norm
        if factor != 1:
            with torch.no_grad():
                for tensors in self._local.values():
                    torch._foreach_mul_(tensors, factor)
        for settings in self.optimizer.param_groups:
            settings["lr"] = rate
        self.optimizer.step()


class WholeRunner:
    """Runs forward and backward passes of a module without pipeline stages."""

    def __init__(self, runner: nn.Module, loss: Loss, layout: MeshLayout) -> None:
        self._runner, self._loss, self._device = runner, loss, layout.ranks.device

    def run(self, parts: Sequence[Batch], factor: float) -> Tensor:
        """Run all micro-batches, and add the gradients of their losses times ``factor`` to the parameters'.

        Return this process's weighted sum of losses, float64; 0 except in the last stage.
        """
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for index, part in enumerate(parts):
            batch = part.to(self._device)
            with gradient_sync(self._runner, last=index == len(parts) - 1):
                loss = (self._loss(self._runner(*batch.inputs), batch.target) * batch.weight).sum()
                loss.backward(loss.new_full((), factor))  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total


def make_optimizer(module: nn.Module, training: ResolvedTraining) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter, ICLR 2019), fused.

    Weight decay applies to matrices. Biases, norms and embeddings are exempt: the first two do not overfit by
    their size, and a row of an embedding would shrink at every step in which its token does not occur. A
    submodule with the attribute ``decays = False`` is exempt, too.
    """
    exempt = {
        id(entry)
        for part in module.modules()
        for name, entry in part.named_parameters(recurse=False)
        if name == "bias"
        or isinstance(part, nn.Embedding | nn.EmbeddingBag)
        or getattr(part, "decays", True) is False
    }
    groups: dict[tuple[bool, DeviceMesh | None], list[nn.Parameter]] = {}
    for entry in module.parameters():
        # Tensors on different meshes cannot be updated in one pass.
        mesh = entry.device_mesh if isinstance(entry, DTensor) else None
        groups.setdefault((entry.ndim > 1 and id(entry) not in exempt, mesh), []).append(entry)
    return torch.optim.AdamW(
        [
            {"params": entries, "weight_decay": training.weight_decay if decays else 0.0}
            for (decays, _), entries in groups.items()
        ],
        lr=training.learning_rate,
        betas=training.betas,
        fused=True,
    )


class LossScale:
    """Scales a loss so that small float16 gradients do not become 0 (Micikevicius et al., 2018).

    The scale doubles every 2,000 steps, and halves when a gradient overflows. PyTorch's own scaler looks at
    one process's plain gradients; here the decision uses numbers that all processes have summed. Unless
    ``active``, the scale stays 1.
    """

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._facts: dict[str, Any] = {"scale": _FIRST_SCALE if active else 1.0, "steps": 0}

    @property
    def value(self) -> float:
        """The factor of the loss."""
        return float(self._facts["scale"])

    def resume(self, facts: dict[str, Any]) -> None:
        """Continue with the scale in the facts of a training state, and keep it there from now on."""
        if self._active:
            self._facts = facts.setdefault("scale", self._facts)

    def overflowed(self, loss: float, square: float) -> bool:
        """Return whether only the scale makes a gradient, of this squared norm, non-finite."""
        return self.value > _LEAST_SCALE and math.isfinite(loss) and not math.isfinite(square)

    def update(self, *, overflowed: bool) -> None:
        """Choose the scale of the next step."""
        if not self._active:
            return
        self._facts["steps"] += 1
        if overflowed:
            self._facts.update(scale=max(self.value / 2, _LEAST_SCALE), steps=0)
        elif self._facts["steps"] >= _GROWTH_STEPS:
            self._facts.update(scale=min(self.value * 2, _MOST_SCALE), steps=0)


def micro_batches(batch: Batch, size: int, parts: int, training: ResolvedTraining) -> list[Batch]:
    """Split this process's share of a batch of ``size`` into micro-batches: equally many on every process.

    Pipeline stages exchange tensors of one shape, and compiled code is compiled for one shape; there,
    micro-batches are padded with samples of weight 0. Otherwise only an empty one gets such a sample, because
    not every module can run on an empty batch. Shares differ by at most one sample.
    """
    whole, stages = math.ceil(training.batch_size / parts), training.parallel.pipeline > 1
    if stages:
        count = training.parallel.in_flight
        most = math.ceil(whole / count)
    else:
        most = min(training.micro_batch or whole, whole)
        count = math.ceil(math.ceil(size / parts) / most)
    least = most if training.compile or stages else 1
    return [_pad(batch.part(index * most, (index + 1) * most), least) for index in range(count)]


def _pad(batch: Batch, least: int) -> Batch:
    missing = least - len(batch)
    if missing <= 0:
        return batch

    def pad(values: Tensor) -> Tensor:
        return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])

    return Batch(tuple(map(pad, batch.inputs)), pad(batch.target), pad(batch.weight), pad(batch.ids))


def _local_gradients(parameters: Iterable[nn.Parameter], layout: MeshLayout) -> dict[int, list[Tensor]]:
    """Return this process's gradients as plain tensors, by the number of processes with the same values."""
    copies = layout.degrees.parts * layout.degrees.tensor
    found: dict[int, list[Tensor]] = defaultdict(list)
    for entry in parameters:
        gradient = entry.grad
        if isinstance(gradient, DTensor):
            if any(isinstance(placement, Partial) for placement in gradient.placements):
                # Some tensor plans leave partial sums, as for norms between split sequences.
                placements = entry.placements if isinstance(entry, DTensor) else None
                entry.grad = gradient = gradient.redistribute(placements=placements)
            pieces = 1
            for axis, placement in enumerate(gradient.placements):
                if not isinstance(placement, Replicate):
                    pieces *= gradient.device_mesh.size(axis)
            found[copies // pieces].append(gradient.to_local())
        elif gradient is not None:
            found[copies].append(gradient)
    return found
