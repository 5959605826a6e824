"""Every kind of target, from an unprepared file to a registered model, without Feast, key or time."""

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
LM = {"kind": "lm", "text": "line", "context": 16, "width": 32, "layers": 1, "heads": 2}
Experiment = dict[str, Any]
Make = Callable[..., Path]


def write_csv(path: Path, header: list[str], rows: Iterable[list[object]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)


def customers(folder: Path) -> Experiment:
    """Those with an income above 50 buy, except for some chance."""
    rng = random.Random(1)  # noqa: S311 - a table of a test
    rows = []
    for _ in range(ROWS):
        income, city = rng.gauss(50, 15), rng.choice(["Bern", "Oslo", "Rome"])
        rows.append([f"{income:.2f}", city, "yes" if income + rng.gauss(0, 5) > 50 else "no"])
    write_csv(folder / "customers.csv", ["income", "city", "bought"], rows)
    return {"source": "customers.csv", "label": "bought", "classes": ["no", "yes"]}


def flats(folder: Path) -> Experiment:
    """The rent is 10 for each square metre and 300 more in the north, except for some chance."""
    rng = random.Random(2)  # noqa: S311 - a table of a test
    rows = []
    for _ in range(ROWS):
        area, side = rng.uniform(30, 200), rng.choice(["north", "south"])
        rent = 10 * area + 300 * (side == "north") + rng.gauss(0, 100)
        rows.append([f"{area:.1f}", side, f"{rent:.2f}"])
    write_csv(folder / "flats.csv", ["area", "side", "rent"], rows)
    return {"source": "flats.csv", "label": "rent", "label_kind": "regression"}


def flowers(folder: Path) -> Experiment:
    """Each species has longer petals than the one before."""
    rng = random.Random(3)  # noqa: S311 - a table of a test
    names = ["setosa", "versicolor", "virginica"]
    rows = []
    for number in range(ROWS):
        kind = number % 3
        rows.append([f"{rng.gauss(2 + 2 * kind, 0.7):.2f}", f"{rng.gauss(3, 0.5):.2f}", names[kind]])
    write_csv(folder / "flowers.csv", ["petal", "sepal", "species"], rows)
    return {"source": "flowers.csv", "label": "species", "classes": names}


def lines(folder: Path) -> Experiment:
    """Every line counts from some number on, so its next letters can be learned."""
    rng = random.Random(4)  # noqa: S311 - a table of a test
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    with (folder / "lines.jsonl").open("w") as stream:
        for _ in range(ROWS):
            start = rng.randrange(5)
            stream.write(json.dumps({"line": " ".join(words[start : start + 6])}) + "\n")
    return {"source": "lines.jsonl"}


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


@pytest.mark.parametrize(
    ("table", "network", "target"),
    [
        (customers, MLP, SnapshotTarget(kind="binary", classes=("no", "yes"))),
        (flats, MLP, SnapshotTarget(kind="regression")),
        (flowers, MLP, SnapshotTarget(kind="multiclass", classes=("setosa", "versicolor", "virginica"))),
        (lines, LM, SnapshotTarget(kind="text")),
    ],
)
def test_every_kind_of_target_ends_with_a_registered_model(
    make: Make,
    tmp_path: Path,
    table: Callable[[Path], Experiment],
    network: Experiment,
    target: SnapshotTarget,
) -> None:
    done = run(make(table(tmp_path), network=network), tmp_path / "runs", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    finished = tasks(events(done))
    assert {task["state"] for task in finished.values()} == {"done"}
    for step, output in (
        ("ingest", "snapshot"),
        ("join", "training_set"),
        ("train", "predictions"),
    ):
        assert Snapshot.read(folder_of(finished[step], output)).target == target, step
    assert Snapshot.read(folder_of(finished["join"], "training_set")).roles["key"] == "row"
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
