"""The tensors of a state by name: those of the module and those of its optimizer, sharded or not."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from trainwright.documents import canonical
from trainwright.errors import InputError, InternalError
from trainwright.train.state import State

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Data type and full shape of tensors by name."""

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
_MODEL, _OPTIMIZER = "model/", "optimizer/"

STATE = "state"
"""The one entry under which torch is given all tensors: for every entry it writes lines of log."""
_SHOWN = 5


def tensors_of(state: State) -> dict[str, Tensor]:
    """Return the tensors of a state: ``model/NAME`` and ``optimizer/NAME/FIELD``.

    What else an optimizer has, its settings, follows from the configuration and the step.
    """
    found = {f"{_MODEL}{name}": value.detach() for name, value in _named(state)}
    names = {value: name for name, value in _named(state)}
    for parameter, fields in state.optimizer.state.items():
        for field, value in fields.items():
            if not isinstance(value, Tensor):
                raise InternalError(f"the optimizer keeps {field} as {type(value).__name__}, not as a tensor")
            found[f"{_OPTIMIZER}{names[parameter]}/{field}"] = value
    return found


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Return types and full shapes of tensors."""
    return {name: (str(value.dtype), tuple(value.shape)) for name, value in tensors.items()}


def shapes_in(metadata: Metadata) -> Shapes:
    """Return types and full shapes of what was saved."""
    return {name: (str(entry.properties.dtype), tuple(entry.size)) for name, entry in _saved(metadata)}


def require_same(wanted: Shapes, saved: Shapes, where: str) -> None:
    """Refuse what was saved by another architecture.

    Args:
        wanted: The module's tensors, over all processes; those of the optimizer do not count.
        saved: Those of the checkpoint.
        where: Its folder, for the message.

    Raises:
        InputError: A tensor is missing, is not known, or has another shape or type; the first five of each.
    """
    wanted = {name: shape for name, shape in wanted.items() if name.startswith(_MODEL)}
    there = {name: shape for name, shape in saved.items() if name.startswith(_MODEL)}
    both = sorted(wanted.keys() & there.keys())
    kinds = {
        "missing": [_plain(name) for name in sorted(wanted.keys() - there.keys())],
        "unexpected": [_plain(name) for name in sorted(there.keys() - wanted.keys())],
        "different": [
            f"{_plain(name)} ({_form(*there[name])} saved, {_form(*wanted[name])} wanted)"
            for name in both
            if wanted[name] != there[name]
        ],
    }
    if any(kinds.values()):
        raise InputError(
            "the checkpoint is of another architecture: "
            + "; ".join(f"{len(names)} {kind}: {_first(names)}" for kind, names in kinds.items() if names),
            where=where,
            hint="Go back to the network that it was made with, or start afresh under another output.",
        )


def with_optimizer(state: State, metadata: Metadata) -> dict[str, Tensor]:
    """Return the tensors to load into; an optimizer that took no step yet is given the ones it will need."""
    names = dict(_named(state))
    for key, saved in _saved(metadata):
        if not key.startswith(_OPTIMIZER):
            continue
        name, _, field = key.removeprefix(_OPTIMIZER).rpartition("/")
        parameter = names.get(name)
        if parameter is not None and field not in state.optimizer.state[parameter]:
            state.optimizer.state[parameter][field] = _empty(parameter, saved, state.optimizer)
    return tensors_of(state)


def _saved(metadata: Metadata) -> Iterator[tuple[str, TensorStorageMetadata]]:
    """Give what was saved under the names of :func:`tensors_of`."""
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield key.removeprefix(f"{STATE}."), entry


def _empty(parameter: Tensor, saved: TensorStorageMetadata, optimizer: Optimizer) -> Tensor:
    """Make a tensor of an optimizer: laid out like its parameter, or a count of steps."""
    dtype = saved.properties.dtype
    if saved.size == parameter.shape and saved.size:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    settings = next(
        group for group in optimizer.param_groups if any(entry is parameter for entry in group["params"])
    )
    # The optimizers of torch keep their counts on the host, unless they run wholly on the device.
    on_device = settings.get("capturable") or settings.get("fused")
    return torch.zeros(saved.size, dtype=dtype, device=parameter.device if on_device else "cpu")


def _named(state: State) -> Iterator[tuple[str, Tensor]]:
    """Give parameters and buffers under the names they have without any wrapper around a module."""
    for module in state.modules:
        for name, value in module.state_dict(keep_vars=True).items():
            if not isinstance(value, Tensor):
                raise InternalError(f"the module keeps {name} as {type(value).__name__}, not as a tensor")
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")  # noqa: PLW2901 - the same name, shorter
            yield name, value


def _plain(name: str) -> str:
    return name.removeprefix(_MODEL)


def _form(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype.removeprefix('torch.')} {list(shape)}"


def _first(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of facts as a reader would get them.

    Raises:
        InternalError: They are not plain, finite JSON data.
    """
    try:
        return dict(json.loads(canonical(dict(facts))))
    except (TypeError, ValueError) as error:
        raise InternalError(f"what is to be saved beside the tensors is no plain data: {error}") from None
