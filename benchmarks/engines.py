"""Rows per second of the data steps on one machine and on Beam's Flink, by workers.

``python benchmarks/engines.py [--rows N]`` copies rows of 20 columns with `ingest`, computes the statistics
of the copy with `validate`, evaluates as many predictions of two models with `evaluate`, and scores as many
flights with `score`, which takes all cores of one machine. Flink has two task managers and its job server,
started before the clock; two workers are ``--parallelism=2``. All share the cores of this machine: the table
shows an engine's overhead, and what a second worker adds. The cost is that of all cores for the time. Needs
what ``make test-engines`` needs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ingest_copy import python, section, source_of
from results import publish
from rows_scaling import SET, TRAIN

ROOT = Path(__file__).resolve().parents[1]
GOAL, PRICE = 1.6, 0.04
WAYS = ("local, 1", "local, 2", "Flink, 1", "Flink, 2")
STEPS = {"ingest": "ingest", "validate": "tfdv", "evaluate": "tabular-engines", "score": "torch-engines"}
PREDICTIONS_PER_FILE = 250_000

ENGINE = """
import json, sys, time
from contextlib import nullcontext
from pathlib import Path
sys.path.append(".environments/pytest")
from tests.engines import beam_clusters
from trainwright.experiment import DataEngine
out, workers, remote, data = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "Flink", Path(sys.argv[4])
with beam_clusters.flink_cluster(out) if remote else nullcontext() as flink:
    engine = DataEngine(workers=workers)
    if remote:
        engine = flink.engine(out / "results")
        options = [option for option in engine.options if "parallelism" not in option]
        engine = engine.model_copy(update={"options": (*options, f"--parallelism={workers}")})
"""

INGEST = """
    from trainwright.experiment import Data
    from trainwright.ingest.ingest import ingest
    from trainwright.sources import list_source
    from trainwright.storage import Access
    asked = json.loads(sys.argv[5]) | {"engine": engine.model_dump(mode="json"), "store": f"{data}.store"}
    section = Data.parse(json.dumps(asked), "benchmark")
    version = list_source(section.source, section, Access()).content_digest
    start = time.perf_counter()
    ingest(section.source, version, section, data, out / "summary.md")
    print(time.perf_counter() - start)
"""

VALIDATE = """
    from trainwright.artifacts import Snapshot
    from trainwright.validate.statistics import ScanRequest, counted_as, packed, scan
    from trainwright.validate.tfdv import schema_pb2
    snapshot = Snapshot.read(data)
    names = tuple(column.name for column in snapshot.columns if column.name not in {"key", "note"})
    request = ScanRequest(packed(counted_as(schema_pb2.Schema())), names, {})
    start = time.perf_counter()
    for split in snapshot.splits:
        scan(data, snapshot, split, request, engine)
    print(time.perf_counter() - start)
"""

PREDICT = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from trainwright.tables import SnapshotWriter
data, rows, each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
roles = {"key": "id", "label": "late", "score": "score"}
for name, noise in (("candidate", 0.1), ("baseline", 0.13)):
    with SnapshotWriter(data / name, ["evaluate"]) as writer:
        for start in range(0, rows, each):
            count, draw = min(each, rows - start), np.random.default_rng(start)
            chance = draw.beta(2, 5, count)
            columns = {
                "id": np.arange(start, start + count),
                "late": (draw.random(count) < chance).astype(np.int64),
                "airport": draw.choice(["EWR", "JFK", "LGA"], count),
                "hour": draw.normal(12, 4, count),
                "score": np.clip(chance + draw.normal(0, noise, count), 0, 1),
            }
            writer.append("evaluate", pa.table(columns))
            writer.end_file("evaluate")
        writer.commit(parents={"model": name}, roles=roles)
"""

