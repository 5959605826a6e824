"""What went wrong with single pods: every failed end, and every pod that was taken away while it ran."""

import dataclasses
import math
from dataclasses import dataclass

from trainwright.launch.diagnosis import ending, eviction, log
from trainwright.launch.diagnosis.finding import Finding
from trainwright.launch.diagnosis.job_story import JobStory
from trainwright.launch.diagnosis.log import LogStory
from trainwright.launch.diagnosis.observed import Observed
from trainwright.launch.diagnosis.pod_story import MAIN, Ending, PodStory

_SKEW_S = 5
"""By how much the clocks of a cluster's machines may differ, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One thing that went wrong with one pod.

    Attributes:
        pod: The pod.
        finding: Its class and what shows it.
        at_s: When, in seconds since 1970; infinite if unknown.
        order: The sight of the job's pods that first showed it, for those of the same second.
        began_s: When the run of the container that this ended had begun; None if it took the whole pod.
        back_s: When the same place in the job ran again afterwards, before the job ended; None if it did not.
    """

    pod: PodStory
    finding: Finding
    at_s: float
    order: int
    began_s: float | None = None
    back_s: float | None = None

    @property
    def recovered(self) -> bool:
        """Whether the same place in the job ran again."""
        return self.back_s is not None

    @property
    def suspicion(self) -> tuple[bool, float, int]:
        """Orders incidents: the first is the cause; what only shows that another one had failed is last."""
        return self.finding.weak, self.at_s, self.order


def incidents(observed: Observed) -> tuple[Incident, ...]:
    """Return all that went wrong with the pods of a job, in the order of their time.

    The budgets of a launcher are counted over these (:mod:`.interruption`), also while the job still runs.
    """
    found = [entry for pod in observed.pods for entry in _of_pod(observed, pod)]
    marked = [dataclasses.replace(entry, back_s=_back_s(observed, entry)) for entry in found]
    return tuple(sorted(marked, key=lambda entry: (entry.at_s, entry.order)))


def _of_pod(observed: Observed, pod: PodStory) -> list[Incident]:
    story, events = log.read(observed.log(pod.uid)), observed.events_of(pod)
    found = [
        Incident(
            pod=pod,
            finding=ending.judge(pod, end, story, events),
            at_s=_when(end, story),
            order=end.order,
            # What runs before the training container is overcome as soon as that runs.
            began_s=end.started_s if end.container in MAIN else 0.0,
        )
        for end in pod.endings
        if end.exit_code and end.started_s is not None and not _killed_by_deletion(pod, end)
    ]
    if thrown := eviction.judge(pod):
        since = (pod.disruption.since_s if pod.disruption else None) or pod.finished_s
        return [Incident(pod=pod, finding=thrown, at_s=since or math.inf, order=pod.deletion or pod.first)]
    if pod.starts and _taken(observed, pod):
        found.append(
            Incident(
                pod=pod,
                finding=eviction.deleted(
                    pod, suspended=_suspended(observed, pod), replaced=bool(observed.successors(pod))
                ),
                at_s=math.inf if pod.deletion_s is None else pod.deletion_s,
                order=pod.deletion or pod.gone or pod.first,
            )
        )
    return found


def _when(end: Ending, story: LogStory) -> float:
    """Return when a process failed: its container may have ended a little later than it."""
    ended_s = math.inf if end.finished_s is None else end.finished_s
    first_s = story.root.at_s if story.root else None
    within = first_s is not None and (end.started_s or 0.0) <= first_s <= ended_s
    return first_s if within and first_s is not None else ended_s


def _killed_by_deletion(pod: PodStory, end: Ending) -> bool:
    """Tell whether a container ended because its pod was being deleted."""
    if end.during_deletion:
        return True
    return (
        pod.deletion == end.order
        and pod.deletion_s is not None
        and (end.finished_s or 0.0) >= pod.deletion_s
        and end.reason != "OOMKilled"
    )


