"""What the loader gives and what the step takes: batches of encoded rows, against torch's own way.

``python benchmarks/loader.py [--rows N] [--repeats N]`` writes a training set as Parquet, encodes it, and
then, in one process of the torch environment and in turn:

- draws batches from our loader as fast as it gives them, a whole epoch in its shuffled order;
- draws the same samples from a per-row ``Dataset`` over the same encoded arrays, held in memory, through a
  ``DataLoader`` without workers and with two; the better one counts, over a part of the epoch;
- takes steps with the network of the demo on one batch that is already in memory: what a training consumes
  when it never waits.

It also tells how fast rows are encoded from Parquet, which happens once, and the first epoch after that,
in which every shard is verified. In one process and with as many threads as there are processors.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from results import publish

ROOT = Path(__file__).resolve().parents[1]
TORCH = ROOT / ".environments" / "torch" / "bin" / "python"
STEP, PEER = 5.0, 20.0
"""Times what the step consumes; times a per-row Dataset."""

DATA = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from trainwright import tables

def table(rows, seed):
    draw = np.random.default_rng(seed)
    columns = {"id": np.arange(rows) + seed, "label": draw.integers(0, 2, rows)}
    for place in range(11):
        columns[f"real{place}"] = pa.array(draw.normal(place, 1 + place, rows), mask=draw.random(rows) < 0.01)
    for place, most in enumerate((5, 30, 200)):
        words = np.array([f"value-{n:03d}" for n in range(most)])
        columns[f"word{place}"] = pa.array(words[draw.integers(0, most, rows)])
    return pa.table(columns)

rows = int(sys.argv[2])
parts = (table(min(500_000, rows - seed), seed) for seed in range(0, rows, 500_000))
roles = {"key": "id", "label": "label"}
tables.write_snapshot(Path(sys.argv[1]), {"train": parts}, parents={}, roles=roles, rows_per_file=500_000)
"""

MEASURE = """
import json, os, resource, sys, time
from pathlib import Path
alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
os.environ.update(alone, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset
from trainwright.artifacts import Snapshot
from trainwright.experiment import Mlp, ResolvedTraining
from trainwright.train.architectures import Inputs, Target, make
from trainwright.train.process_group import process_group
from trainwright.train.feeding.target import merge_labels
from trainwright.train.feeding.loader import Loader
from trainwright.train.feeding.loader import SampleOrder
from trainwright.train.feeding.rows import RowSource, encode, fit
from trainwright.train.config import input_kinds
from trainwright.train.step import Stepper

folder, repeats, size = Path(sys.argv[1]), int(sys.argv[2]), 8192
snapshot = Snapshot.read(folder)
source = RowSource(folder, snapshot, "train", input_kinds(snapshot))
training = ResolvedTraining(epochs=1, batch_size=size, learning_rate=1e-3)
found = {name: [] for name in ("loader", "step", "rows", "rows2")}


class PerRow(Dataset):
    def __init__(self, batch):
        (self.numeric, self.categories), self.label = batch.inputs, batch.target

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        return self.numeric[index], self.categories[index], self.label[index]


def drawn(batches, most):
    start, seen = time.perf_counter(), 0
    for batch in batches:
        seen += len(batch[-1])
        if seen >= most:
            break
    return seen / (time.perf_counter() - start)


def ours(rows, order):
    with Loader(rows, order, 0, 1) as loader:
        return drawn(((loader.next().ids,) for _ in range(order.batches)), len(rows))


with process_group(0) as group:
    transforms, labels = fit(source, Mlp(), group)
    start = time.perf_counter()
    rows = encode(source, transforms, labels, folder / "encoded", group)
    encoding = len(rows) / (time.perf_counter() - start)
    order = SampleOrder(len(rows), size, 8, 0)
    first = ours(rows, order)
    architecture, rate = make(Mlp()), merge_labels(labels).counts[1] / len(rows)
    module = architecture.build(Inputs(Target("binary", (1 - rate, rate)), transforms))
    stepper, batch = Stepper(module, architecture, training, group), rows.take(order.share(0, 0, 1))
    whole = rows.take(np.arange(len(rows)))
    for _ in range(repeats):
        found["loader"].append(ours(rows, order))
        for name, workers in (("rows", 0), ("rows2", 2)):
            generator = torch.Generator().manual_seed(0)
            peer = DataLoader(PerRow(whole), size, shuffle=True, num_workers=workers, generator=generator)
            found[name].append(drawn(iter(peer), min(len(rows), 30 * size)))
            del peer
        start = time.perf_counter()
        for _ in range(30):
            stepper.apply(stepper.gradients(batch, size, stop=False), 1e-3)
        found["step"].append(30 * size / (time.perf_counter() - start))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"found": found, "first": first, "encoding": encoding, "peak": peak}))
os._exit(0)
"""


def told(program: str, *arguments: object) -> str:
    command = [str(TORCH), "-c", program, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return done.stdout


def main() -> int:
    """Measure in turn, print the table, and say whether both goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainwright-loader-") as name:
        told(DATA, Path(name) / "set", asked.rows)
        measured = json.loads(told(MEASURE, Path(name) / "set", asked.repeats).splitlines()[-1])
    found = measured["found"]
    ways = {
        "our loader": found["loader"],
        "one step after another": found["step"],
        "Dataset, no workers": found["rows"],
        "Dataset, 2 workers": found["rows2"],
        "our loader, first epoch": [measured["first"]],
        "encoding from Parquet": [measured["encoding"]],
    }
    medians = {way: statistics.median(speeds) for way, speeds in ways.items()}
    ours, step = medians["our loader"], medians["one step after another"]
    peer = max(medians["Dataset, no workers"], medians["Dataset, 2 workers"])
    rows = [
        [
            way,
            *(f"{figure:,.0f}" for figure in (medians[way], min(all_), max(all_))),
            f"{ours / medians[way]:.1f}",
        ]
        for way, all_ in ways.items()
    ]
    line = (
        f"loader: {ours / step:.1f} times the step (goal {STEP:.0f}), "
        f"{ours / peer:.0f} times a per-row Dataset (goal {PEER:.0f})"
    )
    header = (f"{asked.rows:,} rows, batches of 8,192", "rows/s", "least", "most", "loader is")
    return publish("loader", header, rows, line, ours / step >= STEP and ours / peer >= PEER)


if __name__ == "__main__":
    sys.exit(main())
