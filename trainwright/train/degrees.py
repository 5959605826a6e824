"""Into how many parts a training is divided, and whether it can be: without torch, before anything starts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.errors import InputError
from trainwright.experiment import LanguageModel, Network, Training
from trainwright.experiment.parallel import Parallel

_WHOLE = ("mlp", "ft_transformer", "trees")
"""Kinds that can be neither cut into stages nor divided in their matrices."""

_WHERE = "training.parallel"


@dataclass(frozen=True)
class Degrees:
    """Degrees of parallelism; their product is the number of processes.

    Attributes:
        pipeline: Stages.
        replicate: Copies of the model that see other samples.
        shard: Processes that divide each copy's parameters, and see other samples.
        tensor: Processes that divide each matrix, and see the same samples.
    """

    pipeline: int
    replicate: int
    shard: int
    tensor: int

    @property
    def parts(self) -> int:
        """Data-parallel processes: into how many shares a batch is cut."""
        return self.replicate * self.shard

    @property
    def processes(self) -> int:
        """Number of processes in all."""
        return self.pipeline * self.parts * self.tensor


def degrees(parallel: Parallel, processes: int) -> Degrees:
    """Return the degrees of a training in a number of processes.

    Raises:
        InputError: Their product cannot be that number; both are named.
    """
    rest = parallel.pipeline * parallel.shard * parallel.tensor
    factors = f"pipeline {parallel.pipeline} x shard {parallel.shard} x tensor {parallel.tensor}"
    if parallel.replicate is None and processes % rest:
        raise InputError(
            f"{factors} = {rest} does not divide {processes} processes",
            where=_WHERE,
            hint=f"Use {_near(processes, rest)} processes (resources.nodes x resources.processes), or other "
            "degrees.",
        )
    replicate = parallel.replicate or processes // rest
    if replicate * rest != processes:
        raise InputError(
            f"replicate {replicate} x {factors} = {replicate * rest}, and there are {processes} processes",
            where=_WHERE,
            hint="Leave replicate out: it then fills the rest.",
        )
    return Degrees(parallel.pipeline, replicate, parallel.shard, parallel.tensor)


def check_division(network: Network, training: Training, processes: int) -> Degrees:
    """Check that a training can be divided as it is asked for.

    Args:
        network: The model.
        training: Its batch, its precision and its degrees.
        processes: Number of processes in the whole job.

    Raises:
        InputError: It cannot; everything that does not fit is named with both numbers.
    """
    found = degrees(training.parallel, processes)
    wrong = [*_of_batch(training, found), *_of_network(network, found)]
    if training.compile and found.tensor > 1:
        what = f"compile and tensor {found.tensor}: torch.compile fails on divided matrices; use one of them"
        wrong.append(("training.compile", what))
    if wrong:
        raise InputError("\n".join(what for _, what in wrong), where=", ".join(dict(wrong)))
    return found


def _of_batch(training: Training, found: Degrees) -> Iterator[tuple[str, str]]:
    """Yield what does not fit between a batch and the degrees, each with its place."""
    size, parts, parallel = training.batch_size, found.parts, training.parallel
    if size % parts:
        yield (
            "training.batch_size",
            f"batch_size {size} cannot be shared evenly by {parts} processes. Use {_near(size, parts)}.",
        )
    streams = training.feeding.streams
    if streams and streams % parts:
        yield (
            "training.feeding.streams",
            f"{streams} streams cannot be shared evenly by {parts} data-parallel processes. Use "
            f"{_near(streams, parts)}.",
        )
    if found.pipeline == 1:
        return
    if training.micro_batch:
        yield (
            "training.micro_batch",
            f"micro_batch {training.micro_batch} and pipeline {found.pipeline} both cut a share; use "
            "parallel.micro_batches alone",
        )
    if parallel.in_flight < found.pipeline and parallel.schedule == "1f1b":
        yield (
            f"{_WHERE}.micro_batches",
            f"{parallel.in_flight} micro-batches do not fill the {found.pipeline} stages of 1f1b",
        )
    if parallel.in_flight > size // parts:
        yield (
            f"{_WHERE}.micro_batches",
            f"{parallel.in_flight} micro-batches cannot be cut from a share of {size // parts} samples "
            f"(batch_size {size} over {parts})",
        )


def _of_network(network: Network, found: Degrees) -> Iterator[tuple[str, str]]:
    """Yield what does not fit between a model and the degrees, each with its place."""
    for name, degree in (("tensor", found.tensor), ("pipeline", found.pipeline)):
        if degree > 1 and network.kind in _WHOLE:
            yield f"{_WHERE}.{name}", f"network.kind {network.kind!r} cannot be divided by {name} {degree}"
    if not isinstance(network, LanguageModel):
        return
    divided = {"heads": network.heads, "groups": network.groups, "hidden": network.units}
    for name, size in divided.items():
        if size and size % found.tensor:
            yield f"network.{name}", f"{name} {size} cannot be divided evenly by tensor {found.tensor}"
    if network.layers < found.pipeline:
        yield "network.layers", f"{network.layers} layers are too few for pipeline {found.pipeline} stages"
    if network.tied and found.pipeline > 1:
        yield (
            "network.tied",
            f"a tied embedding is at both ends of pipeline {found.pipeline}; set tied to false",
        )


def _near(size: int, divisor: int) -> str:
    """Name the multiples of a divisor that lie around a size."""
    below = size - size % divisor
    return " or ".join(str(near) for near in (below, math.ceil(size / divisor) * divisor) if near)
