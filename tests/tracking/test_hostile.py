"""An MLflow server that answers as none should: every action ends, with a typed error."""

import json
import socket
from pathlib import Path

import pytest

from tests.limits.hostile import NOISE, OK, Behaviour, answer, ends, every, fast, flood, hostile
from trainwright.artifacts import Model
from trainwright.artifacts.model import ModelFile
from trainwright.errors import TrainwrightError
from trainwright.experiment import Registry
from trainwright.registry.transfer import download_version
from trainwright.tracking.server import download_model, open_client, persist

__all__ = ["fast"]
pytestmark = pytest.mark.filterwarnings(NOISE)


def manifest(path: str, size: int) -> Model:
    entry = ModelFile(path=path, size=size, sha256="0" * 64)
    return Model(files=(entry,), kind="mlp", inputs=(), label="late", training_data="0" * 64, config={})


@pytest.mark.covers("A19")
@pytest.mark.parametrize(
    ("path", "said"),
    [("program.pt2", "more than the 1,048,688 bytes that are read"), ("../x", "lies outside its folder")],
)
def test_model_file_larger_than_its_manifest_says_or_elsewhere_is_an_error(
    path: str, said: str, tmp_path: Path
) -> None:
    model, size = manifest(path, 100), 1 << 30

    def send(connection: socket.socket) -> None:
        if b"/model.json" in server.requests[-1]:
            answer(json.dumps(model.to_json()).encode())(connection)
        elif b"?path=" in server.requests[-1]:  # is it a folder?
            answer(b'{"files": []}')(connection)
        else:
            flood(OK + b"Content-Length: %d\r\n\r\n" % size, bytes(1 << 16))(connection)

    def download() -> None:
        source = f"{server.url}/api/2.0/mlflow-artifacts/artifacts/model"
        download_model(source, model.digest, tmp_path / "model", server.url)

    with hostile(send) as server, pytest.raises(TrainwrightError, match=said):
        persist(download, server.url, 0)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 2 << 20


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
