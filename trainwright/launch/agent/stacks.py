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
    """Have this process write the stacks of all its threads when it gets SIGUSR1.

    Without room to write, it goes without.
    """
    try:
        place = _path(folder, rank, os.getpid())
        place.parent.mkdir(exist_ok=True)
        waiting = place.with_name(f"{place.name}.new")
        stream = waiting.open("w")
        faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)
        # Only now can the signal be sent: before, it would end the process.
        waiting.rename(place)
    except OSError as error:
        sys.stderr.write(f"rank {rank}: its stacks cannot be saved: {error}\n")


def dump(folder: Path, processes: Mapping[int, int]) -> list[int]:
    """Save the stacks of some processes of this machine; one that is stopped is continued for it.

    Args:
        folder: The attempt's folder.
        processes: Process ids by rank.

    Returns:
        The ranks whose stacks were saved, into ``stacks/rank-N.txt``.
    """
    # The stopped ones last: once they are continued, the others go on.
    stopped = {rank for rank, pid in processes.items() if is_stopped(pid)}
    found = []
    for some in (processes.keys() - stopped, stopped):
        asked = [rank for rank in sorted(some) if _request(folder, rank, processes[rank], rank in stopped)]
        end = time.monotonic() + _WAIT_S
        found += [rank for rank in asked if _collect(folder, rank, processes[rank], end)]
    return found


def save(folder: Path, rank: int, text: str) -> None:
    """Add a text to what is saved of a rank's stacks."""
    with contextlib.suppress(OSError):
        (folder / FOLDER).mkdir(exist_ok=True)
        with (folder / FOLDER / f"rank-{rank}.txt").open("a") as stream:
            stream.write(text.rstrip() + "\n\n")


def remove_empty(folder: Path, processes: Mapping[int, int]) -> None:
    """Remove the places in which the stacks of some processes would have been written."""
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


def _request(folder: Path, rank: int, pid: int, stopped: bool) -> bool:
    if not _path(folder, rank, pid).exists():
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
        if stopped:
            os.kill(pid, signal.SIGCONT)
    return True


def _collect(folder: Path, rank: int, pid: int, end: float) -> bool:
    """Wait until a rank's stacks are there and do not grow any more, and move them to their place."""
    place, size = _path(folder, rank, pid), 0
    grown = time.monotonic()
    while time.monotonic() < end and not (size and time.monotonic() - grown > _SETTLED_S):
        time.sleep(0.05)
        if place.stat().st_size > size:
            size, grown = place.stat().st_size, time.monotonic()
    if size:
        save(folder, rank, f"process {pid}\n{place.read_text(errors='replace')}")
    return bool(size)
