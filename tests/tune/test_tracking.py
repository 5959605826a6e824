"""The runs of a study at a real MLflow server."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.ports import free_port
from tests.tracking.server import mlflow_server
from tests.tune.studies import study
from trainwright.tracking.history import TrackingDestination, run_of
from trainwright.tracking.server import open_client
from trainwright.tune import tracking
from trainwright.tune.report import StudyReport
from trainwright.tune.tracking import StudyServer, StudyTracking

REPORT = study(6)
ENDS = {"complete": "FINISHED", "pruned": "KILLED", "infeasible": "FAILED"}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as port:
        yield f"http://127.0.0.1:{port}"


def send(server: StudyServer, report: StudyReport) -> None:
    """Send a study as its step does: each trial when it ends, and the outcome."""
    with closing(StudyTracking(server)) as sent:
        for trial in report.trials:
            sent.on_start(trial)
            sent.on_end(trial)
        sent.finish(report)


def runs_of(client: MlflowClient, parent: str) -> list[Run]:
    experiment = client.get_run(parent).info.experiment_id
    return list(client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'"))


def test_study_is_a_run_with_one_nested_for_each_trial_and_sending_again_adds_none(uri: str) -> None:
    server = StudyServer(TrackingDestination(uri, experiment="searches", name="study a"), "study-a")
    send(server, REPORT)
    send(server, REPORT)
    client = open_client(uri)
    parent = client.get_run(run_of(dataclasses.replace(server.destination, key=server.key), client))
    assert (parent.info.run_name, parent.info.status) == ("study a", "FINISHED")
    assert parent.data.tags["outcome"] == REPORT.confirmation.outcome
    assert parent.data.params["metric"] == REPORT.metric
    found = {run.info.run_name: run for run in runs_of(client, parent.info.run_id)}
    assert set(found) == {f"trial {trial.number}" for trial in REPORT.trials}
    for trial in REPORT.trials:
        run = found[f"trial {trial.number}"]
        assert run.info.status == ENDS[trial.state]
        assert run.data.tags["reason"] == trial.reason
        assert set(run.data.params) == set(trial.params)
        assert run.data.metrics.get("value") == trial.value


def test_trial_sends_its_curves_to_the_run_nested_in_that_of_kubeflow_pipelines(uri: str) -> None:
    """KFP opens a run for the step, in an experiment of its own; the study joins it and leaves it open."""
    client = open_client(uri)
    theirs = client.create_run(client.create_experiment("of the pipeline")).info.run_id
    server = StudyServer(TrackingDestination(uri, run=theirs), "study-b")
    with closing(StudyTracking(server)) as sent:
        destination = TrackingDestination(**sent.destination("0"))
    of_the_training = run_of(destination, client)
    send(server, REPORT)
    assert client.get_run(theirs).info.status == "RUNNING"
    nested = {run.info.run_id: run.info.run_name for run in runs_of(client, theirs)}
    assert nested[of_the_training] == "trial 0"
    assert len(nested) == len(REPORT.trials)


def test_study_does_not_wait_for_a_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "_FIRST_S", 0.1)
    monkeypatch.setattr(tracking, "_LAST_S", 0.1)
    uri = f"http://127.0.0.1:{free_port()}"
    started = time.monotonic()
    send(StudyServer(TrackingDestination(uri), "study-c"), REPORT)
    assert time.monotonic() - started < 30
    assert f"MLflow at {uri} did not take all trials; study.json has them" in capsys.readouterr().err
