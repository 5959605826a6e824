"""The user's own architecture, imported by its path.

The path is in the experiment file, so it names code that will run. It is checked before it is called: it
must be a class with the three methods of :class:`Architecture`, of a package that is installed in the image.
A path such as ``os:system`` is rejected without being called.
"""

import importlib
import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainwright.documents import canonical, digest_file, digest_text
from trainwright.errors import InputError, TrainwrightError
from trainwright.experiment import Imported
from trainwright.serving.program import RowScorer, write_rows
from trainwright.serving.program_check import check_archive
from trainwright.train.architectures.contract import Architecture, Inputs

_WHERE = "network.path"
_METHODS = {"build": ["inputs"], "loss": ["output", "target"], "predict": ["output"]}
_SHOWN, _ROWS = 5, 3
_CONTRACT = "The contract is in docs/models.md."


def import_architecture(network: Imported) -> Architecture:
    """Import the class of a section, and create it with the section's options."""
    module_name, _, name = network.path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        head = ", ".join(repr(entry) for entry in sys.path[:_SHOWN])
        raise InputError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}; "
            f"sys.path begins with {head}",
            where=_WHERE,
            hint="Install its package in the job's image (docs/models.md); nothing is installed at run time.",
        ) from error
    found = getattr(module, name, None)
    if found is None:
        names = sorted(each for each in vars(module) if not each.startswith("_"))[:10]
        raise InputError(
            f"module {module_name!r} ({getattr(module, '__file__', 'built in')}) has no {name!r}",
            where=_WHERE,
            hint=f"It has {', '.join(names) or 'nothing'}.",
        )
    _require_methods(found, network.path)
    try:
        return cast("Architecture", found(**network.options))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{network.path} cannot be created with options {sorted(network.options)}: {error}",
            where="network.options",
            hint=f"It takes {inspect.signature(found)}.",
        ) from error


def code_digest(network: object) -> dict[str, str]:
    """Return the digest of the Python files of the user's package, for the model's parents."""
    if not isinstance(network, Imported):
        return {}
    package = importlib.import_module(network.path.partition(":")[0].partition(".")[0])
    places = [Path(place) for place in getattr(package, "__path__", [])]
    files = {str(path.relative_to(place)): path for place in places for path in place.rglob("*.py")}
    if not places:
        files = {Path(str(package.__file__)).name: Path(str(package.__file__))}
    return {"code": digest_text(canonical({name: digest_file(path) for name, path in files.items()}))}


def build(architecture: Architecture, inputs: Inputs, device: torch.device) -> nn.Module:
    """Build a module, run it on three rows of zeros, and check the results against the contract.

    Returns:
        The module, in training mode; the run drew no random number. A model of tokens is not run and stays on
        the CPU: it may fit into no device as a whole, and is moved once it is split.
    """
    module = _call("build", architecture.build, inputs)
    if not isinstance(module, nn.Module):
        raise InputError(f"build returns a {type(module).__name__}, not a torch.nn.Module", where=_WHERE)
    if inputs.transforms is None:
        return module
    module.to(device)
    many = inputs.target.kind == "multiclass"
    shapes = (inputs.transforms.width, torch.float32), (len(inputs.transforms.categories), torch.int64)
    batch = [torch.zeros(_ROWS, width, dtype=kind, device=device) for width, kind in shapes]
    target = torch.zeros(_ROWS, dtype=torch.int64 if many else torch.float32, device=device)
    module.eval()
    with torch.no_grad():
        output = _call("forward", module, *batch)
        loss = _call("loss", architecture.loss, output, target)
        scores = _call("predict", architecture.predict, output)
    module.train()
    _require("loss", loss, (_ROWS,), torch.float32)
    _require("predict", scores, (_ROWS, len(inputs.target.rates)) if many else (_ROWS,), torch.float64)
    return module


def require_exportable(architecture: Architecture, inputs: Inputs) -> None:
    """Export a module with fresh weights, and check its program, as is done with the trained one.

    Draws no random number. A model of tokens is not exported: it may be too large for one process.

    Raises:
        InputError: torch cannot export it, or it uses an operator that no program may have.
    """
    transforms = inputs.transforms
    if transforms is None:
        return
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        path = Path(folder) / "program.pt2"
        scorer = RowScorer(transforms, architecture.build(inputs), architecture.predict)
        try:
            write_rows(path, scorer, transforms, {})
            check_archive(path)
        except TrainwrightError as error:
            raise InputError(
                f"the model cannot be registered after its training: {error.what}",
                where=_WHERE,
                hint="Use other operators in forward and predict; docs/trust.md says which are allowed.",
            ) from None
        except Exception as error:
            raise InputError(
                f"torch.export cannot export the model: {type(error).__name__}: {error!s:.2000}",
                where=_WHERE,
                hint=_CONTRACT,
            ) from error


def _call(name: str, method: Any, *values: Any) -> Any:
    try:
        return method(*values)
    except TrainwrightError:
        raise
    except Exception as error:
        raise InputError(
            f"{name} of the model fails: {type(error).__name__}: {error}", where=_WHERE, hint=_CONTRACT
        ) from error


def _require(name: str, found: Any, shape: tuple[int, ...], kind: torch.dtype) -> None:
    if isinstance(found, Tensor) and tuple(found.shape) == shape and found.dtype == kind:
        return
    found_type = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    raise InputError(
        f"{name} of the model returns {found_type} for {_ROWS} rows, not {kind} {shape}",
        where=_WHERE,
        hint=_CONTRACT,
    )


def _require_methods(found: Any, path: str) -> None:
    """Check the three methods; name those that are missing or take other arguments."""
    if not isinstance(found, type):
        raise InputError(f"{path} is a {type(found).__name__}, not a class", where=_WHERE, hint=_CONTRACT)
    missing = [name for name in _METHODS if not callable(getattr(found, name, None))]
    if missing:
        raise InputError(
            f"{path} has no method {', '.join(missing)}; a model has build, loss and predict",
            where=_WHERE,
            hint=_CONTRACT,
        )
    for name, expected in _METHODS.items():
        try:
            inspect.signature(getattr(found, name)).bind("self", *expected)
        except TypeError as error:
            raise InputError(
                f"{path}.{name} does not take ({', '.join(['self', *expected])}): {error}",
                where=_WHERE,
                hint=_CONTRACT,
            ) from None
