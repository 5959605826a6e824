"""All that was ever seen of one pod. A pod is gone within seconds; what it was has to be kept."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.launch.diagnosis.clock import seconds

Object = Mapping[str, Any]

MAIN = frozenset({"pytorch", "node"})
"""The operators insist on these names for the container that trains: of a PyTorchJob, of a TrainJob."""

_LABEL, _SET = "training.kubeflow.org/", "jobset.sigs.k8s.io/"
_INDEX = "batch.kubernetes.io/job-completion-index"
_OVER = frozenset({"Succeeded", "Failed"})
_GPU = "/gpu"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """One end of a container.

    Attributes:
        container: Its name.
        exit_code: What it ended with; above 128 mostly a signal.
        reason: Kubernetes' word: Completed, Error, OOMKilled, ContainerStatusUnknown, StartError.
        message: What Kubernetes says, or the container's termination message.
        started_s: When it had started; None if it never had.
        finished_s: When it ended; None if Kubernetes does not know.
        order: The sight of the job's pods that first showed it; a list shows all of them at once.
        during_deletion: Whether the pod was already being deleted when this was first seen.
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
class Word:
    """A reason of Kubernetes with its message, and since when it holds."""

    reason: str
    message: str = ""
    since_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PodStory:
    """What was seen of one pod, from its first version to its last.

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
        grace_s: Seconds that it has to end once it is told to; None if it does not say.
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
    endings: tuple[Ending, ...] = ()
    waiting: Word | None = None
    obstacle: Word | None = None
    unscheduled: Word | None = None
    phase: str = "Pending"
    over: int | None = None
    verdict: Word | None = None
    disruption: Word | None = None
    deletion_s: float | None = None
    deletion: int | None = None
    gone: int | None = None

    @property
    def starts(self) -> tuple[float, ...]:
        """When its training container had started, each time, in seconds since 1970."""
        ended = [end.started_s for end in self.endings if end.container in MAIN and end.started_s]
        return tuple(sorted({*ended, *([self.running_s] if self.running_s else [])}))

    @property
    def finished_s(self) -> float | None:
        """When its last container ended, if none runs any more."""
        times = [end.finished_s for end in self.endings if end.finished_s]
        return max(times) if times and self.running_s is None else None


def begun(pod: Object, order: int) -> PodStory:
    """Begin the story of a pod with its first version."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    container = _main(spec.get("containers") or [{}])
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
    return PodStory(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        owner="" if in_set or not owners else owners[0],
        # An indexed Job ends its pods' names with random letters.
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
        created_s=seconds(metadata.get("creationTimestamp")),
    )


def grown(story: PodStory, pod: Object, order: int, *, gone: bool = False) -> PodStory:
    """Return the story with one more version of the pod."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    conditions = {entry["type"]: entry for entry in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    placed = seconds(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    deletion_s = seconds(metadata.get("deletionTimestamp"))
    if deletion_s is not None:
        deletion_s -= metadata.get("deletionGracePeriodSeconds") or 0
    disrupted = conditions.get("DisruptionTarget", {})
    phase = status.get("phase") or story.phase
    waiting = _waiting(status)
    return dataclasses.replace(
        story,
        node=(pod.get("spec") or {}).get("nodeName") or story.node,
        scheduled_s=story.scheduled_s or placed,
        running_s=_running(status),
        endings=_endings(story, status, order, deleting=story.deletion is not None),
        waiting=waiting,
        obstacle=_more_telling(story.obstacle, waiting),
        unscheduled=_word(scheduled) if scheduled.get("status") == "False" else None,
        phase=phase,
        over=story.over if story.over is not None or phase not in _OVER else order,
        verdict=_word(status) if status.get("reason") else story.verdict,
        disruption=_word(disrupted) if disrupted.get("status") == "True" else story.disruption,
        deletion_s=story.deletion_s if story.deletion_s is not None else deletion_s,
        deletion=order if story.deletion is None and deletion_s is not None else story.deletion,
        gone=order if gone and story.gone is None else story.gone,
    )


def _main(entries: list[Any]) -> Any:
    """Return the entry of the training container, or the first one."""
    return next((entry for entry in entries if entry.get("name") in MAIN), entries[0] if entries else {})


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None


def _is_torchrun(container: Object) -> bool:
    words = " ".join([*(container.get("command") or []), *(container.get("args") or [])])
    return "torchrun" in words or "torch.distributed.run" in words


def _word(entry: Object) -> Word:
    return Word(
        reason=entry.get("reason") or "",
        message=entry.get("message") or "",
        since_s=seconds(entry.get("lastTransitionTime")),
    )


def _statuses(status: Object) -> list[Any]:
    """Return the containers that count: those before the training container, and itself; no sidecars."""
    found = status.get("containerStatuses") or []
    return [*(status.get("initContainerStatuses") or []), *([_main(found)] if found else [])]


def _running(status: Object) -> float | None:
    """Return since when the training container runs."""
    state = _main(status.get("containerStatuses") or []).get("state") or {}
    return seconds((state.get("running") or {}).get("startedAt"))


def _waiting(status: Object) -> Word | None:
    """Return why a container waits; that of the training container tells more than that of another."""
    found = [(entry.get("state") or {}).get("waiting") for entry in _statuses(status)]
    words = [_word(entry) for entry in found if entry and entry.get("reason")]
    return max(words, key=lambda word: (bool(word.message), word.reason != "PodInitializing"), default=None)


def _more_telling(known: Word | None, new: Word | None) -> Word | None:
    """Keep the reason with a cause in it: ErrImagePull has one, ImagePullBackOff after it has none."""
    if new is None or not new.message or new.reason == "CrashLoopBackOff":
        return known
    return known if known and new.message.startswith("Back-off") else new


def _endings(story: PodStory, status: Object, order: int, *, deleting: bool) -> tuple[Ending, ...]:
    """Add the ends that this version shows and that are not known yet, also those before a restart."""
    known = list(story.endings)
    seen = {(end.container, end.exit_code, end.finished_s) for end in known}
    for entry in _statuses(status):
        for place in ("lastState", "state"):
            ended = (entry.get(place) or {}).get("terminated")
            if not ended:
                continue
            end = Ending(
                container=entry["name"],
                exit_code=ended["exitCode"],
                reason=ended.get("reason") or "",
                message=(ended.get("message") or "").strip(),
                started_s=seconds(ended.get("startedAt")),
                finished_s=seconds(ended.get("finishedAt")),
                order=order,
                during_deletion=deleting,
            )
            if (end.container, end.exit_code, end.finished_s) not in seen:
                known.append(end)
    return tuple(known)


def gone(story: PodStory, order: int) -> PodStory:
    """Return the story of a pod that is not listed any more."""
    return story if story.gone is not None else dataclasses.replace(story, gone=order)
