"""A module divided over the processes: its matrices, its blocks, its copies."""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Training
from trainwright.train.architectures import Architecture, InBlocks, InColumns, InStages
from trainwright.train.parallel.arithmetic import compute_low, low_precision
from trainwright.train.parallel.layout import Layout


def divide(
    module: nn.Module, architecture: Architecture, training: Training, layout: Layout
) -> tuple[nn.Module, nn.Module]:
    """Cut a module to this process's part of it, in place but for the cut into stages.

    The order matters: matrices are divided first, then each block is recomputed, compiled and sharded, from
    the inside to the outside.

    Args:
        module: The whole untrained module, the same on every process; its part is moved to the device.
        architecture: What knows its parts.
        training: Precision, recomputation, compilation.
        layout: The processes.

    Returns:
        The part that holds the parameters, under the names that they have in the whole; and what is called
        to run it: the same module, or DDP around it.

    Raises:
        InputError: The architecture cannot be divided as it is asked for.
        DependencyError: There is no compiler.
    """
    degrees = layout.degrees
    if degrees.pipeline > 1:
        if not isinstance(architecture, InStages):
            raise _indivisible(architecture, "pipeline", degrees.pipeline, InStages)
        module = architecture.stage(module, layout.stage, degrees.pipeline)
    if degrees.tensor > 1:
        if not isinstance(architecture, InColumns):
            raise _indivisible(architecture, "tensor", degrees.tensor, InColumns)
        parallelize_module(module, layout.axis("tensor"), dict(architecture.tensor_plan(module)))
    blocks = architecture.blocks(module) if isinstance(architecture, InBlocks) else [module]
    for block in blocks:
        if training.recompute:
            _recompute(block)
    sharded = degrees.shard > 1 or (degrees.tensor > 1 and degrees.replicate > 1)
    if not sharded:  # sharding moves one block after the other
        module.to(layout.group.device)
        compute_low(module, training, layout.group.device)
    if training.compile:
        _compile(blocks, layout.group.device)
    module.train()
    return module, _shared(module, blocks, training, layout) if layout.parts > 1 else module


def _shared(module: nn.Module, blocks: Sequence[nn.Module], training: Training, layout: Layout) -> nn.Module:
    """Let processes that see other samples add up their gradients."""
    degrees = layout.degrees
    if degrees.shard == 1 and degrees.tensor == 1:
        group = layout.axis("replicate").get_group()
        return DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=True)
    _shard(module, blocks, training, layout)
    return module


def _shard(module: nn.Module, blocks: Sequence[nn.Module], training: Training, layout: Layout) -> None:
    """Shard each block, then the rest (FSDP2); copies of a sharded module are its hybrid form.

    DDP does not know divided matrices, so copies of those take the hybrid form too, with shards of one.
    """
    # Whole outputs of divided matrices are views; nothing here changes an output in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    copies = layout.degrees.replicate > 1
    mesh = layout.axis("replicate", "shard") if copies else layout.axis("shard")
    kind = low_precision(training)
    # Sums over processes stay float32, and so does what the module gives to the loss or to the next stage.
    inner = MixedPrecisionPolicy(kind, torch.float32 if kind else None, cast_forward_inputs=False)
    outer = MixedPrecisionPolicy(kind, torch.float32 if kind else None, torch.float32 if kind else None)
    # A stage runs many micro-batches between two sums: it gathers its parameters once for all of them.
    again = layout.degrees.pipeline == 1
    for block in blocks:
        if block is not module:
            fully_shard(block, mesh=mesh, mp_policy=inner, reshard_after_forward=again)
    fully_shard(module, mesh=mesh, mp_policy=outer, reshard_after_forward=again)


@contextmanager
def synchronised(runner: nn.Module, *, last: bool) -> Iterator[None]:
    """Leave the sum over copies of a module to the last micro-batch of a step.

    Shards are summed at each: whole gradients would need the memory that sharding saves.
    """
    if isinstance(runner, DistributedDataParallel) and not last:
        with runner.no_sync():
            yield
        return
    if isinstance(runner, FSDPModule):
        runner.set_requires_all_reduce(last)
    yield


def _recompute(block: nn.Module) -> None:
    """Keep a block's input alone, and compute the rest again in the backward pass (Chen et al., 2016)."""
    forward = block.forward

    def again(*inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(forward, *inputs, use_reentrant=False)
        return output

    block.forward = again


def _compile(blocks: Sequence[nn.Module], device: torch.device) -> None:
    """Compile each block by itself: blocks of one form share the compiled code."""
    needed = ("c++", "g++", "clang++") if device.type == "cpu" else ("cc", "gcc", "clang")
    if not any(map(shutil.which, needed)):
        raise DependencyError(
            f"torch.compile needs a compiler on {device.type}, and there is none of {', '.join(needed)}",
            where="training.compile",
            hint="Set it to false, or use an image with a compiler.",
        )
    for block in blocks:
        block.compile()


def _indivisible(architecture: Architecture, name: str, degree: int, needed: type) -> InputError:
    offers = ", ".join(method for method in vars(needed) if not method.startswith("_"))
    return InputError(
        f"{type(architecture).__name__} cannot be divided by {name} {degree}: it has no {offers}",
        where=f"training.parallel.{name}",
        hint=f"Set it to 1, or give the architecture what {needed.__name__} says (docs/parallelism.md).",
    )
