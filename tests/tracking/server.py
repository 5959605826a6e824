"""A real MLflow server, and a way to it that can be cut, silenced, or lose answers."""

import os
import select
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[2] / ".environments" / "emulators" / "bin" / "python"


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        return int(place.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path) -> Iterator[int]:
    """Start a server with an SQLite database; give its port."""
    if not PYTHON.exists():
        pytest.skip("no environment with a server: make .environments/emulators/.made")
    port = free_port()
    command = [str(PYTHON), "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "files")]
    calm = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=os.environ | calm, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait(port, server, folder / "server.log")
        yield port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, 9)
        server.wait()


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return
        assert server.poll() is None, log.read_text()[-2000:]
        time.sleep(0.2)
    raise AssertionError(f"no MLflow server after 120 s: {log.read_text()[-2000:]}")


class Way:
    """A TCP proxy to the server.

    Attributes:
        mode: ``open``; ``silent`` takes connections and never answers; ``lossy`` passes a request on and cuts
            the connection before the answer to every third; ``cut`` refuses.
    """

    def __init__(self, port: int) -> None:
        self.mode = "open"
        self.lost = 0
        self._target, self._count = port, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def uri(self) -> str:
        """The address of this side."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.mode == "cut":
                return
            while self.mode == "silent":
                time.sleep(0.1)
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                self._pass(client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        ends = {client: server, server: client}
        while True:
            ready, _, _ = select.select(list(ends), [], [], 1)
            for end in ready:
                data = end.recv(65536)
                if not data:
                    return
                if end is server and self._loses():
                    return
                ends[end].sendall(data)

    def _loses(self) -> bool:
        if self.mode != "lossy":
            return False
        self._count += 1
        lost = self._count % 3 == 0
        self.lost += lost
        return lost


@contextmanager
def way_to(port: int) -> Iterator[Way]:
    """Give a proxy to a server."""
    way = Way(port)
    try:
        yield way
    finally:
        way.close()
