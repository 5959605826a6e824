"""Answers that do not end, that are too large, or that are none: every read ends, with a clear error."""

import contextlib
import http.client
import socket
import ssl
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.limits.hostile import (
    BROKEN,
    ENDLESS,
    HEAD,
    OK,
    Behaviour,
    answer,
    bomb,
    drip,
    fast,
    fixed,
    hostile,
)
from trainwright.errors import DependencyError
from trainwright.http_limits import ANSWER, DOWNLOAD, FOLLOWED, HttpLimits, inflate, limited

__all__ = ["fast"]
EXPECTED = (requests.RequestException, DependencyError, http.client.HTTPException)


def read(url: str, limits: HttpLimits = ANSWER) -> bytes:
    with limited(limits), requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=5, stream=limits is not ANSWER).content


@pytest.mark.covers("A19")
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("behaviour", ENDLESS.values(), ids=ENDLESS)
def test_answer_without_an_end_is_given_up(behaviour: Behaviour) -> None:
    with hostile(behaviour) as server:
        started = time.monotonic()
        with pytest.raises(EXPECTED):
            read(server.url)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("behaviour", BROKEN.values(), ids=BROKEN)
def test_answer_that_is_none_is_an_error_of_the_client_or_is_returned(behaviour: Behaviour) -> None:
    with hostile(behaviour) as server, contextlib.suppress(EXPECTED):
        read(server.url)


@pytest.mark.covers("A19")
def test_gzip_bomb_is_an_error_before_it_is_in_memory() -> None:
    with hostile(answer(bomb(100 << 20), b"Content-Encoding: gzip")) as server:
        tracemalloc.start()
        try:
            with pytest.raises(DependencyError, match="more than the 67,108,864 bytes that are read"):
                read(server.url)
            assert tracemalloc.get_traced_memory()[1] < 4 * ANSWER.max_bytes
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_answer_is_read(encoding: str) -> None:
    import gzip
    import zlib

    packed = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](b"content" * 1000)
    with hostile(answer(packed, b"Content-Encoding: " + encoding.encode())) as server:
        assert read(server.url) == b"content" * 1000


def test_compressed_answer_in_chunks_leaves_the_connection_usable() -> None:
    import gzip

    packed = gzip.compress(b"content")
    head = OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    with hostile(fixed(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed))) as server:
        assert read(server.url) == b"content"
        assert read(server.url) == b"content"


@pytest.mark.usefixtures("fast")
def test_download_below_the_least_rate_is_given_up() -> None:
    with hostile(drip(HEAD)) as server, pytest.raises(requests.ConnectionError):
        read(server.url, DOWNLOAD)


@pytest.mark.covers("A19")
@pytest.mark.usefixtures("fast")
def test_upload_below_the_least_rate_is_given_up() -> None:
    def receive(connection: socket.socket) -> None:
        while connection.recv(4096):  # at the clock of the limits 1 KiB a second
            time.sleep(0.02)

    with hostile(receive) as server, limited():
        started = time.monotonic()
        with pytest.raises(requests.ConnectionError):
            requests.put(server.url, data=bytes(32 << 20), timeout=5)
        assert time.monotonic() - started < 5


@pytest.mark.usefixtures("fast")
def test_upload_at_the_least_rate_arrives_whole() -> None:
    size, received = 16 << 20, 0

    def receive(connection: socket.socket) -> None:
        nonlocal received
        received = len(server.requests[0].partition(b"\r\n\r\n")[2])
        while received < size:
            received += len(connection.recv(1 << 20))
        connection.sendall(OK + b"Content-Length: 0\r\n\r\n")

    with hostile(receive) as server, limited():
        assert requests.put(server.url, data=bytes(size), timeout=5).ok
    assert received == size


@pytest.mark.usefixtures("fast")
def test_download_longer_than_any_deadline_is_read_to_its_end() -> None:
    """Two seconds of this clock are more than six minutes."""
    piece, count = b"x" * 100_000, 20

    def send(connection: object) -> None:
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % (count * len(piece)))  # type: ignore[attr-defined]
        for _ in range(count):
            connection.sendall(piece)  # type: ignore[attr-defined]
            time.sleep(0.1)

    with hostile(send) as server:
        assert len(read(server.url, DOWNLOAD)) == count * len(piece)


@pytest.mark.usefixtures("fast")
def test_time_that_the_reader_takes_does_not_count_against_a_download() -> None:
    with hostile(answer(b"x" * 100_000)) as server, limited(DOWNLOAD), requests.Session() as session:
        parts = session.get(server.url, timeout=5, stream=True).iter_content(10_000)
        found = next(parts)
        time.sleep(1)  # 200 s
        assert len(found + b"".join(parts)) == 100_000


@pytest.mark.usefixtures("fast")
def test_log_may_be_silent_for_longer_than_an_answer_may_take() -> None:
    def send(connection: object) -> None:
        connection.sendall(HEAD + b"first\n")  # type: ignore[attr-defined]
        time.sleep(1)
        connection.sendall(b"second\n")  # type: ignore[attr-defined]

    with hostile(send) as server:
        assert read(server.url, FOLLOWED) == b"first\nsecond\n"


@pytest.mark.usefixtures("fast")
def test_requests_of_other_threads_are_limited_only_on_request() -> None:
    def send(connection: object) -> None:
        connection.sendall(HEAD)  # type: ignore[attr-defined]
        for _ in range(75):
            connection.sendall(b" ")  # type: ignore[attr-defined]
            time.sleep(0.02)

    def get() -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            with connection.getresponse() as found:
                return found.read()

    with hostile(send) as server, ThreadPoolExecutor(1) as pool:
        with limited(threads=True), pytest.raises(TimeoutError):
            pool.submit(get).result()
        with limited():
            assert len(pool.submit(get).result()) == 75


def test_outside_of_limits_nothing_changes() -> None:
    with hostile(answer(b"x" * 1000)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"x" * 1000


def test_credentials_are_not_sent_to_the_host_of_a_redirect() -> None:
    with hostile(answer(b"{}")) as other:
        there = f"http://localhost:{other.port}/".encode()
        found = b"HTTP/1.1 302 Found\r\nLocation: " + there + b"\r\nContent-Length: 0\r\n\r\n"
        with hostile(fixed(found)) as server, limited():
            requests.get(server.url, headers={"Authorization": "Bearer x"}, timeout=5)
        assert b"uthorization" in server.requests[0]
        assert b"uthorization" not in other.requests[0]


@pytest.mark.parametrize("packed", [b"x", bomb(100)[:-4], bomb(100)[:5]])
def test_damaged_stream_is_an_error(packed: bytes) -> None:
    with pytest.raises(ValueError, match="not the gzip it says, or not all of it"):
        inflate(packed, 1000)


def test_tls_that_does_not_begin_ends_by_the_timeout() -> None:
    with hostile(drip(b"")) as server, limited():
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=1)
        with contextlib.closing(connection), pytest.raises((ssl.SSLError, OSError)):
            connection.request("GET", "/")
