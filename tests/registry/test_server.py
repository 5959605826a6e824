"""A real MLflow on PostgreSQL, and a network that loses answers, brings requests late, and goes silent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registry.race import race
from tests.registry.shelf import DIRECT, MODEL, stock
from tests.registry.steps import Run
from tests.tracking.server import Way, mlflow_server, on_postgres, way_to
from trainwright import retries
from trainwright.errors import DependencyError
from trainwright.experiment import PromotionRequest, Registry
from trainwright.registry.history import read_history
from trainwright.registry.promote import PromotionResult, promote
from trainwright.registry.register import Registration, register
from trainwright.tracking.server import open_client

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with on_postgres() as store, mlflow_server(tmp_path_factory.mktemp("mlflow"), store) as number:
        yield number


@pytest.fixture
def way(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    with way_to(port) as proxy:
        yield proxy


def section(way: Way, model: str, folder: Path, retry_s: int = 120) -> Registry:
    return Registry(model=model, tracking_uri=way.uri, retry_s=retry_s, audit=str(folder / "audit"))


def enter(run: Run, registry: Registry, name: str = "out") -> Registration:
    out = run.root.parent / name
    return register(*run.folders, registry, "abc", out / "r", out / "s.md")


def ask(registry: Registry, version: str, folder: Path, expected: str = "") -> PromotionResult:
    wanted = {"to": "production", "by": "anna", "reason": "r", "version": version, "expected": expected}
    request = PromotionRequest.check(wanted, "request")
    return promote(registry, DIRECT, request, folder / "out", folder / "out" / "s.md")


@pytest.mark.covers("F56")
def test_the_first_answer_to_every_kind_of_change_lost_makes_one_version_and_one_promotion(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was done, and nobody was told."""
    monkeypatch.setattr(retries, "LONGEST_S", 0.1)
    registry = section(way, "lossy", tmp_path)
    way.mode = "once"
    made = enter(Run(tmp_path / "run"), registry)
    assert ask(registry, made.version, tmp_path).decision == "PASS"
    lost = way.lost
    way.mode = "open"
    client = open_client(way.uri)
    found = client.search_model_versions("name = 'lossy'")
    assert [str(version.version) for version in found] == [made.version]
    experiment = client.get_experiment_by_name("lossy")
    assert experiment is not None
    assert [entry.info.run_id for entry in client.search_runs([experiment.experiment_id])] == [made.run]
    history = read_history(registry)
    assert [event.production for event in history.state.events] == [made.version]
    assert (history.warning, history.unknown) == ("", "")
    assert lost == 9, "four of the run, three of the model, two of the version"


def test_a_creation_that_the_network_brings_late_never_counts_and_is_taken_back(
    way: Way, tmp_path: Path
) -> None:
    """It arrives after its sender gave it up, tried again, and was done."""
    registry = section(way, "late", tmp_path)
    run = Run(tmp_path / "run")
    way.mode, way.held = "late", b"model-versions/create"
    made = enter(run, registry)
    client = open_client(way.uri)
    assert way.deliver() == 1
    found = {str(entry.version): entry for entry in client.search_model_versions("name = 'late'")}
    assert set(found) == {"1", "2"}
    assert "trainwright.stage" not in found["2"].tags
    refused = ask(registry, "2", tmp_path)
    assert refused.decision == "FAIL"
    assert (tmp_path / "out" / "s.md").read_text().count("left over from a request") >= 1
    again = enter(run, registry, "again")
    assert (made.version, again.version, again.registered_before) == ("1", "1", True)
    assert [str(entry.version) for entry in client.search_model_versions("name = 'late'")] == ["1"]


@pytest.mark.covers("F55")
def test_a_silent_server_is_waited_for_and_then_21_with_the_model_kept(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = section(way, "silent", tmp_path, retry_s=1)
    run = Run(tmp_path / "run")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    way.mode = "silent"
    with pytest.raises(DependencyError, match="MLflow did not answer") as caught:
        enter(run, registry)
    assert caught.value.code == 21
    assert (run.root / "model" / "weights.safetensors").exists()
    way.mode = "open"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    assert enter(run, registry).version == "1"
    way.mode = "cut"
    with pytest.raises(DependencyError):
        ask(registry, "1", tmp_path)
    way.mode = "open"
    assert ask(registry, "1", tmp_path).decision == "PASS"


@pytest.mark.covers("F57")
def test_two_promoters_race_and_one_of_them_wins_each_time(port: int, tmp_path: Path) -> None:
    """The 100 rounds of the proof: python -m tests.registry.race --postgres --count 100."""
    uri = f"http://127.0.0.1:{port}"
    stock(tmp_path, uri, audit=str(tmp_path / "audit"))
    registry = Registry(model=MODEL, tracking_uri=uri, audit=str(tmp_path / "audit"))
    assert len(race(registry, tmp_path, 3)) == 3
