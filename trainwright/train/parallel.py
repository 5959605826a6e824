"""Parallelizes a module over the processes: replicas, shards, split matrices, stages, on one mesh."""

import hashlib
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trainwright.errors import DependencyError, InputError, InternalError
from trainwright.experiment import ResolvedTraining
from trainwright.experiment.training import Parallel
from trainwright.train.architectures import Architecture, InBlocks, InColumns, InStages
from trainwright.train.config import Degrees, degrees_of
from trainwright.train.process_group import Ranks

_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_deterministic() -> None:
    """Make every operation of this process reproducible, and float32 full precision, without TF32."""
    torch.use_deterministic_algorithms(mode=True)
    # Filling memory to expose reads of it would cost a pass over every tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def seed_step(seed: int, step: int, stream: int, device: torch.device) -> None:
    """Seed the random numbers of one step and one random stream, whatever was drawn before."""
    digest = hashlib.blake2b(f"{seed} {step} {stream}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big") >> 1
    # Without a GPU, torch.manual_seed would record at every call, for good, what to seed once there is one.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def low_precision(training: ResolvedTraining) -> torch.dtype | None:
    """Return the data type of matrix products; None for float32."""
    return _PRECISIONS.get(training.precision)


@dataclass(frozen=True)
class MeshLayout:
    """The mesh of processes (None with one), the lengths of its axes, and the position of this process.

    The axes are pipeline, replicate, shard, tensor; the last varies fastest over the ranks, so that processes
    that exchange most are closest together.
    """

    degrees: Degrees
    ranks: Ranks
    mesh: DeviceMesh | None

    @classmethod
    def of(cls, ranks: Ranks, parallel: Parallel) -> "MeshLayout":
        """Arrange the processes on a mesh; all of them call this together."""
        found = degrees_of(parallel, ranks.size)
        if ranks.size == 1:
            return cls(found, ranks, None)
        lengths = (found.pipeline, found.replicate, found.shard, found.tensor)
        names = ("pipeline", "replicate", "shard", "tensor")
        return cls(found, ranks, init_device_mesh(ranks.device.type, lengths, mesh_dim_names=names))

    @property
    def parts(self) -> int:
        """Number of data-parallel shares of a batch."""
        return self.degrees.parts

    @property
    def part(self) -> int:
        """Number of this process's share: the same on all that see the same samples."""
        return self.ranks.rank // self.degrees.tensor % self.degrees.parts

    @property
    def stage(self) -> int:
        """Number of this process's pipeline stage."""
        return self.ranks.rank // (self.degrees.tensor * self.degrees.parts)

    @property
    def random_stream(self) -> int:
        """Number of this process's random stream: the same on those that share matrices."""
        return self.ranks.rank // self.degrees.tensor

    @property
    def leads_stage(self) -> bool:
        """True for the first process of its stage."""
        return self.ranks.rank % (self.degrees.tensor * self.degrees.parts) == 0

    @property
    def groups(self) -> list[ProcessGroup]:
        """The process groups along the axes."""
        return self.mesh.get_all_groups() if self.mesh is not None else []

    def axis(self, *names: str) -> DeviceMesh:
        """Return the submesh along some axes that this process lies on."""
        if self.mesh is None:
            raise InternalError("a single process has no mesh")
        return self.mesh[names if len(names) > 1 else names[0]]


def parallelize(
    module: nn.Module, architecture: Architecture, training: ResolvedTraining, layout: MeshLayout
) -> tuple[nn.Module, nn.Module]:
    """Reduce a module, equal on every process, to this process's part, in place except for pipeline stages.

    The order matters: matrices are split first; then each block is recomputed, compiled and sharded, from the
    inside out.

    Returns:
        The part that holds the parameters, under their names in the whole module; and the module to call: the
        same one, or DDP around it.

    Raises:
        InputError: The architecture does not support a degree of parallelism.
        DependencyError: There is no compiler.
    """
    degrees, device = layout.degrees, layout.ranks.device
    if degrees.pipeline > 1:
        if not isinstance(architecture, InStages):
            raise _unsupported(architecture, "pipeline", degrees.pipeline, InStages)
        module = architecture.stage(module, layout.stage, degrees.pipeline)
    if degrees.tensor > 1:
        if not isinstance(architecture, InColumns):
            raise _unsupported(architecture, "tensor", degrees.tensor, InColumns)
        parallelize_module(module, layout.axis("tensor"), dict(architecture.tensor_plan(module)))
    blocks = architecture.blocks(module) if isinstance(architecture, InBlocks) else [module]
    for block in blocks if training.recompute else []:
        _recompute(block)
    if not (degrees.shard > 1 or (degrees.tensor > 1 and degrees.replicate > 1)):
        module.to(device)  # sharding instead moves one block after the other
        _autocast(module, training, device)
    if training.compile:
        _compile(blocks, device)
    module.train()
    if layout.parts == 1:
        return module, module
    if degrees.shard == 1 and degrees.tensor == 1:
        group = layout.axis("replicate").get_group()
        return module, DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=True)
    _shard(module, blocks, training, layout)
    return module, module


