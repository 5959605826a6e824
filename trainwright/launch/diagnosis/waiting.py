"""Find out why a job does not run yet. Waiting in a queue is not waiting for nodes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.launch.diagnosis.observed_job import Event, ObservedJob
from trainwright.launch.diagnosis.state import JobState, PodState, StatusReason
from trainwright.launch.diagnosis.workload import can_never_be_admitted, preemption_cause

_IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_CONFIG_REASONS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
    | {"ContainerCannotRun", "PreCreateHookError", "PreStartHookError", "PostStartHookError"}
)
_REGISTRY_BUSY = re.compile(
    r"i/o timeout|TLS handshake timeout|connection (?:refused|reset)|deadline exceeded"
    r"|toomanyrequests|Too Many Requests|QPS exceeded|50[0-4] |server misbehaving",
    re.IGNORECASE,
)
_MISSING_OBJECT = re.compile(
    r"(?:secret|configmap|serviceaccount|persistentvolumeclaim)s? .*not found", re.IGNORECASE
)
_MOUNT_REASONS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"})
_UNQUEUED_S = 60.0
"""Seconds in which Kueue creates the Workload of a job; later it creates none."""

_NO_PODS = frozenset(
    {"FailedCreatePod", "FailedCreate", "JobCreationFailed", "TrainJobResourcesCreationFailed"}
)
"""Event reasons for pods that could not be created, of the job, its JobSet and its batch Job."""

_MESSAGE_LENGTH = 300
"""Characters shown of a controller's message."""

