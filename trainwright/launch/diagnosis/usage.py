"""How long pods held GPUs, and how much of that has to be spent again."""

from trainwright.launch.diagnosis.observed import Observed
from trainwright.launch.diagnosis.pod_story import PodStory


def held_s(pod: PodStory, until_s: float) -> tuple[float, float] | None:
    """Return when a pod began and ceased to hold its node, in seconds since 1970; None if it never did.

    A pod holds its GPUs from the moment it is put on a node until its last container has ended.
    """
    if pod.scheduled_s is None:
        return None
    ended = pod.finished_s if pod.over is not None or pod.gone is not None else None
    if ended is None:
        ended = pod.deletion_s if pod.gone is not None and pod.deletion_s is not None else until_s
    return pod.scheduled_s, max(ended, pod.scheduled_s)


def gpu_s(observed: Observed, *, since_s: float = 0.0) -> float:
    """Return the GPU seconds that the job's pods have held since a time, from what was seen of them.

    Args:
        observed: What was seen.
        since_s: Only what was held after this counts, in seconds since 1970: the time of the last committed
            checkpoint gives what is lost by starting again from it.
    """
    until_s = latest_s(observed)
    spans = [(pod.gpus, span) for pod in observed.pods if (span := held_s(pod, until_s))]
    return float(sum(gpus * max(0.0, end - max(start, since_s)) for gpus, (start, end) in spans))


def latest_s(observed: Observed) -> float:
    """Return the latest time that anything which was seen speaks of; for a job that has ended, its end.

    What still runs is counted up to here. The reader's own clock plays no part.
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
