"""The optimizer of a module that may be divided."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainwright.experiment import Training

_LOOKED_UP = (nn.Embedding, nn.EmbeddingBag)


def make_optimizer(module: nn.Module, training: Training) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter, ICLR 2019), with all tensors of a kind changed in one pass.

    Matrices decay. Biases, norms and embeddings do not: the first two are no sizes that overfit, and a row of
    an embedding would shrink at every step in which its token does not occur. A submodule with the attribute
    ``decays = False`` keeps its own parameters from it too.
    """
    groups: dict[tuple[bool, DeviceMesh | None], list[nn.Parameter]] = {}
    for decays, entry in _entries(module):
        # Tensors that lie on other meshes cannot be changed in one pass.
        mesh = entry.device_mesh if isinstance(entry, DTensor) else None
        groups.setdefault((decays, mesh), []).append(entry)
    return torch.optim.AdamW(
        [
            {"params": entries, "weight_decay": training.weight_decay if decays else 0.0}
            for (decays, _), entries in groups.items()
        ],
        lr=training.learning_rate,
        betas=training.betas,
        fused=True,
    )


def _entries(module: nn.Module) -> Iterator[tuple[bool, nn.Parameter]]:
    """Yield each parameter once, with whether it decays."""
    kept = {
        id(entry)
        for part in module.modules()
        for name, entry in part.named_parameters(recurse=False)
        if name == "bias" or isinstance(part, _LOOKED_UP) or getattr(part, "decays", True) is False
    }
    for entry in module.parameters():
        yield entry.ndim > 1 and id(entry) not in kept, entry
