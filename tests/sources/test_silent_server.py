"""A PostgreSQL that takes a connection and then says nothing, or never ends its answer."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.sources.reading import section
from trainwright.errors import DependencyError, TransientError
from trainwright.sources import database, list_source
from trainwright.storage import Access

AUTHENTICATED = b"R" + struct.pack(">II", 8, 0)
READY = b"Z" + struct.pack(">I", 5) + b"I"
PARAMETERS = b"".join(
    b"S" + struct.pack(">I", 4 + len(pair)) + pair
    for pair in (b"server_version\x0016.0\x00", b"client_encoding\x00UTF8\x00")
)


@contextmanager
def server(then: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve the start of PostgreSQL's protocol, and then a behaviour; give the port."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while True:
                size, code = struct.unpack(">II", connection.recv(8))
                connection.recv(size - 8) if size > 8 else b""
                if code == 196608:
                    break
                connection.sendall(b"N")  # no TLS, no GSS
            connection.sendall(AUTHENTICATED + PARAMETERS + READY)
            connection.recv(65536)
            then(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def dripping(connection: socket.socket) -> None:
    notice = b"N" + struct.pack(">I", 1_000_000)
    for byte in notice + bytes(1000):
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


@pytest.mark.covers("A19")
@pytest.mark.parametrize("then", [silent, dripping])
def test_server_that_never_answers_a_statement_is_given_up(
    then: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_GRACE_S", 0.5)
    access = Access(local_addresses=True, retry_s=0.2)
    with server(then) as port:
        url = f"postgresql://127.0.0.1:{port}/flights?sslmode=disable"
        query = {"select": "SELECT id FROM flights", "tables": ["flights"], "user": "x", "timeout_s": 1}
        started = time.monotonic()
        with pytest.raises((TransientError, DependencyError)):
            list_source(url, section(source=url, format="sql", sql=query), access)
        assert time.monotonic() - started < 20