@contextmanager
def gradient_sync(runner: nn.Module, *, last: bool) -> Iterator[None]:
    """Defer the sum of gradients over replicas to the last micro-batch of a step.

    Shards are summed at each micro-batch: whole gradients would need the memory that sharding saves.
    """
    if isinstance(runner, DistributedDataParallel) and not last:
        with runner.no_sync():
            yield
        return
    if isinstance(runner, FSDPModule):
        runner.set_requires_all_reduce(last)
    yield


def full_weights(module: nn.Module, layout: MeshLayout) -> dict[str, Tensor]:
    """Return the state of the whole module on the CPU of rank 0; empty elsewhere.

    All processes call this together. One tensor is whole at a time, so only rank 0 needs memory for all.
    """
    found: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if layout.leads_stage:
            found[name] = whole.detach().cpu()
    device, stages = layout.ranks.device, layout.degrees.pipeline
    for rank in range(layout.ranks.size // stages, layout.ranks.size, layout.ranks.size // stages):
        sends = layout.ranks.rank == rank
        shared = [[(name, value.shape, value.dtype) for name, value in found.items()] if sends else None]
        distributed.broadcast_object_list(shared, src=rank)
        for name, shape, kind in shared[0] or ():
            if sends:
                distributed.send(found[name].contiguous().to(device), 0)
            elif layout.ranks.leads:
                received = torch.empty(shape, dtype=kind, device=device)
                distributed.recv(received, rank)
                found[name] = received.cpu()
    return found if layout.ranks.leads else {}


def _shard(
    module: nn.Module, blocks: Sequence[nn.Module], training: ResolvedTraining, layout: MeshLayout
) -> None:
    """Shard each block, then the rest (FSDP2), hybrid if there are replicas.

    DDP does not support split matrices, so replicas of those use the hybrid form, too, with shards of one.
    """
    # Whole outputs of split matrices are views; nothing here changes an output in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    hybrid = layout.degrees.replicate > 1
    mesh = layout.axis("replicate", "shard") if hybrid else layout.axis("shard")
    kind = low_precision(training)
    # Sums over processes stay float32, as does the output to the loss or to the next stage.
    inner = MixedPrecisionPolicy(kind, torch.float32 if kind else None, cast_forward_inputs=False)
    outer = MixedPrecisionPolicy(kind, torch.float32 if kind else None, torch.float32 if kind else None)
    # A stage runs many micro-batches between two sums: it gathers its parameters once for all of them.
    reshard = layout.degrees.pipeline == 1
    for block in blocks:
        if block is not module:
            fully_shard(block, mesh=mesh, mp_policy=inner, reshard_after_forward=reshard)
    fully_shard(module, mesh=mesh, mp_policy=outer, reshard_after_forward=reshard)


def _autocast(module: nn.Module, training: ResolvedTraining, device: torch.device) -> None:
    """Run a module in low precision, with float32 weights.

    Replaces ``forward`` itself, so that it holds under DDP and under a pipeline schedule, too.
    """
    kind = low_precision(training)
    if kind is None:
        return
    forward = module.forward

    def in_low_precision(*inputs: Any, **options: Any) -> Any:
        with torch.autocast(device.type, kind):
            return forward(*inputs, **options)

    module.forward = in_low_precision


def _recompute(block: nn.Module) -> None:
    """Store only a block's input, and recompute the rest in the backward pass (Chen et al., 2016)."""
    forward = block.forward

    def recomputed(*inputs: Tensor) -> Tensor:  # a functools.partial here would not be compiled
        output: Tensor = checkpoint(forward, *inputs, use_reentrant=False)
        return output

    block.forward = recomputed


def _compile(blocks: Sequence[nn.Module], device: torch.device) -> None:
    """Compile each block by itself: equal blocks share the compiled code."""
    compilers = ("c++", "g++", "clang++") if device.type == "cpu" else ("cc", "gcc", "clang")
    if not any(map(shutil.which, compilers)):
        raise DependencyError(
            f"torch.compile needs a compiler on {device.type}, and there is none of {', '.join(compilers)}",
            where="training.compile",
            hint="Set it to false, or use an image with a compiler.",
        )
    for block in blocks:
        block.compile()


def _unsupported(architecture: Architecture, name: str, degree: int, protocol: type) -> InputError:
    methods = ", ".join(method for method in vars(protocol) if not method.startswith("_"))
    return InputError(
        f"{type(architecture).__name__} does not support {name} {degree}: it has no {methods}",
        where=f"training.parallel.{name}",
        hint=f"Set it to 1, or implement {protocol.__name__} in the architecture (docs/parallelism.md).",
    )
