"""The whole weights of a module that is divided over the processes, on the one that writes them."""

from collections.abc import Iterator

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from trainwright.train.parallel.layout import Layout


def full_weights(module: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """Gather a module's state; all processes call this together.

    One tensor is whole at a time, so no process but the first holds more than it did.

    Args:
        module: This process's part, as a :class:`~trainwright.train.step.Stepper` holds it.
        layout: The processes.

    Returns:
        On process 0 the state of the whole module on the CPU, under the names that it has in one process;
        elsewhere nothing.
    """
    found: dict[str, Tensor] = {}
    for name, value in _of_stage(module, layout):
        found[name] = value
    for stage in range(1, layout.degrees.pipeline):
        _bring(found, stage, layout)
    return found if layout.group.leads else {}


def _of_stage(module: nn.Module, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Yield the whole tensors of this process's stage, on the stage's first process alone."""
    for name, value in module.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if layout.leads_stage:
            yield name, whole.detach().cpu()


def _bring(found: dict[str, Tensor], stage: int, layout: Layout) -> None:
    """Bring the tensors of a later stage to process 0."""
    rank = layout.group.size // layout.degrees.pipeline * stage
    mine, device = layout.group.rank == rank, layout.group.device
    told = [(name, value.shape, value.dtype) for name, value in found.items()] if mine else None
    box = [told]
    distributed.broadcast_object_list(box, src=rank)
    for name, shape, kind in box[0] or ():
        if mine:
            distributed.send(found[name].contiguous().to(device), 0)
        elif layout.group.leads:
            value = torch.empty(shape, dtype=kind, device=device)
            distributed.recv(value, rank)
            found[name] = value.cpu()
