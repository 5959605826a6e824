"""Diagnose how a job ended: only the marker of rank 0 is a success, and a failure has a cause."""

import math
from dataclasses import dataclass, replace

from trainwright.launch import logs, redaction
from trainwright.launch.diagnosis import incidents
from trainwright.launch.diagnosis.findings import Finding
from trainwright.launch.diagnosis.incidents import Incident, find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.reports import ProcessReport
from trainwright.launch.diagnosis.waiting import Waiting, find_waiting
from trainwright.launch.failure import Failure
from trainwright.launch.job import Completion

_KUBERNETES_FACTS = frozenset({"HOST_OOM", "PREEMPTED", "EVICTED_DISK", "NODE_GPU"})
"""Classes that Kubernetes knows better than the processes, which only notice the consequences."""

_SYMPTOMS = frozenset({"PREEMPTED", "INFRASTRUCTURE", "NCCL_TIMEOUT", "HANG", "UNKNOWN"})
"""Classes that a process reports when something else was the cause."""

_REPEATED_EVENTS = frozenset({"Error", "PyTorchJobFailed", "PyTorchJobRestarting"})
"""Reasons of events that repeat a state or announce a restart that does not come."""

_MAX_PODS = 12


@dataclass(frozen=True, kw_only=True)
class Success:
    """A job that has succeeded: rank 0 wrote its marker.

    Attributes:
        completion: The marker.
        doubts: Observations that contradict success, such as a job that says Failed.
    """

    completion: Completion
    doubts: tuple[str, ...] = ()


Outcome = Success | Failure
"""How a job ended."""


def diagnose(
    observed: ObservedJob,
    completion: Completion | None = None,
    report: ProcessReport | None = None,
    *,
    saved_s: float = 0.0,
) -> Outcome | None:
    """Return how a job ended; None while it has not.

    A job has ended when the operator says Succeeded or Failed (or both: it does), or when it is gone. The
    operator does not decide how: an attempt with a marker has succeeded, one without has failed.

    Pods and logs arrive through other watches than the job, so a diagnosis improves for a moment after the
    job's end: call this again, above all while the answer is UNKNOWN.

    Args:
        observed: What was observed of the job.
        completion: The completion marker of this attempt, if it exists.
        report: The report of the job's processes, if they left one.
        saved_s: Time of the last committed checkpoint in seconds since 1970; later work is lost.
    """
    job = observed.job
    if job is None or not job.ended:
        return None
    found = find_incidents(observed)
    if completion is not None:
        return Success(completion=completion, doubts=_doubts(observed, found))
    chosen = _cause(observed, found)
    failure = _weighed(observed, chosen, report)
    shown = redaction.bounded_evidence([*failure.evidence, *_other_evidence(observed, chosen, found, report)])
    return replace(
        failure,
        what=redaction.shorten(redaction.redact(failure.what)),
        advice=redaction.redact(failure.advice),
        evidence=shown,
        lost_gpu_s=incidents.gpu_seconds(observed, since_s=saved_s),
    )


def limit_failure(observed: ObservedJob, kind: str, what: str, *, saved_s: float = 0.0) -> Failure:
    """Return the failure of a job that exceeds a limit of the launcher.

    Args:
        observed: What was observed of the job.
        kind: ``DEADLINE``, ``STUCK``, or the class of what it waited for.
        what: A sentence with the limit and the state.
        saved_s: Time of the last committed checkpoint.
    """
    held = find_waiting(observed)
    shown = [_waiting_text(held)] if held else []
    found = find_incidents(observed)
    return Failure.of(
        kind,
        redaction.redact(what),
        pod=held.pod if held else "",
        reason=held.reason if held else "",
        evidence=redaction.bounded_evidence([*shown, *_other_evidence(observed, None, found, None)]),
        lost_gpu_s=incidents.gpu_seconds(observed, since_s=saved_s),
    )


def _cause(observed: ObservedJob, found: tuple[Incident, ...]) -> Incident | None:
    """Return the incident that ended the job.

    It is the first unrecovered one before the job's end. A job at its backoff limit had recovered from all
    incidents: then it is the last.
    """
    job = observed.job
    if job is None or job.late:
        return None
    ended_s = math.inf if job.ended_s is None else job.ended_s
    early = [entry for entry in found if entry.at_s <= ended_s or entry.at_s == math.inf]
    if job.used_up:
        return early[-1] if early else None
    still = [entry for entry in early if not entry.recovered]
    if not still and job.holds("Failed"):
        # A node whose clock is ahead dates the cause after the end of the job.
        still = [entry for entry in found if not entry.recovered]
    return min(still, key=lambda entry: entry.cause_order, default=None)


