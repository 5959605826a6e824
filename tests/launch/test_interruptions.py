"""An interruption is charged once, however many pods it takes, and a queue's suspension is not charged."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch.objects import at, count_interruptions, ended, job, losses_of, observe, pod, seen
from tests.launch.recordings import SUSPENDED, load, load_suspended
from tests.launch.test_diagnosis_recordings import told
from trainwright.errors import InternalError, PreemptedUnsaved
from trainwright.launch.agent.rank_errors import RankError, begin_round
from trainwright.launch.cluster.history import AttemptLosses
from trainwright.launch.diagnosis.diagnosis import diagnose, read_report
from trainwright.launch.diagnosis.incidents import (
    Loss,
    count_attempt_interruptions,
    find_incidents,
    group_interruptions,
)
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.failure import Failure

Object = dict[str, Any]
MANY = 11


def elastic(*conditions: str, **changes: Any) -> Object:
    """Make an elastic job of eleven workers."""
    policy = {"minReplicas": 2, "maxReplicas": MANY}
    replicas = {"Worker": {"replicas": MANY}}
    return job(*conditions, elasticPolicy=policy, pytorchReplicaSpecs=replicas, **changes)


def evicted(name: str, *, second: int) -> Object:
    """Make a pod that the Eviction API took away while it ran."""
    reason = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    metadata = {"deletionTimestamp": at(second + 30), "deletionGracePeriodSeconds": 30}
    return pod(name, conditions=[reason | {"lastTransitionTime": at(second)}], metadata=metadata)


def restarted(name: str, code: int, *, ended_at: int, started_at: int, first_at: int = 10) -> Object:
    """Make a pod whose container ended and was restarted in place."""
    body = pod(name, state={"running": {"startedAt": at(started_at)}})
    last = {"exitCode": code, "reason": "Error", "startedAt": at(first_at), "finishedAt": at(ended_at)}
    body["status"]["containerStatuses"][0]["lastState"] = {"terminated": last}
    return body


def replaced(name: str, uid: str, *, started_at: int) -> Object:
    """Make the pod that takes the place of one that was taken away."""
    return pod(name, state={"running": {"startedAt": at(started_at)}}, metadata={"uid": uid})


def test_elastic_loss_is_charged_once_although_all_survivors_return_the_evicted_ranks_code() -> None:
    names = [f"tw-worker-{number}" for number in range(MANY)]
    observed = seen(elastic("Running"), *(pod(name) for name in names))
    observed.update_pod(evicted(names[0], second=50))
    for name in names[1:]:
        observed.update_pod(restarted(name, 40, ended_at=52, started_at=54))
    lost = losses_of(find_incidents(observed))
    assert len(lost) == MANY
    assert count_interruptions(lost) == {"preemption": 1}
    assert len(group_interruptions(lost)) == 1


def test_second_loss_of_a_replaced_pod_is_charged_again() -> None:
    observed = seen(elastic("Running"), pod("tw-worker-0"), pod("tw-worker-1"))
    observed.update_pod(evicted("tw-worker-0", second=50))
    observed.update_pod(restarted("tw-worker-1", 40, ended_at=52, started_at=54))
    observed.replace_pods([replaced("tw-worker-0", "next", started_at=60), pod("tw-worker-1")])
    again = evicted("tw-worker-0", second=120)
    again["metadata"]["uid"] = "next"
    again["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at(60)}}
    observed.update_pod(again)
    observed.update_pod(restarted("tw-worker-1", 40, ended_at=122, started_at=124, first_at=54))
    assert count_interruptions(losses_of(find_incidents(observed))) == {"preemption": 2}


def test_survivor_that_is_lost_long_after_the_first_loss_was_overcome_is_charged_again() -> None:
    observed = seen(elastic("Running"), pod("tw-worker-0"), pod("tw-worker-1"))
    observed.update_pod(evicted("tw-worker-0", second=50))
    observed.replace_pods([replaced("tw-worker-0", "next", started_at=60), pod("tw-worker-1")])
    observed.update_pod(evicted("tw-worker-1", second=1800))
    assert count_interruptions(losses_of(find_incidents(observed))) == {"preemption": 2}


def test_container_that_restarts_within_a_second_and_fails_again_is_charged_each_time() -> None:
    first, second = (
        restarted("tw-worker-0", 1, ended_at=end, started_at=end, first_at=start)
        for start, end in ((10, 20), (20, 21))
    )
    assert count_interruptions(losses_of(find_incidents(seen(elastic("Running"), first, second)))) == {
        "user": 2
    }


def test_preemption_of_all_pods_of_a_static_job_is_one_interruption() -> None:
    names = ["tw-master-0", *(f"tw-worker-{number}" for number in range(MANY - 1))]
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": MANY - 1}}
    running = job("Running", pytorchReplicaSpecs=replicas)
    observed = seen(running, *(pod(name) for name in names))
    for name in names:
        observed.update_pod(evicted(name, second=50))
    observed.update_job(job("Failed:tw failed", pytorchReplicaSpecs=replicas))
    failure = diagnose(observed)
    assert isinstance(failure, Failure)
    assert count_attempt_interruptions(failure, losses_of(find_incidents(observed))) == {"preemption": 1}


def test_failed_attempt_counts_its_own_end_once_and_what_it_had_overcome_besides() -> None:
    observed = seen(elastic("Running"), pod("tw-worker-0"), pod("tw-worker-1"))
    observed.update_pod(evicted("tw-worker-0", second=20))
    observed.replace_pods([replaced("tw-worker-0", "next", started_at=25), pod("tw-worker-1")])
    failed = pod("tw-worker-1", state=ended(70, second=59), phase="Failed")
    failed["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = at(22)
    observed.update_pod(failed)
    observed.update_job(elastic("Failed:tw failed"))
    lost = losses_of(find_incidents(observed))
    assert count_attempt_interruptions(Failure.of("USER_EXCEPTION", "failed"), lost) == {
        "preemption": 1,
        "user": 1,
    }
    assert count_attempt_interruptions(Failure.of("STUCK", "no step"), ()) == {"infrastructure": 1}


def test_attempt_that_hangs_after_it_recovered_from_a_loss_counts_both() -> None:
    overcome = Loss(
        key="a", budget="infrastructure", kind="NODE_GPU", what="Xid 79", began_s=10, at_s=50, back_s=90
    )
    stuck, same = Failure.of("STUCK", "no step for 600 s"), Failure.of("NODE_GPU", "its budget is used up")
    assert count_attempt_interruptions(stuck, [overcome]) == {"infrastructure": 2}
    assert count_attempt_interruptions(same, [overcome]) == {"infrastructure": 1}, (
        "the launcher ended it for that loss"
    )
    other = Failure.of("NCCL_TIMEOUT", "the backoff limit is reached")
    assert count_attempt_interruptions(other, [overcome], used_up=True) == {"infrastructure": 1}


@pytest.mark.parametrize("kind", sorted(SUSPENDED))
def test_suspension_by_a_real_queue_costs_nothing_and_hides_no_error(tmp_path: Path, kind: str) -> None:
    """Suspended once with two pods, resumed, then ended by a ValueError in rank 1; the folder is the same.

    The agent of the recording ended with 41 after that error too, which was the defect.
    """
    recording = load_suspended(kind)
    observed, first = ObservedJob(recording.job), list[str]()
    for event in recording.events:
        body = event.body
        if event.kind == "Pod" and event.change == "ADDED":
            first += [body["metadata"]["uid"]][: 2 - len(first)]
        if event.kind == "Pod" and body["metadata"]["uid"] not in first:
            body = json.loads(json.dumps(body).replace('"exitCode": 41', '"exitCode": 70'))
        observe(observed, event.kind, event.change, body)
    taken = [entry for entry in find_incidents(observed) if entry.failure.reason == "Suspended"]
    assert len(taken) == 2
    assert all(entry.recovered for entry in taken)

    begin_round(tmp_path)
    for rank in (0, 1):
        RankError.of(PreemptedUnsaved("stopped by SIGTERM"), rank).save(tmp_path)
    left = read_report(tmp_path)
    assert left is not None
    left.failure.write(tmp_path)
    number = begin_round(tmp_path)
    RankError.of(ValueError("no such carrier"), 1, number=number).save(tmp_path)
    failure = diagnose(observed, None, read_report(tmp_path))
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.code, failure.rank, failure.retryable) == ("USER_EXCEPTION", 70, 1, False)
    assert isinstance(failure.to_error(), InternalError)
    assert count_attempt_interruptions(failure, losses_of(find_incidents(observed))) == {"user": 1}


@pytest.mark.parametrize(
    ("scenario", "counts"),
    [
        ("pod-deleted-elastic", {"preemption": 1}),
        ("suspend-resume", {}),
        ("oom-killed-exitcode", {"user": 9}),
    ],
)
def test_recorded_losses_are_charged_once_each(scenario: str, counts: dict[str, int]) -> None:
    assert count_interruptions(losses_of(find_incidents(told(load(scenario))))) == counts


def test_losses_that_an_earlier_launcher_noted_are_grouped_with_those_seen_later(tmp_path: Path) -> None:
    """The evicted pod is gone before the next launcher comes; its survivors end afterwards."""
    before = seen(elastic("Running"), pod("tw-worker-0"), pod("tw-worker-1"))
    before.update_pod(evicted("tw-worker-0", second=50))
    AttemptLosses().with_observed(before).save(tmp_path)
    after = seen(elastic("Running"), restarted("tw-worker-1", 40, ended_at=52, started_at=54))
    noted = AttemptLosses.of(tmp_path).with_observed(after)
    assert len(noted.lost) == 2
    assert count_interruptions(noted.lost) == {"preemption": 1}
