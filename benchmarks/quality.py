"""``network: {kind: auto}`` with all defaults, against scikit-learn's HistGradientBoosting with its own.

Five public tables of different kinds: four that scikit-learn ships, and a sample of the example's flights.
Ours reads a CSV file and goes through the functions of the steps (resolve, ingest, join, train), each in its
environment; 70 % of the rows are trained on. The peer is fitted on the same rows. Both are judged on the
other 30 % by AUC, accuracy or RMSE, and their difference has a 95 % interval from a paired bootstrap. The
goal is met on a table if that interval reaches 0 or lies on our side.

The defaults of the trees were chosen on these tables, by other random splits: the result says that they suit
such tables, not how they do on others.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import publish

from trainwright.authoring import images
from trainwright.authoring.environments import python

ROOT = Path(__file__).resolve().parents[1]
THEIRS = ROOT / ".environments" / "emulators" / "bin" / "python"
PEER = ROOT / "benchmarks" / "steps" / "quality_peer.py"
FLIGHTS = ROOT / "examples" / "flights" / "data" / "flights.parquet"
FLIGHTS_ROWS = 40_000
METRICS = {"binary": "AUC", "multiclass": "accuracy", "regression": "RMSE"}


@dataclass(frozen=True)
class Dataset:
    """A table: its name, the kind of its label, and further keys of section ``data``."""

    name: str
    kind: str
    data: dict[str, Any]


DATASETS = (
    Dataset("breast_cancer", "binary", {}),
    Dataset("wine", "multiclass", {"classes": ["class_0", "class_1", "class_2"]}),
    Dataset("digits", "multiclass", {}),
    Dataset("diabetes", "regression", {"label_kind": "regression"}),
    Dataset("flights", "binary", {}),
)

SAMPLE = """
import sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq, pyarrow.csv as csv
names = ["carrier", "origin", "dest", "distance", "month", "day_of_week", "minute_of_day", "late"]
table = pq.read_table(sys.argv[1], columns=names)
table = table.filter(pc.is_valid(table["late"]))
rows = np.sort(np.random.default_rng(0).choice(len(table), int(sys.argv[3]), replace=False))
csv.write_csv(table.take(rows).rename_columns([*names[:-1], "label"]), sys.argv[2])
"""

STEPS = {
    "ingest": """
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
from trainwright.resolve.resolve import resolve
found = resolve(given["data"]["source"], folder / "listing", given["data"])
made = ingest(found.source, found.version, Data.check(given["data"], "data"), folder / "snapshot",
    folder / "ingest.md").digest
""",
    "feast": """
from trainwright.experiment import Features
from trainwright.join.join import make_training_set
made = make_training_set(folder / "snapshot", given["made"], Features(), "", folder / "training_set",
    folder / "join.md").digest
""",
    "launcher": """
from trainwright.train.submit import TrainRequest, submit
made = submit(TrainRequest(folder / "training_set", given["made"], {"kind": "auto"}, given["training"],
    {"launcher": "local"}, given["image"], run="benchmark"), folder / "model", folder / "predictions",
    folder / "train.md", folder / "train.html").metrics
""",
    "torch": """
from trainwright import tables
from trainwright.artifacts import Snapshot
snapshot = Snapshot.read(folder / "predictions")
table = tables.read_split(folder / "predictions", snapshot, "evaluate")
names = sorted((name for name in table.column_names if name.startswith("score")),
    key=lambda name: int(name.partition("_")[2] or 0))
scores = [table[name].to_pylist() for name in names]
made = {"rows": table["row"].to_pylist(),
    "scores": scores[0] if len(scores) == 1 else [list(row) for row in zip(*scores)]}
""",
}
CALL = """
import json, sys
from pathlib import Path
given = json.load(sys.stdin)
folder = Path(given["folder"])
exec(given["step"])
print(json.dumps(made))
"""


def train(dataset: Dataset, table: Path, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the steps on a table; return the figures of the training, and the scored rows."""
    splits = {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}}
    data = {"source": str(table), "label": "label", "splits": splits, **dataset.data}
    given: dict[str, Any] = {"folder": str(folder), "data": data, "image": images.TORCH, "training": {}}
    results = {}
    for environment, step in STEPS.items():
        done = subprocess.run(
            [python(environment), "-c", CALL],
            input=json.dumps(given | {"step": step}),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        results[environment] = given["made"] = json.loads(done.stdout.splitlines()[-1])
    return results["launcher"], results["torch"]


def compare(dataset: Dataset, folder: Path) -> tuple[list[object], bool]:
    """Train both on a table; return its row of the result, and whether ours is not worse."""
    table, own = folder / f"{dataset.name}.csv", folder / dataset.name
    own.mkdir()
    metrics, scored = train(dataset, table, own)
    (own / "ours.json").write_text(json.dumps(scored))
    command = [THEIRS, PEER, "judge", table, "label", dataset.kind, own / "ours.json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    low, high = found["low"], found["high"]
    verdict = "worse" if high < 0 else "better" if low > 0 else "no difference"
    kept = "trees" if "rounds_kept" in metrics else "mlp"
    row = [
        dataset.name,
        f"{metrics['rows'] + metrics['held_out_rows']:,.0f}",
        METRICS[dataset.kind],
        f"{found['ours']:.4f}",
        f"{found['theirs']:.4f}",
        f"{low:+.4f} to {high:+.4f}",
        verdict,
        kept,
    ]
    return row, high >= 0


def main() -> int:
    """Compare on all tables, and print the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([THEIRS, PEER, "tables", folder], check=True)
        sample = [python("torch"), "-c", SAMPLE, FLIGHTS, folder / "flights.csv", str(FLIGHTS_ROWS)]
        subprocess.run(sample, check=True)
        found = [compare(dataset, folder) for dataset in DATASETS]
    met = sum(good for _, good in found)
    header = ("table", "training rows", "metric", "ours", "HistGradientBoosting")
    header += ("gain, 95 % interval", "ours is", "kept")
    line = f"quality: not worse than HistGradientBoosting on {met} of {len(found)} tables (goal {len(found)})"
    return publish("quality", header, [row for row, _ in found], line, met == len(found))


if __name__ == "__main__":
    sys.exit(main())