def _taken(observed: Observed, pod: PodStory) -> bool:
    """Tell whether a pod was deleted from outside while it ran.

    The operator deletes pods too: to clean up once a pod has ended for good, at its deadline or backoff
    limit, and with the job. Only times and the order of the pods' own versions tell these apart.
    """
    if (pod.deletion is None and not _vanished(observed, pod)) or _ended_before(pod, pod):
        return False
    if observed.job is not None and _ended_with(observed.job, observed, pod):
        return False
    others = [other for other in observed.pods if other.place != pod.place and not observed.successors(other)]
    if observed.job is not None and _cleaned_up(observed.job, pod, others):
        return False
    return not any(_ended_before(other, pod) or _lost_before(other, pod) for other in others)


def _cleaned_up(job: JobStory, pod: PodStory, others: list[PodStory]) -> bool:
    """Tell whether the operator deleted a pod because of what became of another one, which ended the job.

    It does so within a second, and a list may show both at once. That other pod was seen to be deleted before
    this one, or Kubernetes says that it was taken away, or it had ended by itself.
    """
    if job.ended_s is None or pod.deletion is None or pod.deletion_s is None or pod.deletion_s < job.ended_s:
        return False
    return any(_cause_of(other, pod.deletion, pod.deletion_s) for other in others)


def _cause_of(other: PodStory, deletion: int, deletion_s: float) -> bool:
    """Tell whether what became of a pod came before the deletion of another one, or in the same second."""
    if other.deletion is None:
        return other.over is not None and (other.finished_s or math.inf) <= deletion_s
    return other.deletion < deletion or (other.deletion == deletion and other.disruption is not None)


def _vanished(observed: Observed, pod: PodStory) -> bool:
    """Tell whether a running pod is gone and others of the job stay: all at once is the job's own end."""
    if pod.gone is None or pod.running_s is None:
        return False
    leaves = [(other.gone, other.deletion) for other in observed.pods]
    return any(
        (gone is None or gone > pod.gone) and (deletion is None or deletion > pod.gone)
        for gone, deletion in leaves
    )


def _lost_before(other: PodStory, pod: PodStory) -> bool:
    """Tell whether another pod was gone by then and never seen to end: what became of it is unknown."""
    leaves = pod.gone if pod.deletion is None else pod.deletion
    unseen = other.gone is not None and other.over is None and other.deletion is None
    return unseen and leaves is not None and (other.gone or 0) <= leaves


def _ended_with(job: JobStory, observed: Observed, pod: PodStory) -> bool:
    """Tell whether a pod was deleted because its job had ended, or was deleted itself."""
    if job.used_up or job.late:
        return True
    at_s = math.inf if pod.deletion_s is None else pod.deletion_s
    late = job.ended_s is not None and at_s != math.inf and at_s > job.ended_s + _SKEW_S
    with_job = job.deletion_s is not None and at_s >= job.deletion_s
    unended = job.gone and not job.said and not observed.successors(pod)
    return with_job or unended or (bool(job.said) and late)


def _ended_before(other: PodStory, pod: PodStory) -> bool:
    """Tell whether one pod had ended for good before the deletion of another was asked for.

    The order of versions is the truth; the times come from the clocks of several machines, and only decide
    what one list showed at once.
    """
    leaves = pod.gone if pod.deletion is None else pod.deletion
    if other.over is None or leaves is None:
        return False
    if other.over != leaves or pod.deletion_s is None or other.finished_s is None:
        return other.over <= leaves
    return other.finished_s < pod.deletion_s


def _suspended(observed: Observed, pod: PodStory) -> bool:
    """Tell whether the job was suspended when the pod was deleted."""
    spans = observed.job.suspensions if observed.job else ()
    at = pod.deletion_s or 0.0
    return any(since - 1 <= at <= (until if until is not None else at) for since, until in spans)


def _back_s(observed: Observed, entry: Incident) -> float | None:
    """Return when the place of a pod ran again, before the job ended."""
    ended_s = observed.job.ended_s if observed.job else None
    # Not by the time of the incident: whole seconds cannot tell a start from an end that came right after it.
    began_s = entry.began_s
    again = [start for start in entry.pod.starts if began_s is not None and start > began_s]
    again += [start for other in observed.successors(entry.pod) for start in other.starts]
    return min((start for start in again if ended_s is None or start <= ended_s), default=None)
