"""A cluster to run scenarios on: a real one, or the stand-in for one."""

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubernetes import client as k8s
from kubernetes import config

from trainwright.experiment.resources import JobPlacement, RetryBudget
from trainwright.launch.cluster.api import JOB_KINDS, Api, Selection
from trainwright.launch.cluster.launcher import ClusterLauncher
from trainwright.launch.cluster.monitor import ClusterSettings
from trainwright.launch.job import Job
from trainwright.launch.job_directory import create_attempt
from trainwright.launch.manifests import RUN_ID
from trainwright.retries import RetryPolicy

PROGRAM = Path(__file__).with_name("training.py")
TEAM = "trainwright-tests"


@dataclass(frozen=True, kw_only=True)
class Place:
    """What has to be known of a cluster; plain values, so that another process can be told.

    Attributes:
        kubeconfig: How the cluster is reached.
        namespace: Where jobs are made.
        kind: ``pytorchjob`` or ``trainjob``.
        image: Image of the pods: the torch environment, for CPUs.
        claim: Claim of the volume that pods and tests share.
        mount: Where both of them see it.
        folder: Below it, where this run of the tests keeps everything.
        talks: Whether processes exchange sums at every step: it takes torch in each of them.
        pause_s: Seconds between two steps.
        tick_s: Seconds between two looks of a launcher.
        wait_s: Longest time that something is waited for: images have to be pulled.
        memory_gib: Memory of a pod.
        service_account: Identity of the pods.
        queue: Kueue's LocalQueue that admits the jobs; empty: none.
        nodes: Pods of a job whose scenario needs two processes, wherever they run.
    """

    kubeconfig: str
    namespace: str
    kind: str
    image: str
    claim: str
    mount: str
    folder: str
    talks: bool = True
    pause_s: float = 1.0
    tick_s: float = 1.0
    wait_s: float = 600.0
    memory_gib: float = 1.0
    service_account: str = ""
    queue: str = ""
    nodes: int = 2

    @property
    def client(self) -> k8s.ApiClient:
        """A client that makes each call once."""
        settings = k8s.Configuration()
        config.load_kube_config(self.kubeconfig, client_configuration=settings)
        settings.retries = False
        return k8s.ApiClient(settings)

    @property
    def api(self) -> Api:
        """The jobs of this place."""
        return Api(self.client, self.namespace, JOB_KINDS[self.kind], RetryPolicy(outage_s=30.0, first_s=0.1))

    def launcher(self) -> ClusterLauncher:
        """Return a launcher for this place."""
        settings = ClusterSettings(
            pending_s=self.wait_s, tick_s=self.tick_s, settle_s=min(30.0, 20 * self.tick_s), renew_s=10.0
        )
        return ClusterLauncher(self.api, settings=settings)

    def job(self, name: str, how: str, *, nodes: int = 2, steps: int = 6, **changes: Any) -> Job:
        """Describe a job; asked for again under the same name, it is the same job, at its next attempt."""
        root = Path(self.folder) / name
        root.mkdir(parents=True, exist_ok=True)
        program = shutil.copy(PROGRAM, root / PROGRAM.name)
        words = "+".join([how, *(["talks"] if self.talks else [])])
        settings: dict[str, Any] = {
            "run": f"{self.run}/{name}",
            "task": f"test-{name}",
            "image": self.image,
            "program": (str(program), "{folder}", words, str(steps), f"{self.pause_s:g}"),
            "folder": create_attempt(root / "home"),
            "nodes": nodes,
            "cpu": 0.5,
            "memory_gib": self.memory_gib,
            "timeout_s": int(3 * self.wait_s),
            "grace_s": 5,
            "claim": self.claim,
            "mount": self.mount,
            "budget": RetryBudget(preemption=2, infrastructure=1),
            "placement": JobPlacement(
                service_account=self.service_account, queue=self.queue, labels={"team": TEAM}
            ),
        }
        return Job(**settings | changes)

    def step(self, name: str) -> int:
        """Return how many steps a job has taken so far, over all its attempts."""
        try:
            found: int = json.loads((Path(self.folder) / name / "home" / "state.json").read_text())["step"]
        except FileNotFoundError:
            return 0
        return found

    def clear(self) -> None:
        """Delete the jobs of this run of the tests that a scenario which failed has left, and the folder.

        What pods wrote in folders that they made is theirs; then the folder stays, and its name is told.
        """
        for body in self.api.select(Selection(kind="job", labels=f"team={TEAM}"))[0]:
            run = (body["metadata"].get("annotations") or {}).get(RUN_ID, "")
            if run.startswith(f"{self.run}/"):
                self.api.delete(body["metadata"]["name"], body["metadata"]["uid"])
        shutil.rmtree(self.folder, ignore_errors=True)
        if Path(self.folder).exists():
            sys.stderr.write(f"{self.folder} is left: remove it as the superuser\n")

    @property
    def run(self) -> str:
        """What the runs of this run's jobs begin with."""
        return f"tests/cluster/{Path(self.folder).name}"

    def pods(self, job: str) -> list[str]:
        """Return the names of a job's pods that run."""
        label = f"{JOB_KINDS[self.kind].pods}={job}"
        found = k8s.CoreV1Api(self.client).list_namespaced_pod(self.namespace, label_selector=label).items
        return sorted(pod.metadata.name for pod in found if pod.status.phase == "Running")

    def evict(self, pod: str) -> None:
        """Take a pod off its node, as an administrator who drains it does."""
        body = k8s.V1Eviction(metadata=k8s.V1ObjectMeta(name=pod, namespace=self.namespace))
        k8s.CoreV1Api(self.client).create_namespaced_pod_eviction(pod, self.namespace, body)

    def out_of_memory(self, pod: str) -> None:
        """Do nothing: on a real node, the program is killed for what it takes."""

    def write(self, path: Path) -> Path:
        """Write the place down for another process."""
        path.write_text(json.dumps(asdict(self)))
        return path
