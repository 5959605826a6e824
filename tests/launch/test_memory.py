"""Processes that are killed for memory, and those that are killed for something else."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.launch.programs import ROOT, job, pids
from trainwright.launch.agent import process_monitor
from trainwright.launch.failure import Failure

LIMIT = 2 * 1024**3
"""The kernel kills the largest process, which must be the one that fills the memory.

The agent takes 290 MB beside 230 MB of mapped files with a CUDA build of torch: at a limit of 700 MB, it is
the largest.
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, below this process's own; skips where none can be made."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [path.lstrip("/") for _, controllers, path in own if "memory" in controllers.split(",")]
    group = Path("/sys/fs/cgroup/memory", *paths, f"trainwright-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    except OSError as error:
        remove(group)
        pytest.skip(f"no control group of version 1 can be made here: {error}")
    yield group
    remove(group)


def remove(group: Path, within_s: float = 60) -> None:
    """Remove a control group, and what a failed test left running in it."""
    end = time.monotonic() + within_s
    while group.exists():
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            group.rmdir()
        except OSError as error:
            # A killed process counts until the kernel has taken it apart.
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_a_group_is_removed_with_the_processes_in_it(small_group: Path) -> None:
    enters = f"open({str(small_group / 'cgroup.procs')!r}, 'w').write('0'); print(flush=True); "
    with subprocess.Popen(
        [sys.executable, "-c", f"{enters}import time; time.sleep(600)"], stdout=subprocess.PIPE
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()
        with pytest.raises(OSError, match="busy"):
            small_group.rmdir()
        remove(small_group)
    assert left.returncode == -signal.SIGKILL
    assert not small_group.exists()


def test_a_process_that_the_kernel_killed_for_memory_is_told_from_any_other_and_not_repeated(
    small_group: Path, tmp_path: Path
) -> None:
    body = """
    with reported_rank(folder, rank):
        if rank == 1:
            eaten = b"x" * (4 * 1024**3)
        await_end(1)
    """
    asked = job(tmp_path, body, restarts=3)
    enters = f"import os; open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); "
    runs = "import sys; from tests.launch.programs import agent; from pathlib import Path; "
    process = subprocess.run(
        [sys.executable, "-c", enters + runs + _AGAIN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT) + os.pathsep + os.pathsep.join(sys.path)},
        check=False,
        timeout=600,
    )
    assert process.returncode == 10
    failure = Failure.read(asked.folder)
    assert (failure.kind, failure.rank, failure.retryable) == ("HOST_OOM", 1, False)
    assert "was killed by the kernel" in failure.what
    assert len(pids(tmp_path, 2)) == 2


_AGAIN = """
import json
from trainwright.launch.job import Job
root = Path(sys.argv[1])
asked = Job(run="r", task="train", image="i", folder=root / "attempt-1", processes=2, restarts=3,
            program=(str(root / "program.py"), "{folder}", str(root / "notes")))
sys.exit(agent(asked, "--max-restarts=3").wait(500))
"""


@pytest.mark.parametrize(
    ("groups", "path", "text"),
    [
        ("0::/kubepods/pod1\n", "kubepods/pod1/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/\n", "memory.events", "oom_kill 3\noom_group_kill 0\n"),
        (
            "8:pids:/a\n4:cpu,memory:/a/b\n0::/\n",
            "memory/a/b/memory.oom_control",
            "under_oom 0\noom_kill 3\n",
        ),
    ],
)
def test_the_kernels_count_is_found_in_both_versions_of_control_groups(
    tmp_path: Path, groups: str, path: str, text: str
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    assert process_monitor.oom_kills(tmp_path / "proc", tmp_path / "group") is None
    (tmp_path / "group" / path).parent.mkdir(parents=True)
    (tmp_path / "group" / path).write_text(text)
    assert process_monitor.oom_kills(tmp_path / "proc", tmp_path / "group") == 3
