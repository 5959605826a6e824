"""Which version is in production: a registry that does not answer is never taken for one without any."""

import socket
from pathlib import Path

import pytest

from trainwright.errors import DependencyError
from trainwright.registry.versions import find_production
from trainwright.tracking.server import open_client, persist

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated", "ignore:unclosed database"
)


def test_a_registry_that_is_away_is_not_one_without_production() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
        client = open_client(uri)
        with pytest.raises(DependencyError, match="MLflow did not answer"):
            persist(lambda: find_production(client, "flights"), uri, 0)


def test_no_such_model_and_a_model_without_the_alias_have_no_production(tmp_path: Path) -> None:
    client = open_client(f"sqlite:///{tmp_path}/mlflow.db")
    assert find_production(client, "flights") is None
    client.create_registered_model("flights")
    assert find_production(client, "flights") is None
