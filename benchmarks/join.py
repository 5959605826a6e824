"""A point-in-time join: a million rows against three views of a million, and Feast's own joins beside it.

``python benchmarks/join.py [--rows N] [--dask-rows N] [--keys N] [--repeats N]`` joins N rows to three views
of N rows of 10 features each, in turn with ours and with the peers: ``FeatureStore.get_historical_features``
with Feast's default offline store (dask) and with its DuckDB store, both with the created-timestamp cutoff,
which ours always has. Each run is a process of its own, with everything imported before the clock starts, and
stops the clock when the joined rows are one Arrow table in memory. Feast's default may be given fewer rows to
join (the views stay whole): it is compared with ours on the same rows, and nothing is extrapolated. "ours,
whole step" is the component: reading a snapshot, joining, the audit of every value, the check against Feast,
and the training set on disk. "wide" has the same rows with 20 more columns, which the training set takes
along: rewritten, and by reference, where they stay and only the features are written; "no service" is the
choice of columns alone. Feast compares each row with all rows of its key, so many rows a key would
favour ours; ten are used.

After the clock has stopped every row is compared, value by value, with what the DuckDB store gave; rows that
dask left out, because nothing matched, are counted and not compared: Feast's definition has them with nulls.
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
PYTHON = ROOT / ".environments" / "feast" / "bin" / "python"
VIEWS, FEATURES, KEYS = 3, 10, 100_000
GOAL_DASK, GOAL_DUCKDB, GOAL_BYTES, GOAL_TIME = 10.0, 2.0, 0.7, 1.1
STEP = "ours, whole step"
REWRITTEN, REFERRED = "wide, rewritten", "wide, by reference"
WAYS = (REWRITTEN, REFERRED, f"{REWRITTEN}, no service", f"{REFERRED}, no service")
"""Ways of the whole step on the wide rows."""

MAKE = """
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.types import Float64
from trainwright import tables
folder, rows, keys, views, features = Path(sys.argv[1]), *map(int, sys.argv[2:])
repository = folder / "repository"
random, time = np.random.default_rng(0), pa.timestamp("us", "UTC")
start, span = 1_700_000_000_000_000, 90 * 86_400_000_000
driver, made = Entity(name="driver", value_type=ValueType.INT64), []
for place in range(views):
    event = start + random.integers(0, span, rows)
    late = np.where(random.random(rows) < 0.2, random.integers(0, 5 * 86_400_000_000, rows), 0)
    columns = {"driver": random.integers(0, keys, rows), "event": pa.array(event, time)}
    columns["created"] = pa.array(event + late, time)
    for number in range(features):
        values = random.random(rows)
        columns[f"v{place}f{number}"] = pa.array(values, mask=random.random(rows) < 0.02)
    path = repository / "offline" / f"v{place}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=131_072)
    source = FileSource(name=f"s{place}", path=str(path), timestamp_field="event",
                        created_timestamp_column="created")
    schema = [Field(name=f"v{place}f{number}", dtype=Float64) for number in range(features)]
    made.append(FeatureView(name=f"v{place}", entities=[driver], ttl=timedelta(days=30 * place),
                            source=source, schema=schema, online=False))
service = FeatureService(name="all", features=made)
settings = "project: bench\\nprovider: local\\nregistry: registry.db\\nonline_store: null\\n"
settings += "entity_key_serialization_version: 3\\noffline_store: {type: %s}\\n"
for store in ("dask", "duckdb"):
    (repository / "feature_store.yaml").write_text(settings % store)
    FeatureStore(repo_path=str(repository)).apply([driver, *made, service])
asked = {"row": np.arange(rows), "driver": random.integers(0, keys, rows),
         "event_timestamp": pa.array(start + random.integers(0, span, rows), time),
         "label": random.integers(0, 2, rows)}
