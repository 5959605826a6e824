"""Addresses of clusters, checked before Spark or Ray starts."""

import socket

import pytest

from trainwright.errors import InputError
from trainwright.featurestore import address_towards
from trainwright.materialize import writers


def test_our_address_for_a_server_is_known_only_while_it_accepts_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert address_towards(address) == "127.0.0.1"
    assert not address_towards(address)


@pytest.mark.parametrize("address", ["auto", "ray-head", "ray://ray-head:10001", "ray-head:99999", ":6379"])
def test_address_of_another_form_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|Port out of range"):
        address_towards(address)
    with pytest.raises(InputError) as caught, writers._ray_node(address):
        pass
    assert caught.value.where.endswith("batch_engine.ray_address")
