"""Incidents of single pods, and the interruptions of the job that they add up to.

The loss of one pod ends the processes of all others, and each of those exits looks like a loss of its own: an
elastic survivor returns the exit code of the rank that was evicted, and a job of 11 nodes that its queue
preempts loses 11 pods. Kubernetes does not tell these apart, so losses are grouped by what ran at the time of
the first one, and each group is charged to a budget once. Times are in seconds since 1970.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trainwright.launch import logs
from trainwright.launch.diagnosis import findings
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import MAIN_CONTAINERS, ContainerExit, JobState, PodState
from trainwright.launch.failure import Failure
from trainwright.launch.logs import LogFindings

_SKEW_S = 5
"""Largest difference between the clocks of a cluster's machines, in seconds."""

_GROUPING_S = 600.0
"""Seconds after a loss, or after its pod is back, in which other pods can still end because of it.

A node that dies silently is noticed when a collective operation times out. Too long a time counts two
interruptions as one.
"""

_SYMPTOMS = frozenset({"HANG", "INFRASTRUCTURE", "NCCL_TIMEOUT", "UNKNOWN"})
"""Classes of consequences, whose cause Kubernetes may report later."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A failed exit or a removal of one pod.

    Attributes:
        weak: Whether it only shows that something else failed before.
        at_s: When; infinite if unknown.
        order: Number of the observation that first showed it, which orders those of the same second.
        began_s: Start of the container's run that it ended; None if it ended the whole pod.
        back_s: When the same place ran again before the job's end; None if it did not.
    """

    pod: PodState
    failure: Failure
    weak: bool = False
    at_s: float
    order: int
    began_s: float | None = None
    back_s: float | None = None

    @property
    def recovered(self) -> bool:
        """True if the same replica of the job ran again."""
        return self.back_s is not None

    @property
    def cause_order(self) -> tuple[bool, float, int]:
        """Sort key: the least is the cause; weak ones come last."""
        return self.weak, self.at_s, self.order


def find_incidents(observed: ObservedJob) -> tuple[Incident, ...]:
    """Return all incidents of a job's pods, in the order of their time."""
    found = [entry for pod in observed.pods for entry in _pod_incidents(observed, pod)]
    marked = [dataclasses.replace(entry, back_s=_recovered_s(observed, entry)) for entry in found]
    return tuple(sorted(marked, key=lambda entry: (entry.at_s, entry.order)))


def _pod_incidents(observed: ObservedJob, pod: PodState) -> list[Incident]:
    if eviction := findings.classify_eviction(pod):
        since = (pod.disruption.since_s if pod.disruption else None) or pod.finished_s or math.inf
        return [Incident(pod=pod, failure=eviction, at_s=since, order=pod.deletion or pod.first)]
    log, events, found = logs.parse_log(observed.log(pod.uid)), observed.events_of(pod), []
    for end in pod.endings:
        if end.exit_code and end.started_s is not None and not _killed_by_deletion(pod, end):
            failure, weak = findings.classify_exit(pod, end, log, events)
            # A failed init container is recovered from as soon as the training container runs.
            began_s = end.started_s if end.container in MAIN_CONTAINERS else 0.0
            at_s = _failed_at_s(end, log)
            found.append(
                Incident(pod=pod, failure=failure, weak=weak, at_s=at_s, order=end.order, began_s=began_s)
            )
    if pod.starts and _was_deleted(observed, pod):
        suspended, replaced = _was_suspended(observed, pod), bool(observed.successors(pod))
        found.append(
            Incident(
                pod=pod,
                failure=findings.classify_deletion(pod, suspended=suspended, replaced=replaced),
                at_s=math.inf if pod.deletion_s is None else pod.deletion_s,
                order=pod.deletion or pod.gone or pod.first,
            )
        )
    return found


def _failed_at_s(end: ContainerExit, log: LogFindings) -> float:
    """Return when the first process failed, which may be before its container ended."""
    ended_s = math.inf if end.finished_s is None else end.finished_s
    first_s = log.root.at_s if log.root else None
    return first_s if first_s is not None and (end.started_s or 0.0) <= first_s <= ended_s else ended_s


def _killed_by_deletion(pod: PodState, end: ContainerExit) -> bool:
    """Tell whether a container ended because its pod was being deleted."""
    return end.during_deletion or (
        pod.deletion == end.order
        and pod.deletion_s is not None
        and (end.finished_s or 0.0) >= pod.deletion_s
        and end.reason != "OOMKilled"
    )


