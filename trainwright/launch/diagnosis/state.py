"""The state of a job and of its pods, accumulated over all observed versions of their objects.

A pod is gone within seconds, so its state is kept here. Times are in seconds since 1970.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainwright.launch.manifests import QUEUE, WORKLOAD_PRIORITY

Object = Mapping[str, Any]

_OPERATORS = frozenset({"kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller"})
_RUNTIME_MISSING = "TrainingRuntimeNotSupported"
"""Reason of a TrainJob's Failed condition that the controller withdraws once the runtime exists."""

_BACKOFF_LIMIT = "reached the specified backoff limit"
_DEADLINES = ("active longer than specified deadline", "exceeded its active deadline")
"""The operators' messages for a job that they ended themselves, with all its pods."""

_FINAL = ("Succeeded", "Failed")
_SYNONYMS = {"Complete": "Succeeded"}
"""A TrainJob's condition types that a PyTorchJob names otherwise."""

MAIN_CONTAINERS = frozenset({"pytorch", "node"})
"""The operators' names for the training container, of a PyTorchJob and of a TrainJob."""

_LABEL, _SET = "training.kubeflow.org/", "jobset.sigs.k8s.io/"
_INDEX = "batch.kubernetes.io/job-completion-index"

_POD_SET = re.compile(r"couldn't assign flavors to pod set [^:]+: ")
_PASSES_LATER = re.compile(r"insufficient unused quota|topology", re.IGNORECASE)
"""Reasons about one pod set that pass when other jobs end."""

_NEVER = re.compile(
    r"> maximum capacity|unavailable in ClusterQueue|untolerated taint|doesn't match node affinity"
)
"""Reasons that no other job's end changes."""

_TOO_MUCH = "ExceedsMaxQuota"
"""Reason of releases after 0.19 for a workload above its queue's maximum."""

_PREEMPTOR = re.compile(r"Preempted to accommodate a workload \(UID: [^,)]+, JobUID: ([^,)]+)\)")
_WHY = re.compile(r"due to ([^;]+)")


def parse_time(text: object) -> float | None:
    """Return a timestamp of Kubernetes in seconds since 1970; None for an empty one."""
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else None


@dataclass(frozen=True, kw_only=True)
class StatusReason:
    """A reason of Kubernetes with its message and time."""

    reason: str
    message: str = ""
    since_s: float | None = None


