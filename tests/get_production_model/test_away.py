"""MLflow away for a moment is waited for within the step; away for longer, the hint is this step's own."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracking.server import Way, mlflow_server, way_to
from trainwright.errors import DependencyError
from trainwright.experiment import Registry
from trainwright.get_production_model.production_version import NONE, get_production_model


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as number:
        yield number


@pytest.fixture
def way(port: int) -> Iterator[Way]:
    with way_to(port) as proxy:
        yield proxy


def test_server_that_comes_back_within_retry_s_is_waited_for(way: Way, tmp_path: Path) -> None:
    way.mode = "cut"
    timer = threading.Timer(3, lambda: setattr(way, "mode", "open"))
    timer.start()
    registry = Registry(model="flights", tracking_uri=way.uri, retry_s=120)
    assert get_production_model(registry, tmp_path / "record", tmp_path / "summary.md") == NONE
    assert not timer.is_alive()


def test_server_that_stays_away_ends_with_21_and_the_hint_of_locate(way: Way, tmp_path: Path) -> None:
    way.mode = "cut"
    registry = Registry(model="flights", tracking_uri=way.uri, retry_s=1)
    with pytest.raises(DependencyError, match="MLflow did not answer in") as caught:
        get_production_model(registry, tmp_path / "record", tmp_path / "summary.md")
    assert "Nothing was trained or changed yet" in caught.value.hint
    assert "register" not in caught.value.hint