_MISNAMED = re.compile(r"(?:LocalQueue|ClusterQueue)\b.*(?:not found|doesn't exist|does not exist)")
_QUEUE_REASONS = ("Pending", "Inadmissible", "Misconfigured", "ExceedsMaxQuota", "EvictedDueTo")
_OVERTIME = re.compile(r"MaximumExecutionTimeExceeded|exceeding the maximum execution time")
_SCHEDULER = (
    (re.compile(r"\b(\d+) Insufficient ([\w./-]*\w)"), r"\1 node(s) have too little \2 free"),
    (
        re.compile(r"\b(\d+) node\(s\) had untolerated taint \{([^:}]+): ?([^}]*)\}"),
        r"\1 carry the taint \2=\3",
    ),
    (
        re.compile(r"\b(\d+) node\(s\) didn't match Pod's node affinity/selector"),
        r"\1 are not of the kind that was asked for",
    ),
    (re.compile(r"\b(\d+) node\(s\) were unschedulable"), r"\1 are cordoned"),
    (re.compile(r"\b(\d+) node\(s\) had volume node affinity conflict"), r"\1 cannot reach its volume"),
    (re.compile(r"pod has unbound immediate PersistentVolumeClaims"), "its volume claim is not bound yet"),
    (re.compile(r"persistentvolumeclaim \"([^\"]+)\" not found"), r"there is no volume claim \1"),
)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The reason why a job does not run yet.

    Attributes:
        kind: The failure class if it lasts: ``QUOTA_WAIT``, ``UNSCHEDULABLE``, ``IMAGE_PULL``,
            ``CONFIG``, ``INFRASTRUCTURE``, or ``DEADLINE`` where its queue stopped it for good.
        words: What the job waits for.
        reason: The reason of Kubernetes or Kueue.
        message: Their message.
        pod: The waiting pod; empty where the whole job waits.
        broken: Whether waiting longer most likely does not help.
        since_s: Since when, if known.
    """

    kind: str
    words: str
    reason: str
    message: str = ""
    pod: str = ""
    broken: bool = False
    since_s: float | None = None

    def __str__(self) -> str:
        """Return one line."""
        told = self.message
        if (
            len(told) > _MESSAGE_LENGTH
        ):  # it begins with the webhook and ends with the fault; between them is an object
            told = f"{told[: _MESSAGE_LENGTH // 2]} ... {told[-_MESSAGE_LENGTH // 2 :]}"
        return self.words + (f" ({self.reason}: {told})" if told else f" ({self.reason})")


def find_waiting(observed: ObservedJob) -> Waiting | None:
    """Return what a job waits for, what will not pass first; None if nothing is known.

    A waiting job stays Created, so everything else is examined. Only pods that never ran count.
    """
    found = [*_job_waits(observed), *_pods_wait(observed)]
    return min(found, key=lambda entry: (not entry.broken, entry.kind == "INFRASTRUCTURE"), default=None)


def _job_waits(observed: ObservedJob) -> Iterator[Waiting]:
    job = observed.job
    if job is None:
        return
    # The queue's reason is outdated once there are pods.
    held_back = job.holds("Suspended") or not observed.pods
    said = _queue_reason(observed) if held_back else None
    if said and _MISNAMED.search(said.message):
        words = f"its queue does not exist: {said.message}"
        yield Waiting(kind="CONFIG", words=words, reason=said.reason, message=said.message, broken=True)
    elif said and _OVERTIME.search(f"{said.reason} {said.message}"):
        words = "its queue stopped it: it ran longer than the queue lets it"
        yield Waiting(kind="DEADLINE", words=words, reason=said.reason, message=said.message, broken=True)
    elif job.manager and not job.taken_up:
        words = f"it was handed to {job.manager}, which has not taken it up"
        yield Waiting(kind="QUOTA_WAIT", words=words, reason="ManagedBy", message=job.manager)
    elif job.holds("Suspended"):
        yield _in_queue(observed, job, said)
    elif job.refusal:
        words = f"the runtime that it names cannot run it: {job.refusal}"
        yield Waiting(kind="CONFIG", words=words, reason="TrainingRuntimeNotSupported", broken=True)
    elif not job.taken_up and not observed.pods:
        words = f"{job.operator} has not looked at it yet"
        yield Waiting(kind="INFRASTRUCTURE", words=words, reason="NoStatus", since_s=job.created_s)
    yield from _rejected_pods(observed)


def _in_queue(observed: ObservedJob, job: JobState, said: StatusReason | None) -> Waiting:
    """Return what a suspended job waits for, and whether its queue can ever admit it."""
    since_s = job.suspensions[-1][0] if job.suspensions else None
    if job.queue and said is None and observed.without_workload_s > _UNQUEUED_S:
        return _without_workload(job, since_s)
    message, reason = (said.message, said.reason) if said else ("", "Suspended")
    where = (
        f"in queue {job.queue}"
        if job.queue
        else "suspended, and no queue is named: somebody has to resume it"
    )
    why, never = _why_queued(observed, reason, message)
    return Waiting(
        kind="QUOTA_WAIT",
        words=f"it is {where}{why if job.queue else ''}",
        reason=reason,
        message=message,
        broken=never,
        since_s=since_s,
    )


def _why_queued(observed: ObservedJob, reason: str, message: str) -> tuple[str, bool]:
    """Return why a job has no quota, and whether waiting is useless."""
    if can_never_be_admitted(reason, message):
        return ": it asks for more than the queue can ever give", True
    given_up = observed.workload is not None and observed.workload.given_up
    if given_up or "Deactivated" in reason or "workload is deactivated" in message:
        return ": the queue has given it up, somebody has to activate its workload", True
    if message.startswith("Preempted"):
        who, cause = observed.preemptor or "a job of another namespace", preemption_cause(message)
        return f": it was preempted by {who}{f' ({cause})' if cause else ''} and waits for quota", False
    return ": it waits for quota", False


def _without_workload(job: JobState, since_s: float | None) -> Waiting:
    """Return that Kueue does not queue a job, for which it emits no event."""
    why = f"is there a WorkloadPriorityClass {job.priority}?" if job.priority else "does Kueue take its kind?"
    words = f"it names queue {job.queue}, and Kueue makes no workload of it: {why}"
    return Waiting(kind="CONFIG", words=words, reason="NoWorkload", broken=True, since_s=since_s)


def _queue_reason(observed: ObservedJob) -> StatusReason | None:
    """Return Kueue's reason why the job is not admitted, from its Workload, else from events."""
    found = observed.workload
    if found and found.reason:
        return StatusReason(reason=found.reason, message=found.message, since_s=found.since_s)
    if found:
        return None
    said = [
        event
        for event in observed.events
        if (event.kind == "Workload" and event.reason.startswith(_QUEUE_REASONS))
        or (
            event.kind in {"PyTorchJob", "TrainJob"}
            and event.reason in {"ErrWorkloadCompose", "Inadmissible", "Stopped"}
        )
    ]
    return (
        StatusReason(reason=said[-1].reason, message=said[-1].message, since_s=said[-1].at_s)
        if said
        else None
    )