def _was_deleted(observed: ObservedJob, pod: PodState) -> bool:
    """Tell whether a running pod was deleted by anybody but the operator.

    The operator deletes pods to clean up after a pod that ended for good, at its deadline or backoff limit,
    and with the job. Only times and the order of the pods' versions tell these apart.
    """
    if (pod.deletion is None and not _vanished(observed, pod)) or _ended_before(pod, pod):
        return False
    if observed.job is not None and _ended_with(observed.job, observed, pod):
        return False
    others = [other for other in observed.pods if other.place != pod.place and not observed.successors(other)]
    if observed.job is not None and _cleaned_up(observed.job, pod, others):
        return False
    return not any(_ended_before(other, pod) or _lost_before(other, pod) for other in others)


def _cleaned_up(job: JobState, pod: PodState, others: list[PodState]) -> bool:
    """Tell whether the operator deleted a pod because another one had ended the job.

    It does so within a second, and a list may show both at once. The other pod was deleted before this one,
    disrupted, or had ended by itself.
    """
    if job.ended_s is None or pod.deletion is None or pod.deletion_s is None or pod.deletion_s < job.ended_s:
        return False
    for other in others:
        if other.deletion is None:
            if other.over is not None and (other.finished_s or math.inf) <= pod.deletion_s:
                return True
        elif other.deletion < pod.deletion or (other.deletion == pod.deletion and other.disruption):
            return True
    return False


def _vanished(observed: ObservedJob, pod: PodState) -> bool:
    """Tell whether a running pod is gone while others stay: all at once is the job's own end."""
    if pod.gone is None or pod.running_s is None:
        return False
    leaves = [(other.gone, other.deletion) for other in observed.pods]
    return any(
        (gone is None or gone > pod.gone) and (deletion is None or deletion > pod.gone)
        for gone, deletion in leaves
    )


def _lost_before(other: PodState, pod: PodState) -> bool:
    """Tell whether another pod was gone by then without an observed end."""
    leaves = pod.gone if pod.deletion is None else pod.deletion
    unseen = other.gone is not None and other.over is None and other.deletion is None
    return unseen and leaves is not None and (other.gone or 0) <= leaves


def _ended_with(job: JobState, observed: ObservedJob, pod: PodState) -> bool:
    """Tell whether a pod was deleted because its job had ended, or was deleted itself."""
    if job.used_up or job.late:
        return True
    at_s = math.inf if pod.deletion_s is None else pod.deletion_s
    late = job.ended_s is not None and at_s != math.inf and at_s > job.ended_s + _SKEW_S
    with_job = job.deletion_s is not None and at_s >= job.deletion_s
    unended = job.gone and not job.final and not observed.successors(pod)
    return with_job or unended or (bool(job.final) and late)


def _ended_before(other: PodState, pod: PodState) -> bool:
    """Tell whether one pod had ended for good before another was deleted.

    The order of versions decides. Times come from several clocks, and only order what one list showed.
    """
    leaves = pod.gone if pod.deletion is None else pod.deletion
    if other.over is None or leaves is None:
        return False
    if other.over != leaves or pod.deletion_s is None or other.finished_s is None:
        return other.over <= leaves
    return other.finished_s < pod.deletion_s


def _was_suspended(observed: ObservedJob, pod: PodState) -> bool:
    """Tell whether the job was suspended when the pod was deleted."""
    spans = observed.job.suspensions if observed.job else ()
    at = pod.deletion_s or 0.0
    return any(since - 1 <= at <= (until if until is not None else at) for since, until in spans)


def _recovered_s(observed: ObservedJob, entry: Incident) -> float | None:
    """Return when the place of a pod ran again, before the job ended."""
    ended_s = observed.job.ended_s if observed.job else None
    # Not by the time of the incident: within a second, a start and the end right after it look the same.
    began_s = entry.began_s
    again = [start for start in entry.pod.starts if began_s is not None and start > began_s]
    again += [start for other in observed.successors(entry.pod) for start in other.starts]
    return min((start for start in again if ended_s is None or start <= ended_s), default=None)


def gpu_seconds(observed: ObservedJob, *, since_s: float = 0.0) -> float:
    """Return the GPU seconds that the observed pods have held since a time.

    With the time of the last checkpoint as ``since_s``, these are lost by a restart. A pod holds its GPUs
    from its scheduling until its last container has ended.
    """
    until_s, total = _latest_s(observed), 0.0
    for pod in observed.pods:
        if pod.scheduled_s is None:
            continue
        ended_s = pod.finished_s if pod.over is not None or pod.gone is not None else None
        if ended_s is None:
            ended_s = pod.deletion_s if pod.gone is not None and pod.deletion_s is not None else until_s
        total += pod.gpus * max(0.0, ended_s - max(pod.scheduled_s, since_s))
    return total