def _reason(entry: Object) -> StatusReason:
    return StatusReason(
        reason=entry.get("reason") or "",
        message=entry.get("message") or "",
        since_s=parse_time(entry.get("lastTransitionTime")),
    )


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The state of a job.

    Attributes:
        manager: Another controller that manages it (``managedBy``); empty if its operator does.
        needed: Number of running pods from which on it counts as running.
        reconciled: Whether the operator has written any status.
        refusal: The controller's current reason why the runtime cannot run it.
        suspensions: Start and end (None: still suspended) of each suspension.
    """

    uid: str = ""
    created_s: float | None = None
    queue: str = ""
    priority: str = ""
    operator: str = "the training operator"
    manager: str = ""
    pods: int = 1
    needed: int = 1
    reconciled: bool = False
    refusal: str = ""
    conditions: dict[str, tuple[bool, StatusReason]] = field(default_factory=dict)
    suspensions: tuple[tuple[float, float | None], ...] = ()
    deletion_s: float | None = None
    gone: bool = False

    def holds(self, kind: str) -> bool:
        """Tell whether a condition is True."""
        return kind in self.conditions and self.conditions[kind][0]

    @property
    def final(self) -> str:
        """Its final conditions: Succeeded, Failed, both, or neither (empty)."""
        return " and ".join(kind for kind in _FINAL if self.holds(kind))

    @property
    def ended(self) -> bool:
        """True if a final condition holds, or the object is gone."""
        return self.gone or bool(self.final)

    @property
    def ended_s(self) -> float | None:
        """Time of its first final condition, else of the request to delete it."""
        times = [self.conditions[kind][1].since_s for kind in _FINAL if self.holds(kind)]
        return min((time for time in times if time), default=self.deletion_s)

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
        return "; ".join(self.conditions[kind][1].message for kind in _FINAL if self.holds(kind))


def new_job_state(job: Object) -> JobState:
    """Return the state of a job from its first version."""
    metadata, spec = job["metadata"], job.get("spec") or {}
    labels = metadata.get("labels") or {}
    replicas = spec.get("pytorchReplicaSpecs") or {}
    counts = [(entry or {}).get("replicas") or 1 for entry in replicas.values()]
    pods = sum(counts) or (spec.get("trainer") or {}).get("numNodes") or 1
    manager = (spec.get("runPolicy") or {}).get("managedBy") or spec.get("managedBy") or ""
    return JobState(
        uid=metadata.get("uid") or "",
        created_s=parse_time(metadata.get("creationTimestamp")),
        queue=labels.get(QUEUE) or "",
        priority=labels.get(WORKLOAD_PRIORITY) or "",
        operator="the training operator" if replicas else "Kubeflow Trainer",
        manager="" if manager in _OPERATORS else manager,
        pods=pods,
        needed=(spec.get("elasticPolicy") or {}).get("minReplicas") or pods,
    )


def updated_job_state(state: JobState, job: Object, *, gone: bool = False) -> JobState:
    """Return the state after one more version of the job."""
    metadata, status = job["metadata"], job.get("status") or {}
    entries = status.get("conditions") or []
    conditions = {
        _SYNONYMS.get(entry["type"], entry["type"]): (entry.get("status") == "True", _reason(entry))
        for entry in entries
        if entry.get("reason") != _RUNTIME_MISSING
    }
    missing = [entry for entry in entries if entry.get("reason") == _RUNTIME_MISSING]
    final = {kind: state.conditions[kind] for kind in _FINAL if state.holds(kind)}
    return dataclasses.replace(
        state,
        queue=(metadata.get("labels") or {}).get(QUEUE) or state.queue,
        reconciled=state.reconciled or bool(entries or status.get("jobsStatus")),
        refusal=(missing[0].get("message") or _RUNTIME_MISSING) if missing else "",
        conditions=conditions | final,
        suspensions=_suspensions(state, conditions.get("Suspended")),
        deletion_s=state.deletion_s or parse_time(metadata.get("deletionTimestamp")),
        gone=state.gone or gone,
    )


def _suspensions(
    state: JobState, condition: tuple[bool, StatusReason] | None
) -> tuple[tuple[float, float | None], ...]:
    """Return the suspensions after a new version of the condition.

    A job that was resumed before it was first observed counts as suspended since its creation. That may be
    too long; the opposite error would let it exceed a limit too early.
    """
    known, since_s = state.suspensions, condition[1].since_s if condition else None
    open_since = known[-1][0] if known and known[-1][1] is None else None
    if condition is None or since_s is None:
        return known
    if condition[0]:
        return known if open_since is not None else (*known, (since_s, None))
    if open_since is not None:
        return (*known[:-1], (open_since, since_s))
    if not known and state.created_s is not None:
        return ((state.created_s, max(state.created_s, since_s)),)
    return known


@dataclass(frozen=True, kw_only=True)
class ContainerExit:
    """One exit of a container.

    Attributes:
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
class PodState:
    """The state of a pod. ``first``, ``over``, ``deletion`` and ``gone`` are numbers of observations.

    Attributes:
        owner: Identity of the job that owns it; empty where something in between does, as with a TrainJob.
        place: Its place among the job's pods, which a replacement takes, under another name or not.
        chief: Whether rank 0 runs in it.
        rank: The rank of its only process; None where it has several, or where torchrun gives the numbers.
        torchrun: Whether its program is torchrun itself, which ends with 1 whatever its processes end with.
        grace_s: Its termination grace period in seconds; None if unknown.
        running_s: When the container that runs now had started; None if none runs.
        endings: Every end of its containers, the oldest first.
        obstacle: The most telling reason why it did not start: Kubernetes alternates between several.
        unscheduled: Why no node takes it, now.
        over: When it was first observed as Succeeded or Failed.
        verdict: Kubernetes' reason for the phase, such as Evicted.
        disruption: Why it is taken off its node.
        deletion_s, deletion: When its deletion was requested, and first observed.
        gone: When it was first missed, or observed as removed.
    """

    name: str
    uid: str
    owner: str
    place: str
    chief: bool
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
    container = _main_container(spec.get("containers") or [])
    labels = metadata.get("labels") or {}
    environment = {entry["name"]: entry.get("value") or "" for entry in container.get("env") or []}
    in_set = f"{_SET}jobset-name" in labels
    number = str((labels.get(_INDEX) if in_set else environment.get("RANK")) or "")
    rank = int(number) if number.isdigit() else None
    program = " ".join([*(container.get("command") or []), *(container.get("args") or [])])
    torchrun = "torchrun" in program or "torch.distributed.run" in program
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
        rank=rank if alone else None,
        torchrun=torchrun,
        gpus=sum(int(amount or 0) for name, amount in limits.items() if name.endswith("/gpu")),
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
    scheduled, disrupted = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    placed = parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    deletion_s = parse_time(metadata.get("deletionTimestamp"))
    if deletion_s is not None:
        deletion_s -= metadata.get("deletionGracePeriodSeconds") or 0
    phase = status.get("phase") or state.phase
    running = _main_container(status.get("containerStatuses") or []).get("state") or {}
    return dataclasses.replace(
        state,
        node=(pod.get("spec") or {}).get("nodeName") or state.node,
        scheduled_s=state.scheduled_s or placed,
        running_s=parse_time((running.get("running") or {}).get("startedAt")),
        endings=_exits(state, status, order),
        obstacle=_obstacle(state.obstacle, status),
        unscheduled=_reason(scheduled) if scheduled.get("status") == "False" else None,
        phase=phase,
        over=state.over if state.over is not None or phase not in _FINAL else order,
        verdict=_reason(status) if status.get("reason") else state.verdict,
        disruption=_reason(disrupted) if disrupted.get("status") == "True" else state.disruption,
        deletion_s=state.deletion_s if state.deletion_s is not None else deletion_s,
        deletion=order if state.deletion is None and deletion_s is not None else state.deletion,
        gone=order if gone and state.gone is None else state.gone,
    )


