"""An MLflow server that answers as none should: every action ends, with a typed error."""

from pathlib import Path

import pytest

from tests.limits.hostile import NOISE, Behaviour, ends, every, fast, hostile
from trainwright.errors import TrainwrightError
from trainwright.experiment import Registry
from trainwright.registry.download import download_version
from trainwright.tracking.server import open_client, persist

__all__ = ["fast"]
pytestmark = pytest.mark.filterwarnings(NOISE)


@pytest.mark.covers("A19")
@every
def test_actions_of_mlflow_end(behaviour: Behaviour, tmp_path: Path) -> None:
    with hostile(behaviour) as server:
        client = open_client(server.url)
        with ends(TrainwrightError):
            persist(lambda: client.get_registered_model("x"), server.url, 0.2)
        with ends(TrainwrightError):
            persist(lambda: client.download_artifacts("0" * 32, "x.json", str(tmp_path)), server.url, 0.2)
        registry = Registry(model="x", tracking_uri=server.url, retry_s=0)
        with ends(TrainwrightError):
            download_version(registry, "1", tmp_path)
