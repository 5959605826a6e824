"""Ingest by copy: 10 million rows of 20 columns, against a bare read and write of the same bytes by pyarrow.

``python benchmarks/ingest_copy.py [--rows N] [--repeats N]`` runs each way in turn, in processes of its own,
with imports before the clock. Ours reads, checks, fingerprints, divides by time, measures every column,
writes with checksums and commits, on two workers and on one. Bare pyarrow reads batches and writes them, with
its own threads; it digests nothing and checks nothing. The peers: what a step does that downloads everything,
as ``google_cloud_pipeline_components`` has it (every file copied down, read whole, written whole, copied up,
here from disk to disk, so without the network), and pandas, file by file.

Memory is the proportional set size (PSS) of a way's whole process tree, sampled every 20 ms: shared pages
count once. Ours runs on a tenth of the rows, too: its memory must be the same. The source is made once and
kept in the temporary folder: files of a million rows, in row groups of 131,072, as pyarrow writes them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from results import publish

ROOT = Path(__file__).resolve().parents[1]
GOAL, MEMORY_MB, GROWTH = 0.8, 500, 1.1
SHARD = 500_000
EPOCH = 1_356_998_400  # 1 January 2013
SAMPLE_S = 0.02

DATA = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
folder, rows, start = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
words = [np.array([f"value-{n:06d}" for n in range(count)]) for count in (8, 200, 20_000)]
for number, first in enumerate(range(0, rows, 1_000_000)):
    count, draw = min(1_000_000, rows - first), np.random.default_rng(number)
    ids = np.arange(first, first + count)
    moments = pa.array((start + ids) * 1_000_000, pa.timestamp("us", tz="UTC"))
    columns = {"key": pa.array(np.char.mod("r%012d", ids)), "time": moments}
    columns["label"] = pa.array(draw.integers(0, 2, count))
    columns |= {f"real{n}": draw.normal(n, 1 + n, count) for n in range(10)}
    columns |= {f"whole{n}": draw.integers(0, most, count) for n, most in enumerate((10, 1_000, 1 << 40))}
    columns |= {f"word{n}": pa.array(few[draw.integers(0, len(few), count)]) for n, few in enumerate(words)}
    columns["note"] = pa.array(np.char.mod("%x", draw.integers(0, 1 << 60, count)))
    assert len(columns) == 20
    pq.write_table(pa.table(columns), folder / f"part-{number:03d}.parquet", row_group_size=131_072)
"""

OURS = """
import json, sys, time
from pathlib import Path
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
from trainwright.sources import list_source
from trainwright.storage import Access
source, out, section = sys.argv[1], Path(sys.argv[2]), Data.parse(sys.argv[3], "benchmark")
version = list_source(source, section, Access()).content_digest
start = time.perf_counter()
snapshot = ingest(source, version, section, out / "snapshot", out / "summary.md")
print(json.dumps([time.perf_counter() - start, snapshot.rows]))
"""

BARE = """
import json, sys, time
from pathlib import Path
import pyarrow.parquet as pq
source, out = Path(sys.argv[1]), Path(sys.argv[2])
start, rows = time.perf_counter(), 0
for path in sorted(source.iterdir()):
    file = pq.ParquetFile(path)
    with pq.ParquetWriter(out / path.name, file.schema_arrow, compression="zstd") as writer:
        for batch in file.iter_batches(131_072):
            writer.write_batch(batch)
            rows += batch.num_rows
print(json.dumps([time.perf_counter() - start, rows]))
"""

DOWN_AND_UP = """
import json, shutil, sys, time
from pathlib import Path
import pyarrow.parquet as pq
source, out = Path(sys.argv[1]), Path(sys.argv[2])
start, rows = time.perf_counter(), 0
for name in ("down", "made", "up"):
    (out / name).mkdir()
for path in sorted(source.iterdir()):
    shutil.copyfile(path, out / "down" / path.name)
for path in sorted((out / "down").iterdir()):
    table = pq.read_table(path)
    pq.write_table(table, out / "made" / path.name, compression="zstd")
    rows += table.num_rows
for path in sorted((out / "made").iterdir()):
    shutil.copyfile(path, out / "up" / path.name)
print(json.dumps([time.perf_counter() - start, rows]))
"""

PANDAS = """
import json, sys, time
from pathlib import Path
import pandas as pd
source, out = Path(sys.argv[1]), Path(sys.argv[2])
start, rows = time.perf_counter(), 0
for path in sorted(source.iterdir()):
    frame = pd.read_parquet(path)
    frame.to_parquet(out / path.name, compression="zstd", index=False)
    rows += len(frame)
print(json.dumps([time.perf_counter() - start, rows]))
"""


