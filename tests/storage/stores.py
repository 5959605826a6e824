"""The stores that tests read and write: real servers, one of each a process, behind proxies with faults."""

import os
import ssl
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from tests.storage import servers
from tests.storage.faults import Proxy
from tests.storage.web import Web
from trainwright.storage import Access

PLANTED = "planted-1f0e9d"
"""Part of every secret that the tests are run with; nothing that is said may hold it."""


@pytest.fixture(scope="session")
def environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.delenv(name, raising=False)
        patch.setenv("NO_PROXY", "*")
        # Google's library asks for each bucket once more, in a thread, which would meet a planned fault.
        patch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        yield patch


def forget_surroundings() -> None:
    """Forget what earlier tests of this process remember of its variables: clients, and the fork server."""
    for name in ("trainwright.storage.gs", "trainwright.storage.s3"):
        if module := sys.modules.get(name):
            module._client.cache_clear()
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def gs_proxy(environment: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with servers.gcs() as address:
        proxy = Proxy(address)
        environment.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{proxy.port}")
        forget_surroundings()
        yield proxy
        proxy.close()


@pytest.fixture(scope="session")
def s3_proxy(environment: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with servers.s3() as address:
        proxy = Proxy(address)
        environment.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{proxy.port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST1234")
        environment.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            environment.setenv(name, os.devnull)
        forget_surroundings()
        yield proxy
        proxy.close()


@cache
def google_client() -> Any:
    """Google's own client, once the address of the emulator is known."""
    with warnings.catch_warnings():  # Beam brings grpcio along, and this library misses grpcio-status then
        warnings.simplefilter("ignore", ImportWarning)
        from google.cloud import storage

    return storage.Client(project="tests")


@cache
def amazon_client() -> Any:
    """Amazon's own client, once the address of the emulator is known."""
    import boto3

    return boto3.session.Session().client("s3")


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket behind a proxy, and how its store's own library writes to it."""

    scheme: str
    name: str
    proxy: Proxy
    put: Callable[[str, bytes], object]
    """Write an object, over another if need be, as any other program would."""

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self.name}"


@pytest.fixture
def gs(gs_proxy: Proxy) -> Iterator[Bucket]:
    gs_proxy.clear()
    bucket = google_client().create_bucket(f"b{uuid.uuid4().hex}")
    gs_proxy.clear()
    yield Bucket("gs", bucket.name, gs_proxy, lambda name, body: bucket.blob(name).upload_from_string(body))
    gs_proxy.clear()


@pytest.fixture
def s3(s3_proxy: Proxy) -> Iterator[Bucket]:
    s3_proxy.clear()
    client, name = amazon_client(), f"b{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name)
    s3_proxy.clear()
    yield Bucket("s3", name, s3_proxy, lambda key, body: client.put_object(Bucket=name, Key=key, Body=body))
    s3_proxy.clear()


@pytest.fixture(params=["gs", "s3"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """Each of the two stores in turn."""
    found: Bucket = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True)
class Site:
    """A web server over TLS on this machine, and what allows to read it."""

    web: Web
    proxy: Proxy
    access: Access

    @property
    def uri(self) -> str:
        return f"https://localhost:{self.proxy.port}"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return servers.certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def site(
    environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]
) -> Iterator[Site]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    web = Web()
    proxy = Proxy(web.address, tls)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    yield Site(web, proxy, Access(hosts=(f"localhost:{proxy.port}",), local_addresses=True, retry_s=20))
    proxy.close()
    web.close()
