"""Stores that answer as none should: every call ends, with a typed error."""

import os
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.limits.hostile import NOISE, Behaviour, Hostile, ends, every, fast, fixed, hostile
from trainwright.errors import TrainwrightError
from trainwright.storage import Access, fetch_commit, parse_commit
from trainwright.storage import s3 as amazon
from trainwright.storage.https import WebServer
from trainwright.storage.s3 import S3Bucket
from trainwright.storage.store import NotFound, PreconditionFailed, RemoteStore, RetryableError

__all__ = ["fast"]
pytestmark = pytest.mark.filterwarnings(NOISE)
TYPED = (TrainwrightError, RetryableError, NotFound, PreconditionFailed)
Open = Callable[[Behaviour], tuple[Hostile, RemoteStore]]


@pytest.fixture
def tls(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(*certificate)
    return found


@pytest.fixture(scope="module")
def amazon_at() -> Iterator[Open]:
    """A bucket of one client, whose server changes its behaviour: a client costs a CPU second."""
    with pytest.MonkeyPatch.context() as patch, hostile(fixed(b"")) as server:
        for name, value in {
            "AWS_ENDPOINT_URL_S3": server.url,
            "AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST1234",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }.items():
            patch.setenv(name, value)
        amazon._client.cache_clear()
        yield partial(_behaving, server, S3Bucket("bucket", Access()))
    amazon._client.cache_clear()


@pytest.fixture(scope="module")
def google_at() -> Iterator[Open]:
    from trainwright.storage import gs

    with pytest.MonkeyPatch.context() as patch, hostile(fixed(b"")) as server:
        patch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        gs._client.cache_clear()
        yield partial(_behaving, server, gs.GoogleBucket("bucket", Access()))
    gs._client.cache_clear()


def _behaving(server: Hostile, store: RemoteStore, behaviour: Behaviour) -> tuple[Hostile, RemoteStore]:
    server.behaviour = behaviour
    server.requests.clear()
    return server, store


def reads(store: RemoteStore) -> None:
    got = bytearray()

    def take(piece: bytes) -> None:
        got.extend(piece)
        if len(got) > 10:  # as read_range does
            raise RetryableError("more bytes came than were requested")

    for call in (lambda: store.head("x"), lambda: store.page("x"), lambda: store.pull("x", "", 0, 10, take)):
        with ends(*TYPED):
            call()


@pytest.mark.covers("A19")
@every
def test_calls_of_a_bucket_of_s3_end(behaviour: Behaviour, amazon_at: Open) -> None:
    server, store = amazon_at(behaviour)
    reads(store)
    assert server.requests


@every
def test_calls_of_a_bucket_of_google_end(behaviour: Behaviour, google_at: Open) -> None:
    server, store = google_at(behaviour)
    reads(store)
    assert server.requests


@pytest.mark.covers("A19")
@every
def test_calls_of_a_web_server_end(behaviour: Behaviour, tls: ssl.SSLContext) -> None:
    with hostile(behaviour, tls) as server:
        host = f"localhost:{server.port}"
        site = WebServer(host, Access(hosts=(host,), local_addresses=True))
        with ends(*TYPED):
            site.head("x")
        with ends(*TYPED):
            site.pull("x", "", 0, 10, lambda _: None)


@pytest.mark.covers("A19")
@every
def test_fetch_of_a_commit_ends(behaviour: Behaviour, tls: ssl.SSLContext, tmp_path: Path) -> None:
    with hostile(behaviour, tls) as server:
        place = parse_commit(f"git+https://localhost:{server.port}/x@{'0' * 40}")
        assert place
        with ends(TrainwrightError):
            fetch_commit(place, tmp_path / "x", 0.2)


def test_upload_does_not_wait_for_a_100_continue_that_breaks_off(amazon_at: Open, tmp_path: Path) -> None:
    """botocore reads the headers of such an answer until an empty line, which never comes."""
    (tmp_path / "x").write_bytes(b"x" * 100_000)
    server, store = amazon_at(fixed(b"HTTP/1.1 100 Continue\r\n"))
    with (tmp_path / "x").open("rb") as content:
        with ends(*TYPED):
            store.push("x", content, 100_000, bytes(16))
        assert all(b"100-continue" not in head.lower() for head in server.requests)
        assert server.requests


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Range: bytes 0-0/" + b"9" * 5000,
        b"Content-Range: bytes 0-0/\xb2",
        b"Content-Range: bytes " + b"9" * 5000 + b"-1/5",
        b"Last-Modified: Foo, 99 Bar 99999 99:99:99 GMT",
        b"Last-Modified: Mon, 01 Jan 10000 00:00:00 +9999",
        b"ETag: \xff\0",
        b"Location: http://[",
    ],
)
@pytest.mark.parametrize("status", [b"206 Partial", b"302 Found", b"200 OK"])
def test_strange_header_of_a_web_server_is_typed(header: bytes, status: bytes, tls: ssl.SSLContext) -> None:
    said = b"HTTP/1.1 " + status + b"\r\n" + header + b"\r\nContent-Length: 1\r\n\r\nx"
    with hostile(fixed(said), tls) as server:
        host = f"localhost:{server.port}"
        site = WebServer(host, Access(hosts=(host,), local_addresses=True))
        with ends(*TYPED):
            site.head("x")
        with ends(*TYPED):
            site.pull("x", "", 0, 10, lambda _: None)
