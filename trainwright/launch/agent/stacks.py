"""Save the Python stacks of a job's processes, on a signal of their agent.

faulthandler works without the interpreter, so also in a process that is stuck in C code.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

FOLDER = "stacks"

_WAIT_S = 3.0
_SETTLED_S = 1.0
"""Nothing says where the text ends; it comes thread by thread, the main one last."""


def register(folder: Path, rank: int) -> None:
    """Have this process write the stacks of all its threads when it gets SIGUSR1, if the disk has room."""
    try:
        path = _path(folder, rank, os.getpid())
        path.parent.mkdir(exist_ok=True)
        waiting = path.with_name(f"{path.name}.new")
        faulthandler.register(signal.SIGUSR1, file=waiting.open("w"), all_threads=True)
        # Only now can the signal be sent: before, it would end the process.
        waiting.rename(path)
    except OSError as error:
        sys.stderr.write(f"rank {rank}: its stacks cannot be saved: {error}\n")


def dump(folder: Path, processes: Mapping[int, int]) -> list[int]:
    """Save the stacks of processes of this machine (process ids by rank); return the ranks that were saved.

    They go to ``stacks/rank-N.txt``. A process that is stopped is continued for it.
    """
    # The stopped ones last: once they are continued, the others go on.
    stopped = {rank for rank, pid in processes.items() if is_stopped(pid)}
    found = []
    for some in (processes.keys() - stopped, stopped):
        requested = [rank for rank in sorted(some) if _path(folder, rank, processes[rank]).exists()]
        for rank in requested:
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes[rank], signal.SIGUSR1)
                if rank in stopped:
                    os.kill(processes[rank], signal.SIGCONT)
        end = time.monotonic() + _WAIT_S
        found += [rank for rank in requested if _collect(folder, rank, processes[rank], end)]
    return found


def save(folder: Path, rank: int, text: str) -> None:
    """Add a text to the saved stacks of a rank."""
    with contextlib.suppress(OSError):
        (folder / FOLDER).mkdir(exist_ok=True)
        with (folder / FOLDER / f"rank-{rank}.txt").open("a") as stream:
            stream.write(text.rstrip() + "\n\n")


def remove_empty(folder: Path, processes: Mapping[int, int]) -> None:
    """Remove the files in which the stacks of some processes would have been written."""
    for rank, pid in processes.items():
        _path(folder, rank, pid).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (folder / FOLDER).rmdir()


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped, by SIGSTOP or by a debugger."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in {"T", "t"}
    except OSError:
        return False


def _path(folder: Path, rank: int, pid: int) -> Path:
    return folder / FOLDER / f".rank-{rank}.{pid}"


def _collect(folder: Path, rank: int, pid: int, end: float) -> bool:
    """Wait until a rank's stacks are there and do not grow any more, and move them to their place."""
    path, size = _path(folder, rank, pid), 0
    grown = time.monotonic()
    while time.monotonic() < end and not (size and time.monotonic() - grown > _SETTLED_S):
        time.sleep(0.05)
        if path.stat().st_size > size:
            size, grown = path.stat().st_size, time.monotonic()
    if size:
        save(folder, rank, f"process {pid}\n{path.read_text(errors='replace')}")
    return bool(size)
