"""The model of Kueue's admission against Kueue itself, and the replay of jobs against sums done by hand.

``recordings/`` holds what Kueue 0.19.2 did: its own scheduler and controllers, with fair sharing, on an API
server of Kubernetes 1.31, with the queues of ``deploy/kueue`` (``strict``) and variants of them. A step
creates or finishes a Workload; then evicted ones are released, as their jobs would be, until nothing changes.
``admitted`` is what runs then. Five end early: evictions raced, or the recorder did not wait long enough.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation.kueue import ClusterQueue, Kueue, Workload
from benchmarks.teams import GRACE_S, HOUR, START_S, Job, Replay

RECORDINGS = Path(__file__).with_name("recordings")
ONE = [ClusterQueue(name="all", nominal=128, strategy="StrictFIFO")]
TEAMS = [
    ClusterQueue(name=name, nominal=nominal, strategy="StrictFIFO", reclaim="Any", within="LowerPriority")
    for name, nominal in {"team-a": 64, "team-b": 40, "team-c": 24}.items()
]


def settle(kueue: Kueue, now: int) -> set[str]:
    """Run the queues until nothing changes, and return the names of all that was evicted on the way."""
    names: set[str] = set()
    while evicted := kueue.schedule(now)[1]:
        for workload in evicted:
            kueue.release(workload)
        names |= {workload.name for workload in evicted}
        now += 1
    return names


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_steps_admit_and_evict_what_kueue_did(path: Path) -> None:
    recorded = json.loads(path.read_text())
    kueue = Kueue([ClusterQueue.of(queue, "on-demand-gpu") for queue in recorded["queues"]])
    workloads: dict[str, Workload] = {}
    for number, step in enumerate(recorded["steps"]):
        name = step["name"]
        if step["do"] == "create":
            fields = {key: step[key] for key in ("queue", "gpus", "priority")}
            # Kueue decides ties by the UID; the model has names for that.
            workloads[name] = Workload(name=step["uid"], created=number, **fields)
            kueue.submit(workloads[name])
        else:
            kueue.release(workloads[name])
        evicted = settle(kueue, 100 * number)
        admitted = {entry.name for entries in kueue.admitted.values() for entry in entries}
        assert (number, admitted, evicted) == (
            number,
            {workloads[name].name for name in step["admitted"]},
            {workloads[name].name for name in step["evicted"]},
        )


def job(team: str, hour: float, gpus: int, hours: float, **fields: Any) -> Job:
    at = int(hour * HOUR)
    workload = Workload(name=f"{team}-{at}-{gpus}", queue=team, gpus=gpus, created=at)
    return Job(team=team, workload=workload, work_s=int(hours * HOUR), queued=at, **fields)


def test_fifo_queue_lets_a_team_with_unused_quota_wait_behind_a_large_job() -> None:
    # 104 GPUs run for ten hours, 64 more do not fit, and four behind them wait although 24 GPUs are idle.
    jobs = [job("team-a", 0, 104, 10), job("team-a", 1, 64, 1), job("team-b", 2, 4, 1)]
    first, large, small = Replay(jobs, ONE, equal=True).jobs
    assert (first.waited_s, large.waited_s, small.waited_s) == (0, 9 * HOUR, 8 * HOUR)
    assert small.waited_with_quota_s == 8 * HOUR


def test_team_takes_its_quota_back_at_once_and_the_borrower_resumes_from_its_checkpoint() -> None:
    # team-a borrows 32 GPUs. After 75 minutes team-b needs 40, of which 32 are free: team-a's newer job ends.
    jobs = [job("team-a", 0, 64, 4), job("team-a", 0.01, 32, 4), job("team-b", 1.25, 40, 2)]
    replay = Replay(jobs, TEAMS)
    kept, evicted, reclaimer = replay.jobs
    assert (replay.evictions, kept.waited_s, reclaimer.waited_s) == (1, 0, GRACE_S)
    # It had worked 1.24 hours, saved an hour, and loses the rest, its grace and another start.
    lost_s = int(1.25 * HOUR) - int(0.01 * HOUR) - HOUR + GRACE_S + START_S
    assert evicted.lost_s == 32 * lost_s
    assert evicted.waited_s == 2 * HOUR  # until team-b ends


def test_job_that_borrows_does_not_evict_a_team_within_its_quota() -> None:
    jobs = [job("team-b", 0, 40, 5), job("team-c", 0, 24, 5), job("team-a", 1, 96, 1)]
    replay = Replay(jobs, TEAMS)
    assert (replay.evictions, replay.jobs[2].waited_s) == (0, 4 * HOUR)
