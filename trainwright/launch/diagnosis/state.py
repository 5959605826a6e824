"""The state of a job and of its pods, accumulated over all observed versions of their objects.

A pod is gone within seconds, so its state is kept here.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


def parse_time(text: object) -> float | None:
    """Return a timestamp of Kubernetes in seconds since 1970; None for an empty one."""
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else None


Object = Mapping[str, Any]

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label that names a Kueue queue."""

WORKLOAD_PRIORITY = "kueue.x-k8s.io/priority-class"
"""Label that names a Kueue WorkloadPriorityClass."""

_OPERATORS = frozenset({"kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller"})
_RUNTIME_MISSING = "TrainingRuntimeNotSupported"
"""Reason of a TrainJob's Failed condition that the controller withdraws once the runtime exists."""

_BACKOFF_LIMIT = "reached the specified backoff limit"
_DEADLINES = ("active longer than specified deadline", "exceeded its active deadline")
"""The operators' messages for a job that they ended themselves, with all its pods."""


_SYNONYMS = {"Complete": "Succeeded"}
"""A TrainJob's condition types that a PyTorchJob names otherwise."""


@dataclass(frozen=True, kw_only=True)
class JobCondition:
    """One condition of a job."""

    holds: bool
    reason: str
    message: str
    since_s: float | None


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The state of a job. Times are in seconds since 1970.

    Attributes:
        uid: Its identity.
        created_s: Creation time.
        queue: Its Kueue queue; empty if none.
        priority: Its Kueue WorkloadPriorityClass; empty if none.
        operator: The name of its operator.
        manager: Another controller that manages it (``managedBy``); empty if its operator does.
        pods: Number of requested pods.
        needed: Number of running pods from which on it counts as running.
        taken_up: Whether the operator has written any status.
        refusal: The controller's current reason why the runtime cannot run it.
        conditions: Its conditions, by type.
        suspensions: Start and end (None: still suspended) of each suspension.
        deletion_s: When its deletion was requested.
        gone: Whether it was removed or not found.
    """

    uid: str
    created_s: float | None
    queue: str = ""
    priority: str = ""
    operator: str = "the training operator"
    manager: str = ""
    pods: int = 1
    needed: int = 1
    taken_up: bool = False
    refusal: str = ""
    conditions: dict[str, JobCondition] = field(default_factory=dict)
    suspensions: tuple[tuple[float, float | None], ...] = ()
    deletion_s: float | None = None
    gone: bool = False

    def holds(self, kind: str) -> bool:
        """Tell whether a condition is True."""
        return kind in self.conditions and self.conditions[kind].holds

    @property
    def said(self) -> str:
        """Its final conditions: Succeeded, Failed, both, or neither (empty)."""
        return " and ".join(kind for kind in ("Succeeded", "Failed") if self.holds(kind))

    @property
    def ended(self) -> bool:
        """True if a final condition holds, or the object is gone."""
        return self.gone or bool(self.said)

    @property
    def ended_s(self) -> float | None:
        """Time of its first final condition, else of the request to delete it."""
        kinds = [self.conditions[kind].since_s for kind in ("Succeeded", "Failed") if self.holds(kind)]
        return min((time for time in kinds if time), default=self.deletion_s)

    @property
    def late(self) -> bool:
        """True if the operator ended it at its deadline."""
        return any(text in self.message for text in _DEADLINES)

    @property
    def used_up(self) -> bool:
        """True if the operator ended it at its backoff limit."""
        return _BACKOFF_LIMIT in self.message

    @property
    def message(self) -> str:
        """The messages of its final conditions."""
        return "; ".join(
            self.conditions[kind].message for kind in ("Succeeded", "Failed") if self.holds(kind)
        )


def new_job_state(job: Object) -> JobState:
    """Return the state of a job from its first version."""
    metadata, spec = job["metadata"], job.get("spec") or {}
    policy = spec.get("runPolicy") or {}
    replicas = spec.get("pytorchReplicaSpecs") or {}
    counts = [(entry or {}).get("replicas") or 1 for entry in replicas.values()]
    manager = policy.get("managedBy") or spec.get("managedBy") or ""
    nodes = (spec.get("trainer") or {}).get("numNodes") or 1
    return JobState(
        uid=metadata.get("uid") or "",
        created_s=parse_time(metadata.get("creationTimestamp")),
        queue=(metadata.get("labels") or {}).get(QUEUE) or "",
        priority=(metadata.get("labels") or {}).get(WORKLOAD_PRIORITY) or "",
        operator="the training operator" if replicas else "Kubeflow Trainer",
        manager="" if manager in _OPERATORS else manager,
        pods=sum(counts) or nodes,
        needed=(spec.get("elasticPolicy") or {}).get("minReplicas") or sum(counts) or nodes,
    )


def updated_job_state(state: JobState, job: Object, *, gone: bool = False) -> JobState:
    """Return the state after one more version of the job."""
    metadata, status = job["metadata"], job.get("status") or {}
    entries = status.get("conditions") or []
    conditions = {
        _SYNONYMS.get(entry["type"], entry["type"]): JobCondition(
            holds=entry.get("status") == "True",
            reason=entry.get("reason") or "",
            message=entry.get("message") or "",
            since_s=parse_time(entry.get("lastTransitionTime")),
        )
        for entry in entries
        if entry.get("reason") != _RUNTIME_MISSING
    }
    refusals = [
        entry.get("message") or _RUNTIME_MISSING
        for entry in entries
        if entry.get("reason") == _RUNTIME_MISSING
    ]
    kept = {kind: state.conditions[kind] for kind in ("Succeeded", "Failed") if state.holds(kind)}
    return dataclasses.replace(
        state,
        queue=(metadata.get("labels") or {}).get(QUEUE) or state.queue,
        taken_up=state.taken_up or bool(entries or status.get("jobsStatus")),
        refusal=next(iter(refusals), ""),
        conditions=conditions | kept,
        suspensions=_suspensions(state, conditions.get("Suspended")),
        deletion_s=state.deletion_s or parse_time(metadata.get("deletionTimestamp")),
        gone=state.gone or gone,
    )


def _suspensions(state: JobState, condition: JobCondition | None) -> tuple[tuple[float, float | None], ...]:
    """Return the suspensions after a new version of the condition.

    A job that was resumed before it was first observed counts as suspended since its creation. That may be
    too long; the opposite error would let it exceed a limit too early.
    """
    known = state.suspensions
    open_since = known[-1][0] if known and known[-1][1] is None else None
    if condition is None or condition.since_s is None:
        return known
    if condition.holds and open_since is None:
        return (*known, (condition.since_s, None))
    if not condition.holds and open_since is not None:
        return (*known[:-1], (open_since, condition.since_s))
    if not condition.holds and not known and state.created_s is not None:
        return ((state.created_s, max(state.created_s, condition.since_s)),)
    return known


def removed_job_state(state: JobState | None) -> JobState:
    """Return the state of a job that was not found."""
    return dataclasses.replace(state or JobState(uid="", created_s=None), gone=True)


MAIN_CONTAINERS = frozenset({"pytorch", "node"})
"""The operators' names for the training container, of a PyTorchJob and of a TrainJob."""

