"""Where a job stands, for the line of progress: queued, pending, starting, running, restarting, ending."""

from dataclasses import dataclass

from trainwright.launch.diagnosis.observed import Observed
from trainwright.launch.diagnosis.pod_story import MAIN, PodStory
from trainwright.launch.diagnosis.waiting import Waiting, waiting


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a job stands.

    Attributes:
        phase: ``absent``, ``queued``, ``pending``, ``starting``, ``running``, ``restarting``,
            ``ending`` or ``ended``.
        waiting: What holds it up, where something does.
        running: How many of its pods run their program.
        pods: How many it asks for.
        restarts: How often a pod or its container was started again.
        admission: What its queue gave it; empty without a queue, and before.
    """

    phase: str
    waiting: Waiting | None
    running: int
    pods: int
    restarts: int
    admission: str = ""

    def __str__(self) -> str:
        """Say it on one line."""
        if self.waiting and self.phase not in {"running", "ended"}:
            return f"{self.phase}: {self.waiting.words}"
        again = f", {self.restarts} restart(s)" if self.restarts else ""
        given = f"; {self.admission}" if self.admission and self.phase in {"pending", "starting"} else ""
        return f"{self.phase}, {self.running} of {self.pods} pods{again}{given}"


def standing(observed: Observed) -> Standing:
    """Return where a job stands. The job's own Running means one pod, and flickers; its pods are counted."""
    job, running = observed.job, sum(pod.running_s is not None and pod.gone is None for pod in observed.pods)
    starts = sum(len(pod.starts) for pod in observed.pods)
    places = len({pod.place for pod in observed.pods if pod.starts})
    done = sum(_done(pod) for pod in observed.pods)
    held = waiting(observed)
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
    return Standing(
        phase=phase,
        waiting=held,
        running=running,
        pods=job.pods if job else 0,
        restarts=max(0, starts - places),
        admission=observed.workload.admission if observed.workload else "",
    )


def _done(pod: PodStory) -> bool:
    """Tell whether a pod's program has ended well: the job does not wait for it any more."""
    ends = [end for end in pod.endings if end.container in MAIN]
    return pod.running_s is None and bool(ends) and ends[-1].exit_code == 0
