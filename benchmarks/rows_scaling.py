"""Time and memory of the data steps from a million rows on: time grows with rows, memory does not.

``python benchmarks/rows_scaling.py [--rows N N …]`` pins as many rows of flights by reference (`resolve`,
`ingest`), validates them, scores them with two small models that it trains first, and evaluates the one
against the other, with slices and limits of fairness. Each step is a process of its own, with one worker;
its time is that of the processor, so that other work on the machine counts less. The slope is that of log
time over log rows between the last two numbers of rows.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from results import publish

ROOT = Path(__file__).resolve().parents[1]
PYTHON = {
    name: ROOT / ".environments" / name / "bin" / "python" for name in ("ingest", "tfdv", "torch", "tabular")
}
SLOPE, MEMORY = 1.05, 1.10

TRAIN = """
import sys
from pathlib import Path
from tests.train.problems import flights, run, write
folder = Path(sys.argv[1])
for seed in (1, 2):
    here = folder / f"model{seed}"
    write(here / "set", {"train": flights(2_000, seed), "evaluate": flights(500, 9)})
    run(here / "set", here, training={"epochs": 1, "seed": seed}, resources={"processes": 1})
"""

SET = """
import sys
from pathlib import Path
import pyarrow as pa
from tests.train.problems import ROLES, flights
from trainwright.tables import SnapshotWriter
folder, rows = Path(sys.argv[1]), int(sys.argv[2])
with SnapshotWriter(folder / "set", ["evaluate"]) as writer:
    for start in range(0, rows, 250_000):
        table = flights(min(250_000, rows - start), 100 + start)
        key = pa.array([f"f{index}" for index in range(start, start + len(table))])
        writer.append("evaluate", table.set_column(0, "id", key))
    writer.commit(parents={}, roles=ROLES)
"""

PIN = """
import sys
from pathlib import Path
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
from trainwright.sources import list_source
from trainwright.storage import Access
folder = Path(sys.argv[1])
section = {"source": str(folder / "set" / "data" / "evaluate"), "mode": "reference",
           "key": "id", "time": "at", "label": "late", "engine": {"workers": 1},
           "splits": {"train": {"start": "1970-01-01T00:00:00Z", "end": "1970-02-01T00:00:00Z"}}}
data = Data.check(section, "benchmark")
version = list_source(data.source, data, Access()).content_digest
ingest(data.source, version, data, folder / "snapshot", folder / "ingest.md")
"""

VALIDATE = """
import sys
from pathlib import Path
from trainwright.artifacts import Snapshot
from trainwright.experiment import Validation
from trainwright.validate.validate import ValidationContext, ValidationOutputs, validate_snapshot
folder = Path(sys.argv[1])
section = Validation.check({"engine": {"workers": 1}}, "benchmark")
snapshot, out = Snapshot.read(folder / "snapshot"), folder / "validate"
validate_snapshot(folder / "snapshot", snapshot.digest, section, ValidationContext("", "", "", "", ""),
    ValidationOutputs(verdict=out / "verdict", quarantine=out / "quarantine", report=out / "report.html",
                      summary=out / "summary.md"))
"""

SCORE = """
import sys
from pathlib import Path
from trainwright.artifacts import Model, Snapshot
from trainwright.score.score import write_model_predictions
folder, model, name = Path(sys.argv[1]), Path(sys.argv[2]) / "model", sys.argv[3]
snapshot = Snapshot.read(folder / "set")
write_model_predictions(model, Model.read(model), folder / "set", snapshot, ["evaluate"], folder / name)
"""

EVALUATE = """
import sys
from pathlib import Path
from trainwright.artifacts import Snapshot
from trainwright.evaluate.evaluate import BaselinePredictions, evaluate_predictions
from trainwright.experiment import Evaluation
folder = Path(sys.argv[1])
section = {"slices": ["carrier", "wind"], "rules": [{"metric": "auc", "margin": 0.01}],
           "fairness": {"by": ["carrier"], "limits": {"equalized_odds": 0.5}}}
evaluate_predictions(folder / "candidate", Snapshot.read(folder / "candidate").digest,
    Evaluation.check(section, "benchmark"), verdict=folder / "verdict", report=folder / "report.html",
    summary=folder / "summary.md",
    baseline=BaselinePredictions(folder / "baseline", Snapshot.read(folder / "baseline").digest, "1"))
"""

COST = """
import json, resource
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
seconds = sum(each.ru_utime + each.ru_stime for each in used)
print(json.dumps({"seconds": seconds, "gib": max(each.ru_maxrss for each in used) / 2**20}))
"""


def run(environment: str, script: str, *arguments: object) -> str:
    """Run a script in an environment, and return the last line that it wrote."""
    command = [str(PYTHON[environment]), "-W", "ignore", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return done.stdout.strip().rpartition("\n")[2]


def measured(models: Path, rows: int) -> dict[str, dict[str, Any]]:
    """Return the seconds and the memory of each step."""
    with tempfile.TemporaryDirectory(prefix="trainwright-rows-") as name:
        run("torch", SET, name, rows)
        found = {
            "resolve, ingest": json.loads(run("ingest", PIN + COST, name)),
            "validate": json.loads(run("tfdv", VALIDATE + COST, name)),
        }
        run("torch", SCORE, name, models / "model2", "baseline")
        found["score"] = json.loads(run("torch", SCORE + COST, name, models / "model1", "candidate"))
        return found | {"evaluate": json.loads(run("tabular", EVALUATE + COST, name))}


def main() -> int:
    """Measure, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000])
    counts = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="trainwright-models-") as models:
        run("torch", TRAIN, models)
        found = {rows: measured(Path(models), rows) for rows in counts}
    table, lines, met = [], [], True
    before, last = counts[-2:]
    for step in found[last]:
        table += [
            [step, f"{rows:,}", f"{cost[step]['seconds']:.1f} s", f"{cost[step]['gib']:.2f} GiB"]
            for rows, cost in found.items()
        ]
        one, two = found[before][step], found[last][step]
        slope = math.log(two["seconds"] / one["seconds"]) / math.log(last / before)
        growth = two["gib"] / one["gib"]
        lines.append(f"{step} slope {slope:.2f}, memory {growth:.2f} times")
        met = met and slope <= SLOPE and growth <= MEMORY
    line = (
        f"rows_scaling: {before:,} to {last:,} rows: {'; '.join(lines)} "
        f"(goal slope at most {SLOPE}, memory {MEMORY} times)"
    )
    return publish("rows_scaling", ("step", "rows", "processor time", "memory"), table, line, met)


if __name__ == "__main__":
    sys.exit(main())
