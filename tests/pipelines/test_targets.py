"""From an unprepared file to a registered model, without Feast, schema, key or time.

The examples do the same with other kinds of targets: tests/api/test_examples.py.
"""

import csv
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipelines.conftest import events, run, tasks
from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.verdicts import Verdict

ROWS = 400
SPLITS = {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}}
TRAINING = {"epochs": 10, "batch_size": 32, "learning_rate": 0.01}
MLP = {"kind": "mlp", "hidden": [16]}
Experiment = dict[str, Any]
Make = Callable[..., Path]


def write_csv(path: Path, header: list[str], rows: Iterable[list[object]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerow(header)
        writer.writerows(rows)


def customers(folder: Path) -> Experiment:
    """Those with an income above 50 buy, except for some chance; written as spreadsheets in Europe do."""
    rng = random.Random(1)  # noqa: S311 - a table of a test
    rows = []
    for _ in range(ROWS):
        income, city = rng.gauss(50, 15), rng.choice(["Bern", "Oslo", "Rome"])
        rows.append(
            [f"{income:.2f}".replace(".", ","), city, "yes" if income + rng.gauss(0, 5) > 50 else "no"]
        )
    write_csv(folder / "customers.csv", ["income", "city", "bought"], rows)
    form = {"delimiter": ";", "decimal": ","}
    return {"source": "customers.csv", "csv": form, "label": "bought", "classes": ["no", "yes"]}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write an experiment of nothing but the data, a small network and the registry."""

    def written(data: Experiment, **sections: Any) -> Path:
        experiment = {
            "data": data | {"splits": SPLITS},
            "network": MLP,
            "training": TRAINING,
            "schema_file": "schema.pbtxt",
            "validation": {"on_missing_schema": "bootstrap", "on_missing_baseline": "bootstrap"},
            "evaluation": {"missing_baseline": "bootstrap"},
            "registry": {"model": "any", "tracking_uri": "sqlite:///mlflow.db"},
        }
        path = tmp_path / "experiment.yaml"
        path.write_text(yaml.safe_dump(experiment | sections))
        return path

    return written


def folder_of(task: dict[str, Any], name: str) -> Path:
    return Path(task["outputs"][name]["uri"])


def test_table_without_schema_key_and_time_ends_with_a_registered_model(make: Make, tmp_path: Path) -> None:
    done = run(make(customers(tmp_path)), tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    finished = tasks(events(done))
    assert {task["state"] for task in finished.values()} == {"done"}
    target = SnapshotTarget(kind="binary", classes=("no", "yes"))
    for step, output in (("ingest", "snapshot"), ("join", "training_set"), ("train", "predictions")):
        assert Snapshot.read(folder_of(finished[step], output)).target == target, step
    made = Snapshot.read(folder_of(finished["join"], "training_set"))
    assert made.roles["key"] == "row"
    assert {column.name: column.type for column in made.columns}["income"] == "double"
    verdict = Verdict.read(folder_of(finished["evaluate"], "verdict"))
    assert verdict.decision == "PASS"
    entry = json.loads((folder_of(finished["register"], "registration") / "registration.json").read_text())
    assert entry["version"] == "1"


def test_data_on_hold_stops_before_training_where_the_experiment_says_so(make: Make, tmp_path: Path) -> None:
    """Without a schema `validate` infers one and holds the data."""
    path = make(customers(tmp_path), schema_file=None, validation={"on_data_hold": "stop"})
    done = run(path, tmp_path / "runs", "--json")
    assert done.returncode == 11, done.stdout + done.stderr
    finished = tasks(events(done))
    assert finished["validate"]["decision"] == "HOLD"
    assert finished["held-by-validate"]["state"] == "done"
    assert not {"join", "train", "register"} & finished.keys()
