"""Processes that begin clean, but with all modules there: forked from a server that only imported them.

To import torch and what belongs to it takes seconds, and a fork does not. A test itself cannot be forked:
once it has grown trees, the threads of OpenMP are missing in the fork; once it has computed a gradient after
an export, a CUDA build refuses to compute one in the fork, where its threads of autograd are missing.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.ports import free_port

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.train.clean",
        "tests.train.checkpointed",
        "tests.train.tree_process",
        "tests.train.stoppable",
        "tests.train.auto_process",
        "tests.train.parallel_trainings",
        "trainwright.train.trainers",
        "torch._dynamo",  # 260 modules that the first step of an optimizer imports
    ]
)


class _Stream:
    """A descriptor of this process that a process of the server gets under the same number.

    By itself that would write where the server did when it began, which pytest no longer reads.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[int, Any], int], tuple[int, Any]]:
        return _receive, (self._number, reduction.DupFd(self._number))


def _receive(number: int, sent: Any) -> int:
    return os.dup2(sent.detach(), number)


def start(
    body: Callable[..., object], *arguments: Any, said: Path | None = None, **place: object
) -> ForkServerProcess:
    """Start a process that calls a function, with this process's environment and output.

    Args:
        body: A function at the top of a module.
        arguments: What it is given.
        said: File for what it writes to its standard error.
        place: Further variables of its environment.
    """
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
    streams = (_Stream(1), _Stream(2))
    sys.stdout.flush()
    sys.stderr.flush()
    process = _CONTEXT.Process(target=_run, args=(streams, body, arguments, said, environment), daemon=True)
    process.start()
    return process


def ended(process: ForkServerProcess) -> int:
    """Wait for the end of a process, and return its exit code, negative for a signal."""
    process.join(300)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


def all_ended(started: list[ForkServerProcess], *, grace_s: float = 2, within_s: float = 300) -> list[int]:
    """Wait for the end of processes that belong together, and return their exit codes.

    When one ends badly the others are killed, as torchrun does.
    """
    end = time.monotonic() + within_s
    while None in [process.exitcode for process in started]:
        if any(process.exitcode for process in started) or time.monotonic() > end:
            until = time.monotonic() + grace_s
            for process in started:
                process.join(max(0, until - time.monotonic()))
                process.kill()
                process.join()
        time.sleep(0.01)
    return [process.exitcode or 0 for process in started]


def places(*local: tuple[int, int]) -> list[dict[str, object]]:
    """Return what torchrun tells processes: the number on its machine, and that machine's processes."""
    shared = {"WORLD_SIZE": len(local), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [
        {**shared, "RANK": rank, "LOCAL_RANK": at, "LOCAL_WORLD_SIZE": size}
        for rank, (at, size) in enumerate(local)
    ]


def _run(
    _streams: tuple[int, ...],
    body: Callable[..., object],
    arguments: tuple[Any, ...],
    said: Path | None,
    environment: dict[str, str],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if said is not None:
        os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644), sys.stderr.fileno())
    body(*arguments)
