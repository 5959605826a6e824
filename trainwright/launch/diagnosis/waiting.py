"""The status of a job, and why it does not run yet. Waiting in a queue is not waiting for nodes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.launch.diagnosis.observed_job import Event, ObservedJob
from trainwright.launch.diagnosis.state import (
    MAIN_CONTAINERS,
    JobState,
    PodState,
    StatusReason,
    can_never_be_admitted,
    preemption_cause,
)

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
_JOB_QUEUE_REASONS = frozenset({"ErrWorkloadCompose", "Inadmissible", "Stopped"})
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
_SCALING = {"TriggeredScaleUp": "; a node is being added", "NotTriggerScaleUp": "; no node will be added"}


@dataclass(frozen=True)
class Waiting:
    """The reason why a job does not run yet.

    Attributes:
        kind: The failure class if it lasts: ``QUOTA_WAIT``, ``UNSCHEDULABLE``, ``IMAGE_PULL``,
            ``CONFIG``, ``INFRASTRUCTURE``, or ``DEADLINE`` where its queue stopped it for good.
        pod: The waiting pod; empty where the whole job waits.
        broken: Whether waiting longer most likely does not help.
    """

    kind: str
    words: str
    reason: str
    message: str = ""
    pod: str = ""
    broken: bool = False

    def __str__(self) -> str:
        """Return one line."""
        text, half = self.message, _MESSAGE_LENGTH // 2
        if len(text) > _MESSAGE_LENGTH:
            # It begins with the webhook and ends with the fault; between them is an object.
            text = f"{text[:half]} ... {text[-half:]}"
        return f"{self.words} ({self.reason}{f': {text}' if text else ''})"


def find_waiting(observed: ObservedJob) -> Waiting | None:
    """Return what a job waits for, what will not pass first; None if nothing is known.

    A waiting job stays Created, so everything else is examined. Only pods that never ran count.
    """
    found = [*_job_waits(observed), *_rejected_pods(observed), *_pods_wait(observed)]
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
        yield Waiting("CONFIG", words, said.reason, said.message, broken=True)
    elif said and _OVERTIME.search(f"{said.reason} {said.message}"):
        words = "its queue stopped it: it ran longer than the queue lets it"
        yield Waiting("DEADLINE", words, said.reason, said.message, broken=True)
    elif job.manager and not job.reconciled:
        words = f"it was handed to {job.manager}, which has not taken it up"
        yield Waiting("QUOTA_WAIT", words, "ManagedBy", job.manager)
    elif job.holds("Suspended"):
        yield _in_queue(observed, job, said)
    elif job.refusal:
        words = f"the runtime that it names cannot run it: {job.refusal}"
        yield Waiting("CONFIG", words, "TrainingRuntimeNotSupported", broken=True)
    elif not job.reconciled and not observed.pods:
        words = f"{job.operator} has not looked at it yet"
        yield Waiting("INFRASTRUCTURE", words, "NoStatus")


def _in_queue(observed: ObservedJob, job: JobState, said: StatusReason | None) -> Waiting:
    """Return what a suspended job waits for, and whether its queue can ever admit it."""
    message, reason = (said.message, said.reason) if said else ("", "Suspended")
    if job.queue and said is None and observed.without_workload_s > _UNQUEUED_S:  # without any event
        priority = f"is there a WorkloadPriorityClass {job.priority}?"
        why = priority if job.priority else "does Kueue take its kind?"
        words = f"it names queue {job.queue}, and Kueue makes no workload of it: {why}"
        return Waiting("CONFIG", words, "NoWorkload", broken=True)
    broken, words = False, f"it is in queue {job.queue}"
    deactivated = observed.workload is not None and not observed.workload.active
    if not job.queue:
        words = "it is suspended, and no queue is named: somebody has to resume it"
    elif can_never_be_admitted(reason, message):
        broken, words = True, f"{words}: it asks for more than the queue can ever give"
    elif deactivated or "Deactivated" in reason or "workload is deactivated" in message:
        broken = True
        words += ": the queue has given it up, somebody has to activate its workload"
    elif message.startswith("Preempted"):
        who, cause = observed.preemptor or "a job of another namespace", preemption_cause(message)
        words += f": it was preempted by {who}{f' ({cause})' if cause else ''} and waits for quota"
    else:
        words += ": it waits for quota"
    return Waiting("QUOTA_WAIT", words, reason, message, broken=broken)


def _queue_reason(observed: ObservedJob) -> StatusReason | None:
    """Return Kueue's reason why the job is not admitted, from its Workload, else from events."""
    if found := observed.workload:
        reason = StatusReason(reason=found.reason, message=found.message)
        return reason if found.reason else None
    said = [
        event
        for event in observed.events
        if (event.kind == "Workload" and event.reason.startswith(_QUEUE_REASONS))
        or (event.kind in {"PyTorchJob", "TrainJob"} and event.reason in _JOB_QUEUE_REASONS)
    ]
    return _status_reason(said[-1]) if said else None


