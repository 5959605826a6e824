"""What is in production, as the registry has it."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from trainwright.errors import InputError, ModelRefused
from trainwright.experiment import Registry
from trainwright.get_production_model.production_version import NONE, get_production_model
from trainwright.registry.names import PRODUCTION, STAGE
from trainwright.registry.versions import MODEL_DIGEST_TAG, ProductionVersion
from trainwright.tracking.server import open_client

NAME = "flights"

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated",  # MLflow 3.17's own models, under SQLAlchemy 2.1
    "ignore:unclosed database",  # MLflow leaves its connection pool to the garbage collector
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    path = tmp_path_factory.mktemp("registry") / "mlflow.db"
    return Registry(model=NAME, tracking_uri=f"sqlite:///{path}", retry_s=0)


def ask(registry: Registry, folder: Path) -> ProductionVersion:
    return get_production_model(registry, folder / "record", folder / "summary.md")


def test_the_alias_says_what_is_in_production_from_no_model_on(registry: Registry, tmp_path: Path) -> None:
    assert ask(registry, tmp_path / "0") == NONE
    client: MlflowClient = open_client(registry.tracking_uri)
    client.create_registered_model(NAME)
    assert ask(registry, tmp_path / "1") == NONE
    for digest in ("ab" * 32, "cd" * 32):
        client.create_model_version(NAME, f"file:///models/{digest}", tags={MODEL_DIGEST_TAG: digest})
    assert ask(registry, tmp_path / "2") == NONE, "versions are there, none is in production"
    client.set_registered_model_alias(NAME, PRODUCTION, "1")
    assert ask(registry, tmp_path / "3") == ProductionVersion("1", "ab" * 32, f"file:///models/{'ab' * 32}")
    client.set_registered_model_alias(NAME, PRODUCTION, "2")
    assert ask(registry, tmp_path / "4").version == "2"
    record = json.loads((tmp_path / "4" / "record" / "record.json").read_text())
    assert record["outputs"] == {"model": "cd" * 32}
    assert "version 2 is in production" in (tmp_path / "4" / "summary.md").read_text()


def test_version_promoted_to_production_without_its_alias_is_an_error(
    registry: Registry, tmp_path: Path
) -> None:
    client: MlflowClient = open_client(registry.tracking_uri)
    other = registry.model_copy(update={"model": "moved"})
    client.create_registered_model("moved")
    client.create_model_version("moved", "file:///models/moved", tags={STAGE: "production"})
    with pytest.raises(ModelRefused, match="version 1 of moved was promoted to production") as caught:
        ask(other, tmp_path)
    assert "trainwright model restore moved" in caught.value.hint


def test_a_version_that_nobody_knows_the_model_of_is_refused(registry: Registry, tmp_path: Path) -> None:
    client: MlflowClient = open_client(registry.tracking_uri)
    other = registry.model_copy(update={"model": "foreign"})
    client.create_registered_model("foreign")
    client.create_model_version("foreign", "file:///models/foreign")
    client.set_registered_model_alias("foreign", PRODUCTION, "1")
    with pytest.raises(InputError, match=r"version 1 of foreign .* no tag trainwright.model_digest"):
        ask(other, tmp_path)
