"""Runs that a cluster logged in MLflow: their lineage, in a service that has no folder of runs."""

from pathlib import Path

import pytest

from tests.service.server import experiment, serving
from trainwright.documents import canonical
from trainwright.tracking.run_log import RunEntry, RunLog, write_log
from trainwright.tracking.server import open_client

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

RUN = "9f7c0db1-1ac1-4bcd-9124-6fbd8332d501"
SOURCE, DATA, SET, MODEL, OTHER = (letter * 64 for letter in "abcde")
STEPS = {
    "ingest": ({"source": SOURCE}, {"data": DATA}),
    "join": ({"data": DATA, "data_verdict": "f" * 64}, {"training_set": SET}),
    "train": ({"training_set": SET}, {"model": MODEL}),
}
"""What each step read and made."""


def entry(key: str, name: str, **tags: str) -> RunEntry:
    named = {f"trainwright.{tag}": value for tag, value in tags.items()}
    return RunEntry(key=key, name=name, status="FINISHED", started_ms=1, ended_ms=2, tags=named)


@pytest.fixture
def tracking_uri(tmp_path: Path) -> str:
    """MLflow with two runs: the second made another model of the training set, which the cache had."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    trained = {"train": ({"training_set": SET}, {"model": OTHER})}
    for run, steps in ((RUN, STEPS), (RUN.replace("9", "8"), trained)):
        nested = tuple(
            entry(f"{run}/{step}", step, step=step, inputs=canonical(read), outputs=canonical(made))
            for step, (read, made) in steps.items()
        )
        parent = entry(run, f"run {run[0]}", run=run, pipeline="train-and-register", state="done")
        log = RunLog(uri=uri, experiment="trainwright", joined="", run=parent, steps=nested)
        write_log(log, open_client(uri))
    return uri


def test_lineage_of_a_run_on_a_cluster_goes_both_ways(tmp_path: Path, tracking_uri: str) -> None:
    config = experiment(tmp_path, {"model": "quickstart", "tracking_uri": tracking_uri})
    with serving("--runs", tmp_path / "runs", "--config", config, folder=tmp_path) as service:
        up = service.get(f"lineage/{MODEL[:12]}")
        names = [one["node"]["name"] for one in up["made_from"]]
        assert names == ["training_set", "data", "source"]
        assert up["version"]["runs"] == [RUN]
        down = service.get(f"lineage/{SOURCE[:12]}")
        models = [one["node"]["digest"] for one in down["made_into"] if one["node"]["name"] == "model"]
        assert sorted(models) == [MODEL, OTHER]
        assert service.call("GET", "lineage/999999").status_code == 404
        assert service.call("GET", "lineage/%25").status_code == 404