EVALUATE = """
    from trainwright.artifacts import Snapshot
    from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions
    from trainwright.experiment import Evaluation
    rules = {"slices": ["airport", "hour"], "rules": [{"metric": "auc", "margin": 0.01}]}
    asked = Evaluation.check(rules | {"engine": engine.model_dump(exclude_none=True)}, "benchmark")
    candidate, baseline = data / "candidate", data / "baseline"
    other = BaselinePredictions(baseline, Snapshot.read(baseline).digest, "1", str(baseline))
    outputs = {"verdict": out / "verdict", "report": out / "report.html", "summary": out / "summary.md"}
    start = time.perf_counter()
    evaluate_predictions(
        candidate, Snapshot.read(candidate).digest, asked, **outputs, baseline=other, uri=str(candidate)
    )
    print(time.perf_counter() - start)
"""

SCORE = """
    from trainwright.artifacts import Model, Snapshot
    from trainwright.score.score import SplitToScore, score_here, score_on_engine
    model, rows = data / "model1" / "model", data / "set"
    snapshot = Snapshot.read(rows)
    asked = Model.read(model).digest, SplitToScore(rows, snapshot, snapshot.digest, "evaluate"), out / "made"
    start = time.perf_counter()
    done = score_on_engine(model, *asked, engine, str(rows)) if remote else score_here(model, *asked)
    print(time.perf_counter() - start if done.error is None else done.error)
"""

CODE = {"ingest": INGEST, "validate": VALIDATE, "evaluate": EVALUATE, "score": SCORE}


def seconds(step: str, way: str, data: Path, more: str) -> float:
    """Return the seconds of a step on an engine."""
    engine, workers = way.split(", ")
    with tempfile.TemporaryDirectory(prefix="trainwright-engines-") as out:
        command = [python(STEPS[step]), "-W", "ignore", "-c", ENGINE + CODE[step]]
        command += [out, workers, engine, str(data), more]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return float(done.stdout.splitlines()[-1])


def measured(step: str, rows: int, folder: Path) -> dict[str, float]:
    """Return the seconds of a step in each way."""
    if step == "score":
        subprocess.run([python("torch"), "-W", "ignore", "-c", TRAIN, str(folder)], check=True, cwd=ROOT)
        subprocess.run([python("torch"), "-c", SET, str(folder), str(rows)], check=True, cwd=ROOT)
        return {way: seconds(step, way, folder, "") for way in WAYS[1:]}
    if step == "evaluate":
        command = [python("tabular"), "-c", PREDICT, str(folder), str(rows), str(PREDICTIONS_PER_FILE)]
        subprocess.run(command, check=True, cwd=ROOT)
        return {way: seconds(step, way, folder, "") for way in WAYS}
    copies = [folder / f"{number}" for number in range(len(WAYS))]
    data = copies if step == "ingest" else copies[:1] * len(WAYS)
    asked = section(source_of(rows), rows, 1)
    return {way: seconds(step, way, copy, asked) for way, copy in zip(WAYS, data, strict=True)}


def main() -> int:
    """Measure, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    price = (os.cpu_count() or 1) * PRICE / 3600
    table, gains = [], {}
    with tempfile.TemporaryDirectory(prefix="trainwright-snapshots-") as name:
        for step in STEPS:
            took = measured(step, rows, Path(name))
            sys.stderr.write(f"{step}: {took}\n")
            for way, each in took.items():
                ratio, cost = next(iter(took.values())) / each, 1e9 * price * each / rows
                table.append([f"{step}: {way}", f"{rows / each:,.0f}", f"{ratio:.2f}", f"{cost:.2f}"])
            for engine in ("local", "Flink"):
                if f"{engine}, 1" in took:
                    gains[f"{step} {engine}"] = took[f"{engine}, 1"] / took[f"{engine}, 2"]
    found = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
    header = (
        "step: engine, workers",
        "rows/s",
        "of the first line",
        f"cost of 10⁹ rows at {PRICE} per core-hour",
    )
    line = f"engines: a second worker gives {found} times (goal {GOAL})"
    return publish("engines", header, table, line, min(gains.values()) >= GOAL)


if __name__ == "__main__":
    sys.exit(main())