roles = {"key": "row", "time": "event_timestamp", "label": "label"}
tables.write_snapshot(folder / "rows", {"train": [pa.table(asked)]}, parents={}, roles=roles)
asked |= {f"own{number}": random.random(rows) for number in range(20)}
wide = tables.write_snapshot(folder / "wide", {"train": [pa.table(asked)]}, parents={}, roles=roles)
files = tuple(replace(entry, uri=str(folder / "wide" / entry.uri)) for entry in wide.files)
(folder / "in place").mkdir()
replace(wide, files=files).write(folder / "in place")
"""

MEASURE = """
import json, resource, sys, time, warnings
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
warnings.simplefilter("ignore")
folder, way, count, views, features = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
from feast import FeatureStore
import feast.infra.offline_stores.duckdb, feast.infra.offline_stores.dask
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.experiment import Features
from trainwright.featurestore import open_service
from trainwright.join import join as training_set
from trainwright.join.history import FileHistory, microseconds
from trainwright.storage import take_listing
repository = folder / "repository"
settings = repository / "feature_store.yaml"
old, new = ("duckdb", "dask") if way == "dask" else ("dask", "duckdb")
settings.write_text(settings.read_text().replace("type: " + old, "type: " + new))
place, step = folder / "rows", way == "ours, whole step" or way.startswith("wide")
if way.startswith("wide"):
    place = folder / ("in place" if "by reference" in way else "wide")
snapshot = Snapshot.read(place)
rows = tables.read_split(place, snapshot, "train", ["row", "driver", "event_timestamp"])
rows = rows.slice(0, count)
frame = rows.to_pandas() if way in ("dask", "duckdb") else None
if step:
    asked = {"repository": str(repository), "source": f"{repository}/**/*[!c]", "service": "all"}
    asked["limits"] = {"max_missing_default": 1}
    if way.startswith("wide"):
        asked["request"] = [f"own{number}" for number in range(20)]
    if "no service" in way:
        asked = {"exclude": ["driver"]}
    section = Features.parse(json.dumps(asked), "features")
    version = take_listing(section.source).content_digest if section.source else ""
start = time.perf_counter()
if way == "ours":
    service = open_service(str(repository), "all")
    at, joined = microseconds(rows["event_timestamp"]), rows
    for view in service.views:
        source = FileHistory(view)
        found = source.take(source.find(rows, at))
        for name in found.column_names:
            joined = joined.append_column(name, found[name])
elif step:
    out = folder / "set"
    summary = folder / "summary.md"
    made = training_set.make_training_set(place, snapshot.digest, section, version, out, summary)
else:
    store = FeatureStore(repo_path=str(repository))
    service = store.get_feature_service("all")
    job = store.get_historical_features(frame, service, filter_by_created_timestamp=True)
    joined = job.to_arrow()
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
written = 0
if step:
    written = sum(path.stat().st_size for path in out.rglob("*.parquet")) / 1e6
    joined = tables.read_split(out, made, "train")
if "no service" in way:
    print(json.dumps([seconds, peak, 0, written]))
    sys.exit()
joined = joined.sort_by("row").combine_chunks()
names = ["row"] + [f"v{place}f{number}" for place in range(views) for number in range(features)]
joined = joined.select(names)
answer = folder / f"{count}.parquet"
lost = count - joined.num_rows
if way == "duckdb" and not answer.exists():
    pq.write_table(joined, answer)
expected = pq.read_table(answer)
if lost:
    kept = np.isin(expected["row"].to_numpy(), joined["row"].to_numpy())
    left = expected.filter(pa.array(~kept))
    unmatched = [np.all([left[f"v{p}f{n}"].is_null() for n in range(features)], axis=0) for p in range(views)]
    assert way == "dask" and np.any(unmatched, axis=0).all(), "rows with a match in every view are gone"
    expected = expected.filter(pa.array(kept))
def bits(table, name):  # dask knows no null: a missing number is NaN there
    column = table[name].combine_chunks()
    return column.fill_null(float("nan")).to_numpy().view(np.uint64) if name != "row" else column.to_numpy()
