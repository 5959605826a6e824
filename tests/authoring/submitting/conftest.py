"""A stand-in of the API, a connection to it, and no git around what is submitted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.authoring.api.asking import QUICK
from tests.authoring.api.server import Api, serving
from trainwright.authoring.submission import connection
from trainwright.authoring.submission.connection import Connection, Endpoint


@pytest.fixture(autouse=True)
def outside_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[Api]:
    with serving() as api:
        yield api


@pytest.fixture
def api(server: Api) -> Connection:
    return connection.connect(Endpoint(host=server.url), QUICK)
