"""A server that answers as no server should, and a clock for limits that would take minutes."""

import gzip
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

import pytest

from trainwright import http_limits

Behaviour = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Hostile:
    """A server; ``requests`` holds the head of each request."""

    def __init__(self, behaviour: Behaviour, tls: ssl.SSLContext | None) -> None:
        self.behaviour, self.requests, self._tls = behaviour, list[bytes](), tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        if self._tls:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (piece := connection.recv(65536)):
                    return
                head += piece
            self.requests.append(head)
            self.behaviour(connection)


@contextmanager
def hostile(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[Hostile]:
    """Serve one behaviour on a free port."""
    server = Hostile(behaviour, tls)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Run the clock of the limits two hundred times as fast; a thousand times for answers without an end."""
    speed = 1000 if "behaviour" in request.fixturenames else 200
    monkeypatch.setattr(http_limits, "monotonic", lambda: speed * time.monotonic())


def drip(head: bytes) -> Behaviour:
    """A head at once, and then a byte every 20 ms, without an end."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:  # until the client closes
            connection.sendall(b" ")
            time.sleep(0.02)

    return send


def flood(head: bytes, piece: bytes) -> Behaviour:
    """A head, and then the same piece as fast as it goes, without an end."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return send


def fixed(answer: bytes) -> Behaviour:
    """One answer."""
    return lambda connection: connection.sendall(answer)


def answer(body: bytes, *headers: bytes) -> Behaviour:
    """A correct answer with a body of any content."""
    lines = b"".join(header + b"\r\n" for header in (*headers, b"Content-Length: %d" % len(body)))
    return fixed(OK + lines + b"\r\n" + body)


@cache
def bomb(size: int) -> bytes:
    """A small gzip stream of so many bytes."""
    return gzip.compress(bytes(size))


def numbered_headers(connection: socket.socket) -> None:
    """Headers without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in itertools.count():
        connection.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1000))


DEEP = b"[" * 100_000
HEAD = OK + b"\r\n"
ENDLESS: dict[str, Behaviour] = {
    "a byte every 20 ms": drip(HEAD),
    "a byte of the headers every 20 ms": drip(b"HTTP/1.1 200 OK\r\nX-Name: "),
    "a byte of a chunk every 20 ms": drip(OK + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\n"),
    "a body without an end": flood(HEAD, bytes(1 << 16)),
    "chunks without an end": flood(
        OK + b"Transfer-Encoding: chunked\r\n\r\n", b"4000\r\n" + bytes(0x4000) + b"\r\n"
    ),
    "headers without an end": numbered_headers,
    "a header line without an end": flood(b"HTTP/1.1 200 OK\r\nX-Name: ", bytes(1 << 16)),
    "100 Continue without an end": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
}
"""Answers that do not end by themselves."""

BROKEN: dict[str, Behaviour] = {
    "a gzip bomb": answer(bomb(100 << 20), b"Content-Encoding: gzip"),
    "no gzip": answer(b"{}", b"Content-Encoding: gzip"),
    "an unknown encoding": answer(b"{}", b"Content-Encoding: compress-9000"),
    "a Content-Length beyond the body": fixed(OK + b"Content-Length: 1000\r\n\r\n{}"),
    "a Content-Length of 5,000 digits": fixed(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}"),
    "a negative Content-Length": fixed(OK + b"Content-Length: -5\r\n\r\n{}"),
    "a Content-Length that is no number": fixed(OK + b"Content-Length: \xb2\r\n\r\n{}"),
    "a chunk that is none": fixed(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}"),
    "no HTTP": fixed(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "nothing": fixed(b""),
    "a status of 5,000 digits": fixed(b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n"),
    "deep JSON": answer(DEEP),
    "a number of 5,000 digits": answer(b'{"metadata": ' + b"1" * 5000 + b"}"),
    "half of a surrogate pair": answer(b'{"metadata": {"name": "\\ud800"}}'),
    "no UTF-8": answer(b'{"metadata": {"name": "\xff"}}'),
    "a NUL": answer(b"\0"),
    "a login page": answer(b"<html><body>Log in</body></html>"),
    "a Retry-After of 5,000 digits": fixed(
        b"HTTP/1.1 503 Busy\r\nRetry-After: " + b"9" * 5000 + b"\r\nContent-Length: 0\r\n\r\n"
    ),
    "a Retry-After that is no date": fixed(
        b"HTTP/1.1 503 Busy\r\nRetry-After: \xb2 Foo 99999 99:99\r\nContent-Length: 0\r\n\r\n"
    ),
    "a redirect to nowhere": fixed(
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1%25x]:99999/\0\r\nContent-Length: 0\r\n\r\n"
    ),
}
"""Answers that end, and make no sense."""

NOISE = "ignore::pytest.PytestUnraisableExceptionWarning"
"""What a caught error holds is freed in any order, sometimes a socket before the stream that closes it."""


def every(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with every behaviour, and a fast clock."""
    test = pytest.mark.parametrize("behaviour", (ENDLESS | BROKEN).values(), ids=ENDLESS | BROKEN)(test)
    return pytest.mark.usefixtures("fast")(test)


@contextmanager
def ends(*expected: type[BaseException], within_s: float = 60.0) -> Iterator[None]:
    """Require that the body ends soon, with a result or with one of these errors."""
    started = time.monotonic()
    with suppress(*expected):
        yield
    assert time.monotonic() - started < within_s
