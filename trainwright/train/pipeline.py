"""Runs one stage of a model that is split into pipeline stages."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from trainwright.errors import InternalError
from trainwright.experiment import ResolvedTraining
from trainwright.train.architectures import InStages
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.target import Loss
from trainwright.train.parallel import MeshLayout, low_precision

_SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class PipelineRunner:
    """Runs this process's stage of a pipeline (GPipe: Huang et al., 2019; 1F1B: Narayanan et al., 2019).

    torch's schedules pass a target to the loss in pieces; here the pieces are indices of samples, by which
    the loss finds both targets and weights.
    """

    def __init__(
        self,
        runner: nn.Module,
        architecture: InStages,
        loss: Loss,
        training: ResolvedTraining,
        layout: MeshLayout,
    ) -> None:
        self._runner, self._architecture, self._loss = runner, architecture, loss
        self._training, self._layout = training, layout
        self._schedule: PipelineScheduleSingle | None = None
        self._batch: Batch | None = None
        self._factor, self._total = 0.0, torch.zeros(0)

    def run(self, parts: Sequence[Batch], factor: float) -> Tensor:
        """Run all micro-batches in the order of the schedule; see :meth:`.WholeRunner.run`."""
        device, degrees = self._layout.ranks.device, self._layout.degrees
        self._batch = _concatenate(parts).to(device)
        self._factor, self._total = factor, torch.zeros((), dtype=torch.float64, device=device)
        if self._schedule is None:
            self._schedule = self._make_schedule(parts[0].to(device), len(parts))
        inputs = self._batch.inputs if self._layout.stage == 0 else ()
        last = self._layout.stage == degrees.pipeline - 1
        indices = torch.arange(len(self._batch), device=device) if last else None
        self._schedule.step(*inputs, target=indices, losses=[] if last else None, return_outputs=False)
        self._batch = None
        return self._total

    def _make_schedule(self, part: Batch, count: int) -> PipelineScheduleSingle:
        """Set the stage up from known shapes, so that no run is needed to infer them."""
        layout, stages = self._layout, self._layout.degrees.pipeline
        before = self._architecture.gives(len(part), last=False).requires_grad_()
        output = self._architecture.gives(len(part), last=layout.stage == stages - 1)
        if (low := low_precision(self._training)) and not isinstance(self._runner, FSDPModule):
            before, output = before.detach().to(low).requires_grad_(), output.to(low)
        self._runner.register_forward_hook(_make_contiguous)
        stage = PipelineStage(
            self._runner,
            layout.stage,
            stages,
            layout.ranks.device,
            input_args=part.inputs if layout.stage == 0 else (before,),
            output_args=(output.requires_grad_(),),
            group=layout.axis("pipeline").get_group(),
        )
        schedule = _SCHEDULES[self._training.parallel.schedule]
        return schedule(stage, count, loss_fn=self._scaled_loss, scale_grads=False)

    def _scaled_loss(self, output: Tensor, indices: Tensor) -> Tensor:
        if self._batch is None:
            raise InternalError("a loss outside of a step")
        target, weight = self._batch.target[indices], self._batch.weight[indices]
        loss = (self._loss(output, target) * weight).sum()
        self._total += loss.detach()
        return loss * self._factor


def _make_contiguous(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Close the gaps that an uneven split of a matrix leaves: torch 2.11 takes them for another shape."""
    return output.contiguous()


def _concatenate(parts: Sequence[Batch]) -> Batch:
    inputs = tuple(torch.cat(entries) for entries in zip(*(part.inputs for part in parts), strict=True))
    target, weight, ids = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("target", "weight", "ids")
    )
    return Batch(inputs, target, weight, ids)
