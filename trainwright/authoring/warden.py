"""Ends the containers of a run whose own process is gone; started as a script with the run's label.

Its input is held open by the run. When that closes, every container with the label is asked to stop, killed
after the grace, and removed. A run that has ended by itself has left none.
"""

import contextlib
import sys
from typing import Any

SIGNAL = """
import contextlib, os, signal
for name in filter(str.isdigit, os.listdir("/proc")):
    with contextlib.suppress(OSError):
        if name != "1" and os.getpgid(int(name)) == 1:
            os.kill(int(name), signal.SIGTERM)
"""
"""Run in a container, reaches what a signal to the step's process group reaches on this machine.

The first process is a shell that waits for the step: it passes no signal on, and the step is in its group.
"""


def stop(container: Any, grace_s: float) -> None:
    """Ask a container's processes to stop, and kill them if they are there after the grace.

    The signal goes to the step itself, not only to the shell that kfp starts it with: a shell passes none on.
    """
    from docker import errors
    from requests import exceptions

    gone = (errors.APIError, exceptions.RequestException)
    if grace_s > 0:
        with contextlib.suppress(*gone):
            container.exec_run(["python3", "-c", SIGNAL])
            container.wait(timeout=grace_s)
            return
    with contextlib.suppress(*gone):
        container.kill()


def end(engine: Any, label: str, grace_s: float) -> None:
    """Stop and remove every container with a label, those that have ended too."""
    from docker import errors

    for container in engine.containers.list(all=True, filters={"label": label}):
        stop(container, grace_s)
        with contextlib.suppress(errors.APIError):
            container.remove(force=True, v=True)


def main(label: str, grace_s: float) -> None:
    """Wait for the run to be gone, then end what it has left."""
    sys.stdin.read()
    import docker

    end(docker.from_env(), label, grace_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
