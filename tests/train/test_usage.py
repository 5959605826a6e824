"""The usage of a job from its curves: steps, what a restart repeats, and time without a step."""

from typing import Any

from trainwright.artifacts import JobUsage
from trainwright.tracking.history import TrainingHistory
from trainwright.train.submit import job_usage


def history(*lines: dict[str, Any]) -> TrainingHistory:
    found = TrainingHistory()
    for line in lines:
        found.take({**line, "time_ms": 1_000_000 + 1000 * line.pop("at")})
    return found


def began(at: int, step: int, **more: Any) -> dict[str, Any]:
    return {"at": at, "step": step, "event": "began", **more}


def point(at: int, step: int, **values: float) -> dict[str, Any]:
    return {"at": at, "step": step, "values": values}


def test_steps_after_the_checkpoint_of_a_restart_are_repeated() -> None:
    found = history(
        began(10, 0),
        point(20, 10, gpu_use=0.2),
        point(30, 20, gpu_use=0.4),  # the checkpoint is of step 10
        began(50, 10),
        point(60, 20, gpu_use=0.6),
        {"at": 61, "step": 20, "event": "ended"},
    )
    # Steps from 10 to 30 and from 50 to 60; those from 20 to 30 came again.
    assert job_usage(found, 100.0) == JobUsage(seconds=100.0, idle_s=70.0, repeated_s=10.0, gpu_use=0.4)


def test_second_candidate_repeats_nothing() -> None:
    names = {"trees/gpu_use": 0.5}
    found = history(
        began(0, 0, candidate="trees"),
        point(10, 5, **names),
        began(11, 0, candidate="mlp"),
        point(30, 9, **{"mlp/gpu_use": 0.7}),
    )
    assert job_usage(found, 40.0) == JobUsage(seconds=40.0, idle_s=11.0, repeated_s=0.0, gpu_use=0.6)


def test_job_whose_end_an_earlier_launcher_saw_has_the_time_of_its_steps() -> None:
    assert job_usage(history(began(0, 0), point(7, 5)), 0.0) == JobUsage(seconds=7.0)
    assert job_usage(TrainingHistory(), 3.0) == JobUsage(seconds=3.0, idle_s=3.0)
