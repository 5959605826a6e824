"""Runs of the quickstart that end done, held, failed and cancelled, and what their receivers get."""

import json
import os
import shutil
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

ROOT = Path(__file__).resolve().parents[2]

PRICES: dict[str, Any] = {
    "version": "2026-11",
    "currency": "EUR",
    "cpu_hour": 36.0,
    "memory_gib_hour": 1.0,
    "gpu_hour": {"default": 100.0},
    "spot": 0.5,
    "budgets": [
        {"owner": "team a", "cost_centre": "4711", "soft": 1000, "hard": 2000},
        {"pipeline": "train-and-register", "model": "quickstart", "soft": 0.001},
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

    def command(self, *more: str) -> list[str]:
        name = str(Path(sys.executable).with_name("trainwright"))
        config, runs = self.folder / "experiment.yaml", self.folder / "runs"
        return [name, "run", "train_and_register", "--config", str(config), "--runs", str(runs), *more]

    def trainwright(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [str(Path(sys.executable).with_name("trainwright")), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)

    def run(self, *more: str) -> int:
        done = subprocess.run(
            self.command(*more), capture_output=True, text=True, check=False, env=self.variables, timeout=900
        )
        return done.returncode

    def last(self) -> tuple[dict[str, Any], str, str]:
        """Return what the webhook got last, the subject of the last mail, and the summary of the last run."""
        [*_, run] = sorted(path.parent.name for path in (self.folder / "runs").glob("*/run.json"))
        summary = (self.folder / "runs" / run / "summarize" / "summary.md").read_text()
        document = self.hook.documents[-1]
        assert document["run"] == run
        return document, self.mail.letters[-1][1]["Subject"].strip(), summary


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("quickstart")
    shutil.copytree(ROOT / "examples" / "quickstart", folder, dirs_exist_ok=True)
    identity = servers.certificate(folder)
    with webhook(identity) as hook, mail_server(identity, MailServer()) as mail:
        (folder / "hook").write_text(f"{hook.url}/services/s3cretpath")
        (folder / "password").write_text(KEY)
        every = ["done", "held", "failed", "cancelled"]
        experiment = yaml.safe_load((folder / "experiment.yaml").read_text())
        experiment["registry"]["tracking_uri"] = "sqlite:///mlflow.db"
        (folder / "prices.yaml").write_text(yaml.safe_dump(PRICES))
        experiment["run"] = {
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
        (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
        variables = os.environ | {"SSL_CERT_FILE": str(identity[0])}
        yield Place(folder, hook, mail, variables)


def test_registered_model_is_announced(place: Place) -> None:
    assert place.run() == 0
    document, subject, summary = place.last()
    assert (document["outcome"], document["decision"], document["owner"]) == ("done", "PASS", "team a")
    assert document["registered"].startswith("quickstart")
    assert 0.5 < document["metrics"]["auc"] < 1
    assert subject == f"trainwright: train_and_register {document['run']} done"
    assert "not sent" not in summary
    assert Path(document["link"]).read_text().startswith("<!doctype html>")
    events = [json.loads(line) for line in (place.folder / "events.jsonl").read_text().splitlines()]
    ends = {event["job"]["name"]: event["eventType"] for event in events}
    assert ends["train_and_register.quickstart"] == ends["train_and_register.quickstart.train"] == "COMPLETE"
    sources = [one["name"] for event in events for one in event["inputs"] if one["namespace"] == "file"]
    assert {*sources} == {str(place.folder / "rows.csv")}


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
    assert shared.startswith("pipeline train-and-register, model quickstart has spent")
    for source in (["--runs", str(run.parent)], ["--uri", f"sqlite:///{place.folder}/mlflow.db"]):
        done = place.trainwright("runs", "cost", "--by", "cost_centre", "--json", *source)
        [group] = json.loads(done.stdout)
        assert (group["value"], group["runs"]) == ("4711", 1)
        assert group["cost"] == pytest.approx(cost["cost"])
        assert group["waste"] == pytest.approx(cost["waste"])
    listed = place.trainwright("runs", "show", run.name, "--runs", str(run.parent))
    assert shown in listed.stdout


def test_held_model_is_announced_with_the_number_and_the_limit(place: Place) -> None:
    assert place.run("--param", "min_auc=0.99") == 12
    document, subject, summary = place.last()
    assert (document["outcome"], document["step"], document["decision"]) == ("held", "evaluate", "FAIL")
    assert "0.99" in document["headline"]
    assert subject.endswith(" held")
    assert f"{place.folder}/absent" in summary.replace("\\", "")
    assert "of it lost: gate" in summary


def test_failed_training_is_announced_with_the_next_step(place: Place) -> None:
    assert place.run("--param", "learning_rate=100000.0") == 30
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
