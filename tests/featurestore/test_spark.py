"""Addresses of clusters, checked before Spark or Ray starts."""

import socket

import pytest

from trainwright.errors import InputError
from trainwright.featurestore import accepts_connections
from trainwright.materialize import engine


def test_only_an_open_port_accepts_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert accepts_connections(address)
    assert not accepts_connections(address)


@pytest.mark.parametrize("address", ["auto", "ray-head", "ray://ray-head:10001", "ray-head:99999", ":6379"])
def test_address_of_another_form_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|Port out of range"):
        accepts_connections(address)
    with pytest.raises(InputError) as caught, engine._ray_node(address):
        pass
    assert caught.value.where.endswith("batch_engine.ray_address")