def _weighed(observed: ObservedJob, chosen: Incident | None, report: ProcessReport | None) -> Failure:
    """Weigh the incident of a pod against the report of the processes."""
    found = _failure(observed, chosen.pod.name, chosen.finding) if chosen else _without_incident(observed)
    if report is None:
        return found
    told = report.failure
    fact = chosen is not None and not chosen.finding.weak and found.kind in _KUBERNETES_FACTS
    # Elsewhere an agent was stopped because the operator cleaned up after the pod that failed.
    alone = chosen is not None and not chosen.finding.weak and chosen.pod.deletion is None
    if alone and told.kind == "PREEMPTED" and found.kind != "PREEMPTED":
        return replace(found, evidence=(*found.evidence, *told.evidence))
    final = found.kind in {"DEADLINE", "DELETED"} and told.kind in _SYMPTOMS
    if final or (fact and (told.kind in _SYMPTOMS or not report.named)):
        code = told.code if told.kind == found.kind else found.code
        rank = found.rank if found.rank is not None else told.rank
        return replace(found, code=code, rank=rank, evidence=(*told.evidence, *found.evidence))
    if told.kind == "UNKNOWN" and found.kind != "UNKNOWN":
        return replace(found, evidence=(*told.evidence, *found.evidence))
    pod = told.pod or found.pod
    beside = (found.what,) if chosen else ()
    return replace(told, pod=pod, evidence=(*told.evidence, *beside, *found.evidence))


def _failure(observed: ObservedJob, pod: str, finding: Finding) -> Failure:
    gone = observed.job is not None and observed.job.gone and not observed.job.said
    return Failure.of(
        finding.kind,
        finding.what + (", and then the job was deleted" if gone else ""),
        pod=pod,
        rank=finding.rank,
        exit_code=finding.exit_code,
        reason=finding.reason,
        evidence=finding.evidence,
        advice=finding.advice,
        code=finding.code,
        retryable=finding.retryable,
        budget=finding.budget,
    )


def _without_incident(observed: ObservedJob) -> Failure:
    """Return the failure of a job that no pod explains."""
    job = observed.job
    if job is not None and job.late:
        return Failure.of("DEADLINE", job.message, reason="DeadlineExceeded")
    held = find_waiting(observed)
    if job is not None and not job.said:
        if held and held.kind != "INFRASTRUCTURE":
            what = f"the job was deleted while it waited: {held.words}"
            return Failure.of(
                held.kind, what, pod=held.pod, reason=held.reason, evidence=(_waiting_text(held),)
            )
        ran = any(pod.starts for pod in observed.pods)
        return Failure.of(
            "DELETED",
            f"the job was deleted by someone else {'while' if ran else 'before'} it ran",
            reason="Deleted",
        )
    said = job.said if job else ""
    return Failure.of(
        "UNKNOWN",
        f"the job says {said} without its completion marker {Completion.FILE}, and no pod shows why",
        reason=said,
    )


def _waiting_text(held: Waiting) -> str:
    return f"waits: {held}"


def _doubts(observed: ObservedJob, found: tuple[Incident, ...]) -> tuple[str, ...]:
    """Return observations that contradict a success."""
    job = observed.job
    said = job.said if job else ""
    odd = [] if said == "Succeeded" else [f"the job says {said or 'nothing, and is gone'}"]
    return redaction.bounded_evidence([*odd, *(entry.finding.what for entry in found if not entry.recovered)])


def _other_evidence(
    observed: ObservedJob, chosen: Incident | None, found: tuple[Incident, ...], report: ProcessReport | None
) -> list[str]:
    """Return evidence besides the cause: the end of the log, other pods, the job's message, events."""
    seen: list[str] = []
    if chosen and (tail := logs.parse_log(observed.log(chosen.pod.uid)).tail):
        seen.append(f"end of the log of pod {chosen.pod.name}:\n" + "\n".join(tail))
    seen += [entry.finding.what for entry in found if entry is not chosen][:_MAX_PODS]
    if observed.job and observed.job.message:
        seen.append(f"job: {observed.job.message}")
    told = (
        event for event in observed.events if event.kind != "Node" and event.reason not in _REPEATED_EVENTS
    )
    warned = [event for event in told if event.warning and not event.message.startswith("Error pod ")]
    seen += [f"event on {event.name}: {event.reason}: {event.message}" for event in warned[-5:]]
    if chosen is None and report is None:
        seen += [_pod_summary(observed, index) for index in range(min(len(observed.pods), _MAX_PODS))]
    return seen


def _pod_summary(observed: ObservedJob, index: int) -> str:
    """Return a line about a pod that explains nothing."""
    pod = observed.pods[index]
    ends = [f"{end.container} ended with {end.exit_code} ({end.reason})" for end in pod.endings]
    state = "; ".join(ends) or ("ran" if pod.starts else "never started")
    return f"pod {pod.name}: {pod.phase}, {state}" + (", deleted" if pod.deletion is not None else "")
