"""Runs in a real MLflow: done, failed, held, cancelled, resumed, sent again, and a server that is away."""

import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run as MlflowRun

from tests.summarize.test_cluster import RUN, completed, folder, recorded
from tests.summarize.test_cluster import api as workflow_api
from tests.summarize.test_page import DONE, chain, record
from tests.tracking.server import Way, mlflow_server, way_to
from trainwright.artifacts import Record
from trainwright.errors import InputError, as_record
from trainwright.summarize import run_log
from trainwright.summarize.__main__ import main
from trainwright.summarize.run import FinalStatus
from trainwright.summarize.summarize import summarize
from trainwright.tracking.history import (
    HISTORY_KEY,
    MLFLOW_KEY,
    HistoryWriter,
    TrackingDestination,
    UploadState,
    run_of,
    upload,
)
from trainwright.tracking.run_log import PARENT, RunLog, SentRun
from trainwright.tracking.server import open_client

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

CREATED = "2026-11-20T09:59:00+00:00"
PRICES = {"version": "7", "currency": "EUR", "cpu_hour": 3600}
SECTION = {"owner": "ranking", "cost_centre": "4711", "prices": PRICES}
ARGUMENTS = {
    "training": {"epochs": 3, "betas": [0.9, 0.999], "guards": {}},
    "registry": {"tracking_uri": "…"},
    "commit": "abc123-dirty",
    "schema": "",
}
OUTPUT = {"train": "model", "evaluate": "verdict"}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as number:
        yield number


