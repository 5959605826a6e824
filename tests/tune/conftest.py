"""The training set of all tests here."""

from pathlib import Path

import pytest

from tests.tune.trainings import write_training_set


@pytest.fixture(scope="session")
def training_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_set(tmp_path_factory.mktemp("data") / "set")
