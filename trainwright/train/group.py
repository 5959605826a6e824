"""The processes of a training job, as torchrun starts them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainwright.errors import DependencyError, InternalError

JOINING = timedelta(minutes=10)
"""How long the processes wait for each other to connect: they may start, and import, far apart."""

PATIENCE = timedelta(hours=24)
"""How long they wait for what one of them reads or brings: as long as the data is large."""


@dataclass(frozen=True)
class Group:
    """This process among the others.

    Attributes:
        rank: Its number in the whole job, from 0.
        size: Processes in the whole job.
        local_rank: Its number on this machine.
        local_size: Processes on this machine.
        device: Where its tensors live.
        limit_s: Seconds that an exchange of a step may take.
        patient: Connects all of them, over gloo, for exchanges that may take hours; absent if there are none.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device
    limit_s: float = JOINING.total_seconds()
    patient: ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0


def wait_for_all(group: Group) -> None:
    """Wait until every process has come here, for hours if need be: some have more to read than others.

    A step waits for seconds; what comes before the first one takes as long as the data is large. The
    connections were made when the processes joined, so the end of one is seen by all others at once.
    """
    if group.patient is not None:
        distributed.barrier(group=group.patient)


def limit_exchanges(group: Group, parts: Iterable[ProcessGroup] = ()) -> None:
    """From now on let no exchange take longer than a step may wait.

    Args:
        group: The processes.
        parts: Their groups along the axes of a mesh.
    """
    for each in (distributed.group.WORLD, *parts):
        allow(timedelta(seconds=group.limit_s), each)


def patient_group() -> ProcessGroup:
    """Connect all processes once more, for exchanges that may take hours; all of them call this together."""
    made: ProcessGroup = distributed.new_group(backend="gloo", timeout=JOINING)
    allow(PATIENCE, made)
    return made


def allow(limit: timedelta, group: ProcessGroup | None) -> None:
    """Set how long an exchange may take: torch has no public way to change that of a group that is there."""
    _set_pg_timeout(limit, group)


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
        wait_s: Seconds that an exchange may take, once :func:`limit_exchanges` was called. Before that, and
            here, it may take ten minutes, if that is longer: the first step may compile, and no two start
            alike.

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
    rank, size = _place("RANK"), _place("WORLD_SIZE")
    joining = max(JOINING, timedelta(seconds=wait_s))
    distributed.init_process_group("nccl" if gpus else "gloo", timeout=joining)
    patient = patient_group() if size > 1 else None
    yield Group(rank, size, local_rank, local_size, device, wait_s, patient)
    # Not after an error: the others may be waiting in a collective that this process will not join.
    distributed.destroy_process_group()
