"""Processes that begin clean, but with all modules there: forked from one that only imported them.

To import torch and what belongs to it takes seconds, and a fork does not. A test itself cannot be forked from
once it has grown trees: the threads of OpenMP would be missing in the fork.
"""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.train.clean", "tests.train.node", "tests.train.stoppable"])


def start(body: Callable[..., object], *arguments: Any, said: Path | None = None, **place: object) -> Any:
    """Start a process that calls a function.

    Args:
        body: A function at the top of a module.
        arguments: What it is given.
        said: File for what it writes to its standard error.
        place: Variables of its environment.
    """
    process = _CONTEXT.Process(target=_run, args=(body, arguments, said, place))
    process.start()
    return process


def ended(process: ForkServerProcess) -> int:
    """Wait for the end of a process, and return its exit code, negative for a signal."""
    process.join(300)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


def places(*local: tuple[int, int]) -> list[dict[str, object]]:
    """Return what torchrun tells processes: the number on its machine, and that machine's processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": len(local), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        {**shared, "RANK": rank, "LOCAL_RANK": at, "LOCAL_WORLD_SIZE": size}
        for rank, (at, size) in enumerate(local)
    ]


def _run(
    body: Callable[..., object], arguments: tuple[Any, ...], said: Path | None, place: dict[str, object]
) -> None:
    os.environ.update({name: str(value) for name, value in place.items()})
    if said is not None:
        os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644), sys.stderr.fileno())
    body(*arguments)