_LABEL, _SET = "training.kubeflow.org/", "jobset.sigs.k8s.io/"
_INDEX = "batch.kubernetes.io/job-completion-index"
_ENDED_PHASES = frozenset({"Succeeded", "Failed"})
_GPU = "/gpu"


@dataclass(frozen=True, kw_only=True)
class ContainerExit:
    """One exit of a container.

    Attributes:
        container: Its name.
        exit_code: Its exit code; above 128 mostly a signal.
        reason: Kubernetes' reason: Completed, Error, OOMKilled, ContainerStatusUnknown, StartError.
        message: Kubernetes' message, or the container's termination message.
        started_s: When it started; None if it never did.
        finished_s: When it ended; None if Kubernetes does not know.
        order: Number of the observation that first showed it; a list is one observation.
        during_deletion: Whether the pod was already being deleted then.
    """

    container: str
    exit_code: int
    reason: str
    message: str
    started_s: float | None
    finished_s: float | None
    order: int
    during_deletion: bool


@dataclass(frozen=True, kw_only=True)
class StatusReason:
    """A reason of Kubernetes with its message and time."""

    reason: str
    message: str = ""
    since_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PodState:
    """The state of a pod. Times are in seconds since 1970, orders number the observations.

    Attributes:
        name: Its name; a pod that replaces it has the same.
        uid: Its identity.
        owner: Identity of the job that owns it; empty where something in between does, as with a TrainJob.
        place: Its place among the job's pods: a pod that replaces it has the same, under another name or not.
        chief: Whether rank 0 runs in it.
        role: ``master`` or ``worker``; that of a TrainJob's pods is ``node``.
        node_rank: Its number among the job's pods, as far as its environment tells.
        rank: The rank of its only process; None where it has several, or where torchrun gives the numbers.
        torchrun: Whether its program is torchrun itself, which ends with 1 whatever its processes end with.
        gpus: GPUs it holds while it is scheduled.
        memory_volumes: Names of its volumes that lie in memory.
        grace_s: Its termination grace period in seconds; None if unknown.
        node: The node it was put on; empty before.
        created_s: When it was created.
        scheduled_s: When it was put on a node.
        running_s: When the container that runs now had started; None if none runs.
        endings: Every end of its containers, the oldest first.
        waiting: Why its container does not start, now; None if it does.
        obstacle: The most telling reason why it did not start, ever: Kubernetes alternates between several.
        unscheduled: Why no node takes it, now.
        phase: Kubernetes' phase.
        over: The sight that first showed it Succeeded or Failed.
        verdict: Kubernetes' reason for the phase, such as Evicted.
        disruption: Why it is taken off its node.
        deletion_s: When its deletion was asked for.
        deletion: The sight that first showed that.
        gone: The sight that first missed it, or showed it being removed.
        first: The sight that first showed it.
    """

    name: str
    uid: str
    owner: str
    place: str
    chief: bool
    role: str
    node_rank: int | None
    rank: int | None
    torchrun: bool
    gpus: int
    memory_volumes: tuple[str, ...]
    grace_s: int | None
    first: int
    created_s: float | None
    node: str = ""
    scheduled_s: float | None = None
    running_s: float | None = None
    endings: tuple[ContainerExit, ...] = ()
    waiting: StatusReason | None = None
    obstacle: StatusReason | None = None
    unscheduled: StatusReason | None = None
    phase: str = "Pending"
    over: int | None = None
    verdict: StatusReason | None = None
    disruption: StatusReason | None = None
    deletion_s: float | None = None
    deletion: int | None = None
    gone: int | None = None

    @property
    def starts(self) -> tuple[float, ...]:
        """All start times of its training container, in seconds since 1970."""
        ended = [end.started_s for end in self.endings if end.container in MAIN_CONTAINERS and end.started_s]
        return tuple(sorted({*ended, *([self.running_s] if self.running_s else [])}))

    @property
    def finished_s(self) -> float | None:
        """End time of its last container, if none runs."""
        times = [end.finished_s for end in self.endings if end.finished_s]
        return max(times) if times and self.running_s is None else None


