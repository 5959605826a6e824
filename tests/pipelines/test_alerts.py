"""Runs of an unprepared table that end done, held, failed and cancelled, and what their receivers get.

The table has no schema, key, time or Feast; other kinds of targets are in tests/api/test_examples.py.
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.storage import servers
from tests.summarize.receivers import KEY, MailServer, Webhook, mail_server, webhook
from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.local.run_folder import Task, Tasks
from trainwright.verdicts import Verdict

EXPERIMENT: dict[str, Any] = {
    "data": {
        "source": "customers.csv",
        "csv": {"delimiter": ";", "decimal": ","},
        "label": "bought",
        "classes": ["no", "yes"],
        "splits": {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}},
    },
    "network": {"kind": "mlp", "hidden": [16]},
    "training": {"epochs": 10, "batch_size": 32, "learning_rate": 0.01},
    "schema_file": "schema.pbtxt",
    "validation": {"on_missing_schema": "bootstrap", "on_missing_baseline": "bootstrap"},
    "evaluation": {"missing_baseline": "bootstrap"},
    "registry": {"model": "customers", "tracking_uri": "sqlite:///mlflow.db"},
}
PRICES: dict[str, Any] = {
    "version": "2026-11",
    "currency": "EUR",
    "cpu_hour": 36.0,
    "memory_gib_hour": 1.0,
    "gpu_hour": {"default": 100.0},
    "spot": 0.5,
    "budgets": [
        {"owner": "team a", "cost_centre": "4711", "soft": 1000, "hard": 2000},
        {"pipeline": "train-and-register", "model": "customers", "soft": 0.001},
    ],
}
"""An hour of the training job, two cores and 4 GiB, costs 76."""


@dataclass
class Place:
    """A folder with an experiment, and the servers that its alerts go to."""

    folder: Path
    hook: Webhook
    mail: MailServer
    variables: dict[str, str]

    def command(self, *more: str, experiment: str = "experiment.yaml") -> list[str]:
        name = str(Path(sys.executable).with_name("trainwright"))
        config, runs = self.folder / experiment, self.folder / "runs"
        return [name, "run", "train_and_register", "--config", str(config), "--runs", str(runs), *more]

    def trainwright(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [str(Path(sys.executable).with_name("trainwright")), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)

    def run(self, *more: str, experiment: str = "experiment.yaml") -> int:
        command = self.command(*more, experiment=experiment)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.variables, timeout=900
        )
        return done.returncode

    def tasks(self) -> dict[str, Task]:
        """Return the tasks of the last run."""
        [*_, run] = sorted(path.parent for path in (self.folder / "runs").glob("*/run.json"))
        return {task.step: task for task in Tasks.read(run).tasks}

    def last(self) -> tuple[dict[str, Any], str, str]:
        """Return what the webhook got last, the subject of the last mail, and the summary of the last run."""
        [*_, run] = sorted(path.parent.name for path in (self.folder / "runs").glob("*/run.json"))
        summary = (self.folder / "runs" / run / "summarize" / "summary.md").read_text()
        document = self.hook.documents[-1]
        assert document["run"] == run
        return document, self.mail.letters[-1][1]["Subject"].strip(), summary


def write_customers(path: Path) -> None:
    """Those with an income above 50 buy, except for some chance; written as spreadsheets in Europe do."""
    rng = random.Random(1)  # noqa: S311 - a table of a test
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerow(["income", "city", "bought"])
        for _ in range(400):
            income, city = rng.gauss(50, 15), rng.choice(["Bern", "Oslo", "Rome"])
            bought = "yes" if income + rng.gauss(0, 5) > 50 else "no"
            writer.writerow([f"{income:.2f}".replace(".", ","), city, bought])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("customers")
    write_customers(folder / EXPERIMENT["data"]["source"])
    identity = servers.certificate(folder)
    with webhook(identity) as hook, mail_server(identity, MailServer()) as mail:
        (folder / "hook").write_text(f"{hook.url}/services/s3cretpath")
        (folder / "password").write_text(KEY)
        every = ["done", "held", "failed", "cancelled"]
        (folder / "prices.yaml").write_text(yaml.safe_dump(PRICES))
        section = {
            "owner": "team a",
            "cost_centre": "4711",
            "prices": "prices.yaml",
            "budget": {"soft": 0.01, "hard": 80.0},
            "min_gpu_use": 0.5,
            "alerts": [
                {"outcomes": [*every, "over_budget"], "webhook_file": "hook"},
                {"outcomes": [*every], "email": ["anna@example.com"]},
                {"webhook_file": "absent"},
            ],
            "smtp": {
                "host": "127.0.0.1",
                "port": mail.port,
                "sender": "tw@example.com",
                "user": "robot",
                "password_file": "password",
            },
            "openlineage": "events.jsonl",
        }
        (folder / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT | {"run": section}))
        variables = os.environ | {"SSL_CERT_FILE": str(identity[0])}
        yield Place(folder, hook, mail, variables)


def test_registered_model_is_announced(place: Place) -> None:
    assert place.run() == 0
    document, subject, summary = place.last()
    assert (document["outcome"], document["decision"], document["owner"]) == ("done", "PASS", "team a")
    assert document["registered"].startswith("customers")
    assert 0.5 < document["metrics"]["auc"] < 1
    assert subject == f"trainwright: train_and_register {document['run']} done"
    assert "not sent" not in summary
    assert Path(document["link"]).read_text().startswith("<!doctype html>")
    events = [json.loads(line) for line in (place.folder / "events.jsonl").read_text().splitlines()]
    ends = {event["job"]["name"]: event["eventType"] for event in events}
    assert ends["train_and_register.customers"] == ends["train_and_register.customers.train"] == "COMPLETE"
    sources = [one["name"] for event in events for one in event["inputs"] if one["namespace"] == "file"]
    assert {*sources} == {str(place.folder / "customers.csv")}


def test_table_without_schema_key_and_time_ends_with_a_registered_model(place: Place) -> None:
    finished = place.tasks()
    assert {task.state for task in finished.values()} == {"done"}
    target = SnapshotTarget(kind="binary", classes=("no", "yes"))
    for step, output in (("ingest", "snapshot"), ("join", "training_set"), ("train", "predictions")):
        assert Snapshot.read(Path(finished[step].outputs[output].uri)).target == target, step
    made = Snapshot.read(Path(finished["join"].outputs["training_set"].uri))
    assert made.roles["key"] == "row"
    assert {column.name: column.type for column in made.columns}["income"] == "double"
    assert Verdict.read(Path(finished["evaluate"].outputs["verdict"].uri)).decision == "PASS"
    registration = Path(finished["register"].outputs["registration"].uri) / "registration.json"
    assert json.loads(registration.read_text())["version"] == "1"


def test_registered_model_has_a_cost_that_goes_to_its_owner(place: Place) -> None:
    [run] = [path.parent for path in (place.folder / "runs").glob("*/run.json")]
    cost = json.loads((run / "summarize" / "run" / "cost.json").read_text())
    usage = json.loads((run / "train" / "model" / "usage.json").read_text())
    steps = {step["step"]: step for step in cost["steps"]}
    assert steps["train"]["cost"] == pytest.approx(usage["seconds"] / 3600 * 76)
    assert 0 < steps["train"]["waste"]["idle"] < steps["train"]["cost"]
    spent = json.loads((run / "tasks.json").read_text())["tasks"]
    ingest = next(task["seconds"] for task in spent if task["step"] == "ingest")
    assert steps["ingest"]["cost"] == pytest.approx(ingest / 3600 * (36 + 4e9 / 2**30))
    assert cost["cost"] == pytest.approx(sum(step["cost"] for step in steps.values()))
    document, _, summary = place.last()
    shown = f"{cost['cost']:,.4g} EUR"
    assert document["cost"] == shown
    assert f"Cost: {shown}" in summary
    own, shared = document["over_budget"]
    assert own == f"The run cost {shown}; run.budget.soft is 0.01."
    assert shared.startswith("pipeline train-and-register, model customers has spent")
    for source in (["--runs", str(run.parent)], ["--uri", f"sqlite:///{place.folder}/mlflow.db"]):
        done = place.trainwright("runs", "cost", "--by", "cost_centre", "--json", *source)
        [group] = json.loads(done.stdout)
        assert (group["value"], group["runs"]) == ("4711", 1)
        assert group["cost"] == pytest.approx(cost["cost"])
        assert group["waste"] == pytest.approx(cost["waste"])
    listed = place.trainwright("runs", "show", run.name, "--runs", str(run.parent))
    assert shown in listed.stdout


def test_held_model_is_announced_with_the_number_and_the_limit(place: Place) -> None:
    assert place.run("--param", "min_auc=0.999") == 12
    document, subject, summary = place.last()
    assert (document["outcome"], document["step"], document["decision"]) == ("held", "evaluate", "FAIL")
    assert "0.999" in document["headline"]
    assert subject.endswith(" held")
    assert f"{place.folder}/absent" in summary.replace("\\", "")
    assert "of it lost: gate" in summary


def test_data_on_hold_stops_before_training_where_the_experiment_says_so(place: Place) -> None:
    """Without a schema `validate` infers one and holds the data."""
    strict = EXPERIMENT | {"schema_file": None, "validation": {"on_data_hold": "stop"}}
    (place.folder / "strict.yaml").write_text(yaml.safe_dump(strict))
    assert place.run(experiment="strict.yaml") == 11
    finished = {name: task for name, task in place.tasks().items() if task.state != "skipped"}
    assert finished["validate"].decision == "HOLD"
    assert finished["held-by-validate"].state == "done"
    assert not {"join", "train", "register"} & finished.keys()


def test_failed_training_is_announced_with_the_next_step(place: Place) -> None:
    assert place.run("--param", "learning_rate=1e30") == 30
    document, subject, _ = place.last()
    assert (document["outcome"], document["step"]) == ("failed", "train")
    assert "not finite" in document["error"]["what"]
    assert document["error"]["hint"]
    assert subject.endswith(" failed")


def test_exhausted_budget_ends_the_run_before_a_job_is_submitted(place: Place) -> None:
    prices = place.folder / "prices.yaml"
    team = PRICES["budgets"][0] | {"hard": 76.0}
    prices.write_text(yaml.safe_dump(PRICES | {"budgets": [team]}))
    try:
        assert place.run("--from", "train") == 50
    finally:
        prices.write_text(yaml.safe_dump(PRICES))
    document, _, _ = place.last()
    assert document["step"] == "get-production-model"
    assert "owner team a, cost_centre 4711 has spent" in document["error"]["what"]
    assert not (place.folder / "runs" / document["run"] / "train").exists()


def test_stopped_run_is_announced_before_it_ends(place: Place) -> None:
    before = len(place.hook.documents)
    with subprocess.Popen(
        [*place.command("--from", "ingest"), "--json"], stdout=subprocess.PIPE, text=True, env=place.variables
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line).get("step") == "resolve":
                process.send_signal(signal.SIGTERM)
                break
        process.communicate(timeout=120)
    assert process.returncode == 40
    document, subject, _ = place.last()
    assert len(place.hook.documents) == before + 1
    assert document["outcome"] == "cancelled"
    assert subject.endswith(" cancelled")
    for file in place.folder.rglob("*"):
        if file.is_file() and file.name != "hook":
            assert b"s3cretpath" not in file.read_bytes(), file
