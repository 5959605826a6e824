"""Machines of an elastic job on this one: agents that find one another, and can be killed or added."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.train.problems import request
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory
from trainwright.train import submit
from trainwright.train.checkpoint import committed
from trainwright.train.checkpoint.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
SECTIONS: dict[str, dict[str, Any]] = {
    "network": {"hidden": [8]},
    "training": {
        "steps": 250,
        "batch_size": 100,
        "learning_rate": 1e-3,
        "checkpoints": {"every_steps": 10, "keep": 100},
        "tracking": {"every_steps": 1},
    },
    "resources": {"processes": 4, "cpu": 4},
}


def attempt(training_set: Path, directory: Path) -> Path:
    """Write the configuration of a training of four processes, and return the attempt's folder."""
    folder = directory / "attempts" / "0001"
    folder.mkdir(parents=True)
    prepared = submit._prepare(request(training_set, **SECTIONS))
    submit._write_config(prepared.config, folder, "local", prepared.resources)
    return folder


def machine(
    folder: Path,
    port: int,
    *,
    hosts: bool,
    processes: int = 1,
    last_call_s: int = 1,
    monitor_s: float = 0.1,
) -> subprocess.Popen[bytes]:
    """Start the agent of a machine, as a pod of an elastic PyTorchJob does; its processes pause each step."""
    command = [sys.executable, "-m", "trainwright.launch.agent", str(folder), "--"]
    command += [
        f"--nproc-per-node={processes}",
        "--nnodes=3:4",
        "--max-restarts=3",
        f"--monitor-interval={monitor_s}",
    ]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    command += [f"--rdzv-conf=join_timeout=900,last_call_timeout={last_call_s},is_host={int(hosts)}"]
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(
        [*command, "-m", "tests.train.paused", str(folder / "spec.json")],
        env=os.environ | settings,
        start_new_session=True,
    )


@contextmanager
def killed_at_the_end(machines: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Leave no agent, and no process of one."""
    try:
        yield
    finally:
        for each in machines:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()


def sizes(directory: Path) -> dict[int, int]:
    """Return the number of processes that wrote each checkpoint, by step."""
    folder = directory / "checkpoints"
    return {name.step: read_manifest(folder / str(name)).processes for name in committed(folder)}


def await_that(
    condition: Callable[[], bool], machines: list[subprocess.Popen[bytes]], within_s: float = 300
) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        assert all(each.poll() in (None, 0, -signal.SIGKILL) for each in machines)
        time.sleep(0.05)


def losses(directory: Path) -> dict[int, float]:
    points = TrainingHistory.read(directory / HISTORY_FILE).points
    return {point.step: point.values["loss"] for point in points if "loss" in point.values}