def new_pod_state(pod: Object, order: int) -> PodState:
    """Return the state of a pod from its first version."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    container = _main_container(spec.get("containers") or [{}])
    labels = metadata.get("labels") or {}
    environment = {entry["name"]: entry.get("value") or "" for entry in container.get("env") or []}
    in_set = f"{_SET}jobset-name" in labels
    rank, torchrun = (
        _number(labels.get(_INDEX) if in_set else environment.get("RANK")),
        _is_torchrun(container),
    )
    alone = (
        environment.get("WORLD_SIZE") == environment.get("PET_NNODES")
        and environment.get("PET_NPROC_PER_NODE") in {"1", "auto"}
        and not torchrun
    )
    limits = (container.get("resources") or {}).get("limits") or {}
    owners = [entry.get("uid") or "" for entry in metadata.get("ownerReferences") or []]
    role = labels.get(f"{_SET}replicatedjob-name" if in_set else f"{_LABEL}replica-type") or ""
    return PodState(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        owner="" if in_set or not owners else owners[0],
        # The pod names of an indexed Job end with random letters.
        place=metadata["name"].rpartition("-")[0] if in_set else metadata["name"],
        chief=(role == "node" and rank == 0) if in_set else labels.get(f"{_LABEL}job-role") == "master",
        role=role,
        node_rank=rank,
        rank=rank if alone else None,
        torchrun=torchrun,
        gpus=sum(int(amount or 0) for name, amount in limits.items() if name.endswith(_GPU)),
        memory_volumes=tuple(
            volume["name"]
            for volume in spec.get("volumes") or []
            if (volume.get("emptyDir") or {}).get("medium") == "Memory"
        ),
        grace_s=spec.get("terminationGracePeriodSeconds"),
        first=order,
        created_s=parse_time(metadata.get("creationTimestamp")),
    )


def updated_pod_state(state: PodState, pod: Object, order: int, *, gone: bool = False) -> PodState:
    """Return the state after one more version of the pod."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    conditions = {entry["type"]: entry for entry in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    placed = parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    deletion_s = parse_time(metadata.get("deletionTimestamp"))
    if deletion_s is not None:
        deletion_s -= metadata.get("deletionGracePeriodSeconds") or 0
    disrupted = conditions.get("DisruptionTarget", {})
    phase = status.get("phase") or state.phase
    waiting = _waiting(status)
    return dataclasses.replace(
        state,
        node=(pod.get("spec") or {}).get("nodeName") or state.node,
        scheduled_s=state.scheduled_s or placed,
        running_s=_running(status),
        endings=_exits(state, status, order, deleting=state.deletion is not None),
        waiting=waiting,
        obstacle=_more_specific(state.obstacle, waiting),
        unscheduled=_reason(scheduled) if scheduled.get("status") == "False" else None,
        phase=phase,
        over=state.over if state.over is not None or phase not in _ENDED_PHASES else order,
        verdict=_reason(status) if status.get("reason") else state.verdict,
        disruption=_reason(disrupted) if disrupted.get("status") == "True" else state.disruption,
        deletion_s=state.deletion_s if state.deletion_s is not None else deletion_s,
        deletion=order if state.deletion is None and deletion_s is not None else state.deletion,
        gone=order if gone and state.gone is None else state.gone,
    )


