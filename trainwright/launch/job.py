"""The job, its budgets, its completion marker and its result."""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError
from trainwright.launch import kubernetes_names
from trainwright.launch.placement import Placement

FOLDER_PLACEHOLDER = "{folder}"
"""Stands for the attempt's folder in a job's program."""

_NCCL = {
    "NCCL_DEBUG": "WARN",
    # A collective that fails or takes too long ends its process, instead of leaving it there for good; what
    # each one was at then is written down.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "300",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
}


@dataclass(frozen=True, kw_only=True)
class Completion(Document):
    """The marker that rank 0 writes as the very last thing.

    An exit code of 0 and a condition of Kubernetes both lie now and then (an evicted worker that exits 0
    makes a job Succeeded). A job has succeeded when this file is there and names the attempt.

    Attributes:
        attempt: The attempt it was written by.
        outputs: Digests of what the job made, by name.
    """

    FILE: ClassVar[str] = "result.json"
    attempt: str
    outputs: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class JobReference(Document):
    """A job on a cluster, noted in the folder of its attempt for the pages that link to it.

    Attributes:
        kind: ``PyTorchJob`` or ``TrainJob``.
        namespace: Its namespace.
        name: Its name.
        commands: kubectl commands that show the logs of all its pods, and the job itself.
    """

    FILE: ClassVar[str] = "kubernetes_job.json"
    kind: str
    namespace: str
    name: str
    commands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Retry budget of a job: attempts by the cause that ended the previous one.

    Attributes:
        preemption: Nodes taken away: nothing is wrong with the job.
        infrastructure: Nodes, networks and disks that broke, and hangs.
        user: The program itself. Its errors repeat.
    """

    preemption: int = 10
    infrastructure: int = 3
    user: int = 0

    def problems(self) -> list[str]:
        """Say which limits are below 0."""
        limits = dataclasses.asdict(self)
        return [f"{name} is {limit}, must be at least 0" for name, limit in limits.items() if limit < 0]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program that runs in ``nodes`` times ``processes`` processes, which find one another.

    Attributes:
        run: What the job belongs to, such as the address of the artifact it fills; part of its identity.
        task: Short name of the step; begins the job's name.
        image: Container image; the local launcher uses the sibling environment of that toolchain instead.
        program: What torchrun runs in every process: ``-m MODULE`` or a file, and arguments.
            ``{folder}`` stands for the attempt's folder.
        folder: Fresh folder of this attempt, seen by every process under the same path. Its name is the
            attempt.
        specification: Digest of the program's configuration, part of the job's identity.
        nodes: Machines or pods.
        processes: Processes a node.
        cpu: Cores a node.
        memory_gib: Memory a node, in GiB.
        gpus: GPUs a node.
        timeout_s: Longest duration in seconds, from the start to the marker.
        restarts: Times that the processes are started again, within the attempt, after one was lost or none
            got on any more.
        grace_s: Seconds in which a process finishes its step and saves after SIGTERM.
        stall_s: Seconds without a step after which the job counts as hung; absent: never.
        env: Environment variables of every process.
        claim: Name of the PersistentVolumeClaim on which ``folder`` lies; empty for a local job.
        mount: Where the claim is mounted.
        placement: Where and how its pods run on a cluster.
        budget: How often the launcher makes another attempt, by what ended the one before.
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
    placement: Placement = field(default_factory=Placement)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        """Refuse what no launcher can run.

        Raises:
            InputError: Any value is out of range; all are named.
        """
        wrong = [*self._amounts(), *self._names()]
        wrong += [f"budget.{problem}" for problem in self.budget.problems()]
        wrong += [f"placement.{problem}" for problem in self.placement.problems()]
        if wrong:
            raise InputError("; ".join(wrong), where=f"job of {self.task}")

    def _amounts(self) -> list[str]:
        counts = {name: getattr(self, name) for name in ("nodes", "processes", "timeout_s", "grace_s")}
        wrong = [f"{name} is {value}, must be at least 1" for name, value in counts.items() if value < 1]
        if self.restarts < 0:
            wrong.append(f"restarts is {self.restarts}, must be at least 0")
        amounts = {name: getattr(self, name) for name in ("cpu", "memory_gib")}
        if self.stall_s is not None:
            amounts["stall_s"] = self.stall_s
        wrong += [f"{name} is {value}, must be above 0" for name, value in amounts.items() if not value > 0]
        if self.gpus < 0:
            wrong.append(f"gpus is {self.gpus}, must be at least 0")
        least, shared = self.placement.min_nodes, self.placement.shared_memory_gib
        if least is not None and least > self.nodes:
            wrong.append(f"placement.min_nodes {least} is above nodes {self.nodes}")
        if shared is not None and shared >= self.memory_gib:
            wrong.append(
                f"placement.shared_memory_gib {shared:g} leaves nothing of memory_gib {self.memory_gib:g}"
            )
        return wrong

    def _names(self) -> list[str]:
        wrong = []
        if not self.program:
            wrong.append("program is empty")
        if not self.folder.is_absolute():
            wrong.append(f"folder {self.folder} is not absolute")
        for name in sorted(self.env):
            if not kubernetes_names.is_variable(name):
                wrong.append(f"env {name!r} is not the name of a variable")
            elif kubernetes_names.RESERVED_BY_OPERATOR.fullmatch(name):
                wrong.append(f"env {name} is set by the operator or by torchrun")
        given = {variable.name for variable in self.placement.env_from_secrets}
        wrong += [
            f"env {name} is also in placement.env_from_secrets" for name in sorted(given & self.env.keys())
        ]
        return wrong

    @property
    def attempt(self) -> str:
        """The name of this attempt: that of its folder."""
        return self.folder.name

    @property
    def digest(self) -> str:
        """Identity of the job: everything that changes what runs. Two launches of one job have the same.

        Not among it: the attempt, how often there is another (``budget``), and where and when it runs
        (all of ``placement`` but its :attr:`~trainwright.launch.placement.Placement.decisive` part).
        """
        body = dataclasses.asdict(self) | {"placement": self.placement.decisive}
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
        (pytorch#135712).
        """
        threads = max(1, int(self.cpu) // self.processes)
        defaults = {"OMP_NUM_THREADS": str(threads), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return defaults | (_NCCL if self.gpus else {}) | self.env

    @property
    def watched(self) -> tuple[str, ...]:
        """Settings of the agent that supervises the processes."""
        told = (f"--grace-s={self.grace_s}",)
        return told if self.stall_s is None else (*told, f"--stall-s={self.stall_s:g}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The program with the attempt's folder put in."""
        return tuple(part.replace(FOLDER_PLACEHOLDER, str(self.folder)) for part in self.program)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A job that has succeeded.

    Attributes:
        folder: The attempt's folder that holds the outputs; not the job's own where the launcher found
            the same job already running.
        completion: The marker that was found there.
        launcher: Name of the launcher.
    """

    folder: Path
    completion: Completion
    launcher: str


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


def completed(folder: Path, attempt: str) -> Completion | None:
    """Return the completion marker of an attempt, or nothing if it has not completed."""
    if not (folder / Completion.FILE).exists():
        return None
    completion = Completion.read(folder)
    return completion if completion.attempt == attempt else None
