"""The Kubeflow that the command line names; everything made there is deleted at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubeflow.installation import Installation, Outcome


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take what has to be known of the installation."""
    group = parser.getgroup("kubeflow", "acceptance checks on a real Kubeflow")
    group.addoption("--kubeflow-host", default="", help="Address of the API; without it all is skipped.")
    group.addoption("--kubeflow-registry", default="", help="HOST/TEAM of the images.")
    group.addoption("--kubeflow-namespace", default="", help="The profile's; without profiles, leave it out.")
    group.addoption("--kubeflow-token-file", default="", help="File of the token.")
    named = "Experiment file for train_and_register, and the code it should end with (0)."
    group.addoption("--kubeflow-config", action="append", default=[], metavar="FILE[=CODE]", help=named)
    group.addoption(
        "--kubeflow-mlflow", default="", help="MLflow as pods reach it; absent: what doctor finds."
    )
    group.addoption("--kubeflow-wait-s", type=int, default=1800, help="Longest time to wait for a run.")


@pytest.fixture(scope="session")
def kubeflow(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation, with a pipeline and an experiment of our own; skips without a host."""
    host = pytestconfig.getoption("--kubeflow-host")
    if not host:
        pytest.skip("HOST names no Kubeflow: make test-kubeflow HOST=https://HOST/pipeline")
    made = Installation(
        host=host,
        registry=pytestconfig.getoption("--kubeflow-registry"),
        namespace=pytestconfig.getoption("--kubeflow-namespace"),
        token_file=pytestconfig.getoption("--kubeflow-token-file"),
        wait_s=pytestconfig.getoption("--kubeflow-wait-s"),
        folder=Path(tmp_path_factory.mktemp("kubeflow")),
    )
    try:
        yield made
    finally:
        made.clear()


@pytest.fixture(scope="session")
def findings(kubeflow: Installation) -> dict[str, dict[str, Any]]:
    """What ``doctor`` says, by name."""
    return {one["name"]: one for one in kubeflow.run("doctor", wait_s=120).events if "name" in one}


@pytest.fixture(scope="session")
def first(kubeflow: Installation) -> Outcome:
    """The first run of the small pipeline: the later ones find its results in the cache."""
    return kubeflow.submit("first")