def _latest_s(observed: ObservedJob) -> float:
    """Return the latest time in any observed object; of an ended job, its end.

    Running pods are counted up to here, so the reader's clock plays no part.
    """
    job = observed.job
    if job and job.final and job.ended_s is not None:
        return job.ended_s
    times = [event.at_s for event in observed.events]
    for pod in observed.pods:
        ends = [end.finished_s for end in pod.endings]
        times += [pod.created_s, pod.scheduled_s, pod.running_s, pod.deletion_s, *ends]
    if job:
        since = [reason.since_s for _, reason in job.conditions.values()]
        times += [job.created_s, job.deletion_s, *since]
    return max((time for time in times if time is not None), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A pod, or a run of its container, that was lost. Times are None if unknown.

    Attributes:
        key: The pod's uid, with the start of the run where only that was lost.
        back_s: When its place ran again; None if it did not.
    """

    key: str
    budget: str
    kind: str
    what: str
    place: str = ""
    suspended: bool = False
    began_s: float | None = None
    at_s: float | None = None
    back_s: float | None = None

    @classmethod
    def of(cls, entry: Incident) -> "Loss":
        """Return the loss of an incident."""
        pod, failure = entry.pod, entry.failure
        began_s = entry.began_s if entry.began_s is not None else next(iter(pod.starts[-1:]), None)
        return cls(
            key=pod.uid if entry.began_s is None else f"{pod.uid}/{entry.began_s:.0f}",
            budget=failure.budget,
            kind=failure.kind,
            what=failure.what,
            place=pod.place,
            suspended=failure.reason == "Suspended",
            began_s=began_s,
            at_s=None if entry.at_s == math.inf else entry.at_s,
            back_s=entry.back_s,
        )


@dataclass(frozen=True)
class Interruption:
    """Losses with one cause, the earliest first."""

    losses: tuple[Loss, ...]

    @property
    def charged(self) -> Loss | None:
        """The loss whose budget is charged; None for a suspension by the queue, which is free."""
        cause = min(self.losses, key=lambda loss: (loss.kind in _SYMPTOMS, _time_or_inf(loss.at_s)))
        free = cause.kind == "PREEMPTED" and any(loss.suspended for loss in self.losses)
        return None if free else cause

    @property
    def recovered(self) -> bool:
        """True if all lost replicas ran again."""
        return all(loss.back_s is not None for loss in self.losses)

    def includes(self, loss: Loss) -> bool:
        """Tell whether a later loss belongs to this interruption.

        It does if its run had started before the interruption, and ended soon enough after it. A run that
        started in the same second counts, unless it is the next one at the same place.
        """
        began_s, first_s = loss.began_s or 0.0, _time_or_inf(self.losses[0].at_s)
        places = {entry.place for entry in self.losses}
        if began_s > first_s or (began_s == first_s and loss.place in places):
            return False
        times = [entry.at_s if entry.back_s is None else entry.back_s for entry in self.losses]
        return loss.at_s is None or loss.at_s <= max(map(_time_or_inf, times)) + _GROUPING_S


def _time_or_inf(at_s: float | None) -> float:
    return math.inf if at_s is None else at_s


def group_interruptions(lost: Iterable[Loss]) -> tuple[Interruption, ...]:
    """Group losses into interruptions, in the order of their time."""
    groups: list[Interruption] = []
    for loss in sorted(lost, key=lambda loss: _time_or_inf(loss.at_s)):
        if groups and groups[-1].includes(loss):
            groups[-1] = Interruption((*groups[-1].losses, loss))
        else:
            groups.append(Interruption((loss,)))
    return tuple(groups)


def charged_losses(lost: Iterable[Loss]) -> tuple[Loss, ...]:
    """Return the charged loss of each interruption."""
    return tuple(loss for group in group_interruptions(lost) if (loss := group.charged))


def count_attempt_interruptions(
    failure: Failure, lost: Iterable[Loss], *, used_up: bool = False
) -> dict[str, int]:
    """Count the interruptions of a failed attempt by budget, its own failure included once.

    The failure is the last interruption if the job did not recover from it, or exceeded its backoff limit
    (``used_up``). Otherwise, as when the job hangs hours after a recovery, the failure counts in addition.
    """
    groups = group_interruptions(lost)
    ended = bool(groups) and (used_up or not groups[-1].recovered)
    paid = [loss for group in (groups[:-1] if ended else groups) if (loss := group.charged)]
    # A launcher that ends a job for its budget names the class of the loss that exceeded it.
    last = next((loss for loss in reversed(paid) if loss.budget == failure.budget), None)
    within = not ended and last is not None and last.kind == failure.kind
    counts = Counter(loss.budget for loss in paid)
    counts[failure.budget] += 0 if within else 1
    return dict(counts)
