"""Beam's own job service and a pool of workers, started as processes of this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.materialize.servers import answers, free_port, wait_until
from trainwright.experiment import Engine

ROOT = Path(__file__).resolve().parents[2]
SEVERAL = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
"""Beam's runner for one machine, with worker processes of its own."""


@dataclass(frozen=True)
class BeamCluster:
    """A job service that answers, and the pool that starts a worker process for each of its jobs."""

    service: "subprocess.Popen[bytes]"
    pool: "subprocess.Popen[bytes]"
    options: tuple[str, ...]

    def engine(self, store: Path) -> Engine:
        return Engine(name="PortableRunner", options=self.options, store=str(store))

    def workers(self) -> list[int]:
        """List the worker processes of the jobs that run now."""
        children = Path(f"/proc/{self.pool.pid}/task/{self.pool.pid}/children")
        threads = children.parent.parent.glob("*/children")
        return [int(pid) for thread in threads for pid in thread.read_text().split()]


@contextmanager
def process(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"  # the pool starts workers as `python`
    with log.open("wb") as out:
        started = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"PATH": path}, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait()


@contextmanager
def beam(folder: Path, python: str = sys.executable) -> Iterator[BeamCluster]:
    """Run a job service, and a pool whose workers are processes of a Python."""
    service, pool = free_port(), free_port()
    serve = [
        sys.executable,
        "-m",
        "apache_beam.runners.portability.local_job_service_main",
        "-p",
        f"{service}",
    ]
    work = [python, "-m", "apache_beam.runners.worker.worker_pool_main", "--service_port", f"{pool}"]
    with process(serve, folder / "service.log") as one, process(work, folder / "pool.log") as other:
        wait_until(lambda: answers(service), "Beam's job service")
        wait_until(lambda: answers(pool), "Beam's worker pool")
        options = (
            f"--job_endpoint=127.0.0.1:{service}",
            "--environment_type=EXTERNAL",
            f"--environment_config=127.0.0.1:{pool}",
        )
        yield BeamCluster(one, other, options)
