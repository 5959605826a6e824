"""The main job, through the command line, in every environment, on five weeks of real flights."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines.conftest import PLANTED, ROOT, TABULAR, Edit, events, holding, run, tasks, trainwright
from tests.registry.hub import Hub
from trainwright.artifacts import Model, Snapshot
from trainwright.authoring.arguments import commit
from trainwright.authoring.environments import lock_digest
from trainwright.local import runner

WORKING = ("ingest", "validate", "join", "train", "score", "evaluate", "smoke-test")


def output(task: dict[str, Any], name: str) -> Path:
    return Path(task["outputs"][name]["uri"])


def test_every_step_is_done_and_leaves_what_it_promises(finished: dict[str, dict[str, Any]]) -> None:
    assert {name: task["state"] for name, task in finished.items()} == dict.fromkeys(
        ["configure", "resolve", "get-production-model", *WORKING, "register", "summarize"],
        "done",
    )
    snapshot = Snapshot.read(output(finished["ingest"], "snapshot"))
    training_set = Snapshot.read(output(finished["join"], "training_set"))
    assert snapshot.splits == training_set.splits
    assert snapshot.splits == {"train": 27_574, "evaluate": 6_528}
    for step, page in (("validate", "report"), ("evaluate", "report"), ("summarize", "page")):
        assert output(finished[step], page).stat().st_size < 2_000_000


def test_the_registered_model_names_its_data_its_commit_and_the_locks_of_every_environment(
    finished: dict[str, dict[str, Any]], job: Path
) -> None:
    entry = json.loads((output(finished["register"], "registration") / "registration.json").read_text())
    assert entry["data_version"] == Snapshot.read(output(finished["ingest"], "snapshot")).digest
    assert entry["model_version"] == Model.read(output(finished["train"], "model")).digest
    assert entry["commit"] == commit(job)
    steps = {"ingest": "ingest", "validate": "tfdv", "join": "feast", "train": "torch", "register": "mlflow"}
    for step, toolchain in steps.items():
        assert entry["environment_locks"][step] == lock_digest(toolchain)
    with sqlite3.connect(job / "registry" / "mlflow.db") as database:
        rows = database.execute(
            "select key, value from model_version_tags where name = 'flight-delay' and version = 1"
        )
        tags = dict(rows.fetchall())
    assert tags["trainwright.data_digest"] == entry["data_version"]
    assert tags["trainwright.git_sha"] == entry["commit"]


def test_the_registered_version_is_in_kubeflow_hub_with_its_digest_and_its_run(
    finished: dict[str, dict[str, Any]], job: Path, hub: Hub
) -> None:
    entry = json.loads((output(finished["register"], "registration") / "registration.json").read_text())
    done = trainwright("model", "mirror", "flight-delay", "--config", job / "experiment.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"flight-delay: mirrored in Kubeflow Hub, versions: 1 ({hub.url})\n"
    state, found = hub.versions()["1"]
    assert (state, found["trainwright.stage"]) == ("LIVE", "candidate")
    assert found["trainwright.model_digest"] == entry["model_version"]
    assert found["trainwright.pipeline_run"] in str(output(finished["register"], "registration"))
    (artifact,) = hub.artifacts()["1"]
    assert artifact["modelSourceId"] == found["trainwright.pipeline_run"]


def test_run_again_unchanged_everything_is_reused(
    finished: dict[str, dict[str, Any]], job: Path, runs: Path
) -> None:
    done = run(job / "experiment.yaml", runs, "--json")
    assert done.returncode == 0, done.stderr
    again = tasks(events(done))
    assert {name: again[name]["state"] for name in WORKING} == dict.fromkeys(WORKING, "cached")
    entry = json.loads((output(again["register"], "registration") / "registration.json").read_text())
    assert entry["version"] == "1"
    assert entry["registered_before"] is True


def test_a_changed_limit_repeats_only_the_gate_that_applies_it(
    finished: dict[str, dict[str, Any]], job: Path, runs: Path
) -> None:
    """The parameter overrides the file's limit, which the model passes."""
    done = run(job / "experiment.yaml", runs, "--json", "--param", "min_auc=0.99")
    assert done.returncode == 12, done.stderr
    again = tasks(events(done))
    states = {name: again[name]["state"] for name in WORKING if name in again}
    assert states == dict.fromkeys(WORKING[:-2], "cached") | {"evaluate": "done"}
    verdict = json.loads((output(again["evaluate"], "verdict") / "verdict.json").read_text())
    assert 0.99 in [rule["limit"] for rule in verdict["rules"]]


@pytest.mark.covers("B2")
def test_an_empty_form_ends_at_once_with_the_list_of_what_is_missing(tmp_path: Path) -> None:
    done = trainwright("run", "train_and_register", "--runs", tmp_path, "--json")
    assert done.returncode == 10, done.stdout
    seen = tasks(events(done))
    assert {name for name, task in seen.items() if task["state"] == "failed"} == {"configure"}
    assert "ingest" not in seen or seen["ingest"]["state"] == "skipped"
    for key in ("data.source", "data.splits", "registry.model", "registry.tracking_uri"):
        assert f"{key}: missing" in seen["configure"]["error"]["what"]


@pytest.mark.covers("A7")
def test_no_secret_of_the_surroundings_is_written_anywhere(
    finished: dict[str, dict[str, Any]], job: Path, runs: Path
) -> None:
    """Not in a run's folder, its logs, records and pages, the cache, the registry or the compiled YAML."""
    assert output(finished["summarize"], "page").is_relative_to(runs)
    assert list((runs / ".cache").rglob("entry.json"))
    assert (job / "registry" / "mlflow.db").exists()
    for folder in (runs, job, ROOT / "compiled"):
        assert holding(PLANTED, folder) == []


