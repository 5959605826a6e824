"""The norm of a gradient that is divided over the processes, and what is done to all of it at once."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from trainwright.train.parallel.layout import Layout


def local_gradients(parameters: Iterable[nn.Parameter], layout: Layout) -> dict[int, list[Tensor]]:
    """Return what this process holds of the gradients.

    Args:
        parameters: This process's part of the module.
        layout: The processes.

    Returns:
        Plain tensors that share the gradients' memory, by the number of processes of this stage that hold
        the same values.
    """
    held = layout.degrees.parts * layout.degrees.tensor
    found: dict[int, list[Tensor]] = defaultdict(list)
    for entry in parameters:
        gradient = entry.grad
        if isinstance(gradient, DTensor):
            if any(isinstance(placement, Partial) for placement in gradient.placements):
                # What a plan leaves to be summed, as for norms between divided sequences.
                entry.grad = gradient = gradient.redistribute(placements=_placements(entry))
            found[held // _pieces(gradient)].append(gradient.to_local())
        elif gradient is not None:
            found[held].append(gradient)
    return found


def _pieces(tensor: DTensor) -> int:
    """Return in how many pieces a tensor lies about."""
    pieces = 1
    for axis, placement in enumerate(tensor.placements):
        if not isinstance(placement, Replicate):
            pieces *= tensor.device_mesh.size(axis)
    return pieces


def _placements(parameter: Tensor) -> Sequence[Placement] | None:
    return parameter.placements if isinstance(parameter, DTensor) else None


def local_square(gradients: dict[int, list[Tensor]], device: torch.device) -> Tensor:
    """Return this process's share of the squared norm: the sum over all processes is the whole, float64."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for copies, tensors in gradients.items():
        # torch.nn.utils.get_total_norm, without its sorting by device: that takes longer than the sum.
        total += torch.stack(torch._foreach_norm(tensors)).double().square().sum() / copies
    return total


def scale_gradients(gradients: dict[int, list[Tensor]], factor: float) -> None:
    """Multiply all gradients by a number."""
    for tensors in gradients.values():
        torch._foreach_mul_(tensors, factor)
