"""A stand-in of the API, a connection to it, and no git around what is submitted."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.authoring.api.client import QUICK, Clock
from tests.authoring.api.server import Api, serving
from trainwright import retries
from trainwright.authoring.submission import connection, follow
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of the retry policy and of whoever follows a run."""
    found = Clock()
    monkeypatch.setattr(retries, "time", found)
    monkeypatch.setattr(retries, "threading", SimpleNamespace(Event=lambda: found))
    monkeypatch.setattr(follow, "time", found)
    return found
