"""Tasks of a pool whose workers come from a fork server: found by their names in other processes."""

import os
import signal
import time
from pathlib import Path

from trainwright.errors import InputError


def die_at_three(task: int) -> int:
    """Be killed, as by a lack of memory, at the fourth task."""
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def fail_from_two(folder: Path, task: int) -> int:
    """Fail at the third task late, and at the fourth at once."""
    (folder / str(task)).touch()
    if task < 2:
        return task
    time.sleep(0.5 if task == 2 else 0)
    raise InputError(f"task {task} is bad", where="here")


def write_pid(folder: Path, task: int) -> int:
    """Leave this process's number in a folder, and work for a while."""
    (folder / str(os.getpid())).touch()
    time.sleep(0.5)
    return task
