"""A small training set, and a model of it."""

from pathlib import Path

import pytest

from tests.engines.beam_clusters import flink
from tests.train.problems import ROWS, Outcome, flights, run, write

__all__ = ["flink"]


@pytest.fixture(scope="session")
def training_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "training_set"
    write(folder, {name: flights(rows, seed) for seed, (name, rows) in enumerate(ROWS.items())})
    return folder


@pytest.fixture(scope="session")
def trained(training_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(
        training_set, tmp_path_factory.mktemp("trained"), training={"epochs": 1}, resources={"processes": 1}
    )
