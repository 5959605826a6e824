"""Real servers, started on free ports of this machine and stopped again."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

PATIENCE_S = 300
"""A second will do; on a machine with more to do, it may take a while."""

POSTGRES = Path("/usr/lib/postgresql")


def wait_until(ready: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < until, f"{what} did not start"
        time.sleep(0.05)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(command: list[str], port: int, log: Path, user: str | None = None) -> Iterator[int]:
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, user=user)
        try:
            wait_until(lambda: answers(port), command[0])
            yield port
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


def installed(package: str, found: Callable[[], bool]) -> None:
    """Install a package of Debian where that is possible; skip with the reason where it is not."""
    if not found() and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-qq", package], capture_output=True, check=False)
    if not found():
        import pytest  # the environment of the engines has none

        pytest.skip(f"{package} is not installed, and could not be")


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    installed("redis-server", lambda: shutil.which("redis-server") is not None)
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with running(command, port, folder / "redis.log"):
        yield port


@contextmanager
def postgres() -> Iterator[int]:
    installed("postgresql", lambda: bool(list(POSTGRES.glob("*/bin/postgres"))))
    programs = sorted(POSTGRES.glob("*/bin"))[-1]
    user = None if os.geteuid() else "postgres"  # it does not run as root
    with tempfile.TemporaryDirectory(prefix="trainwright-postgres-") as name:
        folder, port = Path(name), free_port()
        if user:
            shutil.chown(folder, user)
        initdb = [programs / "initdb", "-D", folder / "data", "-U", "feast", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder)
        quiet = [
            "-c",
            "fsync=off",
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            f"unix_socket_directories={name}",
        ]
        command = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port), *quiet]
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        with running(command, port, folder / "log", user):
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, "postgres")
            yield port
