from pathlib import Path

import pytest

from tests.registry.shelf import Shelf, template
from tests.registry.steps import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture(scope="session")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("stocked"))


@pytest.fixture
def shelf(tmp_path: Path, stocked: Path) -> Shelf:
    return Shelf.copy(stocked, tmp_path / "shelf")
