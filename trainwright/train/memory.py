"""A GPU that runs out of memory: what to do about it, and one more try with half the micro-batch."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed

from trainwright.errors import InputError
from trainwright.experiment import Training
from trainwright.launch.agent.rank_errors import rounds
from trainwright.train.degrees import degrees
from trainwright.train.group import Group

_KIND = "CUDA_OOM"


class OutOfGpuMemory(InputError):
    """A micro-batch does not fit.

    Args:
        what: What is wrong.
        hint: What to do next.
        again: Whether the processes are to be started again, which then use half the micro-batch.
    """

    kind = _KIND

    def __init__(self, what: str, *, hint: str, again: bool) -> None:
        super().__init__(what, where="training.micro_batch", hint=hint)
        self.again = again


def fitting_memory(training: Training, folder: Path, group: Group) -> Training:
    """Return the training as it is to be tried: with half its micro-batch if the whole one did not fit.

    Args:
        training: As it was asked for.
        folder: The attempt's folder, in which the errors of earlier rounds lie.
        group: The processes; all of them call this together.
    """
    if not training.guards.halve_micro_batch:
        return training
    shared = [_failed(folder) if group.leads else False]
    # The others may not see yet, on a network file system, what the first process sees.
    distributed.broadcast_object_list(shared)
    return training.model_copy(update={"micro_batch": _half(training, group)}) if shared[0] else training


@contextmanager
def memory_watched(training: Training, asked: Training, group: Group) -> Iterator[None]:
    """Say what did not fit, when a GPU runs out of memory.

    Args:
        training: As it is tried.
        asked: As it was asked for.
        group: The processes.

    Raises:
        OutOfGpuMemory: A GPU ran out of memory.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = _size(training, group)
        again = training == asked and asked.guards.halve_micro_batch and size > 1
        raise OutOfGpuMemory(
            f"a GPU ran out of memory with {size:,} samples at once: {str(error).splitlines()[0]:.200}",
            hint=f"Set it to {math.ceil(size / 2):,}: gradients of a batch add up over micro-batches, so the "
            "training stays the same. Or recompute: true, more processes to shard over, or a larger GPU.",
            again=again,
        ) from error


def _failed(folder: Path) -> bool:
    return any(entry.kind == _KIND for entries in rounds(folder) for entry in entries)


def _size(training: Training, group: Group) -> int:
    """Return the samples that a process handles at once."""
    share = math.ceil(training.batch_size / degrees(training.parallel, group.size).parts)
    return min(training.micro_batch or share, share)


def _half(training: Training, group: Group) -> int:
    return math.ceil(_size(training, group) / 2)
