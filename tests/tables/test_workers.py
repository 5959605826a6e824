"""The pool of worker processes: its results, its errors, and that no worker is left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.tables import pool_tasks
from trainwright.errors import DataRefused, DependencyError, InputError, InternalError, TransientError
from trainwright.tables.workers import Pool

POOL_TASKS = "tests.tables.pool_tasks"


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    def work(task: int) -> tuple[int, bool]:
        time.sleep(0.02 * (task % 3 == 0))
        return task * task, os.getpid() == parent

    parent = os.getpid()
    found = list(Pool(work, workers).run(list(range(9))))
    assert [square for square, _ in found] == [n * n for n in range(9)]
    assert all(is_parent == (workers == 1) for _, is_parent in found)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", [InputError, DataRefused, TransientError])
def test_error_of_a_worker_keeps_its_class_text_and_exit_code(kind: type) -> None:
    def work(task: int) -> int:
        if task == 2:
            raise kind("column 'x' has 3 values", where="part-7.parquet", hint="Look at it.")
        return task

    with pytest.raises(kind) as caught:
        list(Pool(work, 2).run(list(range(5))))
    error = caught.value
    assert (error.what, error.where, error.hint) == (
        "column 'x' has 3 values",
        "part-7.parquet",
        "Look at it.",
    )
    assert error.code == kind.code
    assert multiprocessing.active_children() == []


def test_bug_in_a_worker_is_an_internal_error_with_a_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(task: int) -> float:
        return 1 / task

    with pytest.raises(InternalError, match="ZeroDivisionError: division by zero") as caught:
        list(Pool(work, 2).run([1, 0]))
    assert caught.value.code == 70
    assert "return 1 / task" in capfd.readouterr().err


def test_out_of_memory_in_a_worker_is_a_dependency_error() -> None:
    def work(task: int) -> int:
        raise pa.ArrowMemoryError("malloc of size 8000000000 failed")

    with pytest.raises(DependencyError, match="no memory left: malloc of size 8000000000"):
        list(Pool(work, 2).run([1, 2]))


def test_killed_worker_is_an_error_with_the_signal_and_the_task() -> None:
    def work(task: str) -> str:
        if task == "b":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return task

    with pytest.raises(DependencyError, match="a worker process was killed by SIGKILL") as caught:
        list(Pool(work, 2, lambda task: f"file {task}").run(list("abcdef")))
    assert caught.value.where == "file b"
    assert "memory" in caught.value.hint
    assert multiprocessing.active_children() == []


def test_worker_that_exits_is_an_error_with_its_exit_code() -> None:
    def work(task: int) -> int:
        os._exit(3)

    with pytest.raises(DependencyError, match="a worker process ended with exit code 3"):
        list(Pool(work, 2).run([1, 2, 3]))


def test_reader_that_stops_half_way_leaves_no_worker() -> None:
    results = Pool(lambda task: task, 2).run(list(range(100)))
    assert next(results) == 0
    results.close()
    assert multiprocessing.active_children() == []


ORPHANS = """
import os, sys, time
from trainwright.tables.workers import Pool
def work(task):
    os.write(1, b"%d\\n" % os.getpid())  # in one piece: two processes write to this pipe
    time.sleep(0.2)
    return task
list(Pool(work, 2).run(list(range(1000))))
"""


def test_workers_end_when_their_parent_is_killed() -> None:
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


def test_workers_of_a_fork_server_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path, ":".join(filter(None, sys.path))])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    parent.kill()
    parent.wait()
    started = [int(path.name) for path in tmp_path.iterdir()]
    wait_until(lambda: not any(map(is_running, started)))


PARENT = """
import sys
from functools import partial
from pathlib import Path
sys.path[:0] = sys.argv[2].split(":")
from tests.tables import pool_tasks
from trainwright.tables.workers import Pool

work = partial(pool_tasks.write_pid, Path(sys.argv[1]))
list(Pool(work, 2, preload=["tests.tables.pool_tasks"]).run(list(range(160))))
"""


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_killed_worker_of_a_fork_server_is_the_error_that_the_caller_chose() -> None:
    pool = Pool(
        pool_tasks.die_at_three, 2, lambda task: f"shard {task}", died=TransientError, preload=[POOL_TASKS]
    )
    with pytest.raises(TransientError, match="a worker process was killed by SIGKILL") as caught:
        list(pool.run(list(range(8))))
    assert caught.value.where == "shard 3"
    assert "use fewer workers" in caught.value.hint
    assert (caught.value.code, caught.value.retryable) == (20, True)


def test_after_a_failure_no_task_begins_and_the_error_is_the_first_tasks(tmp_path: Path) -> None:
    pool = Pool(partial(pool_tasks.fail_from_two, tmp_path), 2, ahead=1, preload=[POOL_TASKS])
    results = pool.run(list(range(8)))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(InputError, match="task 2 is bad"):
        next(results)
    begun = {path.name for path in tmp_path.iterdir()}
    assert {"0", "1", "2"} <= begun <= {"0", "1", "2", "3"}  # 3 only where it began before 2 failed
