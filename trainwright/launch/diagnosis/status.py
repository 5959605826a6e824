"""The status of a job for the progress line, and the timeline of its phases."""

import itertools
from dataclasses import dataclass

from trainwright.launch.diagnosis.incidents import latest_s
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import MAIN_CONTAINERS, PodState
from trainwright.launch.diagnosis.waiting import Waiting, find_waiting


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a running or waiting job.

    Attributes:
        phase: ``absent``, ``queued``, ``pending``, ``starting``, ``running``, ``restarting``,
            ``ending`` or ``ended``.
        waiting: Why it waits, if it does.
        running: Number of pods whose training container runs.
        pods: Number of requested pods.
        restarts: Number of restarts of pods and containers.
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
        given = f"; {self.admission}" if self.admission and self.phase in {"pending", "starting"} else ""
        return f"{self.phase}, {self.running} of {self.pods} pods{again}{given}"


def job_status(observed: ObservedJob) -> JobStatus:
    """Return the status of a job from its pods: its own Running condition means one pod, and flickers."""
    job, running = observed.job, sum(pod.running_s is not None and pod.gone is None for pod in observed.pods)
    starts = sum(len(pod.starts) for pod in observed.pods)
    places = len({pod.place for pod in observed.pods if pod.starts})
    done = sum(_has_completed(pod) for pod in observed.pods)
    held = find_waiting(observed)
    if job is None:
        phase = "absent"
    elif job.ended:
        phase = "ended"
    elif (held and held.kind == "QUOTA_WAIT") or job.holds("Suspended"):
        phase = "queued"
    elif running >= job.needed:
        phase = "running"
    elif done and running + done >= job.needed:
        phase = "ending"
    elif starts > running:
        phase = "restarting"
    else:
        phase = "starting" if any(pod.scheduled_s for pod in observed.pods) and not held else "pending"
    return JobStatus(
        phase=phase,
        waiting=held,
        running=running,
        pods=job.pods if job else 0,
        restarts=max(0, starts - places),
        admission=observed.workload.admission if observed.workload else "",
    )


def _has_completed(pod: PodState) -> bool:
    """Tell whether a pod's training container has exited with 0."""
    ends = [end for end in pod.endings if end.container in MAIN_CONTAINERS]
    return pod.running_s is None and bool(ends) and ends[-1].exit_code == 0


PHASES = ("queued", "pending", "starting", "running", "restarting", "ending")

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The phases of a job so far, without gaps.

    Attributes:
        spans: Name, start and end of each, in seconds since 1970. ``queued``: suspended. ``pending``: some
            pod has no node. ``starting``: some pod has a node but does not run. ``running``: as many pods run
            as are needed. ``restarting``: no longer, after it ran. ``ending``: the same, and it never ran
            again.
    """

    spans: tuple[tuple[str, float, float], ...] = ()

    @property
    def totals(self) -> tuple[tuple[str, float], ...]:
        """Seconds in each phase that occurred, in the order of ``PHASES``."""
        sums = {
            name: sum(end - start for phase, start, end in self.spans if phase == name) for name in PHASES
        }
        return tuple((name, seconds) for name, seconds in sums.items() if seconds > 0)


def timeline_of(observed: ObservedJob) -> Timeline:
    """Derive the phases from the times in the objects, never from when they were observed."""
    job = observed.job
    if job is None or job.created_s is None:
        return Timeline()
    end = latest_s(observed)
    suspended = [(since, until if until is not None else end) for since, until in job.suspensions]
    scheduled = [span for pod in observed.pods if (span := _scheduled_span(pod, end))]
    running = [span for pod in observed.pods for span in _running_spans(pod, end)]
    marks = {job.created_s, end}
    for start, stop in [*suspended, *scheduled, *running]:
        marks |= {start, stop}
    cuts = sorted(mark for mark in marks if job.created_s <= mark <= end)
    spans: list[tuple[str, float, float]] = []
    ran = False
    for start, stop in itertools.pairwise(cuts):
        middle = (start + stop) / 2
        phase = _phase(
            queued=_count_at(suspended, middle) > 0,
            placed=_count_at(scheduled, middle) >= job.pods,
            works=_count_at(running, middle) >= job.needed,
            ran=ran,
        )
        ran = ran or phase == "running"
        if spans and spans[-1][0] == phase:
            spans[-1] = (phase, spans[-1][1], stop)
        else:
            spans.append((phase, start, stop))
    again = any(start >= spans[-1][1] for pod in observed.pods for start in pod.starts) if spans else False
    if spans and spans[-1][0] == "restarting" and job.ended and not again:
        spans[-1] = ("ending", *spans[-1][1:])
    return Timeline(spans=tuple(spans))


def _phase(*, queued: bool, placed: bool, works: bool, ran: bool) -> str:
    if queued:
        return "queued"
    if works:
        return "running"
    if ran:
        return "restarting"
    return "starting" if placed else "pending"


def _count_at(spans: list[Span], at: float) -> int:
    return sum(start <= at < stop for start, stop in spans)


def _scheduled_span(pod: PodState, end: float) -> Span | None:
    if pod.scheduled_s is None:
        return None
    stop = pod.finished_s if pod.over is not None else None
    return pod.scheduled_s, stop if stop is not None else end


def _running_spans(pod: PodState, end: float) -> list[Span]:
    """Return the runs of the training container, including the current one."""
    spans = [
        (entry.started_s, entry.finished_s)
        for entry in pod.endings
        if entry.container in MAIN_CONTAINERS and entry.started_s is not None and entry.finished_s is not None
    ]
    if pod.running_s is not None:
        spans.append(
            (pod.running_s, pod.deletion_s if pod.gone is not None and pod.deletion_s is not None else end)
        )
    return spans
