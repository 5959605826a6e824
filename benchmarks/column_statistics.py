"""What statistics cost: 10 million rows of 20 columns on two processors, against TFDV's own methods.

``python benchmarks/column_statistics.py [--rows N] [--repeats N]`` runs, in turn and each in a process of its
own, our statistics of a snapshot and the methods of TFDV: a pandas frame, Beam over Parquet and Arrow,
TFRecords, CSV. The clock starts after the imports; every method reads its file, and ours checks the digest of
every file, too. A method of TFDV that would take long is given fewer rows and counted by the row; the table
says how many. The numbers of each method are compared with ours on the same rows: values, extremes, zeros,
means, deviations, distinct values, and the commonest values with how often they are there.

A file named ``statistics.py`` would hide Python's own module from every script beside it.
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
TFDV = ROOT / ".environments" / "tfdv" / "bin" / "python"
GOAL, PEERS, CSV, MEMORY = 900_000, 1.5, 30.0, 600
"""Rows a second; times the best of TFDV's methods; times its CSV method; MiB a worker."""

SHARES = {"frame": 0.1, "beam": 1.0, "tfrecord": 0.01, "csv": 0.02}
"""What part of the rows each of TFDV's methods is given."""

DATA = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.csv as pc, pyarrow.parquet as pq
from trainwright.tables import SnapshotWriter

def table(rows, seed):
    draw, columns = np.random.default_rng(seed), {}
    for place in range(10):
        real = draw.normal(place, 1 + place, rows) if place < 5 else draw.exponential(10 * place, rows)
        columns[f"real{place}"] = pa.array(real, mask=draw.random(rows) < 0.02 if place % 3 == 0 else None)
    for place, most in enumerate((2, 24, 1_000, 100_000, 10**12)):
        columns[f"whole{place}"] = pa.array(draw.integers(0, most, rows))
    for place, most in enumerate((2, 20, 300, 3_000, 9_000)):
        words = np.array([f"value-{n:05d}" for n in range(most)])
        columns[f"word{place}"] = pa.array(words[np.minimum(draw.zipf(1.3, rows) % most, most - 1)])
    return pa.table(columns)

folder, rows = Path(sys.argv[1]), int(sys.argv[2])
with SnapshotWriter(folder / "snapshot") as writer:
    for seed in range(0, rows, 500_000):
        writer.append("train", table(min(500_000, rows - seed), seed))
    writer.commit(parents={}, roles={})
shares = dict(zip(sys.argv[3::2], map(float, sys.argv[4::2])))
whole = pa.concat_tables(pq.read_table(path) for path in sorted((folder / "snapshot").rglob("*.parquet")))
for method, share in shares.items():
    part = whole.slice(0, int(rows * share))
    if method in ("tfrecord", "csv"):  # these methods of TFDV hold floats of 32 bits, no others
        forms = [(f.name, pa.float32() if pa.types.is_floating(f.type) else f.type) for f in part.schema]
        part = part.cast(pa.schema(forms))
    pq.write_table(part, folder / f"{method}.parquet", row_group_size=131_072)
    if method == "csv":
        pc.write_csv(part, folder / "rows.csv")
"""

RECORDS = """
import sys
import pyarrow as pa, pyarrow.parquet as pq, tensorflow as tf
from tfx_bsl.arrow import array_util
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder
folder = sys.argv[1]
with tf.io.TFRecordWriter(folder + "/rows.tfrecord") as writer:
    for batch in pq.read_table(folder + "/tfrecord.parquet").to_batches(10_000):
        words = [x.cast(pa.binary()) if pa.types.is_string(x.type) else x for x in batch.columns]
        lists = [array_util.ToSingletonListArray(x) for x in words]
        for example in RecordBatchToExamplesEncoder().encode(
            pa.RecordBatch.from_arrays(lists, batch.schema.names)
        ):
            writer.write(example)
"""

START = """
import json, resource, sys, time
from pathlib import Path
from trainwright.validate.columns import by_column
from trainwright.validate.statistics import QUANTILES, VALUES_KEPT
from trainwright.validate.tfdv import schema_pb2, tfdv
folder, forked = Path(sys.argv[1]), False
options = tfdv.StatsOptions(
    num_rank_histogram_buckets=VALUES_KEPT, num_quantiles_histogram_buckets=QUANTILES
)
"""

END = """
seconds = time.perf_counter() - start
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
figures = {}
for name, feature in by_column(found).items():
    numbers, words = feature.num_stats, feature.string_stats
    common = (numbers if feature.HasField("num_stats") else words).common_stats
    figures[name] = [common.num_non_missing, common.tot_num_values, numbers.min, numbers.max]
    figures[name] += [numbers.num_zeros, words.unique]
    figures[name] += [[[top.value, top.frequency] for top in words.top_values[:5]]]
    figures[name] += [numbers.mean, numbers.std_dev, words.avg_length]
