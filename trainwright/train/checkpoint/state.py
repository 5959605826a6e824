"""The state of a training that a checkpoint holds, and its tensors by name, sharded or not."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from trainwright.documents import canonical
from trainwright.errors import InputError, InternalError
from trainwright.train.process_group import Coordinator

STATE_KEY = "state"
"""The one entry under which torch gets all tensors: it logs several lines for every entry."""

_MODEL, _OPTIMIZER = "model/", "optimizer/"
_SHOWN = 5


@dataclass
class TrainState:
    """A training between two steps.

    The order of samples and every random number are functions of the seed and the step, so the step is all
    of them that needs saving.

    Attributes:
        module: The module as it is trained; its parameters may be sharded.
        optimizer: Its optimizer.
        step: Steps taken.
        facts: Everything else to save, as plain JSON data by owner (losses so far, a guard's window).
    """

    module: nn.Module
    optimizer: Optimizer
    step: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        found: dict[str, Tensor] = self.module.state_dict(keep_vars=True)
        if wrong := [name for name, value in found.items() if not isinstance(value, Tensor)]:
            raise InternalError(
                f"{wrong[0]} of the module is a {type(found[wrong[0]]).__name__}, not a tensor"
            )
        return found


def tensors_of(state: TrainState) -> dict[str, Tensor]:
    """Return the tensors of a state: ``model/NAME`` and ``optimizer/NAME/FIELD``.

    The optimizer's settings are left out: they follow from the configuration and the step.
    """
    found = {f"{_MODEL}{name}": value.detach() for name, value in state.named_tensors.items()}
    names = {value: name for name, value in state.named_tensors.items()}
    for parameter, fields in state.optimizer.state.items():
        for name, value in fields.items():
            if not isinstance(value, Tensor):
                raise InternalError(f"{name} of the optimizer is a {type(value).__name__}, not a tensor")
            found[f"{_OPTIMIZER}{names[parameter]}/{name}"] = value
    return found


def require_same_architecture(
    state: TrainState, metadata: Metadata, coordinator: Coordinator, where: str
) -> None:
    """Reject a checkpoint of another architecture; the optimizer's tensors do not count.

    All processes call this together, as each may hold a stage. The error names five tensors of each kind that
    are missing, unexpected, or of another shape or type.
    """
    expected: dict[str, str] = {}
    for part in coordinator.on_all(
        lambda: {name: _form(value.dtype, value.shape) for name, value in state.named_tensors.items()}
    ):
        expected |= part
    saved = {
        key.removeprefix(_MODEL): _form(entry.properties.dtype, entry.size)
        for key, entry in _saved(metadata)
        if key.startswith(_MODEL)
    }
    different = [name for name in expected.keys() & saved.keys() if expected[name] != saved[name]]
    kinds = {
        "missing": expected.keys() - saved.keys(),
        "unexpected": saved.keys() - expected.keys(),
        "different": {f"{name} ({saved[name]} saved, {expected[name]} expected)" for name in different},
    }
    found = []
    for kind, names in kinds.items():
        if names:
            rest = ", ..." if len(names) > _SHOWN else ""
            found.append(f"{len(names)} {kind}: {', '.join(sorted(names)[:_SHOWN])}{rest}")
    if found:
        raise InputError(
            f"the checkpoint is of another architecture: {'; '.join(found)}",
            where=where,
            hint="Use the network that wrote it, or start a new training under another output.",
        )


def tensors_to_load(state: TrainState, metadata: Metadata) -> dict[str, Tensor]:
    """Return the tensors to load into; creates those of an optimizer that took no step yet."""
    parameters, optimizer = state.named_tensors, state.optimizer
    for key, saved in _saved(metadata):
        name, _, entry = key.removeprefix(_OPTIMIZER).rpartition("/")
        if not key.startswith(_OPTIMIZER) or name not in parameters:
            continue
        parameter, dtype = parameters[name], saved.properties.dtype
        if entry in optimizer.state[parameter]:
            continue
        if saved.size == parameter.shape and saved.size:
            created = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        else:
            # torch's optimizers keep their step counts on the host unless they are capturable or fused.
            groups = (each for each in optimizer.param_groups if any(p is parameter for p in each["params"]))
            settings = next(groups)
            on_device = settings.get("capturable") or settings.get("fused")
            created = torch.zeros(saved.size, dtype=dtype, device=parameter.device if on_device else "cpu")
        optimizer.state[parameter][entry] = created
    return tensors_of(state)


def plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of facts as JSON gives them back."""
    try:
        return dict(json.loads(canonical(dict(facts))))
    except (TypeError, ValueError) as error:
        raise InternalError(f"the facts of a training state are not plain JSON data: {error}") from None


def _saved(metadata: Metadata) -> Iterator[tuple[str, TensorStorageMetadata]]:
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield key.removeprefix(f"{STATE_KEY}."), entry


def _form(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