@pytest.fixture
def way(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    with way_to(port) as proxy:
        yield proxy


class Folder:
    """The folder of a local run, as its runner and its steps leave it."""

    def __init__(self, runs: Path, name: str, records: Mapping[str, Record], **states: object) -> None:
        self.path, self.experiment = runs / name, f"{runs.parent.name} {runs.name}"
        self.path.mkdir(parents=True, exist_ok=True)
        arguments = ARGUMENTS | {
            "training": {**ARGUMENTS["training"], "tracking": {"experiment": self.experiment}}
        }  # type: ignore[dict-item]
        self._write("run.json", run=name, pipeline="train_and_register", created=CREATED, arguments=arguments)
        tasks = []
        for step, end in states.items():
            state, error = end if isinstance(end, tuple) else (end, {})
            place = self.path / step / OUTPUT.get(step, "main")
            if state in {"done", "cached"}:
                records[step].write(place / Record.FILE)
            outputs = {place.name: {"uri": str(place), "type": "system.Artifact"}}
            tasks.append({"step": step, "state": state, "error": error, "seconds": 31.0, "outputs": outputs})
        self._write("tasks.json", run=name, tasks=tasks)
        if "evaluate" in states:
            measures = [{"name": "auc", "value": 0.75}, {"name": "slice/a/auc", "value": 0.7}]
            self._write("evaluate/verdict/measured.json", measures=measures)
        if "train" in states:
            self._write("train/model/model.json", metrics={"train_loss": 0.25})

    def _write(self, path: str, **document: Any) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_text(json.dumps({"schema_version": 1} | document))

    def summarize(self, uri: str, ending: FinalStatus = DONE, **section: object) -> str:
        out = self.path / "summarize"
        places = out / "page.html", out / "summary.md", out / "run"
        registry = {"model": "late", "tracking_uri": uri}
        summarize(str(self.path), ending, *places, section=SECTION | section, registry=registry)
        assert "<h1" in places[0].read_text()
        return places[1].read_text()

    def runs(self, uri: str) -> tuple[list[MlflowRun], dict[str, MlflowRun]]:
        """Return the runs without a parent, and the others by name."""
        client = open_client(uri)
        experiment = client.get_experiment_by_name(self.experiment)
        found = list(client.search_runs([experiment.experiment_id])) if experiment else []
        nested = [run for run in found if PARENT in run.data.tags]
        keys = [run.data.tags.get(HISTORY_KEY, run.info.run_name) for run in nested]
        assert len(set(keys)) == len(keys), "none is there twice"
        return [run for run in found if run not in nested], {str(run.info.run_name): run for run in nested}


def whole(runs: Path, name: str = "0192f3") -> Folder:
    return Folder(runs, name, chain(), **dict.fromkeys(chain(), "done"))


def test_finished_run_is_one_run_with_a_nested_one_for_each_step(way: Way, tmp_path: Path) -> None:
    """In a file, other tests look at it: tests/service/test_logged.py, tests/pipelines/test_alerts.py."""
    run, uri = whole(tmp_path / "server"), way.uri
    (run.path / "source.patch").write_text("# Changes since commit abc123\n")
    assert "MLflow run" in run.summarize(uri)
    [parent], steps = run.runs(uri)
    assert (parent.info.run_name, parent.info.status) == ("train_and_register 0192f3", "FINISHED")
    assert parent.data.params.items() >= {
        ("training.epochs", "3"),
        ("training.betas", "[0.9,0.999]"),
        ("commit", "abc123-dirty"),
    }
    # 31 s a step at 1 a second and core: four with a core, train with two, register with half of one.
    cost = 31 * (4 + 2 + 0.5)
    assert parent.data.metrics == {"auc": 0.75, "train_loss": 0.25, "cost": cost, "seconds": 390.0}
    tags = {name.removeprefix("trainwright."): value for name, value in parent.data.tags.items()}
    made = chain()
    expected = {
        "pipeline": "train_and_register", "run": "0192f3", "state": "done", "decision": "HOLD",
        "owner": "ranking", "cost_centre": "4711", "git_sha": "abc123-dirty",
        "cost": f"{cost:g}", "currency": "EUR", "prices": "7",
        "data_digest": made["ingest"].outputs["data"], "model_digest": made["train"].outputs["model"],
        "mlflow.user": "ranking", "mlflow.source.git.commit": "abc123",
    }  # fmt: skip
    assert {name: tags.get(name) for name in expected} == expected
    assert set(steps) == set(made)
    assert {step.data.tags[PARENT] for step in steps.values()} == {parent.info.run_id}
    expected_metrics = {"auc": 0.75, "slice/a/auc": 0.7, "seconds": 30.0, "cost": 31.0}
    assert steps["evaluate"].data.metrics == expected_metrics
    assert steps["validate"].data.tags["trainwright.decision"] == "HOLD"
    assert steps["ingest"].info.end_time - steps["ingest"].info.start_time == 30_000
    text = Path(open_client(uri).download_artifacts(parent.info.run_id, "source.patch", str(tmp_path)))
    assert text.read_text() == "# Changes since commit abc123\n"
    sent = SentRun.read(run.path)
    assert (sent.uri, sent.run) == (uri, parent.info.run_id)
    assert not (run.path / RunLog.FILE).exists()


def test_failed_run_has_the_class_code_and_text_of_its_error(way: Way, tmp_path: Path) -> None:
    error = as_record(InputError("column late is missing", where="rows.csv", hint="Name it."), "ingest")
    run = Folder(tmp_path / "failed", "0192f4", chain(), ingest=("failed", error), join="skipped")
    run.summarize(way.uri, FinalStatus("FAILED", "job", "exit-handler-1"))
    [parent], steps = run.runs(way.uri)
    assert (parent.info.status, list(steps), steps["ingest"].info.status) == ("FAILED", ["ingest"], "FAILED")
    for one in (parent, steps["ingest"]):
        assert one.data.tags["trainwright.error"] == "InputError"
        assert one.data.tags["trainwright.error_code"] == "10"
        assert one.data.tags["trainwright.error_text"] == "column late is missing"
    assert parent.data.tags["trainwright.state"] == "failed"
    assert "Failed in ingest: column late is missing" in parent.data.tags["mlflow.note.content"]


def test_held_and_cancelled_runs_say_so(way: Way, tmp_path: Path) -> None:
    records = chain()
    states = dict.fromkeys(("ingest", "validate"), "done")
    held = Folder(tmp_path / "held", "0192f5", records, **states, join="skipped")
    held.summarize(way.uri)
    stopped = Folder(tmp_path / "stopped", "0192f6", records, ingest="done", validate="stopped")
    stopped.summarize(way.uri, FinalStatus("FAILED", "job", "exit-handler-1"))
    for run, state, status in ((held, "held", "FINISHED"), (stopped, "cancelled", "KILLED")):
        [parent], steps = run.runs(way.uri)
        assert (parent.data.tags["trainwright.state"], parent.info.status) == (state, status)
        assert set(steps) == {"ingest", "validate"}
    assert steps["validate"].info.status == "KILLED"
    assert parent.data.tags["mlflow.note.content"] == "Cancelled in validate"


def test_run_that_was_killed_and_resumed_has_its_earlier_steps_but_not_those_of_other_runs(
    way: Way, tmp_path: Path
) -> None:
    runs, records = tmp_path / "killed", chain()
    other = {
        "ingest": Record.from_json(records["ingest"].to_json() | {"started": "2026-11-19T10:00:00+00:00"})
    }
    states = {"ingest": "cached", "validate": "cached", "join": "done", "train": ("failed", {"what": "hang"})}
    run = Folder(runs, "0192f7", records | other, **states)
    run.summarize(way.uri, FinalStatus("FAILED", "job", "exit-handler-1"))
    [parent], steps = run.runs(way.uri)
    assert set(steps) == {"validate", "join", "train"}
    assert parent.data.tags["trainwright.error_text"] == "hang"
    resumed = Folder(runs, "0192f7", records | other, **states | {"join": "cached", "train": "done"})
    resumed.summarize(way.uri)
    [parent], steps = run.runs(way.uri)
    assert set(steps) == {"validate", "join", "train"}
    assert (parent.info.status, steps["train"].info.status) == ("FINISHED", "FINISHED")
    assert steps["train"].data.tags["trainwright.state"] == "done"
    for one in (parent, steps["train"]):
        assert "trainwright.error_text" not in one.data.tags, "it is over"


def test_summarizing_again_and_lost_answers_add_nothing(way: Way, tmp_path: Path) -> None:
    run = whole(tmp_path / "again")
    way.mode = "once"
    run.summarize(way.uri)
    assert way.lost > 0
    way.mode = "open"
    [before], steps = run.runs(way.uri)
    assert set(steps) == set(chain())
    run.summarize(way.uri, owner="search")
    [parent], steps = run.runs(way.uri)
    assert parent.info.run_id == before.info.run_id
    assert set(steps) == set(chain())
    assert parent.data.tags["trainwright.owner"] == "search"


@pytest.mark.parametrize("mode", ["cut", "silent"])
def test_run_that_mlflow_did_not_take_is_sent_by_the_next_one(
    mode: str, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "RETRY_S", 1.0)
    monkeypatch.setattr(run_log, "DEADLINE_S", 60.0 if mode == "cut" else 8.0)
    run, later = whole(tmp_path / mode), whole(tmp_path / mode, "0192f8")
    way.mode = mode
    start = time.monotonic()
    assert "The log is kept" in run.summarize(way.uri)
    assert time.monotonic() - start < 90
    assert (run.path / RunLog.FILE).exists()
    way.mode = "open"
    monkeypatch.setattr(run_log, "DEADLINE_S", 60.0)
    later.summarize(way.uri)
    client = open_client(way.uri)
    [experiment] = client.search_experiments(filter_string=f"name = '{run.experiment}'")
    query = "tags.`trainwright.pipeline` LIKE '%'"
    found = {entry.info.run_name for entry in client.search_runs([experiment.experiment_id], query)}
    assert found == {"train_and_register 0192f3", "train_and_register 0192f8"}
    assert not (run.path / RunLog.FILE).exists()


def test_command_sends_what_is_left_and_fails_with_21_while_the_server_is_away(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = whole(tmp_path / "left")
    monkeypatch.setattr(run_log, "RETRY_S", 0.5)
    way.mode = "cut"
    run.summarize(way.uri)
    with pytest.raises(SystemExit) as caught:
        main(["0.5", str(tmp_path / "left")])
    assert caught.value.code == 21
    way.mode = "open"
    main(["30", str(tmp_path / "left")])
    [parent], _ = run.runs(way.uri)
    assert f"MLflow run {parent.info.run_id}" in capsys.readouterr().out
    main(["30", str(tmp_path / "left")])
    assert capsys.readouterr().out == "MLflow has every run.\n"


def test_log_that_another_process_sends_is_left_to_it(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = whole(tmp_path / "busy")
    monkeypatch.setattr(run_log, "RETRY_S", 0.5)
    way.mode = "cut"
    run.summarize(way.uri)
    way.mode = "open"
    with (run.path / ".mlflow-log.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [*run_log.send([str(run.path)], 5)] == [f"{run.path} is being sent by another process"]
        assert run.runs(way.uri) == ([], {})
    assert "MLflow run" in next(run_log.send([str(run.path)], 5))
    assert [*run_log.send([str(run.path)], 5)] == [f"{run.path} was sent by another process"]


def test_runs_of_a_study_and_of_training_curves_become_nested(way: Way, tmp_path: Path) -> None:
    study = replace(record("tune", 4), config={MLFLOW_KEY: "study-a"})
    run = Folder(tmp_path / "curves", "0192f3", chain() | {"tune": study}, tune="done", train="done")
    destination = TrackingDestination(way.uri, experiment=run.experiment, key="study-a", name="study a")
    searched = run_of(destination, open_client(way.uri))
    history = run.path / "train" / "model" / "history.jsonl"
    writer = HistoryWriter(history)
    writer.add(1, {"loss": 0.5})
    writer.close()
    upload(history, TrackingDestination(way.uri, experiment=run.experiment), open_client(way.uri))
    curves = UploadState.read(history.with_name(UploadState.FILE)).run
    run.summarize(way.uri)
    [parent], _ = run.runs(way.uri)
    for one in (curves, searched):
        assert open_client(way.uri).get_run(one).data.tags[PARENT] == parent.info.run_id


def test_run_of_kfps_plugin_is_joined_and_not_ended(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, client = whole(tmp_path / "joined"), open_client(way.uri)
    experiment = client.create_experiment(run.experiment)
    parent = client.create_run(experiment, run_name="train-and-register-x").info.run_id
    nested = {"": parent}
    # As KFP 2.17.0 nested them on a real cluster: a step in the conditions that it depends on.
    for name, group in (
        ("summarize", ""),
        ("exit-handler-1", ""),
        ("ingest", "exit-handler-1"),
        ("condition-2", "exit-handler-1"),
        ("train", "condition-2"),
    ):
        made = client.create_run(experiment, tags={PARENT: nested[group]}, run_name=name)
        nested[name] = made.info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", way.uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", nested["summarize"])
    run.summarize("http://127.0.0.1:9")
    [found], steps = run.runs(way.uri)
    assert (found.info.run_id, found.info.status) == (parent, "RUNNING")
    assert found.data.tags["trainwright.owner"] == "ranking"
    names = [str(run.info.run_name) for run in client.search_runs([experiment])]
    assert sorted(names) == sorted([*steps, str(found.info.run_name)]), "none is there twice"
    assert set(steps) == {*chain(), "summarize", "exit-handler-1", "condition-2"}
    for name in ("ingest", "train"):
        assert steps[name].info.run_id == nested[name]
        assert (steps[name].data.metrics["seconds"], steps[name].data.tags["trainwright.state"]) == (
            30.0,
            "done",
        )


def test_run_on_a_cluster_has_kubeflows_id_its_arguments_images_and_a_link(way: Way, tmp_path: Path) -> None:
    records = chain()
    for step in ("ingest", "validate", "join", "train", "evaluate", "register"):
        records[step].write(folder(tmp_path, RUN, step) / "main" / Record.FILE)
    document = completed(recorded("success-all-cached"), tmp_path)
    nodes = document["status"]["nodes"]
    name = f"{document['metadata']['name']}(0).root-driver"
    config = {"parameterValues": {"training": {"epochs": 4, "tracking": {"experiment": "cluster"}}}}
    given = {"parameters": [{"name": "runtime-config", "value": json.dumps(config)}]}
    nodes["root"] = {"name": name, "templateName": "system-dag-driver", "inputs": given}
    for node in nodes.values():
        for entry in (node.get("outputs") or {}).get("parameters", []):
            if entry["name"] == "pod-spec-patch" and entry["value"]:
                patch = json.loads(entry["value"])
                patch["containers"][0]["image"] = "registry.example/trainwright/mlflow@sha256:12"
                entry["value"] = json.dumps(patch)
    page, section = (
        "https://kubeflow.example/pipeline",
        SECTION | {"page": "https://kubeflow.example/pipeline"},
    )
    ending = FinalStatus("COMPLETE", document["metadata"]["name"], "exit-handler-1")
    out = tmp_path / "page.html", tmp_path / "summary.md", tmp_path / "run"
    registry = {"tracking_uri": way.uri}
    with workflow_api([(200, document)]) as (cluster, _):
        summarize(str(tmp_path / RUN), ending, *out, cluster, section=section, registry=registry)
    client = open_client(way.uri)
    [experiment] = client.search_experiments(filter_string="name = 'cluster'")
    found = client.search_runs([experiment.experiment_id])
    [parent] = [run for run in found if PARENT not in run.data.tags]
    assert parent.data.params == {"training.epochs": "4", "training.tracking.experiment": "cluster"}
    assert parent.data.tags["trainwright.run"] == RUN
    assert parent.data.tags["trainwright.kfp_url"] == f"{page}/#/runs/details/{RUN}"
    steps = {run.info.run_name: run for run in found if PARENT in run.data.tags}
    assert "register" in steps
    assert "train" not in steps, "the cache served it"
    assert steps["register"].data.tags["trainwright.image"] == "registry.example/trainwright/mlflow@sha256:12"
    assert not (tmp_path / "run" / RunLog.FILE).exists()


def test_nothing_is_logged_when_switched_off_or_without_an_address(tmp_path: Path) -> None:
    run, uri = whole(tmp_path / "off"), f"sqlite:///{tmp_path}/mlflow.db"
    assert "MLflow" not in run.summarize(uri, mlflow=False)
    assert "MLflow" not in run.summarize("")
    assert not (tmp_path / "mlflow.db").exists()
    assert not (run.path / RunLog.FILE).exists()
    assert "Not logged in MLflow" in run.summarize(uri, colour="red")
