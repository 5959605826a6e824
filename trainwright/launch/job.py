"""The job, its placement on a cluster, and its result."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError
from trainwright.experiment.resources import JobPlacement, JobToleration, RetryBudget
from trainwright.launch import kubernetes_names
from trainwright.launch.job_directory import Completion

FOLDER_PLACEHOLDER = "{folder}"
"""Stands for the attempt's folder in a job's program."""

_NCCL = {
    "NCCL_DEBUG": "WARN",
    # A collective that fails or takes too long ends its process, and each rank's state is written down.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "300",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
}

RESERVED_LABELS = (
    "app.kubernetes.io/",
    "kubernetes.io/",
    "trainwright/",
    "training.kubeflow.org/",
    "kueue.x-k8s.io/",
)
"""Prefixes of labels that mean something to this library, the operator or the queue."""

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class JobReference(Document):
    """A job on a cluster, written into its attempt's folder, with kubectl commands that show it."""

    FILE: ClassVar[str] = "kubernetes_job.json"
    kind: str
    namespace: str
    name: str
    commands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program that runs in ``nodes`` times ``processes`` processes, which find one another.

    Attributes:
        run: What the job belongs to, such as the address of the artifact it fills; part of its identity.
        task: Short name of the step; begins the job's name.
        image: Container image; the local launcher uses the sibling environment of that toolchain instead.
        program: What torchrun runs in every process: ``-m MODULE`` or a file, and arguments.
            ``{folder}`` stands for the attempt's folder.
        folder: Fresh folder of this attempt, at the same path for every process. Its name is the attempt.
        specification: Digest of the program's configuration, part of the job's identity.
        nodes: Machines or pods.
        processes: Processes per node.
        cpu: Cores per node.
        memory_gib: Memory per node, in GiB.
        gpus: GPUs per node.
        timeout_s: Longest duration in seconds, from the start to the marker.
        restarts: Restarts of the processes within the attempt, after one was lost or the job hung.
        grace_s: Seconds in which a process finishes its step and saves after SIGTERM.
        stall_s: Seconds without a step after which the job counts as hung; None: never.
        env: Environment variables of every process.
        claim: Name of the PersistentVolumeClaim on which ``folder`` lies; empty for a local job.
        mount: Mount path of the claim.
        placement: Scheduling of its pods on a cluster.
        budget: Retry budget of the launcher.

    Raises:
        InputError: A variable or the placement cannot be; all are named. The section ``resources`` has
            checked sizes and limits before, and the step its variables.
    """

    run: str
    task: str
    image: str
    program: tuple[str, ...]
    folder: Path
    specification: str = ""
    nodes: int = 1
    processes: int = 1
    cpu: float = 1
    memory_gib: float = 1
    gpus: int = 0
    timeout_s: int = 3600
    restarts: int = 0
    grace_s: int = 30
    stall_s: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    claim: str = ""
    mount: str = ""
    placement: JobPlacement = field(default_factory=JobPlacement)
    budget: RetryBudget = field(default_factory=RetryBudget)

    def __post_init__(self) -> None:
        if wrong := self._problems():
            raise InputError("; ".join(wrong), where=f"job of {self.task}")

    def _problems(self) -> list[str]:
        wrong = []
        from_secrets = {variable.name for variable in self.placement.env_from_secrets}
        for name in sorted(self.env):
            if not kubernetes_names.is_variable(name):
                wrong.append(f"env {name!r} is not the name of a variable")
            elif name in from_secrets:
                wrong.append(f"env {name} is also in placement.env_from_secrets")
        return wrong + [f"placement.{problem}" for problem in _placement_problems(self.placement)]

    @property
    def attempt(self) -> str:
        """The name of this attempt: that of its folder."""
        return self.folder.name

    @property
    def digest(self) -> str:
        """Identity of the job: everything that changes what runs; two launches of one job have the same.

        The attempt, the budget, and where and when the job runs are no part of it.
        """
        body = dataclasses.asdict(self) | {"placement": placement_identity(self.placement)}
        del body["folder"], body["budget"]
        return digest_text(canonical(body))

    @property
    def name(self) -> str:
        """A DNS-1035 name of at most 45 characters, the same at every launch of the same job.

        The operator appends ``-worker-<i>`` for the pods, and a label takes 63 characters.
        """
        slug = re.sub(r"[^a-z0-9]+", "-", self.task.lower()).strip("-")[:30].strip("-") or "job"
        return f"tw-{slug}-{digest_text(canonical([self.run, self.task, self.digest]))[:10]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables added to every process.

        The number of threads follows from the job alone, so that the same job gives the same sums
        everywhere. With a shared store, a restarted rank connects to the port of the dead one
        (pytorch#135712). Threads that wait sleep: on a machine that is busy otherwise, GNU OpenMP's spinning
        threads hold the core that the thread they wait for needs, which made steps 50 times slower.
        """
        threads = max(1, int(self.cpu) // self.processes)
        defaults = {
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        return defaults | (_NCCL if self.gpus else {}) | self.env

    @property
    def agent_options(self) -> tuple[str, ...]:
        """Options of the agent that supervises the processes."""
        stall = () if self.stall_s is None else (f"--stall-s={self.stall_s:g}",)
        return (f"--grace-s={self.grace_s}", *stall)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The program with the attempt's folder put in."""
        return tuple(part.replace(FOLDER_PLACEHOLDER, str(self.folder)) for part in self.program)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A job that has succeeded.

    ``folder`` holds the outputs; it is not the job's own where the launcher adopted the same job. ``seconds``
    are those of all its attempts, time in a queue excluded; 0 if an earlier launcher saw its end.
    """

    folder: Path
    completion: Completion
    launcher: str
    seconds: float = 0.0


class Launcher(Protocol):
    """Runs a job to its end, and leaves nothing running behind."""

    name: str

    def run(self, job: Job) -> Result:
        """Run a job, or follow it where it already runs, until it has ended.

        Raises:
            Hang: It did not end within its ``timeout_s``.
            PreemptedUnsaved: This process received SIGTERM; the job was stopped too.
            TrainwrightError: What the first failing process reported, or what was found in its place.
        """
        ...


def placement_identity(placement: JobPlacement) -> dict[str, object]:
    """Return the part that changes what runs, and so makes another job of it.

    The rest says where and when: queue, priorities, scheduler, topology, tolerations, node selection, spot,
    labels, pull secrets. Moving a job to another queue must not start it over.
    """
    fields = {
        "accelerator",
        "service_account",
        "shared_memory_gib",
        "disk_gib",
        "volumes",
        "env_from_secrets",
    }
    body: dict[str, object] = placement.model_dump(include=fields | {"min_nodes", "devices", "ipc_lock"})
    return body | {"runtime": [placement.runtime_kind, placement.runtime]}


def node_labels(placement: JobPlacement) -> dict[str, str]:
    """Return all labels that a node must have."""
    labels = {placement.accelerator_label: placement.accelerator} if placement.accelerator else {}
    if placement.spot:
        key, _, value = placement.spot_label.partition("=")
        labels[key] = value
    return labels | placement.node_selector


def tolerations(placement: JobPlacement) -> tuple[JobToleration, ...]:
    """Return all tolerations of node taints; spot nodes have a taint like their label."""
    if not placement.spot:
        return placement.tolerations
    key, _, value = placement.spot_label.partition("=")
    return (*placement.tolerations, JobToleration(key=key, value=value, effect="NoSchedule"))


def _placement_problems(placement: JobPlacement) -> Iterator[str]:
    """Say what the API rejects, or accepts and ignores, and the section does not check by itself."""
    yield from (
        f"labels.{key} belongs to the system" for key in placement.labels if key.startswith(RESERVED_LABELS)
    )
    yield from _entry_problems(placement)
    names = [("volumes", volume.path) for volume in placement.volumes]
    names += [("env_from_secrets", variable.name) for variable in placement.env_from_secrets]
    for where, name in sorted({entry for entry in names if names.count(entry) > 1}):
        yield f"{where} has {name!r} twice"
    for name, count in placement.devices.items():
        if "/" not in name:
            yield f"devices {name!r} is not the name of an extended resource, such as rdma/ib"
        elif name == GPU:
            yield f"devices.{name} belongs into gpus"
        if count < 1:
            yield f"devices.{name} is {count}, must be at least 1"
    topology = [level for level in (placement.required_topology, placement.preferred_topology) if level]
    if len(topology) > 1:
        yield "required_topology and preferred_topology exclude one another"
    if not placement.queue and (topology or placement.workload_priority or placement.max_exec_time_s):
        yield "workload_priority, max_exec_time_s and the topologies mean nothing without a queue"


def _entry_problems(placement: JobPlacement) -> Iterator[str]:
    for index, entry in enumerate(placement.tolerations):
        where = f"tolerations.{index}"
        if not entry.key and entry.operator != "Exists":
            yield f"{where}: without a key, operator has to be Exists"
        if entry.operator == "Exists" and entry.value:
            yield f"{where}: operator Exists takes no value, and value is {entry.value!r}"
        if entry.seconds is not None and entry.effect != "NoExecute":
            yield f"{where}: seconds {entry.seconds} needs effect NoExecute"
    for index, volume in enumerate(placement.volumes):
        if volume.sub_path.startswith("/") or ".." in volume.sub_path.split("/"):
            yield f"volumes.{index}: sub_path {volume.sub_path!r} leads out of the volume"
    for index, variable in enumerate(placement.env_from_secrets):
        if kubernetes_names.RESERVED.fullmatch(variable.name):
            where = f"env_from_secrets.{index}"
            yield f"{where}: {variable.name} is set by the operator, torchrun or the launcher"
