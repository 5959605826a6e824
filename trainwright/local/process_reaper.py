"""Stop the steps of a run whose own process was killed. It runs as a script, with the standard library only.

It reads ``+GROUP`` and ``-GROUP`` from its input, which the run keeps open. When the input closes, it stops
every remaining process group, kills it after the grace period in seconds (first argument), and removes the
folder of temporary files (second argument).
"""

import os
import shutil
import signal
import sys
import time


def send_signal(group: int, number: int) -> bool:
    """Send a signal to a process group; return False if it does not exist."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(grace_s: float, scratch: str) -> None:
    """Wait until the run has ended, then stop the processes that it left."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    left = [group for group in groups if send_signal(group, signal.SIGTERM)]
    until = time.monotonic() + grace_s
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left = [group for group in left if send_signal(group, 0)]
    for group in left:
        send_signal(group, signal.SIGKILL)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
