"""Diagnose how a job ended: only the marker of rank 0 is a success, and a failure has a cause."""

import math
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from trainwright import redaction
from trainwright.launch import logs
from trainwright.launch.agent.rank_errors import (
    CLASS_BY_ERROR,
    RankError,
    first_error,
    last_round,
    round_folder,
)
from trainwright.launch.diagnosis import incidents
from trainwright.launch.diagnosis.incidents import Incident, find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import PodState
from trainwright.launch.diagnosis.waiting import find_waiting
from trainwright.launch.failure import FAILURE_CLASSES, Failure
from trainwright.launch.job_directory import Completion

_KUBERNETES_FACTS = frozenset({"HOST_OOM", "PREEMPTED", "EVICTED_DISK", "NODE_GPU"})
"""Classes that Kubernetes knows better than the processes, which only notice the consequences."""

_SYMPTOMS = frozenset({"PREEMPTED", "INFRASTRUCTURE", "NCCL_TIMEOUT", "HANG", "UNKNOWN"})
"""Classes that a process reports when something else was the cause."""

_REPEATED_EVENTS = frozenset({"Error", "PyTorchJobFailed", "PyTorchJobRestarting"})
"""Reasons of events that repeat a state or announce a restart that does not come."""

_MAX_PODS = 12
_VAGUE = frozenset({"UNKNOWN", "USER_EXCEPTION"})
_NOT_FINITE = re.compile(r"not finite|\bnan\b|\binf\b", re.IGNORECASE)
_KILLED_BY = re.compile(r"was killed by (SIG\w+)")
_ENDED_WITH = re.compile(r"ended with exit code (-?\d+)")


@dataclass(frozen=True, kw_only=True)
class Success:
    """A job that has succeeded, with observations that contradict it, such as a job that says Failed."""

    completion: Completion
    doubts: tuple[str, ...] = ()


Outcome = Success | Failure
"""How a job ended."""


@dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """A failure reported by a process.

    Unless the process ``named`` the cause, its agent only observed its exit, or it raised an exception of
    another library, often only because another process was gone.
    """

    failure: Failure
    named: bool


def read_report(folder: Path) -> ProcessReport | None:
    """Read the report of an attempt's last round: its agents' ``failure.json``, or its ranks' errors.

    The ``failure.json`` of the attempt itself may be of an earlier round, before a suspension or a restart.
    """
    number = last_round(folder)
    if number is None:
        return None
    path = round_folder(folder, number) / Failure.FILE
    if path.exists():
        failure = Failure.read(path)
        # An agent that only observed an exit knows less than the pods, which may show an OOM kill.
        return ProcessReport(failure=failure, named=failure.kind != "UNKNOWN")
    error = first_error(folder, number)
    return report_of_rank(error) if error else None


