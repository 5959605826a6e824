"""A container engine for a test: the one that is there, or podman's service, started for the tests alone."""

import contextlib
import gc
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from trainwright.authoring.images import name
from trainwright.errors import DependencyError
from trainwright.local import containers

SETTINGS = """
[engine]
{runtime}
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
"""
"""For machines whose limits cannot be raised, and whose cgroups podman's usual runtime refuses."""


def answers() -> bool:
    """Say whether the engine that ``DOCKER_HOST`` or docker's default names is there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker leaves its socket open where nobody answers
        found = False
        with contextlib.suppress(docker.errors.DockerException):
            docker.from_env().close()
            found = True
        gc.collect()
    return found


@contextlib.contextmanager
def running(folder: Path) -> Iterator[None]:
    """Have an engine while this is entered; skip the test where there can be none."""
    if answers():
        yield
        return
    podman = shutil.which("podman")
    if not podman:
        pytest.skip("no container engine: neither docker answers, nor is podman installed")
    runtime = 'runtime = "runc"' if shutil.which("runc") or Path("/usr/sbin/runc").exists() else ""
    (folder / "containers.conf").write_text(SETTINGS.format(runtime=runtime))
    socket = folder / "podman.sock"
    command = [podman, "system", "service", "--time", "0", f"unix://{socket}"]
    with (folder / "service.log").open("w") as log, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("DOCKER_HOST", f"unix://{socket}")
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            until = time.monotonic() + 60
            while not (socket.exists() and answers()):
                if process.poll() is not None or time.monotonic() > until:
                    pytest.skip(f"podman does not start: {(folder / 'service.log').read_text()[-300:]}")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()


def require(*toolchains: str) -> None:
    """Skip the test unless images were built from what is here now."""
    try:
        for toolchain in toolchains:
            containers.Engine().identity(name(toolchain))
    except DependencyError as error:
        pytest.skip(f"{error.where}: {error.what}; {error.hint}")
