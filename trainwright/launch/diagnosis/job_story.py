"""All that was ever seen of one job object."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.launch.diagnosis.clock import seconds

Object = Mapping[str, Any]

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label that names a Kueue queue."""

PRIORITY = "kueue.x-k8s.io/priority-class"
"""Label that names a Kueue WorkloadPriorityClass."""

_OURS = frozenset({"kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller"})
_PASSING = "TrainingRuntimeNotSupported"
"""Reason of a TrainJob's Failed that the controller takes back as soon as the runtime is there."""

_BACKOFF = "reached the specified backoff limit"
_DEADLINES = ("active longer than specified deadline", "exceeded its active deadline")
"""How the operators say that they ended a job themselves, with all its pods."""


_SAME = {"Complete": "Succeeded"}
"""What a TrainJob calls otherwise than a PyTorchJob."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition of a job: whether it holds, why, and since when."""

    holds: bool
    reason: str
    message: str
    since_s: float | None


@dataclass(frozen=True, kw_only=True)
class JobStory:
    """What was seen of one job, from its first version to its last.

    Attributes:
        uid: Its identity.
        created_s: When it was created.
        queue: Its Kueue queue; empty if it has none.
        priority: Its Kueue WorkloadPriorityClass; empty if it names none.
        operator: The controller that runs it, in words.
        manager: Another controller that it was handed to; empty if its operator has it.
        pods: How many pods it asks for.
        needed: How many of these have to run for it to count as running.
        taken_up: Whether the operator has written any status.
        refusal: Why its runtime cannot run it, as far as its controller says so now.
        conditions: Its conditions, by type. Their order in the list means nothing.
        suspensions: When it was suspended, and when it was resumed, or None.
        deletion_s: When its deletion was asked for, as far as it says so.
        gone: Whether it was seen to be removed, or not found.
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
    conditions: dict[str, Condition] = field(default_factory=dict)
    suspensions: tuple[tuple[float, float | None], ...] = ()
    deletion_s: float | None = None
    gone: bool = False

    def holds(self, kind: str) -> bool:
        """Tell whether a condition holds."""
        return kind in self.conditions and self.conditions[kind].holds

    @property
    def said(self) -> str:
        """How it ended in the operator's words: Succeeded, Failed, both, or neither (empty)."""
        return " and ".join(kind for kind in ("Succeeded", "Failed") if self.holds(kind))

    @property
    def ended(self) -> bool:
        """Whether it will not go on: a last condition holds, or the object is gone."""
        return self.gone or bool(self.said)

    @property
    def ended_s(self) -> float | None:
        """When the first of its last conditions came to hold; else when its deletion was asked for."""
        kinds = [self.conditions[kind].since_s for kind in ("Succeeded", "Failed") if self.holds(kind)]
        return min((time for time in kinds if time), default=self.deletion_s)

    @property
    def late(self) -> bool:
        """Whether the operator ended it at its deadline."""
        return any(text in self.message for text in _DEADLINES)

    @property
    def used_up(self) -> bool:
        """Whether the operator ended it at its backoff limit."""
        return _BACKOFF in self.message

    @property
    def message(self) -> str:
        """What the operator says about its end."""
        return "; ".join(
            self.conditions[kind].message for kind in ("Succeeded", "Failed") if self.holds(kind)
        )


def begun(job: Object) -> JobStory:
    """Begin the story of a job with its first version."""
    metadata, spec = job["metadata"], job.get("spec") or {}
    policy = spec.get("runPolicy") or {}
    replicas = spec.get("pytorchReplicaSpecs") or {}
    counts = [(entry or {}).get("replicas") or 1 for entry in replicas.values()]
    manager = policy.get("managedBy") or spec.get("managedBy") or ""
    nodes = (spec.get("trainer") or {}).get("numNodes") or 1
    return JobStory(
        uid=metadata.get("uid") or "",
        created_s=seconds(metadata.get("creationTimestamp")),
        queue=(metadata.get("labels") or {}).get(QUEUE) or "",
        priority=(metadata.get("labels") or {}).get(PRIORITY) or "",
        operator="the training operator" if replicas else "Kubeflow Trainer",
        manager="" if manager in _OURS else manager,
        pods=sum(counts) or nodes,
        needed=(spec.get("elasticPolicy") or {}).get("minReplicas") or sum(counts) or nodes,
    )


def grown(story: JobStory, job: Object, *, gone: bool = False) -> JobStory:
    """Return the story with one more version of the job."""
    metadata, status = job["metadata"], job.get("status") or {}
    entries = status.get("conditions") or []
    conditions = {
        _SAME.get(entry["type"], entry["type"]): Condition(
            holds=entry.get("status") == "True",
            reason=entry.get("reason") or "",
            message=entry.get("message") or "",
            since_s=seconds(entry.get("lastTransitionTime")),
        )
        for entry in entries
        if entry.get("reason") != _PASSING
    }
    refusals = [entry.get("message") or _PASSING for entry in entries if entry.get("reason") == _PASSING]
    kept = {kind: story.conditions[kind] for kind in ("Succeeded", "Failed") if story.holds(kind)}
    return dataclasses.replace(
        story,
        queue=(metadata.get("labels") or {}).get(QUEUE) or story.queue,
        taken_up=story.taken_up or bool(entries or status.get("jobsStatus")),
        refusal=next(iter(refusals), ""),
        conditions=conditions | kept,
        suspensions=_suspended(story, conditions.get("Suspended")),
        deletion_s=story.deletion_s or seconds(metadata.get("deletionTimestamp")),
        gone=story.gone or gone,
    )


def _suspended(story: JobStory, condition: Condition | None) -> tuple[tuple[float, float | None], ...]:
    """Note that the job is suspended, or was resumed.

    One that was resumed before anybody looked counts as suspended from its creation on. That may be too long
    if it ran in between; a limit that is reached too early would cost all of it.
    """
    known = story.suspensions
    open_since = known[-1][0] if known and known[-1][1] is None else None
    if condition is None or condition.since_s is None:
        return known
    if condition.holds and open_since is None:
        return (*known, (condition.since_s, None))
    if not condition.holds and open_since is not None:
        return (*known[:-1], (open_since, condition.since_s))
    if not condition.holds and not known and story.created_s is not None:
        return ((story.created_s, max(story.created_s, condition.since_s)),)
    return known


def gone(story: JobStory | None) -> JobStory:
    """Return the story of a job that is not found any more, or was never seen."""
    return dataclasses.replace(story or JobStory(uid="", created_s=None), gone=True)
