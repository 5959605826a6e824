"""Incidents of single pods, and the interruptions of the job that they add up to.

The loss of one pod ends the processes of all others, and each of those exits looks like a loss of its own: an
elastic survivor returns the exit code of the rank that was evicted, and a job of 11 nodes that its queue
preempts loses 11 pods. Kubernetes does not tell these apart, so losses are grouped by what ran at the time of
the first one, and each group is charged to a budget once.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainwright.launch import logs
from trainwright.launch.diagnosis import findings
from trainwright.launch.diagnosis.findings import Finding
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import MAIN_CONTAINERS, ContainerExit, JobState, PodState
from trainwright.launch.failure import Failure
from trainwright.launch.logs import LogFindings

_SKEW_S = 5
"""Largest difference between the clocks of a cluster's machines, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A failed exit or a removal of one pod. Times are in seconds since 1970.

    Attributes:
        pod: The pod.
        finding: Its class and evidence.
        at_s: When; infinite if unknown.
        order: Number of the observation that first showed it, which orders those of the same second.
        began_s: Start of the container's run that it ended; None if it ended the whole pod.
        back_s: When the same place ran again before the job's end; None if it did not.
    """

    pod: PodState
    finding: Finding
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
        """Sort key: the least is the cause; weak findings come last."""
        return self.finding.weak, self.at_s, self.order


def find_incidents(observed: ObservedJob) -> tuple[Incident, ...]:
    """Return all incidents of a job's pods, in the order of their time."""
    found = [entry for pod in observed.pods for entry in _pod_incidents(observed, pod)]
    marked = [dataclasses.replace(entry, back_s=_recovered_s(observed, entry)) for entry in found]
    return tuple(sorted(marked, key=lambda entry: (entry.at_s, entry.order)))


def _pod_incidents(observed: ObservedJob, pod: PodState) -> list[Incident]:
    story, events = logs.parse_log(observed.log(pod.uid)), observed.events_of(pod)
    found = [
        Incident(
            pod=pod,
            finding=findings.classify_exit(pod, end, story, events),
            at_s=_failed_at_s(end, story),
            order=end.order,
            # A failed init container is recovered from as soon as the training container runs.
            began_s=end.started_s if end.container in MAIN_CONTAINERS else 0.0,
        )
        for end in pod.endings
        if end.exit_code and end.started_s is not None and not _killed_by_deletion(pod, end)
    ]
    if thrown := findings.classify_eviction(pod):
        since = (pod.disruption.since_s if pod.disruption else None) or pod.finished_s
        return [Incident(pod=pod, finding=thrown, at_s=since or math.inf, order=pod.deletion or pod.first)]
    if pod.starts and _was_deleted(observed, pod):
        found.append(
            Incident(
                pod=pod,
                finding=findings.classify_deletion(
                    pod, suspended=_was_suspended(observed, pod), replaced=bool(observed.successors(pod))
                ),
                at_s=math.inf if pod.deletion_s is None else pod.deletion_s,
                order=pod.deletion or pod.gone or pod.first,
            )
        )
    return found


def _failed_at_s(end: ContainerExit, story: LogFindings) -> float:
    """Return when the first process failed, which may be before its container ended."""
    ended_s = math.inf if end.finished_s is None else end.finished_s
    first_s = story.root.at_s if story.root else None
    within = first_s is not None and (end.started_s or 0.0) <= first_s <= ended_s
    return first_s if within and first_s is not None else ended_s


