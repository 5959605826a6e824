"""How fast `trainwright serve` answers with ten thousand runs, and how much memory it takes.

The folder holds as many runs as a team makes in a year; the last twenty models were each trained on the
predictions of the one before. A real service answers over HTTP, also with as many runs, of ten steps each, in
MLflow. The peer, MLflow's client in the same environment, lists those from the same SQLite file.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from results import publish

from trainwright.authoring.environments import python
from trainwright.documents import digest_text
from trainwright.local.run_folder import Request, Task, Tasks, identifier
from trainwright.local.run_index import Derivation, RunSummary

ROOT = Path(__file__).resolve().parents[1]
START = "from trainwright.cli.app import main; main()"
STEPS = 20
GOAL_S, GOAL_MB = 1.0, 200
FIRST = 1_750_000_000
ARGUMENTS = {
    "source": "gs://team/rows",
    "registry": {"model": "late", "tracking_uri": "https://mlflow"},
    "training": {"epochs": 3, "learning_rate": 0.001, "batch_size": 512},
    "network": {"kind": "mlp", "hidden": [256, 128], "dropout": 0.1},
    "evaluation": {"min_auc": 0.6, "slices": ["carrier", "origin"]},
    "text": "x" * 700,
}
PEER = """
import sys, time
from mlflow import MlflowClient
from mlflow.store.tracking.dbmodels.models import SqlParam, SqlRun, SqlTag
from sqlalchemy import create_engine, insert, select
uri, count, steps = "sqlite:///" + sys.argv[1], int(sys.argv[2]), 10
client, engine = MlflowClient(tracking_uri=uri), create_engine(uri)
client.create_run("0")
with engine.begin() as database:  # as rows: by its client, MLflow takes an hour
    like = dict(database.execute(select(SqlRun.__table__)).mappings().one())
    runs, tags, params = [], [], []
    for number in range(count):
        for step in range(steps + 1):
            key = f"{number:016x}{step:016x}"
            runs.append(like | {"run_uuid": key, "start_time": like["start_time"] + number})
            named = {"trainwright.pipeline": "train_and_register", "trainwright.state": "done",
                     "trainwright.data_digest": f"{number // 10:064x}"}
            if step:
                named = {"mlflow.parentRunId": f"{number:016x}{0:016x}", "trainwright.step": "train",
                         "trainwright.state": "done", "trainwright.outputs": "x" * 200}
            tags += [{"run_uuid": key, "key": name, "value": value} for name, value in named.items()]
        params += [{"run_uuid": f"{number:016x}{0:016x}", "key": f"key{n}", "value": "1"} for n in range(30)]
        params += [{"run_uuid": f"{number:016x}{0:016x}", "key": "seed", "value": str(number)}]
    for table, rows in ((SqlRun, runs), (SqlTag, tags), (SqlParam, params)):
        database.execute(insert(table.__table__), rows)
for _ in range(int(sys.argv[3])):
    started = time.monotonic()
    assert len(client.search_runs(["0"], max_results=50)) == 50
    print(time.monotonic() - started, flush=True)
