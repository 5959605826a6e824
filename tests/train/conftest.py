"""One training set, and one training of it that many tests look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.train.problems import ROWS, Outcome, flights, run, write
from trainwright.artifacts import Model
from trainwright.train.group import Group, joined


@pytest.fixture(scope="session")
def training_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot that most tests train on."""
    folder = tmp_path_factory.mktemp("set") / "training_set"
    write(folder, {name: flights(rows, seed) for seed, (name, rows) in enumerate(ROWS.items())})
    return folder


@pytest.fixture(scope="session")
def trained(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A training in two processes that went well."""
    return run(training_set, tmp_path_factory.mktemp("trained"))


@pytest.fixture
def manifest(trained: Outcome) -> Model:
    """The manifest of the model that was trained."""
    return Model.read(trained.model)


@pytest.fixture(scope="session")
def alone() -> Iterator[Group]:
    """A group of one process: this one."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
            patch.setenv(name, value)
        torch.use_deterministic_algorithms(mode=True)
        torch.set_num_threads(1)
        with joined(0) as group:
            yield group
