"""The model in production scores the rows of a candidate: the numbers that its own training wrote."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.train.problems import ROWS, Outcome, flights, run, write
from trainwright import tables
from trainwright.artifacts import Model, Snapshot
from trainwright.errors import DependencyError, InputError
from trainwright.experiment import Evaluation, Registry
from trainwright.registry.names import PRODUCTION
from trainwright.score.baseline import Scored, score_production
from trainwright.score.production import DIGEST
from trainwright.tracking.server import open_client

NAME = "flights"

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated",  # MLflow 3.17's own models, under SQLAlchemy 2.1
    "ignore:unclosed database",  # MLflow leaves its connection pool to the garbage collector
)


@pytest.fixture(scope="module")
def training_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "training_set"
    write(folder, {name: flights(rows, seed) for seed, (name, rows) in enumerate(ROWS.items())})
    return folder


@pytest.fixture(scope="module")
def trained(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(training_set, tmp_path_factory.mktemp("trained"), training={"epochs": 1})


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An empty MLflow database, made once: making one takes MLflow seconds."""
    path = tmp_path_factory.mktemp("fresh") / "mlflow.db"
    open_client(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def registry(tmp_path: Path, fresh: bytes) -> Registry:
    (tmp_path / "mlflow.db").write_bytes(fresh)
    return Registry(model=NAME, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", retry_s=0)


def enter(registry: Registry, model: Path, **tags: str) -> str:
    """Make a version as register does, and point production at it."""
    client = MlflowClient(registry.tracking_uri, registry.tracking_uri)
    client.create_registered_model(NAME)
    made = client.create_model_version(NAME, model.as_uri(), tags={DIGEST: Model.read(model).digest} | tags)
    client.set_registered_model_alias(NAME, PRODUCTION, str(made.version))
    return str(made.version)


def score(training_set: Path, registry: Registry, folder: Path) -> Scored:
    version = Snapshot.read(training_set).digest
    places = {"predictions": folder / "predictions", "summary": folder / "summary.md"}
    return score_production(training_set, version, Evaluation(), registry, **places)


def rows(folder: Path) -> list[dict[str, object]]:
    batches = tables.iter_batches(folder, Snapshot.read(folder), ["evaluate"])
    return [row for batch in batches for row in batch.to_pylist()]


def test_what_production_predicts_is_what_its_training_predicted(
    training_set: Path, trained: Outcome, registry: Registry, tmp_path: Path
) -> None:
    version = enter(registry, trained.model)
    scored = score(training_set, registry, tmp_path)
    assert scored.registered == version
    assert rows(tmp_path / "predictions") == rows(trained.predictions)
    written = Snapshot.open(tmp_path / "predictions", scored.predictions_version)
    assert written.roles == Snapshot.read(trained.predictions).roles
    assert written.parents["model"] == Model.read(trained.model).digest
    assert "1,950 rows scored by version 1" in (tmp_path / "summary.md").read_text()


def test_without_a_version_in_production_there_are_no_predictions(
    training_set: Path, registry: Registry, tmp_path: Path
) -> None:
    assert score(training_set, registry, tmp_path / "a") == Scored(
        "", "", "no version of flights is in production"
    )
    assert not (tmp_path / "a" / "predictions" / Snapshot.FILE).exists()
    MlflowClient(registry.tracking_uri, registry.tracking_uri).create_registered_model(NAME)
    assert score(training_set, registry, tmp_path / "b").registered == ""


def test_a_model_that_cannot_read_the_rows_is_named_and_nothing_fails(
    trained: Outcome, registry: Registry, tmp_path: Path
) -> None:
    enter(registry, trained.model)
    other = flights(100, 1).drop_columns(["wind"])
    write(tmp_path / "set", {"train": other, "evaluate": other})
    scored = score(tmp_path / "set", registry, tmp_path)
    assert (scored.predictions_version, scored.registered) == ("", "1")
    assert "'wind'" in scored.headline or "wind" in scored.headline
    assert not (tmp_path / "predictions" / Snapshot.FILE).exists()


def test_files_that_are_not_what_was_registered_are_refused(
    training_set: Path, trained: Outcome, registry: Registry, tmp_path: Path
) -> None:
    enter(registry, trained.model, **{DIGEST: "0" * 64})
    with pytest.raises(InputError, match="not 000000000000"):
        score(training_set, registry, tmp_path)


def test_a_version_whose_files_are_gone_is_a_dependency_that_is_down(
    training_set: Path, trained: Outcome, registry: Registry, tmp_path: Path
) -> None:
    enter(registry, trained.model)
    client = MlflowClient(registry.tracking_uri, registry.tracking_uri)
    made = client.create_model_version(
        NAME, (tmp_path / "gone").as_uri(), tags={DIGEST: Model.read(trained.model).digest}
    )
    client.set_registered_model_alias(NAME, PRODUCTION, str(made.version))
    with pytest.raises(DependencyError, match="version 2 could not be had"):
        score(training_set, registry, tmp_path)