@dataclass(frozen=True)
class Way:
    """One way to the copy: its name, what it runs, in which environment, on how many workers."""

    name: str
    code: str
    environment: str = "ingest"
    workers: int = 0


WAYS = (
    Way("bare pyarrow", BARE),
    Way("ours, 2 workers", OURS, workers=2),
    Way("ours, 1 worker", OURS, workers=1),
    Way("download, then upload", DOWN_AND_UP),
    Way("pandas", PANDAS, environment="feast"),
)


def source_of(rows: int) -> Path:
    """Make the source, unless an earlier run has."""
    folder = Path(tempfile.gettempdir()) / "trainwright-ingest-copy" / f"{rows}"
    if not folder.exists():
        fresh = folder.with_name(f".{rows}.{os.getpid()}")
        fresh.mkdir(parents=True)
        subprocess.run([python("ingest"), "-c", DATA, str(fresh), str(rows), str(EPOCH)], check=True)
        fresh.rename(folder)
    return folder


def python(environment: str) -> str:
    return str(ROOT / ".environments" / environment / "bin" / "python")


def section(source: Path, rows: int, workers: int) -> str:
    """Write a section ``data`` of three windows, in which all rows are."""
    ends = [EPOCH + int(rows * part) for part in (0, 0.7, 0.85, 1)]
    moments = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end)) for end in ends]
    names = ("train", "evaluate", "holdout")
    return json.dumps(
        {
            "source": str(source),
            "key": "key",
            "time": "time",
            "label": "label",
            "splits": {
                name: {"start": start, "end": end}
                for name, start, end in zip(names, moments, moments[1:], strict=False)
            },
            "shard_rows": SHARD,
            "engine": {"workers": workers},
        }
    )


def measure(way: Way, rows: int) -> tuple[float, float, float]:
    """Run one way; return rows a second, the peak memory of its processes in MB, and the MB it wrote."""
    source = source_of(rows)
    with tempfile.TemporaryDirectory(prefix="trainwright-ingest-copy-") as out:
        command = [python(way.environment), "-c", way.code, str(source), out]
        command += [section(source, rows, way.workers)] if way.workers else []
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        peak = 0.0
        while child.poll() is None:
            peak = max(peak, memory(child.pid))
            time.sleep(SAMPLE_S)
        said = child.communicate()[0]
        if child.returncode:
            raise SystemExit(f"{way.name} ended with {child.returncode}")
        seconds, seen = json.loads(said.splitlines()[-1])
        if seen != rows:
            raise SystemExit(f"{way.name} read {seen} of {rows} rows")
        written = sum(path.stat().st_size for path in Path(out).rglob("*.parquet"))
    return rows / seconds, peak, written / 1e6


def memory(root: int) -> float:
    """Return the proportional set size of a process and all below it, in MB."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := text_of(entry / "stat")):
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        lines = text_of(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


def text_of(path: Path) -> str:
    """Read a file of a process; nothing if the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def main() -> int:
    """Measure in turn, print the table, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {way.name: [] for way in WAYS}
    small = []
    for _ in range(asked.repeats):
        for way in WAYS:
            found[way.name].append(measure(way, asked.rows))
        small.append(measure(WAYS[1], asked.rows // 10)[1])
    return report(asked.rows, found, max(small))


def report(rows: int, found: dict[str, list[tuple[float, float, float]]], small: float) -> int:
    """Print and keep the table; 0 when the goals are met."""
    speeds = {name: statistics.median(speed for speed, _, _ in runs) for name, runs in found.items()}
    peaks = {name: max(peak for _, peak, _ in runs) for name, runs in found.items()}
    bare, ours = (way.name for way in WAYS[:2])
    table = [
        [
            name,
            f"{speeds[name]:,.0f}",
            f"{speeds[name] / speeds[bare]:.2f}",
            f"{peaks[name]:,.0f}",
            f"{runs[-1][2]:,.0f}",
        ]
        for name, runs in found.items()
    ]
    table.append([f"{ours}, {rows // 10:,} rows", "", "", f"{small:,.0f}", ""])
    ratio, peak = speeds[ours] / speeds[bare], peaks[ours]
    met = ratio >= GOAL and peak <= MEMORY_MB and peak <= GROWTH * small
    line = (
        f"ingest_copy: {ratio:.2f} of bare pyarrow, peak {peak:.0f} MB, {small:.0f} MB for a tenth of the "
        f"rows (goal {GOAL}, {MEMORY_MB} MB, not growing)"
    )
    header = (f"{rows:,} rows of 20 columns", "rows/s", "of bare", "peak MB", "MB written")
    return publish("ingest_copy", header, table, line, met)


if __name__ == "__main__":
    sys.exit(main())
