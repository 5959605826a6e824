"""Worker processes: what they return, how they fail, and what is left of them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from trainwright.errors import DataRefused, DependencyError, InputError, InternalError, TransientError
from trainwright.experiment import Runner
from trainwright.tables import pieces, write_snapshot
from trainwright.validate.combiners import counted_as
from trainwright.validate.scan import FAN_IN, Wanted, levels, scan, take
from trainwright.validate.tfdv import schema_pb2
from trainwright.validate.workers import run_all


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_results_come_in_the_order_of_the_tasks_however_long_each_takes(workers: int) -> None:
    def work(task: int) -> tuple[int, bool]:
        time.sleep(0.02 * (task % 3 == 0))
        return task * task, os.getpid() == parent

    parent = os.getpid()
    found = list(run_all(work, list(range(9)), workers))
    assert [square for square, _ in found] == [n * n for n in range(9)]
    assert all(is_parent == (workers == 1) for _, is_parent in found)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", [InputError, DataRefused, TransientError])
def test_an_error_of_a_worker_keeps_its_kind_its_words_and_its_exit_code(kind: type) -> None:
    def work(task: int) -> int:
        if task == 2:
            raise kind("column 'x' has 3 values", where="part-7.parquet", hint="Look at it.")
        return task

    with pytest.raises(kind) as caught:
        list(run_all(work, list(range(5)), 2))
    error = caught.value
    assert (error.what, error.where, error.hint) == (
        "column 'x' has 3 values",
        "part-7.parquet",
        "Look at it.",
    )
    assert error.code == kind.code
    assert multiprocessing.active_children() == []


def test_a_bug_in_a_worker_is_a_bug_with_its_traceback_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    def work(task: int) -> float:
        return 1 / task

    with pytest.raises(InternalError, match="ZeroDivisionError: division by zero") as caught:
        list(run_all(work, [1, 0], 2))
    assert caught.value.code == 70
    assert "return 1 / task" in capfd.readouterr().err


def test_no_memory_in_a_worker_is_no_bug() -> None:
    def work(task: int) -> int:
        raise pa.ArrowMemoryError("malloc of size 8000000000 failed")

    with pytest.raises(DependencyError, match="no memory left: malloc of size 8000000000"):
        list(run_all(work, [1, 2], 2))


def test_a_worker_that_is_killed_is_told_with_the_signal_and_what_it_was_at() -> None:
    def work(task: str) -> str:
        if task == "b":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return task

    with pytest.raises(DependencyError, match="a worker process was killed by SIGKILL") as caught:
        list(run_all(work, list("abcdef"), 2, named=lambda task: f"file {task}"))
    assert caught.value.where == "file b"
    assert "memory" in caught.value.hint
    assert multiprocessing.active_children() == []


def test_a_worker_that_ends_by_itself_is_told_with_its_exit_code() -> None:
    def work(task: int) -> int:
        os._exit(3)

    with pytest.raises(DependencyError, match="a worker process ended with exit code 3"):
        list(run_all(work, [1, 2, 3], 2))


def test_a_reader_that_stops_half_way_leaves_no_worker_behind() -> None:
    results = run_all(lambda task: task, list(range(100)), 2)
    assert next(results) == 0
    results.close()
    assert multiprocessing.active_children() == []


ORPHANS = """
import os, sys, time
from trainwright.validate.workers import run_all
def work(task):
    os.write(1, b"%d\\n" % os.getpid())  # in one piece: two processes write to this pipe
    time.sleep(0.2)
    return task
list(run_all(work, list(range(1000)), 2))
"""


def test_workers_end_when_the_process_that_made_them_is_killed() -> None:
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    with parent:
        assert parent.stdout is not None
        workers = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()
        deadline = time.monotonic() + 60
        while (left := [pid for pid in workers if is_running(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert len(workers) == 2
    assert left == []


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, object]:
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "x": draw.normal(0, 1, 40_000),
            "n": draw.integers(0, 9, 40_000),
            "w": draw.choice(["a", "b", "ü"], 40_000),
            "empty": pa.array([None] * 40_000, pa.float64()),
        }
    )
    made = write_snapshot(tmp_path, {"train": [table]}, parents={}, roles={}, rows_per_file=500)
    return tmp_path, made


def wanted(snapshot: object) -> Wanted:
    schema = counted_as(schema_pb2.Schema()).SerializeToString()
    cuts = {"x": np.linspace(-3, 3, 7), "n": np.array([0.5, 3.5])}
    return Wanted(schema, tuple(column.name for column in snapshot.columns), cuts)


def test_the_same_bytes_on_one_process_on_several_and_on_beam(snapshot: tuple[Path, object]) -> None:
    folder, manifest = snapshot
    assert levels(len(pieces(folder, manifest, ["train"]))) == 2  # so that groups of groups are merged, too
    assert len(manifest.files) > FAN_IN
    runners = [Runner(workers=1), Runner(workers=2), Runner(workers=7), Runner(engine="beam")]
    found = [scan(folder, manifest, "train", wanted(manifest), runner) for runner in runners]
    alike = {statistics.SerializeToString(deterministic=True) for statistics, _ in found}
    assert len(alike) == 1
    assert all(counts["x"].tolist() == found[0][1]["x"].tolist() for _, counts in found)
    assert found[0][1]["x"].sum() == 40_000
    assert found[0][0].datasets[0].num_examples == 40_000


def test_beam_takes_its_own_options(snapshot: tuple[Path, object], tmp_path: Path) -> None:
    folder, manifest = snapshot
    runner = Runner(engine="beam", options=("--runner=DirectRunner", "--direct_num_workers=1"))
    counted = Wanted(b"", (), {"n": np.array([0.5])})
    statistics, counts = scan(folder, manifest, "train", counted, runner, shared=str(tmp_path / "shared"))
    assert counts["n"].sum() == 40_000
    assert not statistics.datasets[0].features
    assert list((tmp_path / "shared").iterdir()) == []  # the result was read and taken away


def test_a_fork_after_arrow_has_used_its_threads_comes_to_an_end(snapshot: tuple[Path, object]) -> None:
    folder, manifest = snapshot
    for entry in manifest.files[:8]:  # the pool of threads is at work before the fork
        table = pq.read_table(folder / entry.uri, use_threads=True)
        pc.sum(table["x"])
    statistics, _ = scan(folder, manifest, "train", wanted(manifest), Runner(workers=2))
    assert statistics.datasets[0].num_examples == 40_000


def test_a_file_that_was_changed_is_refused_by_the_worker_that_reads_it(
    snapshot: tuple[Path, object],
) -> None:
    folder, manifest = snapshot
    place = folder / manifest.files[50].uri
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    with pytest.raises(InputError, match="cached input changed") as caught:
        scan(folder, manifest, "train", wanted(manifest), Runner(workers=2))
    assert manifest.files[50].uri in caught.value.what


def test_the_memory_of_a_worker_stays_flat(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    columns = {f"c{place}": draw.normal(0, 1, 100_000) for place in range(8)}
    table = pa.table(columns | {"w": draw.choice([f"v{n}" for n in range(900)], 100_000)})
    manifest = write_snapshot(tmp_path, {"train": [table] * 16}, parents={}, roles={}, rows_per_file=100_000)
    schema = counted_as(schema_pb2.Schema()).SerializeToString()
    asked = Wanted(schema, tuple(table.column_names), {})

    def work(piece: object) -> int:
        take(tmp_path, piece, asked)
        return resident_bytes()

    seen = list(run_all(work, pieces(tmp_path, manifest, ["train"]), 2))
    assert max(seen[-4:]) - max(seen[4:8]) < 24 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