def _main_container(entries: list[Any]) -> Any:
    """Return the entry of the training container, or the first one."""
    main = [entry for entry in entries if entry.get("name") in MAIN_CONTAINERS]
    return next(iter([*main, *entries]), {})


def _statuses(status: Object) -> list[Any]:
    """Return the statuses of the init containers and the training container, without sidecars."""
    found = status.get("containerStatuses") or []
    return [*(status.get("initContainerStatuses") or []), *([_main_container(found)] if found else [])]


def _obstacle(known: StatusReason | None, status: Object) -> StatusReason | None:
    """Return the reason that names a cause: ErrImagePull does, the later ImagePullBackOff does not."""
    waiting = [(entry.get("state") or {}).get("waiting") for entry in _statuses(status)]
    reasons = [_reason(entry) for entry in waiting if entry and entry.get("reason")]
    new = max(reasons, key=lambda word: (bool(word.message), word.reason != "PodInitializing"), default=None)
    if new is None or not new.message or new.reason == "CrashLoopBackOff":
        return known
    return known if known and new.message.startswith("Back-off") else new


def _exits(state: PodState, status: Object, order: int) -> tuple[ContainerExit, ...]:
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
                during_deletion=state.deletion is not None,
            )
            if (end.container, end.exit_code, end.finished_s) not in seen:
                known.append(end)
    return tuple(known)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The latest version of a job's Workload: whether Kueue gives it quota, why not, and which job took it.

    The messages are those of Kueue 0.15 to 0.19 (``pkg/scheduler/flavorassigner``, ``pkg/workload``).

    Attributes:
        active: Whether Kueue considers it; a deactivated one is admitted only after it is activated again.
        reason, message: Why it has no quota, or why Kueue gave it up.
        admission: ClusterQueue and resource flavors that admitted it, as a text; empty before.
    """

    uid: str
    name: str
    active: bool = True
    reason: str = ""
    message: str = ""
    since_s: float | None = None
    admission: str = ""

    @property
    def preemptor(self) -> str:
        """``JobUID`` of the job that took its quota; empty if none."""
        found = _PREEMPTOR.search(self.message)
        return found[1] if found and found[1] != "UNKNOWN" else ""


def read_workload(body: Object) -> Workload:
    """Parse a Workload.

    An eviction counts only while its status is ``True``. For a deactivated Workload the eviction has the
    reason, while ``QuotaReserved`` may keep an older one.
    """
    status = body.get("status") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or []}
    active = bool((body.get("spec") or {}).get("active", True))
    reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
    cause = reserved if reserved.get("status") == "False" else {}
    if evicted.get("status") == "True" and (not active or not cause or "Preempted" in evicted["reason"]):
        cause = evicted
    elif not active:
        cause = {"reason": "Deactivated", "message": "The workload is deactivated"}
    admitted = status.get("admission") or {}
    pod_sets = admitted.get("podSetAssignments") or []
    flavors = dict.fromkeys(name for entry in pod_sets for name in (entry.get("flavors") or {}).values())
    queue = admitted.get("clusterQueue")
    text = f"admitted by cluster queue {queue}" + (f", flavor {', '.join(flavors)}" if flavors else "")
    return Workload(
        uid=body["metadata"]["uid"],
        name=body["metadata"]["name"],
        active=active,
        reason=cause.get("reason") or "",
        message=cause.get("message") or "",
        since_s=parse_time(cause.get("lastTransitionTime")),
        admission=text if queue else "",
    )


def can_never_be_admitted(reason: str, message: str) -> bool:
    """Tell whether a queue can never admit a workload, whatever other jobs end.

    For each pod set Kueue lists every flavor that it tried. A flavor whose quota is in use may be free later,
    so some pod set has to be without such a flavor.
    """
    return reason == _TOO_MUCH or any(
        _NEVER.search(clause) and not _PASSES_LATER.search(clause) for clause in _POD_SET.split(message)[1:]
    )


def preemption_cause(message: str) -> str:
    """Return Kueue's cause of a preemption, such as ``prioritization in the ClusterQueue``."""
    found = _WHY.search(message)
    return found[1].strip() if found else ""