def _main_container(entries: list[Any]) -> Any:
    """Return the entry of the training container, or the first one."""
    return next(
        (entry for entry in entries if entry.get("name") in MAIN_CONTAINERS), entries[0] if entries else {}
    )


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None


def _is_torchrun(container: Object) -> bool:
    words = " ".join([*(container.get("command") or []), *(container.get("args") or [])])
    return "torchrun" in words or "torch.distributed.run" in words


def _reason(entry: Object) -> StatusReason:
    return StatusReason(
        reason=entry.get("reason") or "",
        message=entry.get("message") or "",
        since_s=parse_time(entry.get("lastTransitionTime")),
    )


def _statuses(status: Object) -> list[Any]:
    """Return the statuses of the init containers and the training container, without sidecars."""
    found = status.get("containerStatuses") or []
    return [*(status.get("initContainerStatuses") or []), *([_main_container(found)] if found else [])]


def _running(status: Object) -> float | None:
    """Return when the running training container started."""
    state = _main_container(status.get("containerStatuses") or []).get("state") or {}
    return parse_time((state.get("running") or {}).get("startedAt"))


def _waiting(status: Object) -> StatusReason | None:
    """Return why a container waits, the most informative reason first."""
    found = [(entry.get("state") or {}).get("waiting") for entry in _statuses(status)]
    words = [_reason(entry) for entry in found if entry and entry.get("reason")]
    return max(words, key=lambda word: (bool(word.message), word.reason != "PodInitializing"), default=None)


def _more_specific(known: StatusReason | None, new: StatusReason | None) -> StatusReason | None:
    """Return the reason that names a cause: ErrImagePull does, the later ImagePullBackOff does not."""
    if new is None or not new.message or new.reason == "CrashLoopBackOff":
        return known
    return known if known and new.message.startswith("Back-off") else new


def _exits(state: PodState, status: Object, order: int, *, deleting: bool) -> tuple[ContainerExit, ...]:
    """Return the known exits and those that this version adds, including those before a restart."""
    known = list(state.endings)
    seen = {(end.container, end.exit_code, end.finished_s) for end in known}
    for entry in _statuses(status):
        for place in ("lastState", "state"):
            ended = (entry.get(place) or {}).get("terminated")
            if not ended:
                continue
            end = ContainerExit(
                container=entry["name"],
                exit_code=ended["exitCode"],
                reason=ended.get("reason") or "",
                message=(ended.get("message") or "").strip(),
                started_s=parse_time(ended.get("startedAt")),
                finished_s=parse_time(ended.get("finishedAt")),
                order=order,
                during_deletion=deleting,
            )
            if (end.container, end.exit_code, end.finished_s) not in seen:
                known.append(end)
    return tuple(known)


def removed_pod_state(state: PodState, order: int) -> PodState:
    """Return the state of a pod that is no longer listed."""
    return state if state.gone is not None else dataclasses.replace(state, gone=order)
