"""Reference mode against the emulator: 10,000 objects of a bucket, pinned by generation without being read.

``python benchmarks/reference_pin.py [--objects N] [--repeats N]`` lists the same bucket in turn with ours,
which takes each object's generation, size and MD5 from the store, and with the peer: google-cloud-storage,
which downloads each object and hashes it, eight at a time. The peer reads a sample, and its time is scaled up
to all. Both run in processes of the ingest environment, with imports before the clock. The emulator is one
process on this machine and shares its cores with both.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

from results import publish

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".environments" / "ingest" / "bin" / "python"
GOAL_S = 10.0
SIZE = 16 << 10
SAMPLE = 500

OURS = """
import json, resource, sys, tempfile, time
from pathlib import Path
from trainwright import storage
import trainwright.storage.gs
start = time.perf_counter()
listing = storage.take_listing(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    listing.write(Path(folder))
digest = listing.content_digest
seconds = time.perf_counter() - start
assert all(file.version and file.checksum.startswith("md5:") for file in listing.files)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, peak, len(listing.files)]))
"""

PEER = """
import hashlib, json, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
from google.cloud import storage
bucket = storage.Client(project="bench").bucket(sys.argv[1].removeprefix("gs://"))
names = [blob.name for blob in bucket.list_blobs()]
taken = names[:: max(1, len(names) // int(sys.argv[2]))]
start = time.perf_counter()
with ThreadPoolExecutor(8) as pool:
    sums = list(pool.map(lambda name: hashlib.md5(bucket.blob(name).download_as_bytes()).hexdigest(), taken))
seconds = (time.perf_counter() - start) * len(names) / len(taken)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, peak, len(names)]))
"""


def fill(host: str, objects: int) -> None:
    """Make a bucket and its objects, each of other bytes."""

    def post(path: str, body: bytes, kind: str) -> None:
        with urlopen(Request(f"http://{host}{path}", body, {"Content-Type": kind})) as answer:
            answer.read()

    post("/storage/v1/b?project=bench", b'{"name": "bench"}', "application/json")

    def put(number: int) -> None:
        name = f"day={number % 100:02}/part-{number:05}.parquet"
        path = f"/upload/storage/v1/b/bench/o?uploadType=media&name={name}"
        post(path, number.to_bytes(8, "big") * (SIZE // 8), "application/octet-stream")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(objects)))


def measure(code: str, host: str, *arguments: str) -> tuple[float, float, int]:
    """Run one side in a process of its own; return seconds, peak MiB, and how many objects it saw."""
    settings = {
        "STORAGE_EMULATOR_HOST": f"http://{host}",
        "PATH": "",
        "NO_PROXY": "*",
        "PYTHONPATH": str(ROOT),
    }
    command = [str(PYTHON), "-c", code, "gs://bench", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=settings)
    seconds, peak, count = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak, count


def main() -> int:
    """Measure in turn, print the table, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    from tests.storage import servers

    found: dict[str, list[tuple[float, float, int]]] = {"ours": [], "download, then MD5": []}
    with servers.gcs() as host:
        fill(host, given.objects)
        for _ in range(given.repeats):
            found["ours"].append(measure(OURS, host))
            found["download, then MD5"].append(measure(PEER, host, str(SAMPLE)))
    assert {count for rows in found.values() for *_, count in rows} == {given.objects}  # noqa: S101
    medians = {way: statistics.median(seconds for seconds, *_ in rows) for way, rows in found.items()}
    rows = []
    for way, measured in found.items():
        times = [seconds for seconds, *_ in measured]
        figures = (medians[way], min(times), max(times), medians[way] / medians["download, then MD5"])
        rows.append([way, *(f"{figure:.3f}" for figure in figures), f"{max(row[1] for row in measured):.0f}"])
    line = f"reference_pin: {given.objects:,} objects in {medians['ours']:.2f} s (goal {GOAL_S:.0f} s)"
    head = f"{given.objects:,} objects of {SIZE >> 10} KiB; the peer's time is scaled up from {SAMPLE}"
    header = (head, "s", "least", "most", "ratio", "peak MiB")
    return publish("reference_pin", header, rows, line, medians["ours"] <= GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
