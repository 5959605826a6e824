"""What a real Trainer and a real Kueue did, replayed: every wait has its reason, and hopeless ones an end."""

from datetime import datetime

import pytest

from tests.launch.streams import Change, bodies, load
from trainwright.launch.diagnosis import workload
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.status import job_status
from trainwright.launch.diagnosis.waiting import find_waiting

JOBS = ("trainjobs", "pytorchjobs")


def observe(name: str, *, until: int | None = None, preemptor: str = "") -> ObservedJob:
    """Observe a stream as a launcher does: the job, its pods, its events and its workload."""
    observed = ObservedJob(
        next(change.body for change in load(name) if change.kind in JOBS)["metadata"]["name"]
    )
    for change in load(name)[:until]:
        take(observed, change, preemptor)
    return observed


def take(observed: ObservedJob, change: Change, preemptor: str = "") -> None:
    gone = change.type == "DELETED"
    if change.kind in JOBS:
        observed.update_job(change.body, gone=gone)
    elif change.kind == "pods":
        observed.update_pod(change.body, gone=gone)
    elif change.kind == "events":
        observed.add_event(change.body)
    elif change.kind == "workloads" and not gone:
        observed.update_workload(change.body, preemptor=preemptor)


def waits(name: str) -> list[tuple[str, bool, str]]:
    """Return what a launcher says of a job from its first to its last version, each once."""
    said = []
    observed = observe(name, until=0)
    for change in load(name):
        take(observed, change, "PyTorchJob other")
        if observed.job and not observed.job.gone and (held := find_waiting(observed)):
            said.append((held.kind, held.broken, held.words))
    return list(dict.fromkeys(said))


ENDS = {
    "quota": ("QUOTA_WAIT", False, "the namespace's quota is used up"),
    "limitrange": ("CONFIG", True, "its pods are not allowed to be created"),
    "stuck": ("CONFIG", True, "Kubeflow Trainer cannot make its JobSet"),
    "too-much-pytorchjob": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: it asks for more than the queue can ever give",
    ),
    "too-much-trainjob": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: it asks for more than the queue can ever give",
    ),
    "no-queue": ("CONFIG", True, "its queue does not exist: LocalQueue nope doesn't exist"),
    "deactivated": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: the queue has given it up, somebody has to activate its workload",
    ),
    "deactivated-trainjob": (
        "QUOTA_WAIT",
        True,
        "it is in queue training: the queue has given it up, somebody has to activate its workload",
    ),
    "overtime": ("DEADLINE", True, "its queue stopped it: it ran longer than the queue lets it"),
    "preempted": (
        "QUOTA_WAIT",
        False,
        "it is in queue training: it was preempted by PyTorchJob other (prioritization in the ClusterQueue) "
        "and waits for quota",
    ),
    "preempted-trainjob": (
        "QUOTA_WAIT",
        False,
        "it is in queue training: it was preempted by PyTorchJob other (prioritization in the ClusterQueue) "
        "and waits for quota",
    ),
}


@pytest.mark.parametrize(("name", "expected"), ENDS.items(), ids=ENDS)
def test_a_wait_is_given_its_reason(name: str, expected: tuple[str, bool, str]) -> None:
    assert expected in waits(name)


@pytest.mark.parametrize("name", ["success", "preemptor"])
def test_a_job_that_runs_at_once_is_never_said_to_be_broken(name: str) -> None:
    assert not [said for said in waits(name) if said[1]]


@pytest.mark.parametrize("name", ["success", "preemptor", "preempted", "preempted-trainjob"])
def test_a_success_is_never_said_to_restart(name: str) -> None:
    observed, phases = observe(name, until=0), []
    for change in load(name):
        take(observed, change)
        phases.append(job_status(observed).phase)
        if observed.job and observed.job.said == "Succeeded":
            break
    assert phases[-1] == "ended"
    last = phases[len(phases) - phases[::-1].index("running") :]
    assert "ending" in last
    assert set(last) <= {"ending", "ended"}


def test_a_workload_that_no_priority_class_lets_kueue_make_is_missed_after_a_minute() -> None:
    observed = observe("no-priority", until=4)
    begun = datetime.fromisoformat(bodies("no-priority", "pytorchjobs")[0]["metadata"]["creationTimestamp"])
    for second in (0, 30, 59):
        observed.mark_workload_missing(begun.timestamp() + second)
        held = find_waiting(observed)
        assert held is not None
        assert (held.kind, held.broken) == ("QUOTA_WAIT", False)
    observed.mark_workload_missing(begun.timestamp() + 61)
    held = find_waiting(observed)
    assert held is not None
    assert (held.kind, held.broken) == ("CONFIG", True)
    assert held.words == (
        "it names queue training, and Kueue makes no workload of it: is there a WorkloadPriorityClass nope?"
    )


def test_the_queue_and_the_flavor_of_an_admission_are_said_until_the_pods_run() -> None:
    name, lines = "preempted-trainjob", []
    observed = observe(name, until=0)
    for change in load(name):
        take(observed, change)
        lines.append(str(job_status(observed)))
    assert any(
        line.startswith("pending, 0 of 2 pods; admitted by cluster queue training, flavor on-demand-gpu")
        for line in lines
    )


def test_the_one_who_preempted_is_read_from_the_workload() -> None:
    found = [workload.read_workload(body).preemptor for body in bodies("preempted", "workloads")]
    (job,) = {body["metadata"]["uid"] for body in bodies("preemptor", "pytorchjobs")}
    assert set(found) == {"", job}


def test_a_flavor_that_is_only_in_use_now_is_waited_for() -> None:
    said = (
        "couldn't assign flavors to pod set node: insufficient quota for cpu in flavor small, previously "
        "considered podsets requests (0) + current podset request (20) > maximum capacity (16), "
        "insufficient unused quota for cpu in flavor large, 4 more needed"
    )
    assert not workload.can_never_be_admitted("Pending", said)
    other = "couldn't assign flavors to pod set b: resource x/y unavailable in ClusterQueue"
    assert workload.can_never_be_admitted("Pending", f"{said}; {other}")
