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
from urllib.parse import quote

import pytest

from tests.ports import free_port

PYTHON = Path(__file__).parents[2] / ".environments" / "emulators" / "bin" / "python"


@contextmanager
def on_postgres() -> Iterator[str]:
    """Start a PostgreSQL; give its address as MLflow takes it. Skips where there is none."""
    from tests.sources import postgres

    if not postgres.PROGRAMS:
        pytest.skip("no PostgreSQL on this machine: apt-get install postgresql")
    with postgres.running() as running:
        secret = quote(postgres.PASSWORD, safe="")
        yield f"postgresql+psycopg://owner:{secret}@127.0.0.1:{running.port}/flights"


@contextmanager
def mlflow_server(folder: Path, store: str = "") -> Iterator[int]:
    """Start a server with an SQLite database, or with the one at an address; give its port."""
    if not PYTHON.exists():
        pytest.skip("no environment with a server: make .environments/emulators/.made")
    port = free_port()
    command = [str(PYTHON), "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store or f"sqlite:///{folder}/mlflow.db"]
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
    end = time.monotonic() + 300
    while time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return
        assert server.poll() is None, log.read_text()[-2000:]
        time.sleep(0.2)
    raise AssertionError(f"no MLflow server after 300 s: {log.read_text()[-2000:]}")


class Way:
    """A TCP proxy to the server.

    Attributes:
        mode: ``open``; ``silent`` takes connections and never answers; ``lossy`` passes a request on and cuts
            the connection before the answer to every third; ``late`` cuts the connection of the one client
            at the first request that holds ``held``, and passes that on only when :meth:`deliver` is called;
            ``once`` passes every kind of change on and cuts the connection before the first answer to it;
            ``cut`` refuses.
        held: Bytes of the request that comes late.
    """

    def __init__(self, port: int) -> None:
        self.mode = "open"
        self.lost = 0
        self.held = b""
        self._waiting: list[bytes] = []
        self._met: set[bytes] = set()
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

    def deliver(self) -> int:
        """Pass on, in full, what came late; return how many requests that were."""
        for request in self._waiting:
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                server.sendall(request)
                assert server.recv(65536).startswith(b"HTTP/1.1 200")
        count, self._waiting = len(self._waiting), []
        return count

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
        ends, unheard = {client: server, server: client}, False
        while True:
            ready, _, _ = select.select(list(ends), [], [], 1)
            for end in ready:
                data = end.recv(65536)
                if not data or self.mode == "cut":
                    return
                if end is client and self.mode == "once":
                    unheard = unheard or self._is_new(data)
                if end is server and unheard:
                    self.lost += 1
                    return
                if end is server and self._loses():
                    return
                if end is client and self.mode == "late" and self.held in data:
                    self.mode = "open"
                    self._waiting.append(_whole(data, client))
                    return
                ends[end].sendall(data)

    def _is_new(self, data: bytes) -> bool:
        """Tell whether a request makes a change of a kind that none before it made."""
        kind = data.partition(b" HTTP/1.1")[0]
        new = kind.startswith((b"POST", b"PATCH", b"DELETE")) and b"search" not in kind
        new = new and kind not in self._met
        self._met |= {kind} if new else set()
        return new

    def _loses(self) -> bool:
        if self.mode != "lossy":
            return False
        self._count += 1
        lost = self._count % 3 == 0
        self.lost += lost
        return lost


def _whole(data: bytes, client: socket.socket) -> bytes:
    """Read the rest of a request whose first bytes are there."""
    head, _, body = data.partition(b"\r\n\r\n")
    size = next(
        int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")
    )
    while len(body) < size:
        body += client.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def way_to(port: int) -> Iterator[Way]:
    """Give a proxy to a server."""
    way = Way(port)
    try:
        yield way
    finally:
        way.close()
