"""One MLflow server for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.tracking.server import Way, mlflow_server, way_to


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a running server."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as number:
        yield number


@pytest.fixture
def way(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """A way to the server that a test can spoil; a silent one is given up on after two seconds."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with way_to(port) as proxy:
        yield proxy
