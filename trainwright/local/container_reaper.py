"""Remove the containers of a run whose process was killed. It runs as a script with the run's label.

The run keeps this script's input open and writes the folders of temporary files to it, one per line. When the
input closes, the script stops every container with the label, kills it after the grace period, and removes it
and the folders. A run that ended by itself and left no container writes :data:`DONE` last.
"""

import contextlib
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

DONE = b"done"
"""What a run says that has left no container."""

TIMEOUT_S = 300
"""Seconds that an engine may take for one answer: while it writes a large image it lets others wait."""

PATIENCE_S = 600.0
"""Seconds for which an engine is asked again that does not answer: it may be starting anew."""

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


def unknown(error: Exception) -> bool:
    """Return whether the engine's error means that the container is gone or being removed.

    Podman answers 500 instead of 404 when the container disappears during the request.
    """
    from docker import errors

    said = str(getattr(error, "explanation", None) or "").lower()
    return isinstance(error, errors.NotFound) or "no such container" in said or "in progress" in said


def stop(container: Any, grace_s: float) -> None:
    """Stop a container's processes, and kill them after the grace period.

    The signal goes to the step itself: the shell that kfp starts it with does not forward signals.
    """
    from docker import errors
    from requests import exceptions

    gone = (errors.APIError, exceptions.RequestException)
    if grace_s > 0:
        with contextlib.suppress(*gone):
            container.exec_run(["python3", "-c", SIGNAL], workdir="/")  # its own may be gone with its run
            container.wait(timeout=grace_s)
            return
    with contextlib.suppress(*gone):
        container.kill()


def remove(container: Any) -> None:
    """Remove a container, running or not; a missing container is not an error."""
    from docker import errors

    try:
        container.remove(force=True, v=True)
    except errors.APIError as error:
        if not unknown(error):
            raise


def end(engine: Any, label: str, grace_s: float) -> int:
    """Stop and remove every container with a label, in parallel, stopped ones too."""
    # Sparse, for else each one is looked at again, and one that goes meanwhile is an error.
    found = engine.containers.list(all=True, filters={"label": label}, sparse=True)

    def ended(container: Any) -> None:
        stop(container, grace_s)
        remove(container)

    with ThreadPoolExecutor(max_workers=max(1, len(found))) as pool:
        list(pool.map(ended, found))
    return len(found)


def main(label: str, grace_s: float) -> None:
    """Wait until the run has ended, then remove the containers that it left, until the engine answers.

    The engine may still be creating a container for a killed run, so two searches in a row must find none.
    """
    *folders, last = sys.stdin.buffer.read().split(b"\n")
    if last == DONE:
        return
    import docker
    from requests import exceptions

    silent = (docker.errors.DockerException, exceptions.RequestException)
    without, until = 0, time.monotonic() + PATIENCE_S
    while without < 2 and time.monotonic() < until:  # noqa: PLR2004
        with contextlib.suppress(*silent), contextlib.closing(docker.from_env(timeout=TIMEOUT_S)) as engine:
            without = 0 if end(engine, label, grace_s) else without + 1
        time.sleep(1.0)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(folder))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
