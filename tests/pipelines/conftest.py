"""A small real job: five weeks of the flights, run through every environment."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.registry.hub import Hub, serving

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights"
TABULAR = ROOT / ".environments" / "tabular" / "bin" / "python"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Edit = Callable[[dict[str, Any]], None]

CUT = """
import datetime, sys
import pyarrow.compute as pc, pyarrow.parquet as pq
table = pq.read_table(sys.argv[1])
start, end = (datetime.datetime.fromisoformat(text) for text in sys.argv[3:5])
at = table["scheduled_departure"]
pq.write_table(table.filter(pc.and_(pc.greater_equal(at, start), pc.less(at, end))), sys.argv[2])
"""


@pytest.fixture(scope="session")
def flights() -> Path:
    if not (FLIGHTS / "data" / "flights.parquet").exists():
        pytest.fail("the flights are not prepared: run `make test`, which prepares them")
    return FLIGHTS


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    with serving() as server:
        server.token = PLANTED
        yield server


@pytest.fixture(scope="session")
def job(flights: Path, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment on the flights of September and the first week of October."""
    folder = tmp_path_factory.mktemp("job")
    source = str(flights / "data" / "flights.parquet")
    window = ["2013-09-01T04:00:00+00:00", "2013-10-08T04:00:00+00:00"]
    subprocess.run([TABULAR, "-c", CUT, source, folder / "rows.parquet", *window], check=True)
    experiment = yaml.safe_load((flights / "flights.yaml").read_text())
    experiment["data"]["source"] = "rows.parquet"
    experiment["data"]["min_rows"] = 1000
    experiment["data"]["splits"] = {
        "train": {"start": window[0], "end": "2013-10-01T04:00:00+00:00"},
        "evaluate": {"start": "2013-10-01T04:00:00+00:00", "end": window[1]},
    }
    schema = (flights / "schema.pbtxt").read_text()
    assert "min_examples_count: 20000" in schema
    (folder / "schema.pbtxt").write_text(
        schema.replace("min_examples_count: 20000", "min_examples_count: 1000")
    )
    # A week against a month moves further than a month against nine: the gates are not the subject here.
    experiment["validation"] |= {"numeric_threshold": 0.5, "categorical_threshold": 0.5, "drift": {}}
    experiment["features"] |= {
        "repository": str(flights / "feature_repo"),
        "source": str(flights / "feature_repo" / "**" / "*[!c]"),
    }
    experiment["training"]["epochs"] = 1
    experiment["evaluation"] |= {"min_auc": 0.5, "max_recall_gap": 1.0, "max_calibration_error": 1.0}
    token = tmp_path_factory.mktemp("secrets") / "token"
    token.write_text(PLANTED)
    experiment["registry"] = {"model": "flight-delay", "tracking_uri": "sqlite:///registry/mlflow.db"}
    experiment["registry"] |= {"hub": hub.url, "hub_token_file": str(token)}
    (folder / "registry").mkdir()
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    return folder


@pytest.fixture
def edited(job: Path, tmp_path: Path) -> Callable[[Edit], Path]:
    """Write a changed copy of the experiment beside it, and return its path."""

    def write(edit: Edit) -> Path:
        experiment = yaml.safe_load((job / "experiment.yaml").read_text())
        edit(experiment)
        path = job / f"{tmp_path.name}.yaml"
        path.write_text(yaml.safe_dump(experiment))
        return path

    return write


PLANTED = "hunter2-PLANTED"
"""A secret in the surroundings of every run; it must be found nowhere afterwards."""

SECRETS = dict.fromkeys(
    ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD", "MLFLOW_TRACKING_PASSWORD", "MY_API_KEY"),
    PLANTED,
)


def trainwright(*arguments: str | Path, timeout_s: int = 1_800) -> "subprocess.CompletedProcess[str]":
    command = [Path(sys.executable).with_name("trainwright"), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env=os.environ | SECRETS,
    )


def holding(secret: str, folder: Path) -> list[str]:
    """Name every file below a folder whose name or content holds a secret."""
    return [
        str(path)
        for path in sorted(folder.rglob("*"))
        if secret in path.name or (path.is_file() and secret.encode() in path.read_bytes())
    ]


def run(config: Path, runs: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return trainwright("run", "train_and_register", "--config", config, "--runs", runs, *more)


def events(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def tasks(said: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["step"]: event for event in said if event["event"] == "task_finished"}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def finished(job: Path, runs: Path) -> dict[str, dict[str, Any]]:
    done = run(job / "experiment.yaml", runs, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return tasks(events(done))
