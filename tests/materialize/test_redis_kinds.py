"""Redis behind TLS, found by a sentinel, and as a cluster: real servers of each kind."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.materialize import servers
from tests.materialize.shop import Shop, at, row
from trainwright.errors import DependencyError

BUS_BELOW = 55_000
"""Nodes of a cluster talk to each other on a port that is 10,000 higher."""


def serve(shop: Shop, online: dict[str, Any]) -> str:
    """Materialize newer rows after older ones and the other way round; return the way they went."""
    shop.online = {"type": "redis"} | online
    shop.apply().add("a", [row(1, 0, 10), row(1, 8, 18), row(2, 3, 23)])
    way = shop.run(date=at(5).isoformat()).views[0].way
    shop.run(date=at(10).isoformat())
    shop.run(start=at(0), end=at(4))
    assert shop.read(1, 2, 3) == [(18, "n18"), (23, "n23"), (None, None)]
    return way


@contextlib.contextmanager
def redis_with(folder: Path, *options: str) -> Iterator[int]:
    """Start a server with options in which PORT is its port."""
    servers.installed("redis-server", lambda: shutil.which("redis-server") is not None)
    port = next(port for port in iter(servers.free_port, None) if port < BUS_BELOW)
    command = ["redis-server", "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with servers.running(
        [*command, *(option.replace("PORT", str(port)) for option in options)], port, folder / f"log{port}"
    ):
        yield port


def test_rows_go_through_tls_to_a_server_whose_certificate_is_checked(
    tmp_path: Path, make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=redis"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    files += ["--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
    with redis_with(tmp_path, "--port", "0", "--tls-port", "PORT", *files) as port:
        place = f"127.0.0.1:{port},ssl=true"
        known = {"connection_string": f"{place},ssl_ca_certs={certificate}"}
        assert serve(make_shop(), known) == "redis, from arrays"
        monkeypatch.setattr("redis.retry.sleep", lambda _: None)  # it asks again and again
        with pytest.raises(DependencyError, match=r"Redis failed: .*certificate"):
            serve(make_shop(), {"connection_string": place})


def test_rows_go_to_the_master_that_a_sentinel_names(tmp_path: Path, make_shop: Callable[..., Shop]) -> None:
    with redis_with(tmp_path, "--port", "PORT") as master:
        settings = tmp_path / "sentinel.conf"
        port = servers.free_port()
        settings.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor shops 127.0.0.1 {master} 1\n"
        )
        with servers.running(["redis-server", str(settings), "--sentinel"], port, tmp_path / "sentinel"):
            online = {"redis_type": "redis_sentinel", "sentinel_master": "shops"}
            shop = make_shop()
            assert serve(shop, online | {"connection_string": f"127.0.0.1:{port}"}) == "redis, from arrays"
            mark = shop.run(date=at(11).isoformat()).views[0].mark
            assert mark.store == f"redis shops 127.0.0.1:{port}"
            unknown = online | {"sentinel_master": "others", "connection_string": f"127.0.0.1:{port}"}
            with pytest.raises(DependencyError, match="MasterNotFoundError"):
                serve(make_shop(), unknown)


def test_rows_go_to_a_cluster_by_feasts_own_writer(tmp_path: Path, make_shop: Callable[..., Shop]) -> None:
    with contextlib.ExitStack() as nodes:
        ports = []
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            ports.append(
                nodes.enter_context(redis_with(folder, "--port", "PORT", "--cluster-enabled", "yes"))
            )
        places = [f"127.0.0.1:{port}" for port in ports]
        create = ["redis-cli", "--cluster", "create", *places, "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True)
        for port in ports:  # each finds out by itself
            asked = ["redis-cli", "-p", str(port), "cluster", "info"]
            servers.wait_until(lambda asked=asked: "cluster_state:ok" in _said(asked), f"the node at {port}")
        online = {"redis_type": "redis_cluster", "connection_string": ",".join(places)}
        assert serve(make_shop(), online) == "redis, by Feast itself"


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
