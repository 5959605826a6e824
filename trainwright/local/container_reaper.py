"""Ends the containers of a run whose own process is gone; started as a script with the run's label.

The run holds its input open, and names there the folders of temporary files, one a line. When that closes,
every container with the label is asked to stop, killed after the grace, and removed; the folders go, too.
A run that has ended by itself, and left none, says so with its last word.
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
"""Seconds that an engine may take for one answer: a step that it keeps waiting shall have its grace."""

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
    """Say whether the engine refused because the container is gone, or just going.

    Podman answers with 500 instead of 404 when the container goes while it looks.
    """
    from docker import errors

    said = str(getattr(error, "explanation", None) or "").lower()
    return isinstance(error, errors.NotFound) or "no such container" in said or "in progress" in said


def stop(container: Any, grace_s: float) -> None:
    """Ask a container's processes to stop, and kill them if they are there after the grace.

    The signal goes to the step itself, not only to the shell that kfp starts it with: a shell passes none on.
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
    """Remove a container, running or not; one that somebody else has removed is no error."""
    from docker import errors

    try:
        container.remove(force=True, v=True)
    except errors.APIError as error:
        if not unknown(error):
            raise


def end(engine: Any, label: str, grace_s: float) -> int:
    """Stop and remove every container with a label, all at once, those that have ended too.

    Returns:
        How many there were.
    """
    # Sparse, for else each one is looked at again, and one that goes meanwhile is an error.
    found = engine.containers.list(all=True, filters={"label": label}, sparse=True)

    def ended(container: Any) -> None:
        stop(container, grace_s)
        remove(container)

    with ThreadPoolExecutor(max_workers=max(1, len(found))) as pool:
        list(pool.map(ended, found))
    return len(found)


def main(label: str, grace_s: float) -> None:
    """Wait for the run to be gone; should it have left containers, end them, whenever the engine answers.

    The engine may be making one for a run that was killed: none is left when it was found so twice.
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
