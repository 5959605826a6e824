"""The flights' features go into an online store by the example's own command, twice as on a schedule."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.pipelines.conftest import ROOT, events, trainwright

FEAST = ROOT / ".environments" / "feast" / "bin" / "python"
READ = """
import json, sys
from feast import FeatureStore
store = FeatureStore(repo_path=sys.argv[1])
names = ["planes:manufacturer", "planes:seats"]
found = store.get_online_features(features=names, entity_rows=[{"tailnum": "N14228"}]).to_dict()
print(json.dumps(found))
"""


@pytest.fixture
def job(flights: Path, tmp_path: Path) -> Path:
    """A copy of the example, so that its online store stays as it is."""
    (tmp_path / "data").mkdir()
    shutil.copytree(flights / "feature_repo", tmp_path / "feature_repo")
    for name in ("flights.yaml", "schema.pbtxt", "data/registry.db", "data/online.db"):
        shutil.copy(flights / name, tmp_path / name)
    return tmp_path


def test_the_flights_features_are_served_and_a_second_run_only_looks_back(job: Path) -> None:
    command = [
        "run",
        "materialize_features",
        "--config",
        job / "flights.yaml",
        "--runs",
        job / "runs",
        "--json",
    ]
    for date in ("2014-02-01", "2014-02-02"):
        done = trainwright(*command, "--json", "--date", date)
        assert done.returncode == 0, done.stdout + done.stderr
    ended = {event["step"]: event for event in events(done) if event["event"] == "task_finished"}
    assert ended["materialize"]["state"] == "done"
    served = subprocess.run(
        [FEAST, "-W", "ignore", "-c", READ, job / "feature_repo"], capture_output=True, text=True, check=True
    )
    assert json.loads(served.stdout) == {"tailnum": ["N14228"], "manufacturer": ["BOEING"], "seats": [149]}
    marks = sorted((job / "data" / "materialized" / "flights" / "planes").glob("watermark.*.json"))
    first, second = (json.loads(mark.read_text()) for mark in marks)
    assert (first["start"], first["keys"], second["start"]) == ("", 3322, "2014-01-31T23:00:00Z")


def test_every_task_looks_at_what_is_outside_so_none_is_cached() -> None:
    text = (ROOT / "compiled" / "pipelines" / "materialize_features.yaml").read_text()
    pipeline, _ = yaml.safe_load_all(text)
    dags = [pipeline["root"], *pipeline["components"].values()]
    tasks = [task for dag in dags for task in dag.get("dag", {}).get("tasks", {}).values()]
    cached = [task["taskInfo"]["name"] for task in tasks if task.get("cachingOptions", {}).get("enableCache")]
    assert not [name for name in cached if not name.startswith("exit-handler")]