unequal = [name for name in names if not np.array_equal(bits(joined, name), bits(expected, name))]
assert not unequal, f"{way} differs from the DuckDB store in {unequal}"
print(json.dumps([seconds, peak, lost, written]))
"""


def run(code: str, *arguments: object) -> str:
    """Run code under the environment of the step; return the last line that it prints."""
    command = [str(PYTHON), "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip().rsplit("\n", 1)[-1]


def measure(way: str, rows: int, folder: Path) -> tuple[float, float, float, float]:
    """Join once in a process of its own; return seconds, MiB at the peak, rows lost and MB written."""
    seconds, peak, lost, written = json.loads(run(MEASURE, folder, way, rows, VIEWS, FEATURES))
    return seconds, peak, lost, written


def main() -> int:
    """Measure in turn, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows that are joined to, and of each view"
    )
    parser.add_argument("--dask-rows", type=int, default=500_000, help="rows that Feast's default is given")
    parser.add_argument("--keys", type=int, default=100_000, help="different keys in each of them")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    # The DuckDB store comes first: its answers are what the others are compared with.
    plan = [(way, asked.rows) for way in ("duckdb", "ours", STEP, *WAYS)]
    plan += [(way, asked.dask_rows) for way in ("duckdb", "dask", "ours")]
    found: dict[tuple[str, int], list[tuple[float, float, float, float]]] = {key: [] for key in plan}
    with tempfile.TemporaryDirectory(prefix="trainwright-join-") as name:
        run(MAKE, name, asked.rows, asked.keys, VIEWS, FEATURES)
        for _ in range(asked.repeats):
            for (way, rows), measured in found.items():
                measured.append(measure(way, rows, Path(name)))
    seconds = {key: statistics.median(taken for taken, *_ in measured) for key, measured in found.items()}
    peaks = {key: max(peak for _, peak, *_ in measured) for key, measured in found.items()}
    table = [
        [
            way,
            f"{rows:,}",
            f"{seconds[way, rows]:.2f}",
            f"{min(taken for taken, *_ in measured):.2f}",
            f"{max(taken for taken, *_ in measured):.2f}",
            f"{rows / seconds[way, rows]:,.0f}",
            f"{seconds[way, rows] / seconds['ours', rows]:.1f}",
            f"{peaks[way, rows]:,.0f}",
            f"{measured[0][2]:,.0f}",
            f"{measured[0][3]:,.0f}",
        ]
        for (way, rows), measured in found.items()
    ]
    duckdb = seconds["duckdb", asked.rows] / seconds["ours", asked.rows]
    dask = seconds["dask", asked.dask_rows] / seconds["ours", asked.dask_rows]
    less = all(peaks["ours", rows] < peaks[way, rows] for way, rows in plan if way in ("dask", "duckdb"))
    most, least = (found[way, asked.rows][0][3] for way in (REWRITTEN, REFERRED))
    slow, fast = seconds[REWRITTEN, asked.rows], seconds[REFERRED, asked.rows]
    line = (
        f"join: {dask:.1f} times Feast's default store on {asked.dask_rows:,} rows (goal {GOAL_DASK:g}), "
        f"{duckdb:.1f} times its DuckDB store on {asked.rows:,} (goal {GOAL_DUCKDB:g}), "
        f"{'less' if less else 'more'} memory than either (goal less); "
        f"by reference {least / most:.0%} of the bytes in {fast / slow:.0%} of the time (goal "
        f"{GOAL_BYTES:.0%}, {GOAL_TIME:.0%})"
    )
    header = (
        f"{VIEWS} views of {asked.rows:,} rows and {asked.keys:,} keys, {FEATURES} features each",
        "rows", "s", "least", "most", "rows/s", "times ours", "peak MiB", "rows lost", "MB written",
    )  # fmt: skip
    met = dask >= GOAL_DASK and duckdb >= GOAL_DUCKDB and less
    met = met and least <= GOAL_BYTES * most and fast <= GOAL_TIME * slow
    return publish("join", header, table, line, met)


if __name__ == "__main__":
    sys.exit(main())
