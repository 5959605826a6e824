"""One service for all tests of a file: a folder of runs, and a registry with three versions."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.registry.shelf import MODEL, Shelf, template
from tests.service.runs import write_run
from tests.service.server import Service, experiment, serving

ARGUMENTS = {"registry": {"model": MODEL}, "training": {"learning_rate": 0.01}, "run": {"owner": "ranking"}}


@dataclass
class Site:
    """A service with what it reads."""

    service: Service
    runs: Path
    shelf: Shelf


@pytest.fixture(scope="session")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("stocked"))


@pytest.fixture(scope="module")
def site(stocked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    shelf = Shelf.copy(stocked, folder / "shelf")
    runs = folder / "runs"
    for number in range(1, 8):
        changed = {"training": {"learning_rate": number / 100}} if number > 5 else {}
        write_run(runs, f"00000{number}", ARGUMENTS | changed, weights=f"run {number}")
    (runs / "00000a").mkdir()
    write_run(runs, "00000b", ARGUMENTS, weights="bad", model_decision="FAIL")
    registry = {"model": MODEL, "tracking_uri": shelf.registry.tracking_uri}
    config = experiment(folder, registry)
    with serving("--runs", runs, "--config", config, folder=folder) as service:
        yield Site(service, runs, shelf)
