"""The processes of a training job, as torchrun starts them."""

import os
import socket
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainwright.errors import DependencyError, InternalError

_T = TypeVar("_T")

JOINING = timedelta(minutes=10)
"""How long the processes wait for each other to connect: they may start, and import, far apart."""

PATIENCE = timedelta(hours=24)
"""How long they wait for what one of them reads or brings: as long as the data is large."""

SAVING = timedelta(hours=2)
"""How long they wait for one that writes its part of a checkpoint, which is a fraction of its memory."""

_IDLE_S, _BETWEEN_S, _PROBES = 60, 10, 6
"""A machine that answers nothing for so long, and then to none of so many probes, is gone."""


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
    connections were made when the processes joined, so the end of one is seen by all others at once, and
    the loss of its machine within minutes.
    """
    if group.patient is not None:
        distributed.barrier(group=group.patient)


def brought(mine: _T, group: Group) -> Iterator[_T]:
    """Bring something of every process to the first, one after another: it never holds all of them at once.

    Args:
        mine: What this process has; it may be large.
        group: The processes; all of them call this together, and use it up.

    Yields:
        On the first process, what each has, by rank; nothing on the others, which send theirs meanwhile.
    """
    if not group.leads:
        distributed.send_object_list([mine], dst=0, group=group.patient)
        return
    yield mine
    for rank in range(1, group.size):
        received: list[Any] = [None]
        distributed.recv_object_list(received, src=rank, group=group.patient)
        yield received.pop()


def limit_exchanges(group: Group, parts: Iterable[ProcessGroup] = ()) -> None:
    """From now on let no exchange take longer than a step may wait.

    Args:
        group: The processes.
        parts: Their groups along the axes of a mesh.
    """
    for each in (distributed.group.WORLD, *parts):
        allow(timedelta(seconds=group.limit_s), each)


def patient_group(limit: timedelta = PATIENCE) -> ProcessGroup:
    """Connect all processes once more, for exchanges that may take hours; all of them call this together."""
    made: ProcessGroup = distributed.new_group(backend="gloo", timeout=JOINING)
    allow(limit, made)
    probe_connections()
    return made


def probe_connections() -> None:
    """Have the kernel ask, on every connection of this process, whether the other machine is still there.

    When a process ends, its kernel closes its connections. A machine that loses its power or its network
    closes nothing, and gloo, which asks nobody, would wait for it as long as is allowed. A kernel answers
    for a process that is busy, or stopped; so only a machine that is gone is noticed, after two minutes.
    Other systems than Linux have no need of it: there a job is on one machine.
    """
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as one:
            if one.family in {socket.AF_INET, socket.AF_INET6} and one.type == socket.SOCK_STREAM:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_S)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


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