"""


def fill(runs: Path, count: int) -> str:
    """Write runs; return the digest of the last model of the chain."""
    model = digest_text("source 0")
    for number in range(count):
        run = identifier(FIRST + number)
        chained = number >= count - STEPS
        data = model if chained else digest_text(f"data {number // 10}")
        model = digest_text(f"model {number}")
        folder = runs / run
        arguments = ARGUMENTS | {"seed": number}
        created = "2026-01-01T00:00:00+00:00"
        Request(run=run, pipeline="train_and_register", created=created, arguments=arguments).write(
            folder / Request.FILE
        )
        names = ("ingest", "validate", "join", "train", "evaluate", "smoke-test", "register")
        tasks = tuple(Task(step=name, state="done", environment="tabular", verb=name) for name in names)
        Tasks(run=run, state="done", tasks=tasks).write(folder / Tasks.FILE)
        training_set = digest_text(f"set {number}")
        derivations = (
            Derivation(step="resolve", inputs={}, outputs={"source": digest_text("rows")}),
            Derivation(step="ingest", inputs={"source": digest_text("rows")}, outputs={"data": data}),
            Derivation(step="join", inputs={"entities": data}, outputs={"training_set": training_set}),
            Derivation(step="train", inputs={"training_set": training_set}, outputs={"model": model}),
        )
        RunSummary(
            run=run, pipeline="train_and_register", created=created, state="done", seconds=60.0,
            headline="PASS AUC 0.711 of at least 0.6, and 12 slices within 0.05 of the whole",
            registered=f"late/{number}", metrics={"auc": 0.7, "log_loss": 0.4, "accuracy": 0.8},
            derivations=derivations,
        ).write(folder / RunSummary.FILE)  # fmt: skip
    return model


@contextmanager
def served(runs: Path, tracking_uri: str) -> Iterator[tuple[Callable[[str], object], int]]:
    """Start the service; yield a function that reads a path of it, and its process id."""
    command = [sys.executable, "-c", START, "serve", "--runs", str(runs), "--port", "0"]
    command += ["--tracking-uri", tracking_uri]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        address = (process.stdout.readline() if process.stdout else "").strip()
        root, token = address.split("/sign-in?token=")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()

        def read(path: str) -> object:
            headers = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(root + path, headers=headers)  # noqa: S310 - our own service
            with urllib.request.urlopen(request) as answer:  # noqa: S310 - our own service
                return json.load(answer) if path.startswith("/api") else answer.read()

        yield read, int(children[0])
    finally:
        process.terminate()
        process.wait()


def peak_mb(process: int) -> float:
    """Return the largest memory that a process has taken."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


def timed(read: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each of several reads."""
    times = []
    for _ in range(repeats):
        started = time.monotonic()
        read()
        times.append(time.monotonic() - started)
    return times


def main() -> int:
    """Measure, print the table, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch) / "runs"
        model = fill(runs, given.runs)
        paths = {
            "list, first page": "/api/v1/runs",
            "list, by data version, none matches": "/api/v1/runs?version=ffffffffff",
            "list, by argument, the oldest matches": f"/api/v1/runs?where={quote('seed=0')}",
            "lineage": f"/api/v1/lineage/{model}",
            "page of the runs": "/runs",
            "page of the runs, by argument": f"/runs?where={quote('seed=0')}",
            "page of a run": f"/runs/{identifier(FIRST)}",
            "page of a lineage": f"/lineage?of={model}",
        }
        logged = {
            "list of MLflow, first page": "/api/v1/runs?source=mlflow",
            "list of MLflow, by data version": f"/api/v1/runs?source=mlflow&version={0:064x}",
            "list of MLflow, by argument": f"/api/v1/runs?source=mlflow&where={quote('seed=0')}",
        }
        arguments = [f"{scratch}/mlflow.db", str(given.runs), str(given.repeats)]
        peer = subprocess.run(
            [str(python("service")), "-c", PEER, *arguments], check=True, capture_output=True, text=True
        )
        with served(runs, f"sqlite:///{scratch}/mlflow.db") as (read, process):
            found = {name: timed(lambda path=path: read(path), given.repeats) for name, path in paths.items()}
            depth = max(one["depth"] for one in read(paths["lineage"])["made_from"])  # type: ignore[index]
            peak = peak_mb(process)
            found |= {
                name: timed(lambda path=path: read(path), given.repeats) for name, path in logged.items()
            }
            with_mlflow = peak_mb(process)
    slowest = max(map(statistics.median, found.values()))
    found["MLflow's search_runs, first page"] = [float(line) for line in peer.stdout.split()]
    rows = [
        [name, *(f"{one:.3f}" for one in (statistics.median(times), min(times), max(times)))]
        for name, times in found.items()
    ]
    measured = f"at most {slowest:.2f} s a request, {peak:.0f} MB, lineage {depth} levels deep"
    measured += f", {with_mlflow:.0f} MB with MLflow's client"
    line = f"serve: {given.runs:,} runs, {measured} (goal {GOAL_S:g} s, {GOAL_MB} MB)"
    header = (f"{given.runs:,} runs", "s", "least", "most")
    return publish("serve", header, rows, line, slowest <= GOAL_S and peak <= GOAL_MB and depth >= STEPS)


if __name__ == "__main__":
    sys.exit(main())
