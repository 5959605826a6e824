"""The processes of a training job, as torchrun starts them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

from trainwright.errors import DependencyError, InternalError

_PATIENCE = timedelta(hours=24)


@dataclass(frozen=True)
class Group:
    """This process among the others.

    Attributes:
        rank: Its number in the whole job, from 0.
        size: Processes in the whole job.
        local_rank: Its number on this machine.
        local_size: Processes on this machine.
        device: Where its tensors live.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0


def wait_for_all() -> None:
    """Wait until every process has come here, for hours if need be: some have more to read than others.

    A step waits for seconds; what comes before the first one takes as long as the data is large.
    """
    distributed.barrier(group=distributed.new_group(backend="gloo", timeout=_PATIENCE))


def _place(name: str) -> int:
    """Read one of the numbers that torchrun gives to a process."""
    try:
        return int(os.environ[name])
    except KeyError:
        raise InternalError(
            f"{name} is not set", hint="Start this under torchrun, or through the train component."
        ) from None


@contextmanager
def joined(gpus: int, wait_s: float = 600) -> Iterator[Group]:
    """Join the other processes: over gloo on the CPU, over NCCL on GPUs.

    Args:
        gpus: GPUs of this machine; 0 trains on the CPU.
        wait_s: Seconds that a process waits for the others, here and whenever they exchange anything.

    Raises:
        DependencyError: GPUs were asked for and there are fewer than processes.
    """
    local_rank, local_size = _place("LOCAL_RANK"), _place("LOCAL_WORLD_SIZE")
    if gpus and torch.cuda.device_count() < local_size:
        raise DependencyError(
            f"{local_size} processes need as many GPUs; this machine has {torch.cuda.device_count()}",
            where="resources.gpus",
        )
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if gpus else "gloo", timeout=timedelta(seconds=wait_s))
    yield Group(_place("RANK"), _place("WORLD_SIZE"), local_rank, local_size, device)
    # Not after an error: the others may be waiting in a collective that this process will not join.
    distributed.destroy_process_group()