def _killed_by_deletion(pod: PodState, end: ContainerExit) -> bool:
    """Tell whether a container ended because its pod was being deleted."""
    if end.during_deletion:
        return True
    return (
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
    return any(_cause_of(other, pod.deletion, pod.deletion_s) for other in others)


def _cause_of(other: PodState, deletion: int, deletion_s: float) -> bool:
    """Tell whether a pod ended before the deletion of another one, or in the same second."""
    if other.deletion is None:
        return other.over is not None and (other.finished_s or math.inf) <= deletion_s
    return other.deletion < deletion or (other.deletion == deletion and other.disruption is not None)


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
    unended = job.gone and not job.said and not observed.successors(pod)
    return with_job or unended or (bool(job.said) and late)


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


def held_span(pod: PodState, until_s: float) -> tuple[float, float] | None:
    """Return from when until when a pod held its GPUs, in seconds since 1970; None if it never did.

    It holds them from its scheduling until its last container has ended.
    """
    if pod.scheduled_s is None:
        return None
    ended = pod.finished_s if pod.over is not None or pod.gone is not None else None
    if ended is None:
        ended = pod.deletion_s if pod.gone is not None and pod.deletion_s is not None else until_s
    return pod.scheduled_s, max(ended, pod.scheduled_s)


def gpu_seconds(observed: ObservedJob, *, since_s: float = 0.0) -> float:
    """Return the GPU seconds that the observed pods have held since a time.

    With the time of the last checkpoint as ``since_s`` (seconds since 1970), these are lost by a restart.
    """
    until_s = latest_s(observed)
    spans = [(pod.gpus, span) for pod in observed.pods if (span := held_span(pod, until_s))]
    return float(sum(gpus * max(0.0, end - max(start, since_s)) for gpus, (start, end) in spans))


def latest_s(observed: ObservedJob) -> float:
    """Return the latest time in any observed object; of an ended job, its end.

    Running pods are counted up to here, so the reader's clock plays no part.
    """
    job = observed.job
    if job and job.said and job.ended_s is not None:
        return job.ended_s
    times = [event.at_s for event in observed.events]
    for pod in observed.pods:
        ends = [end.finished_s for end in pod.endings]
        times += [pod.created_s, pod.scheduled_s, pod.running_s, pod.deletion_s, *ends]
    if job:
        since = [entry.since_s for entry in job.conditions.values()]
        times += [job.created_s, job.deletion_s, *since]
    return max((time for time in times if time is not None), default=0.0)


_GROUPING_S = 600.0
"""Seconds after a loss, or after its pod is back, in which other pods can still end because of it.

A node that dies silently is noticed when a collective operation times out. Too long a time counts two
interruptions as one.
"""

_SYMPTOMS = frozenset({"HANG", "INFRASTRUCTURE", "NCCL_TIMEOUT", "UNKNOWN"})
"""Classes of consequences, whose cause Kubernetes may report later."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A pod, or a run of its container, that was lost. Times are in seconds since 1970, None if unknown.

    Attributes:
        key: The pod's uid, with the start of the run where only that was lost.
        budget: The budget that it counts against.
        kind: The failure class.
        what: What happened.
        place: Its place in the job, which a replacement takes.
        suspended: Whether the job's queue suspended the job.
        began_s: When the lost run began.
        at_s: When it was lost.
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
        pod, finding = entry.pod, entry.finding
        runs = [entry.began_s] if entry.began_s is not None else list(pod.starts[-1:])
        return cls(
            key=pod.uid if entry.began_s is None else f"{pod.uid}/{entry.began_s:.0f}",
            budget=finding.budget,
            kind=finding.kind,
            what=finding.what,
            place=pod.place,
            suspended=finding.reason == "Suspended",
            began_s=next(iter(runs), None),
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
        latest_s = max(
            _time_or_inf(entry.back_s if entry.back_s is not None else entry.at_s) for entry in self.losses
        )
        return loss.at_s is None or loss.at_s <= latest_s + _GROUPING_S


def losses_of(found: Iterable[Incident]) -> tuple[Loss, ...]:
    """Return the losses among incidents, those with weak findings excluded."""
    return tuple(Loss.of(entry) for entry in found if not entry.finding.weak)


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


def count_interruptions(lost: Iterable[Loss]) -> dict[str, int]:
    """Count interruptions by budget."""
    return _count_budgets(charged_losses(lost))


def count_attempt_interruptions(
    failure: Failure, lost: Iterable[Loss], *, used_up: bool = False
) -> dict[str, int]:
    """Count the interruptions of a failed attempt by budget, its own failure included once.

    The failure is the last interruption if the job did not recover from it, or exceeded its backoff limit.
    Otherwise, as when the job hangs hours after a recovery, the failure counts in addition.

    Args:
        failure: How the attempt failed.
        lost: What the attempt lost.
        used_up: Whether the operator ended the job at its backoff limit.
    """
    groups = group_interruptions(lost)
    ended = bool(groups) and (used_up or not groups[-1].recovered)
    paid = [loss for group in (groups[:-1] if ended else groups) if (loss := group.charged)]
    # A launcher that ends a job for its budget names the class of the loss that exceeded it.
    last = next((loss for loss in reversed(paid) if loss.budget == failure.budget), None)
    within = not ended and last is not None and last.kind == failure.kind
    counts = _count_budgets(paid)
    return {**counts, failure.budget: counts.get(failure.budget, 0) + (0 if within else 1)}


def _count_budgets(found: Sequence[Loss]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for loss in found:
        counts[loss.budget] = counts.get(loss.budget, 0) + 1
    return counts


def _time_or_inf(at_s: float | None) -> float:
    return math.inf if at_s is None else at_s
