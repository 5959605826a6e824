"""Runs that other machines and clusters logged in MLflow, in a service that has no folder of runs."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.runs import write_run
from tests.service.server import Service, experiment, serving
from trainwright.documents import canonical
from trainwright.experiment import RunSettings
from trainwright.local.run_folder import Tasks
from trainwright.summarize.run import FinalStatus, read_run
from trainwright.summarize.run_log import make_log
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


HOURLY = "it's hourly"
"""A value that MLflow's queries cannot quote."""


def entry(key: str, name: str, **tags: str) -> RunEntry:
    named = {f"trainwright.{tag}": value for tag, value in tags.items()}
    return RunEntry(key=key, name=name, status="FINISHED", started_ms=1, ended_ms=2, tags=named)


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """MLflow with two runs: the second made another model of the training set, which the cache had."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('tracking')}/mlflow.db"
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


def own_folders(run: Path) -> Tasks:
    """Give each step a folder of its own, as the runner does."""
    tasks = Tasks.read(run)
    for task in tasks.tasks:
        for name, output in task.outputs.items():
            place = shutil.copytree(output.uri, run / task.step / name)
            task.outputs[name] = replace(output, uri=str(place))
    tasks.write(run)
    return tasks


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose MLflow has the runs of two machines, which are not here: three done, one failed."""
    folder = tmp_path_factory.mktemp("logged")
    uri = f"sqlite:///{folder}/mlflow.db"
    for number in range(1, 5):
        runs, name = folder / f"machine{number % 2}", f"00000{number}"
        owner = {"run": {"owner": "ranking" if number > 1 else "search"}}
        arguments = {"training": {"epochs": number, "tracking": {"experiment": f"of {number % 2}"}}} | owner
        write_run(runs, name, arguments, weights=f"run {number}")
        tasks = own_folders(runs / name)
        if number == 4:
            what = {"what": "loss is NaN at step 7", "hint": "Lower the learning rate.", "code": 30}
            failed = replace(tasks.tasks[2], state="failed", error=what, outputs={})
            replace(tasks, state="failed", tasks=(*tasks.tasks[:2], failed)).write(runs / name)
        run = read_run(str(runs / name), FinalStatus("SUCCEEDED" if number < 4 else "FAILED"))
        log = make_log(run, RunSettings.check(owner["run"], "run"), uri, runs / name)
        write_log(log, open_client(uri))
    config = experiment(folder, {"model": "quickstart", "tracking_uri": uri})
    with serving("--runs", folder / "none", "--config", config, folder=folder) as service:
        yield service


def listed(service: Service, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("runs", source="mlflow", **query)["runs"]
    return found


def test_runs_of_all_machines_are_listed_with_result_owner_and_versions(logged: Service) -> None:
    page = logged.get("runs", source="mlflow")
    assert [one["state"] for one in page["runs"]].count("done") == 3
    assert sorted(page["owners"].values()) == ["ranking"] * 3 + ["search"]
    assert {one["pipeline"] for one in page["runs"]} == {"train_and_register"}
    [failed] = listed(logged, state="failed")
    assert failed["headline"] == "Failed in train: loss is NaN at step 7"
    assert logged.get("runs", source="folder")["runs"] == []


def test_runs_in_mlflow_are_searched_by_parameter_owner_and_version(logged: Service) -> None:
    [third] = listed(logged, where="training.epochs=3")
    assert len(listed(logged, owner="ranking")) == 3
    assert listed(logged, owner="ranking", where="training.epochs=1") == []
    assert len(listed(logged, pipeline="train_and_register")) == 4
    assert listed(logged, pipeline="train_and") == []
    made = third["derivations"][0]["outputs"]
    assert listed(logged, version=made["model"][:10]) == [third]
    assert len(listed(logged, version=made["data"][:10])) >= 3
    assert listed(logged, version="0123456789") == []
    for query in ({"version": "data%"}, {"where": f"schema={HOURLY}"}, {"owner": "'"}):
        assert logged.call("GET", "runs", params=query | {"source": "mlflow"}).status_code == 400


def test_pages_of_the_list_hold_each_run_of_mlflow_once(logged: Service) -> None:
    found, after = [], ""
    while True:
        page = logged.get("runs", source="mlflow", limit=3, after=after)
        found += [one["run"] for one in page["runs"]]
        if not (after := page["next"]):
            break
    assert len(found) == len({*found}) == 4
    answer = logged.call("GET", "runs", params={"source": "mlflow", "after": "no token"})
    assert answer.status_code == 400


def test_failed_run_in_mlflow_is_shown_with_its_step_error_and_next_step(logged: Service) -> None:
    [failed] = listed(logged, state="failed")
    shown = logged.get(f"runs/{failed['run']}")
    assert {task["step"]: task["state"] for task in shown["tasks"]}["train"] == "failed"
    assert shown["arguments"]["training.epochs"] == "4"
    page = logged.call("GET", f"/runs/{failed['run']}").text
    assert "train: loss is NaN at step 7" in page
    assert "Lower the learning rate." in page
    assert logged.call("GET", f"runs/{'0' * 32}").status_code == 404
    assert logged.call("GET", f"runs/{RUN}").status_code == 404


def test_two_runs_of_mlflow_are_compared_and_the_page_offers_the_source(logged: Service) -> None:
    one, two = (listed(logged, where=f"training.epochs={epochs}")[0]["run"] for epochs in (2, 3))
    rows = {row["key"]: row for row in logged.get(f"runs/{one}/diff/{two}")["arguments"]}
    assert (rows["training.epochs"]["first"], rows["training.epochs"]["second"]) == ("2", "3")
    page = logged.call("GET", "/runs?source=mlflow&owner=search").text
    assert re.search(r'<select name="source"><option>folder</option><option selected>mlflow</option>', page)
    assert len(re.findall(r'name="run" value="[0-9a-f]{32}"', page)) == 1
    assert "in MLflow" in page


def test_run_of_kubeflow_is_shown_from_mlflow_where_no_kubeflow_is_configured(
    tmp_path: Path, tracking_uri: str
) -> None:
    with serving("--runs", tmp_path, "--tracking-uri", tracking_uri, folder=tmp_path) as service:
        shown = service.get(f"runs/{RUN}")
        assert {task["step"] for task in shown["tasks"]} == STEPS.keys()
