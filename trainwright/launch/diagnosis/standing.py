"""Where a job stands, for the line of progress: queued, pending, starting, running, restarting, or ended."""

from dataclasses import dataclass

from trainwright.launch.diagnosis.observed import Observed
from trainwright.launch.diagnosis.waiting import Waiting, waiting


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a job stands.

    Attributes:
        phase: ``absent``, ``queued``, ``pending``, ``starting``, ``running``, ``restarting`` or ``ended``.
        waiting: What holds it up, where something does.
        running: How many of its pods run their program.
        pods: How many it asks for.
        restarts: How often a pod or its container was started again.
    """

    phase: str
    waiting: Waiting | None
    running: int
    pods: int
    restarts: int

    def __str__(self) -> str:
        """Say it on one line."""
        if self.waiting and self.phase not in {"running", "ended"}:
            return f"{self.phase}: {self.waiting.words}"
        again = f", {self.restarts} restart(s)" if self.restarts else ""
        return f"{self.phase}, {self.running} of {self.pods} pods{again}"


def standing(observed: Observed) -> Standing:
    """Return where a job stands. The job's own Running means one pod, and flickers; its pods are counted."""
    job, running = observed.job, sum(pod.running_s is not None and pod.gone is None for pod in observed.pods)
    starts = sum(len(pod.starts) for pod in observed.pods)
    places = len({pod.place for pod in observed.pods if pod.starts})
    held = waiting(observed)
    if job is None:
        phase = "absent"
    elif job.ended:
        phase = "ended"
    elif (held and held.kind == "QUOTA_WAIT") or job.holds("Suspended"):
        phase = "queued"
    elif running >= job.needed:
        phase = "running"
    elif starts > running:
        phase = "restarting"
    else:
        phase = "starting" if any(pod.scheduled_s for pod in observed.pods) and not held else "pending"
    return Standing(
        phase=phase,
        waiting=held,
        running=running,
        pods=job.pods if job else 0,
        restarts=max(0, starts - places),
    )
