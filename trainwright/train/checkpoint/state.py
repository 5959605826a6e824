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

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Data type and full shape of tensors by name."""

STATE_KEY = "state"
"""The one entry under which torch gets all tensors: it logs several lines for every entry."""

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
_MODEL, _OPTIMIZER = "model/", "optimizer/"
_SHOWN = 5


@dataclass
class TrainState:
    """A training between two steps.

    The order of samples and every random number are functions of the seed and the step, so the step is all
    of them that needs saving.

    Attributes:
        module: The module as it is trained; its parameters may be sharded. A ``ModuleList`` holds the
            pipeline stages of this process, each with the names of the whole model.
        optimizer: Its optimizer.
        step: Steps taken.
        facts: Everything else to save, as plain JSON data by owner (losses so far, a guard's window).
    """

    module: nn.Module
    optimizer: Optimizer
    step: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and buffers under their names without any wrapper around a module."""
        for module in self.module if isinstance(self.module, nn.ModuleList) else [self.module]:
            for name, value in module.state_dict(keep_vars=True).items():
                if not isinstance(value, Tensor):
                    raise InternalError(f"{name} of the module is a {type(value).__name__}, not a tensor")
                for wrapper in _WRAPPERS:
                    name = name.replace(wrapper, "")  # noqa: PLW2901 - the same name, shorter
                yield name, value


def tensors_of(state: TrainState) -> dict[str, Tensor]:
    """Return the tensors of a state: ``model/NAME`` and ``optimizer/NAME/FIELD``.

    The optimizer's settings are left out: they follow from the configuration and the step.
    """
    found = {f"{_MODEL}{name}": value.detach() for name, value in state.named_tensors()}
    names = {value: name for name, value in state.named_tensors()}
    for parameter, fields in state.optimizer.state.items():
        for name, value in fields.items():
            if not isinstance(value, Tensor):
                raise InternalError(f"{name} of the optimizer is a {type(value).__name__}, not a tensor")
            found[f"{_OPTIMIZER}{names[parameter]}/{name}"] = value
    return found


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Return data types and full shapes of tensors."""
    return {name: (str(value.dtype), tuple(value.shape)) for name, value in tensors.items()}


def saved_shapes(metadata: Metadata) -> Shapes:
    """Return data types and full shapes of the tensors in a checkpoint."""
    return {name: (str(entry.properties.dtype), tuple(entry.size)) for name, entry in _saved(metadata)}


def require_same_shapes(expected: Shapes, saved: Shapes, where: str) -> None:
    """Reject a checkpoint of another architecture; the optimizer's tensors do not count.

    Args:
        expected: Tensors of the module, over all processes.
        saved: Tensors of the checkpoint.
        where: Folder of the checkpoint, for the error.

    Raises:
        InputError: A tensor is missing, unexpected, or has another shape or type; lists five of each.
    """
    expected = {name: shape for name, shape in expected.items() if name.startswith(_MODEL)}
    saved = {name: shape for name, shape in saved.items() if name.startswith(_MODEL)}
    kinds = {
        "missing": [name.removeprefix(_MODEL) for name in sorted(expected.keys() - saved.keys())],
        "unexpected": [name.removeprefix(_MODEL) for name in sorted(saved.keys() - expected.keys())],
        "different": [
            f"{name.removeprefix(_MODEL)} ({_form(*saved[name])} saved, {_form(*expected[name])} expected)"
            for name in sorted(expected.keys() & saved.keys())
            if expected[name] != saved[name]
        ],
    }
    if any(kinds.values()):
        shown = {kind: names[:_SHOWN] + ["..."] * (len(names) > _SHOWN) for kind, names in kinds.items()}
        raise InputError(
            "the checkpoint is of another architecture: "
            + "; ".join(
                f"{len(kinds[kind])} {kind}: {', '.join(names)}" for kind, names in shown.items() if names
            ),
            where=where,
            hint="Use the network that wrote it, or start a new training under another output.",
        )


def tensors_to_load(state: TrainState, metadata: Metadata) -> dict[str, Tensor]:
    """Return the tensors to load into; creates those of an optimizer that took no step yet."""
    parameters = dict(state.named_tensors())
    for key, saved in _saved(metadata):
        if not key.startswith(_OPTIMIZER):
            continue
        name, _, entry = key.removeprefix(_OPTIMIZER).rpartition("/")
        parameter = parameters.get(name)
        if parameter is not None and entry not in state.optimizer.state[parameter]:
            state.optimizer.state[parameter][entry] = _empty(parameter, saved, state.optimizer)
    return tensors_of(state)


def plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of facts as JSON gives them back.

    Raises:
        InternalError: They are not plain, finite JSON data.
    """
    try:
        return dict(json.loads(canonical(dict(facts))))
    except (TypeError, ValueError) as error:
        raise InternalError(f"the facts of a training state are not plain JSON data: {error}") from None


def _saved(metadata: Metadata) -> Iterator[tuple[str, TensorStorageMetadata]]:
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield key.removeprefix(f"{STATE_KEY}."), entry


def _empty(parameter: Tensor, saved: TensorStorageMetadata, optimizer: Optimizer) -> Tensor:
    """Create a tensor of an optimizer: laid out like its parameter, or a count of steps."""
    dtype = saved.properties.dtype
    if saved.size == parameter.shape and saved.size:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    settings = next(
        group for group in optimizer.param_groups if any(entry is parameter for entry in group["params"])
    )
    # torch's optimizers keep their step counts on the host unless they are capturable or fused.
    on_device = settings.get("capturable") or settings.get("fused")
    return torch.zeros(saved.size, dtype=dtype, device=parameter.device if on_device else "cpu")


def _form(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype.removeprefix('torch.')} {list(shape)}"
