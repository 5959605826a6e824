"""The usage of a training job: time of its pods, idle and repeated time, use of its GPUs."""

import math
from itertools import zip_longest
from statistics import fmean

from trainwright.artifacts import JobUsage
from trainwright.launch.job import Result
from trainwright.tracking.history import HISTORY_FILE, TrainingHistory


def write_usage(result: Result) -> None:
    """Write what a job used beside its model, unless an earlier attempt at the step has done so."""
    model = result.folder / "model"
    if not (model / JobUsage.FILE).exists():
        history = TrainingHistory.read(result.folder.parent.parent / HISTORY_FILE)
        job_usage(history, result.seconds).write(model)


def job_usage(history: TrainingHistory, seconds: float) -> JobUsage:
    """Return what a job used, from its curves and the time that it held its pods."""
    starts = [event for event in history.events if event.get("event") == "began"]
    stepping = repeated = 0.0
    for start, following in zip_longest(starts, starts[1:]):
        began, end = float(start["time_ms"]), following["time_ms"] if following else math.inf
        taken = [(point.time_ms, point.step) for point in history.points if began <= point.time_ms < end]
        last = max((time_ms for time_ms, _ in taken), default=began)
        stepping += last - began
        # Each candidate of several starts at step 0; a second start of the same one repeats.
        if following and following.get("candidate") == start.get("candidate"):
            saved = [time_ms for time_ms, step in taken if step <= following["step"]]
            repeated += last - max(saved, default=began)
    total = max(seconds, stepping / 1000)
    used = [
        value
        for point in history.points
        for name, value in point.values.items()
        if name.rpartition("/")[2] == "gpu_use"  # of one candidate: trees/gpu_use
    ]
    return JobUsage(
        seconds=round(total, 3),
        idle_s=round(total - stepping / 1000, 3),
        repeated_s=round(repeated / 1000, 3),
        gpu_use=round(fmean(used), 4) if used else None,
    )