def _status_reason(event: Event) -> StatusReason:
    return StatusReason(reason=event.reason, message=event.message)


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
    events = [entry for entry in observed.events if entry.reason in _NO_PODS]
    for event in [entry for entry in events if (entry.at_s or since_s) >= since_s][-1:]:
        kind, words = "CONFIG", "its pods are not allowed to be created"
        if "exceeded quota" in event.message:
            kind, words = "QUOTA_WAIT", "the namespace's quota is used up"
        elif event.reason == "TrainJobResourcesCreationFailed":
            words = f"{job.operator} cannot make its JobSet"
        broken = kind == "CONFIG"
        yield Waiting(kind, words, event.reason, event.message, broken=broken)


def _pods_wait(observed: ObservedJob) -> Iterator[Waiting]:
    job_gone = observed.job is not None and observed.job.gone
    for pod in observed.pods:
        leaving = (pod.deletion is not None or pod.gone is not None) and not job_gone
        if pod.starts or leaving or observed.successors(pod):
            continue
        events, obstacle = observed.events_of(pod), pod.obstacle
        if pod.unscheduled:
            yield _unscheduled(pod, pod.unscheduled, events)
        elif obstacle and obstacle.reason in _IMAGE_REASONS:
            # A registry hiccups for a moment only, so the pod counts as broken.
            busy = ", the registry does not answer" if _REGISTRY_BUSY.search(obstacle.message) else ""
            words = f"pod {pod.name} does not get its image{busy}"
            yield _pod_waits(pod, "IMAGE_PULL", words, obstacle, broken=True)
        elif obstacle and obstacle.reason in _CONFIG_REASONS:
            words = f"pod {pod.name} cannot be started as it is asked for"
            yield _pod_waits(pod, "CONFIG", words, obstacle, broken=True)
        else:  # only an event says why a scheduled pod does not start
            for event in [event for event in events if event.reason in _MOUNT_REASONS][-1:]:
                absent = bool(_MISSING_OBJECT.search(event.message))
                missing = "something that does not exist" if absent else "its volumes or network"
                kind, words = "CONFIG" if absent else "INFRASTRUCTURE", f"pod {pod.name} waits for {missing}"
                yield _pod_waits(pod, kind, words, _status_reason(event), broken=absent)


def _pod_waits(pod: PodState, kind: str, words: str, word: StatusReason, *, broken: bool = False) -> Waiting:
    return Waiting(kind, words, word.reason, word.message, pod.name, broken)


def _unscheduled(pod: PodState, word: StatusReason, events: tuple[Event, ...]) -> Waiting:
    """Return why no node takes a pod, and whether one is being added."""
    if word.reason == "SchedulingGated":
        return _pod_waits(pod, "QUOTA_WAIT", f"pod {pod.name} is held back by its queue", word)
    reasons = [
        pattern.sub(words, found[0])
        for pattern, words in _SCHEDULER
        if (found := pattern.search(word.message))
    ]
    scaling = [_SCALING[event.reason] for event in events if event.reason in _SCALING]
    why = f": {', '.join(reasons)}" if reasons else ""
    words = f"no node takes pod {pod.name}{why}{scaling[-1] if scaling else ''}"
    return _pod_waits(pod, "UNSCHEDULABLE", words, word)


@dataclass(frozen=True)
class JobStatus:
    """The status of a running or waiting job.

    Attributes:
        phase: ``absent``, ``queued``, ``pending``, ``starting``, ``running``, ``restarting``,
            ``ending`` or ``ended``.
        running: Number of pods whose training container runs.
        admission: Queue and flavors that it was admitted to; empty before, and without a queue.
    """

    phase: str
    waiting: Waiting | None
    running: int
    pods: int
    restarts: int
    admission: str = ""

    def __str__(self) -> str:
        """Return one line."""
        if self.waiting and self.phase not in {"running", "ended"}:
            return f"{self.phase}: {self.waiting.words}"
        again = f", {self.restarts} restart(s)" if self.restarts else ""
        admitted = f"; {self.admission}" if self.admission and self.phase in {"pending", "starting"} else ""
        return f"{self.phase}, {self.running} of {self.pods} pods{again}{admitted}"


def job_status(observed: ObservedJob) -> JobStatus:
    """Return the status of a job from its pods: its own Running condition means one pod, and flickers."""
    job, running = observed.job, sum(pod.running_s is not None and pod.gone is None for pod in observed.pods)
    starts = sum(len(pod.starts) for pod in observed.pods)
    places = len({pod.place for pod in observed.pods if pod.starts})
    done = sum(_has_completed(pod) for pod in observed.pods)
    waiting = find_waiting(observed)
    if job is None:
        phase = "absent"
    elif job.ended:
        phase = "ended"
    elif (waiting and waiting.kind == "QUOTA_WAIT") or job.holds("Suspended"):
        phase = "queued"
    elif running >= job.needed:
        phase = "running"
    elif done and running + done >= job.needed:
        phase = "ending"
    elif starts > running:
        phase = "restarting"
    else:
        phase = "starting" if any(pod.scheduled_s for pod in observed.pods) and not waiting else "pending"
    admission = observed.workload.admission if observed.workload else ""
    return JobStatus(phase, waiting, running, job.pods if job else 0, max(0, starts - places), admission)


def _has_completed(pod: PodState) -> bool:
    """Tell whether a pod's training container has exited with 0."""
    ends = [end for end in pod.endings if end.container in MAIN_CONTAINERS]
    return pod.running_s is None and bool(ends) and ends[-1].exit_code == 0
