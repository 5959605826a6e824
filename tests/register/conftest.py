from pathlib import Path

import pytest

from tests.register.steps import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")
