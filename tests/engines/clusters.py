"""Clusters of Spark and Ray on this machine, whose nodes are process groups that a test can kill."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.materialize.servers import answers, wait_until
from tests.ports import free_port

PATIENT_S = 300
"""Ray's own limits are those of a machine that has nothing else to do."""

RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_raylet_start_wait_time_s": f"{PATIENT_S}",
    "RAY_worker_register_timeout_seconds": f"{PATIENT_S}",  # of 60: a worker imports Feast first
    "RAY_gcs_server_request_timeout_seconds": f"{PATIENT_S}",
    "RAY_gcs_rpc_server_connect_timeout_s": "120",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # of 60: then a driver without its cluster ends
    "RAY_agent_register_timeout_ms": f"{PATIENT_S}000",
    "RAY_memory_monitor_refresh_ms": "0",  # it would end our work for the memory of others
    "RAY_local_fs_capacity_threshold": "0.999",
}


@dataclass
class Cluster:
    """The nodes of a cluster by name; ``address`` is what Feast's settings name."""

    folder: Path
    port: int = field(default_factory=free_port)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: list[str], variables: Mapping[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.nodes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **variables}
            )

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def kill(self, *names: str) -> None:
        """Kill nodes with all their processes, as the loss of a machine does."""
        for name in names:
            node = self.nodes.pop(name)
            for process in tree(node.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            node.wait()

    def kill_during(
        self, working: Callable[[], str | None], replace: Callable[[str], None]
    ) -> Callable[[], bool]:
        """Kill a node in a thread once one is working, and replace it; return whether that was done."""
        done = threading.Event()

        def watch() -> None:
            while not (name := working()):
                time.sleep(0.02)
            self.kill(name)
            replace(name)
            done.set()

        threading.Thread(target=watch, daemon=True).start()
        return done.is_set


def tree(root: int) -> dict[int, str]:
    """Return the commands of a process and all below it, which may be in sessions of their own."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    parsed = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    found: dict[int, str] = {}
    for _ in range(8):  # levels
        found |= {int(own): rest for own, parent, rest in parsed if int(own) == root or int(parent) in found}
    return found


@dataclass
class SparkCluster(Cluster):
    """A standalone cluster; its REST server tells its version."""

    rest_port: int = field(default_factory=free_port)

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def _class(self, name: str, command: list[str], **variables: str) -> None:
        import pyspark

        home = str(Path(pyspark.__file__).parent)
        program = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        opts = f"-Dspark.master.rest.port={self.rest_port}"
        always = {"SPARK_HOME": home, "SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": opts}
        always["SPARK_LOCAL_HOSTNAME"] = "127.0.0.1"
        self.start(command.pop(0), [*program, *command, "--webui-port", "0"], always | variables)

    def start_master(self, **variables: str) -> None:
        self._class("master.Master", ["master", "--port", str(self.port)], **variables)
        wait_until(lambda: answers(self.port) and answers(self.rest_port), "Spark's master")

    def start_worker(self, name: str) -> None:
        work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)]
        self._class("worker.Worker", [name, *work, self.address])


@dataclass
class RayCluster(Cluster):
    """A head without CPUs, and nodes with one each."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _node(self, name: str, *options: str) -> None:
        before = self.log(name).count("Ray runtime started")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        self.start(name, [*command, "--object-store-memory=100000000", *options], RAY)
        wait_until(lambda: self.log(name).count("Ray runtime started") > before, f"Ray's {name}")

    def start_head(self) -> None:
        where = f"--temp-dir={self.folder}"
        self._node(
            "head", "--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=false", where
        )

    def start_node(self, name: str) -> None:
        self._node(name, f"--address={self.address}", "--num-cpus=1")

    def writing(self) -> str | None:
        """Return the node on which a task of Feast that writes is running."""
        for name, node in self.nodes.items():
            if "ray::MapBatches" in " ".join(tree(node.pid).values()):
                return name
        return None


@contextmanager
def running(cluster: Cluster) -> Iterator[None]:
    try:
        yield
    finally:
        cluster.kill(*list(cluster.nodes))
