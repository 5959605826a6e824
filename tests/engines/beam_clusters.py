"""Beam's own job service, and Flink's, with pools of workers: processes of this machine."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.materialize.servers import answers, wait_until
from tests.ports import free_port
from trainwright.experiment import DataEngine

ROOT = Path(__file__).resolve().parents[2]
SEVERAL = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
"""Beam's runner for one machine, with worker processes of its own."""


@dataclass(frozen=True)
class BeamCluster:
    """A job service that answers, and pools that start a worker process for each of its jobs."""

    service: "subprocess.Popen[bytes]"
    options: tuple[str, ...]
    runner: str = "PortableRunner"
    pools: "tuple[subprocess.Popen[bytes], ...]" = ()
    kill_task_manager: Callable[[], object] = lambda: None
    """Kill one of Flink's, and start another one, as Kubernetes does."""
    kill_job_manager: Callable[[], object] = lambda: None
    """Kill Flink's, and start another one at its address, as Kubernetes does."""

    def kill_worker(self) -> None:
        """Kill the newest process of the pools."""
        tasks = [Path(f"/proc/{pool.pid}/task").glob("*/children") for pool in self.pools]
        pids = [int(pid) for lists in tasks for children in lists for pid in children.read_text().split()]
        os.kill(max(pids), signal.SIGKILL)

    def engine(self, store: Path) -> DataEngine:
        return DataEngine(name=self.runner, options=self.options, store=str(store))


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
    with process(serve, folder / "service.log") as one, process(work, folder / "pool.log"):
        wait_until(lambda: answers(service), "Beam's job service")
        wait_until(lambda: answers(pool), "Beam's worker pool")
        options = (
            f"--job_endpoint=127.0.0.1:{service}",
            "--environment_type=EXTERNAL",
            f"--environment_config=127.0.0.1:{pool}",
        )
        yield BeamCluster(one, options)


FLINK = ROOT / ".environments" / "flink"
"""Flink 1.19 and Beam's job server for it, from Maven: `make test-engines`."""

JAVA = (
    *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),  # half the processor time of a minute's run
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("util", "lang", "net")),
)
CONFIG = """
jobmanager: {{rpc: {{address: localhost, port: {rpc}}}, memory: {{process: {{size: 1g}}}}}}
rest: {{address: localhost, port: {rest}}}
taskmanager:
  host: localhost
  numberOfTaskSlots: 1
  cpu: {{cores: 1.0}}
  memory:
    framework: {{heap: {{size: 128m}}, off-heap: {{size: 64m}}}}
    task: {{heap: {{size: 256m}}, off-heap: {{size: 64m}}}}
    managed: {{size: 128m}}
    network: {{min: 64m, max: 64m}}
    jvm-metaspace: {{size: 256m}}
    jvm-overhead: {{min: 64m, max: 64m}}
restart-strategy: {{type: fixed-delay, fixed-delay: {{attempts: 5, delay: 2 s}}}}
heartbeat: {{timeout: 30000}}
io: {{tmp: {{dirs: {folder}}}}}
"""


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeamCluster]:
    """Flink for the tests of a file; the last one may kill its job server."""
    with flink_cluster(tmp_path_factory.mktemp("flink")) as started:
        yield started


@contextmanager
def flink_cluster(folder: Path) -> Iterator[BeamCluster]:
    """Run a job manager, two task managers, Beam's job server and two pools of workers of this Python.

    Each task manager knows another address by the name `pool`, as each pod knows its own by `localhost`.
    """
    if not (FLINK / ".made").exists() or shutil.which("java") is None:
        pytest.skip("no Flink: make test-engines, with Maven and Java 17")
    rpc, rest, jobs, artifacts, pool = (free_port() for _ in range(5))
    (folder / "config.yaml").write_text(CONFIG.format(rpc=rpc, rest=rest, folder=folder))
    java = [*JAVA, "-Xmx512m", "-cp"]
    own = os.pathsep.join(str(jar) for jar in FLINK.glob("*.jar") if not jar.name.startswith("beam-"))
    cluster = [*java, own]  # Beam's classes come with each job, as on a cluster that others use, too
    package, settings = "org.apache.flink.runtime", ["--configDir", str(folder)]
    serve = ["--job-port", f"{jobs}", "--artifact-port", f"{artifacts}", "--expansion-port=0"]
    serve += [f"--flink-master=localhost:{rest}", f"--artifacts-dir={folder}/artifacts"]
    work = [sys.executable, "-m", "tests.engines.worker_pool"]
    addresses = ("127.0.0.1", "127.0.0.2")
    with ExitStack() as stack:

        def start(name: str, *command: str) -> "subprocess.Popen[bytes]":
            return stack.enter_context(process(list(command), folder / f"{name}.log"))

        entrypoint = f"{package}.entrypoint.StandaloneSessionClusterEntrypoint"
        master = start("master-0", *cluster, entrypoint, *settings)
        wait_until(lambda: answers(rest), "Flink's job manager")
        runner = f"{package}.taskexecutor.TaskManagerRunner"

        def start_task_manager(name: str, address: str) -> "subprocess.Popen[bytes]":
            hosts = folder / f"{name}.hosts"
            hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n{address} pool\n")
            option, *others = cluster
            return start(name, option, f"-Djdk.net.hosts.file={hosts}", *others, runner, *settings)

        managers = [start_task_manager(f"tasks-{n}", address) for n, address in enumerate(addresses)]

        def kill_task_manager() -> None:
            managers[0].kill()
            start_task_manager("tasks-2", addresses[0])

        def kill_job_manager() -> None:
            master.kill()
            master.wait()
            start("master-1", *cluster, entrypoint, *settings)

        service = start(
            "service", *java, f"{FLINK}/*", "org.apache.beam.runners.flink.FlinkJobServerDriver", *serve
        )
        pools = tuple(start(f"pool-{address}", *work, f"{address}:{pool}") for address in addresses)
        for port in (jobs, pool):
            wait_until(lambda port=port: answers(port), "Beam on Flink")
        options = (
            f"--job_endpoint=localhost:{jobs}",
            f"--artifact_endpoint=localhost:{artifacts}",
            "--environment_type=EXTERNAL",
            f"--environment_config=pool:{pool}",
            "--parallelism=2",
        )
        yield BeamCluster(service, options, "FlinkRunner", pools, kill_task_manager, kill_job_manager)


@contextmanager
def killing(kill: Callable[[], object], store: Path) -> Iterator[None]:
    """Kill a process as soon as five files are in the store; fail if the work ends before."""
    ended, killed = threading.Event(), threading.Event()

    def wait_and_kill() -> None:
        while len(list(store.rglob("*.*"))) < 5:
            if ended.wait(0.001):
                return
        kill()
        killed.set()

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert killed.is_set()
