"""Servers that all tests of a session share, and shops that serve from them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.materialize import servers, shop
from tests.materialize.shop import Shop
from trainwright.featurestore.repository import defer_type_checks

defer_type_checks()  # before a test's own import of Feast, which then takes 2 seconds instead of 5
STORES = ("sqlite", "redis", "postgres")


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with servers.redis(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(scope="session")
def postgres_port() -> Iterator[int]:
    with servers.postgres() as port:
        yield port


@pytest.fixture
def make_shop(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Shop]:
    """Make a shop on a kind of store; each has a project of its own, so that shops never meet."""
    made: list[Shop] = []

    def make(kind: str = "sqlite", **fields: Any) -> Shop:
        folder = tmp_path / f"shop{len(made)}"
        folder.mkdir()
        if kind == "sqlite":
            online = shop.sqlite(folder)
        else:
            online = getattr(shop, kind)(request.getfixturevalue(f"{kind}_port"))
        project = f"p{abs(hash((request.node.nodeid, len(made)))):x}"
        made.append(Shop(folder, online, project=project, **fields))
        return made[-1]

    return make


@pytest.fixture(params=STORES)
def any_shop(request: pytest.FixtureRequest, make_shop: Callable[..., Shop]) -> Shop:
    """A shop on each kind of store that we write to ourselves."""
    return make_shop(request.param).apply()
