"""Features into Redis and SQLite: the newest row of every key, as ``get_online_features`` reads it.

``python benchmarks/materialize.py [--rows N] [--peer-rows N] [--repeats N]`` writes N rows of 10 features,
each of a key of its own, in turn with ours and with the peer: Feast's ``FeatureStore.materialize`` with its
defaults. The peer gets fewer rows, because it holds all of them as Python objects (8 to 9 GB a million);
that favours it: it does fewer rows a second the more there are. Each run is a process of its own, with Feast
imported before the clock starts, against an empty store. Ours is the whole step: lease, reading, writing,
check and watermark. After each run 1,000 keys are read through Feast and compared with the file.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from results import publish

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".environments" / "feast" / "bin" / "python"
FEATURES = 10
GOAL = 5.0
MEMORY_MIB = 1024

MAKE = """
import sys
from datetime import timedelta
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
folder, rows, features = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
random = np.random.default_rng(0)
time = pa.timestamp("us", "UTC")
columns = {"driver": np.arange(rows)} | {f"f{n}": random.random(rows) for n in range(features)}
columns["event"] = pa.array(1_700_000_000_000_000 + random.integers(0, 86_400_000_000, rows), time)
columns["created"] = pa.array(np.full(rows, 1_700_100_000_000_000), time)
folder.mkdir(parents=True)
pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=131_072)
"""

APPLY = """
import sys
from datetime import timedelta
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.types import Float64
folder, features = sys.argv[1], int(sys.argv[2])
driver = Entity(name="driver", value_type=ValueType.INT64)
path = folder + "/rows.parquet"
source = FileSource(path=path, timestamp_field="event", created_timestamp_column="created")
schema = [Field(name=f"f{n}", dtype=Float64) for n in range(features)]
kind = {"name": "drivers", "entities": [driver], "ttl": timedelta(0), "online": True}
view = FeatureView(source=source, schema=schema, **kind)
FeatureStore(repo_path=folder).apply([driver, view])
"""

MEASURE = """
import json, resource, sys, time
from datetime import UTC, datetime
from pathlib import Path
folder, way = Path(sys.argv[1]), sys.argv[2]
from feast import FeatureStore
import feast.infra.online_stores.sqlite, feast.infra.online_stores.redis
from trainwright.experiment import Materialize
from trainwright.materialize import latest, materialize, writers
section = Materialize(repository=str(folder), source=str(folder / "*.parquet"), state=str(folder / "state"))
start = time.perf_counter()
if way == "ours":
    materialize.materialize(section, "", "", folder / "out", folder / "out" / "summary.md")
else:
    FeatureStore(repo_path=str(folder)).materialize(datetime(2023, 1, 1, tzinfo=UTC), datetime.now(UTC))
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
import pyarrow.parquet as pq
table = pq.read_table(folder / "rows.parquet")
step = max(1, table.num_rows // 1000)
rows = table.take(list(range(0, table.num_rows, step))).to_pylist()
names = [name for name in table.column_names if name.startswith("f")]
found = FeatureStore(repo_path=str(folder)).get_online_features(
    features=[f"drivers:{name}" for name in names], entity_rows=[{"driver": row["driver"]} for row in rows]
).to_dict()
equal = sum(all(found[name][place] == row[name] for name in names) for place, row in enumerate(rows))
assert equal == len(rows), f"{len(rows) - equal} of {len(rows)} keys differ"
print(json.dumps([seconds, peak]))
"""


def run(code: str, *arguments: str) -> str:
    """Run code under the environment of the step; return the last line that it prints."""
    command = [str(PYTHON), "-W", "ignore", "-c", code, *arguments]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    done = subprocess.run(command, check=True, text=True, cwd=ROOT, **quiet)
    return done.stdout.strip().rsplit("\n", 1)[-1]


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Give an empty Redis; nothing of it reaches the disk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
            time.sleep(0.05)
        yield f"{{type: redis, connection_string: '127.0.0.1:{port}'}}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    """Give an empty SQLite file."""
    yield f"{{type: sqlite, path: {folder}/online.db}}"


STORES = {"redis": redis, "sqlite": sqlite}


def measure(store: str, way: str, rows: int, scratch: Path) -> tuple[float, float]:
    """Materialize once into an empty store; return rows a second, and the peak memory in MiB."""
    folder = scratch / "repository"
    shutil.rmtree(folder, ignore_errors=True)
    run(MAKE, str(folder), str(rows), str(FEATURES))
    with STORES[store](folder) as online:
        (folder / "feature_store.yaml").write_text(
            "project: bench\nprovider: local\nregistry: registry.db\noffline_store: {type: duckdb}\n"
            f"online_store: {online}\nentity_key_serialization_version: 3\n"
        )
        run(APPLY, str(folder), str(FEATURES))
        seconds, peak = json.loads(run(MEASURE, str(folder), way))
    return rows / seconds, peak


def main() -> int:
    """Measure in turn, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of ours into Redis")
    parser.add_argument(
        "--peer-rows", type=int, default=100_000, help="rows of the peer, and of both into SQLite"
    )
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    plan = {
        ("redis", "ours"): asked.rows,
        ("redis", "feast"): asked.peer_rows,
        ("sqlite", "ours"): asked.peer_rows,
        ("sqlite", "feast"): asked.peer_rows,
    }
    found: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in plan}
    with tempfile.TemporaryDirectory(prefix="trainwright-materialize-") as name:
        for _ in range(asked.repeats):
            for (store, way), rows in plan.items():
                found[store, way].append(measure(store, way, rows, Path(name)))
    rates = {key: statistics.median(rate for rate, _ in measured) for key, measured in found.items()}
    peaks = {key: max(peak for _, peak in measured) for key, measured in found.items()}
    rows_of_table = [
        [
            f"{store}, {way}",
            f"{plan[store, way]:,}",
            f"{rates[store, way]:,.0f}",
            f"{min(rate for rate, _ in found[store, way]):,.0f}",
            f"{max(rate for rate, _ in found[store, way]):,.0f}",
            f"{rates[store, way] / rates[store, 'feast']:.1f}",
            f"{peaks[store, way]:,.0f}",
        ]
        for store, way in plan
    ]
    ratio = rates["redis", "ours"] / rates["redis", "feast"]
    beside = rates["sqlite", "ours"] / rates["sqlite", "feast"]
    memory = max(peak for (_, way), peak in peaks.items() if way == "ours")
    line = (
        f"materialize: {ratio:.1f} times feast materialize into Redis (goal {GOAL:g}), "
        f"{beside:.1f} times into SQLite (goal 1), {memory:.0f} MiB (goal {MEMORY_MIB})"
    )
    met = ratio >= GOAL and beside >= 1 and memory < MEMORY_MIB
    header = ("10 features of each key", "rows", "rows/s", "least", "most", "ratio", "peak MiB")
    return publish("materialize", header, rows_of_table, line, met)


if __name__ == "__main__":
    sys.exit(main())
