"""Runs of Kubeflow: recorded answers of KFP 2.17, and a submission, once for a key."""

from pathlib import Path

import pytest

from tests.authoring.api.server import serving as kubeflow
from tests.service.server import experiment, serving
from trainwright.tracking.run_log import RunEntry, RunLog, write_log
from trainwright.tracking.server import open_client


def test_recorded_runs_are_listed_and_shown_with_their_steps(tmp_path: Path) -> None:
    with kubeflow() as api, serving("--runs", tmp_path, "--kfp-host", api.url, folder=tmp_path) as service:
        run = api.store.recorded("another-team-fails")
        [listed] = service.get("runs")["runs"]
        assert (listed["run"], listed["state"]) == (run.run_id, "failed")
        found = service.get(f"runs/{run.run_id}")
        assert found["summary"]["headline"] == "resolve"
        assert {task["step"]: task["state"] for task in found["tasks"]}["resolve"] == "failed"
        assert found["link"].endswith(f"/#/runs/details/{run.run_id}")
        assert service.get(f"runs/{run.run_id}/diff/{run.run_id}")["arguments"] == []
        assert service.get("runs", state="done")["runs"] == []
        assert service.get("runs", source="folder")["runs"] == []
        assert service.call("GET", "runs/00000000-0000-0000-0000-000000000000").status_code == 404


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
def test_headline_of_mlflow_is_shown_only_while_the_states_agree(tmp_path: Path) -> None:
    """A retried run may have ended otherwise than `summarize` logged."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    words = ("--runs", tmp_path, "--config", experiment(tmp_path, {"model": "late", "tracking_uri": uri}))
    with kubeflow() as api, serving(*words, "--kfp-host", api.url, folder=tmp_path) as service:
        run = api.store.recorded("another-team-fails").run_id
        for state, expected in (("failed", "Failed in resolve: no file"), ("done", "resolve")):
            tags = {"run": run, "pipeline": "p", "state": state, "headline": "Failed in resolve: no file"}
            named = {f"trainwright.{name}": value for name, value in tags.items()}
            entry = RunEntry(key=run, name="p", status="FAILED", started_ms=1, ended_ms=2, tags=named)
            write_log(
                RunLog(uri=uri, experiment="trainwright", joined="", run=entry, steps=()), open_client(uri)
            )
            assert service.get(f"runs/{run}")["summary"]["headline"] == expected


def test_submission_is_made_once_for_its_key_in_the_name_of_the_caller(tmp_path: Path) -> None:
    with kubeflow() as api, serving("--runs", tmp_path, "--kfp-host", api.url, folder=tmp_path) as service:
        body = {"parameters": {"request": {"to": "staging", "by": "anna", "reason": "x"}}}
        key = {"Idempotency-Key": "monday"}
        made = service.call("POST", "pipelines/promote_model/runs", json=body, headers=key)
        assert made.status_code == 201, made.text
        again = service.call("POST", "pipelines/promote_model/runs", json=body, headers=key)
        assert (again.status_code, again.json()["run"]) == (200, made.json()["run"])
        [run] = api.store.runs
        assert made.json()["link"] == f"/api/v1/runs/{run.run_id}"
        assert "by=" in run.description
        assert run.runtime_config.parameters["request"]["by"] == "anna"


def test_kubeflow_that_is_away_is_503_and_the_folder_is_still_read(tmp_path: Path) -> None:
    words = ("--runs", tmp_path, "--kfp-host", "http://127.0.0.1:9")
    with serving(*words, folder=tmp_path) as service:
        answer = service.call("GET", "runs")
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, 21, True)
        assert service.get("runs", source="folder")["runs"] == []