print(json.dumps([seconds, [worker if forked else own, own], found.datasets[0].num_examples, figures]))
"""

OURS = """
from trainwright.artifacts import Snapshot
from trainwright.experiment import DataEngine
from trainwright.validate.profile import Profiler
from trainwright.validate.profile import own_cuts
snapshot, forked = Snapshot.read(folder / "snapshot"), int(sys.argv[2]) > 1
start = time.perf_counter()
schema = schema_pb2.Schema(feature=[schema_pb2.Feature(name=column.name) for column in snapshot.columns])
lookout = Profiler(folder / "snapshot", snapshot, schema, DataEngine(workers=int(sys.argv[2])))
found = lookout.statistics("train")
if sys.argv[3] == "counts":
    numbers = [column.name for column in snapshot.columns if not column.name.startswith("word")]
    counts = lookout.counts("train", own_cuts(found, numbers))
    assert len(counts) == 15
"""

SHARE = """
import pyarrow.parquet as pq, pyarrow as pa
from trainwright.artifacts import Snapshot
from trainwright.experiment import DataEngine
from trainwright.validate.profile import Profiler
from trainwright.tables import write_snapshot
table = pq.read_table(folder / f"{sys.argv[2]}.parquet")
snapshot = write_snapshot(folder / "same" / sys.argv[2], {"train": [table]}, parents={}, roles={})
start = time.perf_counter()
schema = schema_pb2.Schema(feature=[schema_pb2.Feature(name=column.name) for column in snapshot.columns])
found = Profiler(folder / "same" / sys.argv[2], snapshot, schema, DataEngine()).statistics("train")
"""

FRAME = """
import pandas as pd
start = time.perf_counter()
frame = pd.read_parquet(folder / "frame.parquet")
found = tfdv.generate_statistics_from_dataframe(frame, options)
"""

BEAM = """
import apache_beam as beam, pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions
from tfx_bsl.arrow import table_util

def batches(place):
    path, group = place
    for batch in pq.ParquetFile(path).iter_batches(131_072, row_groups=[group]):
        yield table_util.CanonicalizeRecordBatch(batch)

start = time.perf_counter()
path = str(folder / "beam.parquet")
places = [(path, group) for group in range(pq.ParquetFile(path).num_row_groups)]
running = PipelineOptions(["--direct_num_workers=2", "--direct_running_mode=multi_threading"])
options.desired_batch_size = 65_536
with beam.Pipeline(options=running) as pipeline:
    rows = pipeline | beam.Create(places) | beam.Reshuffle() | beam.FlatMap(batches)
    rows | tfdv.GenerateStatistics(options) | tfdv.WriteStatisticsToBinaryFile(str(folder / "beam.pb"))
