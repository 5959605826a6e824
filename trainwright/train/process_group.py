"""The processes of a training job, as torchrun starts them, and how they agree on results."""

import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import distributed
from torch.distributed import ProcessGroup

# torch has no public way to change the timeout of an existing group.
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainwright.errors import DependencyError, InternalError, TrainwrightError

_T = TypeVar("_T")

CONNECT_TIMEOUT = timedelta(minutes=10)
"""Limit for connecting: processes may start, and import, far apart."""

DATA_TIMEOUT = timedelta(hours=24)
"""Limit for waiting until another process has read or fetched its data."""

SAVE_TIMEOUT = timedelta(hours=2)
"""Limit for waiting until another process has written its part of a checkpoint."""

_IDLE_S, _BETWEEN_S, _PROBES = 60, 10, 6


@dataclass(frozen=True)
class Ranks:
    """This process among the others.

    Attributes:
        rank: Its number in the whole job, from 0.
        size: Processes in the whole job.
        local_rank: Its number on this machine.
        local_size: Processes on this machine.
        device: Device of its tensors.
        step_timeout_s: Limit for a collective of a step.
        patient: A gloo group of all processes for exchanges that may take hours; None with one process.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device
    step_timeout_s: float = CONNECT_TIMEOUT.total_seconds()
    patient: ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """True for rank 0, which writes."""
        return self.rank == 0


@contextmanager
def process_group(gpus: int, step_timeout_s: float = 600) -> Iterator[Ranks]:
    """Join the process group: NCCL on the ``gpus`` of this machine; gloo on the CPU if that is 0.

    ``step_timeout_s`` limits a collective once :func:`set_step_timeout` was called. Before that the limit is
    at least ten minutes: the first steps may compile.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if missing := [name for name in names if name not in os.environ]:
        raise InternalError(
            f"{missing[0]} is not set", hint="Start this under torchrun, or through the train component."
        )
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    if gpus and torch.cuda.device_count() < local_size:
        raise DependencyError(
            f"{local_size} processes need as many GPUs; this machine has {torch.cuda.device_count()}",
            where="resources.gpus",
        )
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    timeout = max(CONNECT_TIMEOUT, timedelta(seconds=step_timeout_s))
    distributed.init_process_group("nccl" if gpus else "gloo", timeout=timeout)
    patient = new_gloo_group() if size > 1 else None
    yield Ranks(rank, size, local_rank, local_size, device, step_timeout_s, patient)
    # Not after an error: the others may be waiting in a collective that this process will never join.
    distributed.destroy_process_group()


def barrier(ranks: Ranks) -> None:
    """Wait for every process, for hours if need be: some have more to read than others.

    A process that ends is noticed at once, as its connections close; a lost machine within minutes.
    """
    if ranks.patient is not None:
        distributed.barrier(group=ranks.patient)


def gather_to_leader(mine: _T, ranks: Ranks) -> Iterator[_T]:
    """Send an object of every process to rank 0, one after another: rank 0 never holds all of them at once.

    All processes call this together and exhaust it. Rank 0 gets the objects by rank; the others get nothing.
    """
    if not ranks.leads:
        distributed.send_object_list([mine], dst=0, group=ranks.patient)
        return
    yield mine
    for rank in range(1, ranks.size):
        received: list[Any] = [None]
        distributed.recv_object_list(received, src=rank, group=ranks.patient)
        yield received.pop()


def set_step_timeout(ranks: Ranks, axes: Iterable[ProcessGroup] = ()) -> None:
    """Limit every later collective to the time of a step, in all groups along the axes of a mesh too."""
    for group in (distributed.group.WORLD, *axes):
        _set_pg_timeout(timedelta(seconds=ranks.step_timeout_s), group)


def new_gloo_group(timeout: timedelta = DATA_TIMEOUT) -> ProcessGroup:
    """Connect all processes once more, for exchanges that may take hours; all of them call this together."""
    made: ProcessGroup = distributed.new_group(backend="gloo", timeout=CONNECT_TIMEOUT)
    _set_pg_timeout(timeout, made)
    enable_keepalive()
    return made


def enable_keepalive() -> None:
    """Turn on TCP keepalive for every connection of this process, so that a lost machine is noticed.

    A process that ends closes its connections. A machine that loses power or network closes nothing, and gloo
    would wait until its timeout. The kernel answers for a busy or stopped process, so only a lost machine
    fails the probes, after two minutes. Linux only: elsewhere a job runs on one machine.
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
        with socket.socket(fileno=copy) as connection:
            internet = connection.family in {socket.AF_INET, socket.AF_INET6}
            if internet and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Coordinator:
    """Lets all processes make one decision, over a gloo group that nothing else uses meanwhile.

    Calls may take hours: a checkpoint may have to be fetched from a store first. All processes make them
    together. Without a group of its own it connects a new one.
    """

    def __init__(self, ranks: Ranks, group: ProcessGroup | None = None) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self.group, self._timeout = group or new_gloo_group(), timedelta(seconds=ranks.step_timeout_s)

    def on_leader(self, call: Callable[[], _T]) -> _T:
        """Make a call on rank 0; return its result, or raise its error, on all processes."""
        shared: list[Any] = [_attempt(call) if self.rank == 0 else None]
        distributed.broadcast_object_list(shared, group=self.group)
        return cast(_T, _unpack(shared[0]))

    def on_all(self, call: Callable[[], _T]) -> list[_T]:
        """Make a call on every process; return all results, or raise the first error, on all processes."""
        shared: list[Any] = [None] * self.size
        distributed.all_gather_object(shared, _attempt(call), group=self.group)
        return [_unpack(entry) for entry in shared]

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        """Return the element-wise maximum over all processes, within the limit of a step."""
        shared = torch.tensor([int(number) for number in numbers])
        _set_pg_timeout(self._timeout, self.group)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX, group=self.group)
        _set_pg_timeout(DATA_TIMEOUT, self.group)
        return [int(number) for number in shared]


def _attempt(call: Callable[[], _T]) -> tuple[Any, ...]:
    """Return the error type (None if none) and the result, or the arguments of the error, all picklable."""
    try:
        return (None, call())
    except TrainwrightError as error:
        return (type(error), error.what, error.where, error.hint)
    except Exception as error:  # the other processes wait for this one
        return (InternalError, f"{type(error).__name__}: {error}", "", "")


def _unpack(entry: tuple[Any, ...]) -> Any:
    kind, *values = entry
    if kind is None:
        return values[0]
    what, where, hint = values
    raise kind(what, where=where, hint=hint)