def _rejected_pods(observed: ObservedJob) -> Iterator[Waiting]:
    """Find pods that could not be created; the job's own status does not show them.

    Some pods may exist: a quota may suffice for the first, or a namespace reject only the Workers. A
    rejection before the newest pod was created, or before the job left its queue, is outdated.
    """
    job, there = observed.job, [pod for pod in observed.pods if pod.gone is None]
    running = sum(pod.running_s is not None for pod in there)
    if job is None or job.holds("Suspended"):
        return
    if len({pod.place for pod in there}) >= job.pods or running >= job.needed:
        return
    newest_s = max((pod.created_s or 0.0 for pod in observed.pods), default=0.0)
    resumed_s = (job.suspensions[-1][1] or 0.0) if job.suspensions else 0.0
    since_s = max(newest_s, resumed_s)
    rejected = [
        event for event in observed.events if event.reason in _NO_PODS and (event.at_s or since_s) >= since_s
    ]
    for event in rejected[-1:]:
        yield _uncreated_pods(job, event)


def _uncreated_pods(job: JobState, event: Event) -> Waiting:
    """Return why pods are missing: the namespace rejects them, or the operator cannot create them."""
    quota = "exceeded quota" in event.message
    if quota:
        words = "the namespace's quota is used up"
    elif event.reason == "TrainJobResourcesCreationFailed":
        words = f"{job.operator} cannot make its JobSet"
    else:
        words = "its pods are not allowed to be created"
    return Waiting(
        kind="QUOTA_WAIT" if quota else "CONFIG",
        words=words,
        reason=event.reason,
        message=event.message,
        broken=not quota,
        since_s=event.at_s,
    )


def _pods_wait(observed: ObservedJob) -> Iterator[Waiting]:
    alone = observed.job is not None and observed.job.gone
    for pod in observed.pods:
        leaving = (pod.deletion is not None or pod.gone is not None) and not alone
        if pod.starts or leaving or observed.successors(pod):
            continue
        if pod.unscheduled:
            yield _unscheduled(pod, pod.unscheduled, observed.events_of(pod))
        elif pod.obstacle and pod.obstacle.reason in _IMAGE_REASONS:
            yield _image_waiting(pod, pod.obstacle)
        elif pod.obstacle and pod.obstacle.reason in _CONFIG_REASONS:
            words = f"pod {pod.name} cannot be started as it is asked for"
            yield _pod_waiting("CONFIG", pod, pod.obstacle, words, broken=True)
        else:
            yield from _mount_waits(pod, observed.events_of(pod))


def _pod_waiting(kind: str, pod: PodState, word: StatusReason, words: str, *, broken: bool) -> Waiting:
    return Waiting(
        kind=kind,
        words=words,
        reason=word.reason,
        message=word.message,
        pod=pod.name,
        broken=broken,
        since_s=word.since_s or pod.scheduled_s or pod.created_s,
    )


def _unscheduled(pod: PodState, word: StatusReason, events: tuple[Event, ...]) -> Waiting:
    """Return why no node takes a pod, and whether one is being added."""
    if word.reason == "SchedulingGated":
        return _pod_waiting(
            "QUOTA_WAIT", pod, word, f"pod {pod.name} is held back by its queue", broken=False
        )
    reasons = [
        pattern.sub(words, found[0])
        for pattern, words in _SCHEDULER
        if (found := pattern.search(word.message))
    ]
    grown = [event.reason for event in events if event.reason in {"TriggeredScaleUp", "NotTriggerScaleUp"}]
    scaling = {"TriggeredScaleUp": "; a node is being added", "NotTriggerScaleUp": "; no node will be added"}
    why = f": {', '.join(reasons)}" if reasons else ""
    words = f"no node takes pod {pod.name}{why}{scaling[grown[-1]] if grown else ''}"
    return _pod_waiting("UNSCHEDULABLE", pod, word, words, broken=False)


def _image_waiting(pod: PodState, word: StatusReason) -> Waiting:
    """Return why an image is missing. A registry hiccups for a moment only, so the pod counts as broken."""
    passing = bool(_REGISTRY_BUSY.search(word.message))
    words = f"pod {pod.name} does not get its image" + (", the registry does not answer" if passing else "")
    return _pod_waiting("IMAGE_PULL", pod, word, words, broken=True)


def _mount_waits(pod: PodState, events: tuple[Event, ...]) -> Iterator[Waiting]:
    """Return why a scheduled pod does not start, where only an event says so."""
    told = [event for event in events if event.reason in _MOUNT_REASONS]
    for event in told[-1:]:
        absent = bool(_MISSING_OBJECT.search(event.message))
        words = f"pod {pod.name} waits for " + (
            "something that does not exist" if absent else "its volumes or network"
        )
        word = StatusReason(reason=event.reason, message=event.message, since_s=event.at_s)
        yield _pod_waiting("CONFIG" if absent else "INFRASTRUCTURE", pod, word, words, broken=absent)