found = tfdv.load_stats_binary(str(folder / "beam.pb"))
"""

RECORD = """
start = time.perf_counter()
found = tfdv.generate_statistics_from_tfrecord(str(folder / "rows.tfrecord"), stats_options=options)
"""

TEXT = """
start = time.perf_counter()
found = tfdv.generate_statistics_from_csv(str(folder / "rows.csv"), stats_options=options)
"""

METHODS = {"frame": FRAME, "beam": BEAM, "tfrecord": RECORD, "csv": TEXT}
NAMES = {
    "frame": "TFDV, generate_statistics_from_dataframe",
    "beam": "TFDV, Beam Direct over Parquet and Arrow, 2 threads",
    "tfrecord": "TFDV, generate_statistics_from_tfrecord",
    "csv": "TFDV, generate_statistics_from_csv",
}


def call(code: str, *arguments: object) -> str:
    """Run code in TFDV's environment, in a process of its own; return what it printed."""
    command = [str(TFDV), "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3_000:])
    return done.stdout


def run(code: str, *arguments: object) -> tuple[float, tuple[float, float], int, dict[str, list[object]]]:
    """Take statistics on a method.

    Returns:
        Seconds; the highest memory in MiB of a worker and of the process that started it, which are one where
        there are no workers; rows; figures by column.
    """
    seconds, (worker, own), rows, figures = json.loads(call(code, *arguments).splitlines()[-1])
    return seconds, (worker, own), int(rows), figures


def differences(ours: dict[str, list[object]], theirs: dict[str, list[object]], exact: bool) -> list[str]:
    """Name the columns in which two methods give other statistics.

    Args:
        ours: Our figures.
        theirs: The peer's.
        exact: Whether its way of counting distinct values is ours; Beam's methods count them in another.
    """
    return [
        name
        for name, figures in ours.items()
        if figures[:5] != theirs[name][:5]
        or (exact and figures[5] != theirs[name][5])
        or sorted(figures[6]) != sorted(theirs[name][6])  # type: ignore[call-overload]
        or any(abs(a - b) > 1e-6 * abs(b) for a, b in zip(figures[7:], theirs[name][7:], strict=True))  # type: ignore[operator,arg-type]
    ]


def main() -> int:
    """Measure in turn, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainwright-statistics-") as name:
        shares = [str(part) for pair in SHARES.items() for part in pair]
        for code, given in ((DATA, [name, str(asked.rows), *shares]), (RECORDS, [name])):
            call(code, *given)
        speeds, peaks, alike = measure(Path(name), asked.repeats)
    return told(asked.rows, speeds, peaks, alike)


def measure(
    folder: Path, repeats: int
) -> tuple[dict[str, list[float]], dict[str, tuple[float, float]], dict[str, list[str]]]:
    """Run every method in turn; return rows a second, highest memory, and columns that differ from ours."""
    speeds: dict[str, list[float]] = {}
    peaks: dict[str, tuple[float, float]] = {}
    alike: dict[str, list[str]] = {}
    for turn in range(repeats):
        for way, workers, what in WAYS:
            seconds, peak, rows, _ = run(START + OURS + END, folder, workers, what)
            speeds.setdefault(way, []).append(rows / seconds)
            peaks[way] = max(peaks.get(way, (0.0, 0.0)), peak)
        for method, code in METHODS.items():
            seconds, peak, rows, figures = run(START + code + END, folder)
            speeds.setdefault(method, []).append(rows / seconds)
            peaks[method] = max(peaks.get(method, (0.0, 0.0)), peak)
            if not turn:
                ours = run(START + SHARE + END, folder, method)[3]
                alike[method] = differences(ours, figures, exact=method == "frame")
    return speeds, peaks, alike


OURS_TWO, OURS_BINS, OURS_ONE = "ours, 2 workers", "ours, 2 workers, and bins", "ours, 1 process"
WAYS = ((OURS_TWO, 2, "statistics"), (OURS_BINS, 2, "counts"), (OURS_ONE, 1, "statistics"))


def told(
    rows: int,
    speeds: dict[str, list[float]],
    peaks: dict[str, tuple[float, float]],
    alike: dict[str, list[str]],
) -> int:
    """Print the table and publish it."""
    medians = {way: statistics.median(found) for way, found in speeds.items()}
    best = max(METHODS, key=lambda method: medians[method])
    lines = []
    for way, found in speeds.items():
        share = f"{rows * SHARES[way]:,.0f}" if way in SHARES else f"{rows:,}"
        same = "same" if not alike.get(way) else f"differs: {', '.join(alike[way])}"
        figures = (medians[way], min(found), max(found))
        ratio = medians[way] / medians[best]
        lines.append(
            [
                NAMES.get(way, way),
                share,
                *(f"{figure:,.0f}" for figure in figures),
                f"{ratio:.2f}",
                *(f"{peak:.0f}" for peak in peaks[way]),
                same if way in SHARES else "",
            ]
        )
    fast, of_best, of_csv = (
        medians[OURS_TWO],
        medians[OURS_TWO] / medians[best],
        medians[OURS_TWO] / medians["csv"],
    )
    met = fast >= GOAL and of_best >= PEERS and of_csv >= CSV and peaks[OURS_TWO][0] <= MEMORY
    line = (
        f"column_statistics: {fast:,.0f} rows/s, {of_best:.1f} times TFDV's best method, "
        f"{of_csv:.0f} times its CSV method, "
        f"{peaks[OURS_TWO][0]:.0f} MiB a worker (goal {GOAL:,}, {PEERS}, {CSV:.0f}, {MEMORY})"
    )
    header = (
        "method",
        "rows",
        "rows/s",
        "least",
        "most",
        "ratio",
        "MiB a worker",
        "MiB of the first",
        "statistics",
    )
    return publish("column_statistics", header, lines, line, met and not any(alike.values()))


if __name__ == "__main__":
    sys.exit(main())
