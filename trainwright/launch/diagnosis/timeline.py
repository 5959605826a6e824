"""Where a job's time went: waiting in a queue, for nodes, for containers, or at work."""

import itertools
from dataclasses import dataclass

from trainwright.launch.diagnosis.observed import Observed
from trainwright.launch.diagnosis.pod_story import MAIN, PodStory
from trainwright.launch.diagnosis.usage import latest_s

PHASES = ("queued", "pending", "starting", "running", "restarting", "ending")

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The life of a job so far, as phases that follow one another without a gap.

    Attributes:
        spans: Name, begin and end of each, in seconds since 1970. ``queued``: suspended, so that it waits in
            a queue. ``pending``: some pod has no node. ``starting``: some pod has a node but does not run.
            ``running``: as many pods run as are needed. ``restarting``: not any more, after it ran.
            ``ending``: the same, and it never ran again.
    """

    spans: tuple[tuple[str, float, float], ...] = ()

    @property
    def totals(self) -> tuple[tuple[str, float], ...]:
        """Seconds in each phase that there was, in the order of ``PHASES``."""
        sums = {
            name: sum(end - start for phase, start, end in self.spans if phase == name) for name in PHASES
        }
        return tuple((name, seconds) for name, seconds in sums.items() if seconds > 0)


def of(observed: Observed) -> Timeline:
    """Work out the phases from the times in the objects themselves, never from when they were seen."""
    job = observed.job
    if job is None or job.created_s is None:
        return Timeline()
    end = latest_s(observed)
    suspended = [(since, until if until is not None else end) for since, until in job.suspensions]
    scheduled = [span for pod in observed.pods if (span := _scheduled(pod, end))]
    running = [span for pod in observed.pods for span in _running(pod, end)]
    marks = {job.created_s, end}
    for start, stop in [*suspended, *scheduled, *running]:
        marks |= {start, stop}
    cuts = sorted(mark for mark in marks if job.created_s <= mark <= end)
    spans: list[tuple[str, float, float]] = []
    ran = False
    for start, stop in itertools.pairwise(cuts):
        middle = (start + stop) / 2
        phase = _phase(
            queued=_count(suspended, middle) > 0,
            placed=_count(scheduled, middle) >= job.pods,
            works=_count(running, middle) >= job.needed,
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


def _count(spans: list[Span], at: float) -> int:
    return sum(start <= at < stop for start, stop in spans)


def _scheduled(pod: PodStory, end: float) -> Span | None:
    if pod.scheduled_s is None:
        return None
    stop = pod.finished_s if pod.over is not None else None
    return pod.scheduled_s, stop if stop is not None else end


def _running(pod: PodStory, end: float) -> list[Span]:
    """Return when the training container ran: each of its runs that ended, and the one that goes on."""
    spans = [
        (entry.started_s, entry.finished_s)
        for entry in pod.endings
        if entry.container in MAIN and entry.started_s is not None and entry.finished_s is not None
    ]
    if pod.running_s is not None:
        spans.append(
            (pod.running_s, pod.deletion_s if pod.gone is not None and pod.deletion_s is not None else end)
        )
    return spans