def test_the_schedule_reaches_no_feature_that_is_known_only_afterwards(
    finished: dict[str, dict[str, Any]],
) -> None:
    inputs = set(Model.read(output(finished["train"], "model")).inputs)
    assert {"carrier", "origin", "temp"} <= inputs
    assert not inputs & {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "late"}


def test_promote_model_brings_the_registered_version_into_production(
    finished: dict[str, dict[str, Any]], job: Path, hub: Hub, tmp_path: Path
) -> None:
    registration = json.loads(
        (output(finished["register"], "registration") / "registration.json").read_text()
    )
    asked = {"to": "production", "by": "anna", "reason": "the first one", "version": registration["version"]}
    if registration["data_decision"] != "PASS":
        asked["data_verdict"] = registration["verdicts"]["data_verdict"]
    # A copy, so that for the other tests nothing is in production.
    (tmp_path / "registry").mkdir()
    shutil.copyfile(job / "registry" / "mlflow.db", tmp_path / "registry" / "mlflow.db")
    shutil.copytree(job / "registry" / "audit", tmp_path / "registry" / "audit")
    shutil.copy(job / "registry" / "audit.key", tmp_path / "registry" / "audit.key")
    given = {
        "registry": yaml.safe_load((job / "experiment.yaml").read_text())["registry"]
        | {"tracking_uri": f"sqlite:///{tmp_path}/registry/mlflow.db"},
        "promotion": {"path": ["production"], "four_eyes": False},
        "request": asked,
    }
    compiled = ROOT / "compiled" / "pipelines" / "promote_model.yaml"
    outcome = runner.run(compiled, given, runs_folder=tmp_path / "runs")
    assert outcome.state == "done", outcome
    promoted = json.loads((outcome.folder / "promote" / "record" / "promotion.json").read_text())
    assert (promoted["decision"], promoted["production"]) == ("PASS", registration["version"])
    assert (outcome.folder / "summarize").is_dir()
    assert hub.versions()[registration["version"]][1]["trainwright.stage"] == "production"
    entries = sorted(path.name for path in (tmp_path / "registry" / "audit" / "flight-delay").glob("*.json"))
    assert entries == ["00000001.json", "00000002.json"]
    with sqlite3.connect(tmp_path / "registry" / "mlflow.db") as database:
        rows = database.execute("select alias, version from registered_model_aliases")
        assert dict(rows.fetchall())["production"] == int(registration["version"])


def without_features(experiment: dict[str, Any]) -> None:
    """Let `configure` do without Feast, where a run ends before the join."""
    del experiment["features"]


def interrupted(config: Path, runs: Path, after: str) -> dict[str, dict[str, Any]]:
    """Start a run, kill it without warning as soon as a step is reported, and return what was reported."""
    command = [Path(sys.executable).with_name("trainwright"), "run", "train_and_register"]
    seen: dict[str, dict[str, Any]] = {}
    with subprocess.Popen(
        [*command, "--config", config, "--runs", runs, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "task_finished":
                seen[event["step"]] = event
            if event.get("step") == after:
                break
        os.killpg(process.pid, signal.SIGKILL)
    return seen


@pytest.mark.covers("F60")
def test_a_killed_run_started_again_repeats_no_finished_step(
    edited: Callable[[Edit], Path], tmp_path: Path
) -> None:
    config = edited(without_features)
    for state in ("done", "cached"):
        seen = interrupted(config, tmp_path, after="validate")
        assert (seen["ingest"]["state"], seen["validate"]["state"]) == (state, state)


def set_in(path: str, value: object, *, features: bool = False) -> Edit:
    def edit(experiment: dict[str, Any]) -> None:
        if not features:
            without_features(experiment)
        *sections, key = path.split(".")
        for section in sections:
            experiment = experiment[section]
        experiment[key] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "code", "message"),
    [
        (set_in("data.source", "nowhere.parquet"), 10, "nowhere.parquet"),
        (set_in("data.min_rows", 10**6), 11, "1,000,000"),
    ],
    ids=["missing file", "too few rows"],
)
def test_bad_input_is_one_clear_error_with_its_documented_code(
    edit: Edit, code: int, message: str, edited: Callable[[Edit], Path], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    done = run(edited(edit), runs)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    for snapshot in runs.glob("*/ingest/snapshot"):
        assert (snapshot / "manifest.json").exists() or not list(snapshot.rglob("*"))


REWRITE = """
import sys
import pyarrow.parquet as pq
table = pq.read_table(sys.argv[1])
pq.write_table(table.drop_columns([{"dropped": "flight", "requested": "distance"}[sys.argv[3]]]), sys.argv[2])
"""


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("dropped", 11, ["Refused by validate", "flight"]),
        ("requested", 10, ["features.request: no column 'distance'"]),
    ],
)
def test_data_that_is_not_what_was_agreed_stops_the_run_before_training(
    change: str, code: int, words: list[str], job: Path, edited: Callable[[Edit], Path], tmp_path: Path
) -> None:
    changed = tmp_path / "changed.parquet"
    subprocess.run([TABULAR, "-c", REWRITE, job / "rows.parquet", changed, change], check=True)
    config = edited(set_in("data.source", str(changed), features=change == "requested"))
    done = run(config, tmp_path / "runs")
    assert done.returncode == code, done.stdout + done.stderr
    assert all(word in done.stdout + done.stderr for word in words), done.stdout + done.stderr
    assert "not run" in done.stdout


def test_an_unknown_pipeline_names_the_known_ones() -> None:
    done = trainwright("run", "train_and_registr", "--config", "x.yaml")
    assert done.returncode == 10
    assert "train_and_register" in done.stderr