def report_of_rank(error: RankError) -> ProcessReport:
    """Classify the error of one process."""
    said = f"{error.error}: {error.what}"
    clue = logs.find_clue(said)
    ours = error.error in CLASS_BY_ERROR and not error.witnessed
    kind = error.kind or (clue.kind if clue and not ours else "")
    if not kind:
        kind = (
            "HOST_OOM" if error.error == "MemoryError" else CLASS_BY_ERROR.get(error.error, "USER_EXCEPTION")
        )
    if kind == "DIVERGED" and _NOT_FINITE.search(error.what):
        kind = "NAN_LOSS"
    exit_code: int | None = error.code
    if error.witnessed:  # the agent that observed it says so in its message
        killed, ended = _KILLED_BY.search(error.what), _ENDED_WITH.search(error.what)
        exit_code = int(ended[1]) if ended else None
        if killed:
            exit_code = -signal.Signals[killed[1]] if killed[1] in signal.Signals.__members__ else None
    where = f" ({error.where})" if error.where else ""
    failure = Failure.of(
        kind,
        error.what,
        rank=error.rank,
        exit_code=exit_code,
        reason=error.error,
        evidence=(f"{error.name}: {said}{where}", "\n".join(error.evidence)),
        advice=error.hint,
        code=error.code if ours and error.code != FAILURE_CLASSES[kind].code else None,
    )
    follows = error.follows or bool(clue and clue.weak and not ours)
    return ProcessReport(failure=failure, named=not follows and (ours or kind not in _VAGUE))


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
        odd = [] if job.final == "Succeeded" else [f"the job says {job.final or 'nothing, and is gone'}"]
        lost = [entry.failure.what for entry in found if not entry.recovered]
        return Success(completion=completion, doubts=redaction.bounded_evidence([*odd, *lost]))
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
    """Return the failure of a job that exceeds a limit of the launcher."""
    waiting = find_waiting(observed)
    shown = [f"waits: {waiting}"] if waiting else []
    others = _other_evidence(observed, None, find_incidents(observed), None)
    return Failure.of(
        kind,
        redaction.redact(what),
        pod=waiting.pod if waiting else "",
        reason=waiting.reason if waiting else "",
        evidence=redaction.bounded_evidence([*shown, *others]),
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
    job = observed.job
    found = chosen.failure if chosen else _without_incident(observed)
    if chosen and job is not None and job.gone and not job.final:
        found = replace(found, what=f"{found.what}, and then the job was deleted")
    if report is None:
        return found
    told = report.failure
    strong = chosen is not None and not chosen.weak
    # Elsewhere an agent was stopped because the operator cleaned up after the pod that failed.
    alone = strong and chosen is not None and chosen.pod.deletion is None
    if alone and told.kind == "PREEMPTED" and found.kind != "PREEMPTED":
        return replace(found, evidence=(*found.evidence, *told.evidence))
    final = found.kind in {"DEADLINE", "DELETED"} and told.kind in _SYMPTOMS
    fact = strong and found.kind in _KUBERNETES_FACTS and (told.kind in _SYMPTOMS or not report.named)
    if final or fact:
        code = told.code if told.kind == found.kind else found.code
        rank = found.rank if found.rank is not None else told.rank
        return replace(found, code=code, rank=rank, evidence=(*told.evidence, *found.evidence))
    if told.kind == "UNKNOWN" and found.kind != "UNKNOWN":
        return replace(found, evidence=(*told.evidence, *found.evidence))
    beside = (found.what,) if chosen else ()
    evidence = (*told.evidence, *beside, *found.evidence)
    return replace(told, pod=told.pod or found.pod, evidence=evidence)


def _without_incident(observed: ObservedJob) -> Failure:
    """Return the failure of a job that no pod explains."""
    job = observed.job
    if job is not None and job.late:
        return Failure.of("DEADLINE", job.message, reason="DeadlineExceeded")
    waiting = find_waiting(observed)
    if job is not None and not job.final:
        if waiting and waiting.kind != "INFRASTRUCTURE":
            what, evidence = f"the job was deleted while it waited: {waiting.words}", (f"waits: {waiting}",)
            fields = {"pod": waiting.pod, "reason": waiting.reason, "evidence": evidence}
            return Failure.of(waiting.kind, what, **fields)
        when = "while" if any(pod.starts for pod in observed.pods) else "before"
        return Failure.of("DELETED", f"the job was deleted by someone else {when} it ran", reason="Deleted")
    final = job.final if job else ""
    what = f"the job says {final} without its completion marker {Completion.FILE}, and no pod shows why"
    return Failure.of("UNKNOWN", what, reason=final)


def _other_evidence(
    observed: ObservedJob, chosen: Incident | None, found: tuple[Incident, ...], report: ProcessReport | None
) -> list[str]:
    """Return evidence besides the cause: the end of the log, other pods, the job's message, events."""
    seen: list[str] = []
    if chosen and (tail := logs.parse_log(observed.log(chosen.pod.uid)).tail):
        seen.append(f"end of the log of pod {chosen.pod.name}:\n" + "\n".join(tail))
    seen += [entry.failure.what for entry in found if entry is not chosen][:_MAX_PODS]
    if observed.job and observed.job.message:
        seen.append(f"job: {observed.job.message}")
    warnings = [
        event
        for event in observed.events
        if event.warning
        and event.kind != "Node"
        and event.reason not in _REPEATED_EVENTS
        and not event.message.startswith("Error pod ")
    ]
    seen += [f"event on {event.name}: {event.reason}: {event.message}" for event in warnings[-5:]]
    if chosen is None and report is None:
        seen += [_pod_summary(pod) for pod in observed.pods[:_MAX_PODS]]
    return seen


def _pod_summary(pod: PodState) -> str:
    """Return a line about a pod that explains nothing."""
    ends = [f"{end.container} ended with {end.exit_code} ({end.reason})" for end in pod.endings]
    state = "; ".join(ends) or ("ran" if pod.starts else "never started")
    return f"pod {pod.name}: {pod.phase}, {state}" + (", deleted" if pod.deletion is not None else "")
