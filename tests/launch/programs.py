"""Small programs that stand for a training: what each process of a job does."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from trainwright.launch import local
from trainwright.launch.job import Job

ROOT = Path(__file__).resolve().parents[2]

START = """
import json, os, sys, time
from pathlib import Path
from trainwright import errors
from trainwright.launch.job_directory import Completion
from trainwright.launch.agent.rank_errors import reported_rank
folder, notes, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
(notes / f"pid-{rank}-{os.getpid()}").touch()
def await_file(path):
    while not path.exists():
        time.sleep(0.01)
def await_end(of):
    while not (noted := list(notes.glob(f"pid-{of}-*"))):
        time.sleep(0.01)
    state = Path("/proc", noted[0].name.rsplit("-", 1)[1], "stat")
    while state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.01)
"""

COMPLETE = """
if rank == 0:
    Completion(attempt=folder.name, outputs={}).write(folder)
"""

SLEEP = "time.sleep(600)\n"


def job(root: Path, body: str, **changes: Any) -> Job:
    """Describe a job whose processes run ``body``; they note their process ids in ``root/notes``."""
    (root / "notes").mkdir(parents=True, exist_ok=True)
    script = root / "program.py"
    script.write_text(START + textwrap.dedent(body))
    folder = root / "attempt-1"
    folder.mkdir(exist_ok=True)
    settings: dict[str, Any] = {
        "run": "file:///runs/1/model",
        "task": "train",
        "image": "trainwright/torch:0.1.0",
        "program": (str(script), "{folder}", str(root / "notes")),
        "folder": folder,
        "processes": 2,
        "cpu": 2,
        "timeout_s": 600,
    }
    return Job(**settings | changes)


def agent(asked: Job, *options: str, alone: bool = True) -> subprocess.Popen[bytes]:
    """Start the agent of a job, as a pod of a cluster does; it waits for other machines if not ``alone``."""
    command = [str(local.sibling_python("torch")), "-m", "trainwright.launch.agent", str(asked.folder)]
    command += [*asked.agent_options, "--", f"--nproc-per-node={asked.processes}"]
    command += ["--standalone"] * alone + [*options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | asked.environment
    return subprocess.Popen([*command, *asked.arguments], env=environment)


def pids(root: Path, expected: int = 2, within_s: float = 120) -> list[int]:
    """Wait until the processes of a job have begun, and return their ids."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        found = [int(path.name.rsplit("-", 1)[1]) for path in (root / "notes").glob("pid-*")]
        if len(found) >= expected:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{expected} processes did not begin within {within_s} s")


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: list[int], within_s: float = 60) -> bool:
    """Wait until none of the processes runs."""
    end = time.monotonic() + within_s
    while any(alive(pid) for pid in processes):
        if time.monotonic() > end:
            for pid in processes:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.05)
    return True


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    # Run as a launcher of its own, for tests that kill it: programs.py ROOT
    from trainwright.errors import reported
    from trainwright.launch.local import LocalLauncher

    with reported("train"):
        LocalLauncher().run(job(Path(sys.argv[1]), SLEEP))
