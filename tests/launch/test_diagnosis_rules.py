"""Single rules of the diagnosis at their limits: what counts as one interruption, as a cause, as a wait."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.launch.objects import Object, at, ended, event, job, pod, seen
from tests.launch.test_diagnosis import REPORTS, XID, failure
from trainwright.launch.cluster.history import last_checkpoint_s
from trainwright.launch.cluster.lease import attempt_of
from trainwright.launch.diagnosis.diagnosis import Success, diagnose, limit_failure, report_of_rank
from trainwright.launch.diagnosis.incidents import (
    Interruption,
    Loss,
    find_incidents,
    gpu_seconds,
    group_interruptions,
)
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.state import read_workload
from trainwright.launch.diagnosis.waiting import JobStatus, job_status
from trainwright.launch.job_directory import Completion, create_attempt
from trainwright.launch.manifests import ATTEMPT, FOLDER

FAILED = job("Failed:it failed")


@pytest.mark.parametrize(
    ("conditions", "doubts"),
    [(["Succeeded:fine"], ()), (["Failed:it failed"], ("the job says Failed",))],
)
def test_success_is_doubted_where_the_job_says_something_else(
    conditions: list[str], doubts: tuple[str, ...]
) -> None:
    completion = Completion(attempt="0001", outputs={})
    assert diagnose(seen(job(*conditions)), completion) == Success(completion=completion, doubts=doubts)


def test_a_limit_of_the_launcher_is_told_with_what_the_job_waits_for() -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    waits = pod(state={"waiting": {}}, scheduled=refused, phase="Pending")
    found = limit_failure(seen(job("Created"), waits), "UNSCHEDULABLE", "it waited 600 s")
    assert (found.kind, found.pod, found.reason) == ("UNSCHEDULABLE", "tw-worker-0", "Unschedulable")
    assert found.evidence[0].startswith("waits: ")
    alone = limit_failure(seen(job("Running"), pod(), pod("tw-master-0")), "STUCK", "no step")
    assert (alone.pod, alone.reason) == ("", "")
    assert not any(entry.startswith("waits") for entry in alone.evidence)


def test_at_its_backoff_limit_a_job_ended_with_its_last_incident() -> None:
    over = job("Failed:Job tw has failed because it has reached the specified backoff limit")
    first = pod("tw-master-0", state=ended(30, second=40), phase="Failed")
    last = pod(state=ended(31, second=50), phase="Failed")
    assert failure(first, last, over).kind == "HANG"
    assert failure(first, last, FAILED).kind == "DIVERGED"


@pytest.mark.parametrize("name", ["saved", "transient"])
def test_a_pod_that_was_not_deleted_outweighs_processes_that_were_stopped(name: str) -> None:
    broken = pod(state=ended(30), phase="Failed")
    found = failure(broken, FAILED, report=report_of_rank(REPORTS[name][0]))
    assert (found.kind, found.code) == (("DIVERGED", 30) if name == "saved" else ("INFRASTRUCTURE", 20))


def test_a_fact_of_kubernetes_keeps_its_own_code_and_rank() -> None:
    body = pod(state=ended(137, "OOMKilled"), phase="Failed")
    found = failure(body, FAILED, report=report_of_rank(REPORTS["hang"][0]))
    assert (found.kind, found.code, found.rank) == ("HOST_OOM", 10, 1)


def test_the_last_five_warnings_are_evidence() -> None:
    events = [event("BackOff", f"pull {number}", second=number) for number in range(7)]
    said = [entry for entry in failure(FAILED, *events).evidence if entry.startswith("event on")]
    assert said == [f"event on tw: BackOff: pull {number}" for number in range(2, 7)]


def test_a_fault_of_another_node_is_not_the_cause() -> None:
    for node, kind in (("n0", "USER_EXCEPTION"), ("n1", "NODE_GPU"), ("n2", "USER_EXCEPTION")):
        said = event("XidError", XID.format(79).strip(), name=node, kind="Node", second=40)
        assert failure(pod(state=ended(1), phase="Failed"), said, FAILED).kind == kind


def deleted(name: str, second: int, **changes: Any) -> Object:
    return pod(name, metadata={"deletionTimestamp": at(second), "deletionGracePeriodSeconds": 0}, **changes)


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (pod("tw-master-0", state=ended(30, second=60), phase="Failed"), ["tw-master-0"]),
        (
            deleted("tw-master-0", 60, conditions=[DISRUPTED | {"lastTransitionTime": at(58)}]),
            ["tw-master-0"],
        ),
        (pod("tw-master-0"), ["tw-worker-0"]),
    ],
)
def test_what_the_operator_cleaned_up_in_the_second_of_the_end_is_no_loss(
    other: Object, names: list[str]
) -> None:
    observed = seen(pod(), pod("tw-master-0"), FAILED)
    observed.replace_pods([deleted("tw-worker-0", 60), other])
    assert [entry.pod.name for entry in find_incidents(observed)] == names


def test_gpus_are_counted_from_scheduling_to_the_end_of_each_pod() -> None:
    waiting = pod("tw-master-0", gpus=4, scheduled={"type": "PodScheduled", "status": "False"})
    worked = pod(gpus=2, state=ended(1, second=50), phase="Failed")
    observed = seen(waiting, worked, FAILED)
    assert gpu_seconds(observed) == 2 * (50 - 5)
    first = worked["status"]["containerStatuses"][0]["state"]["terminated"]
    assert first["finishedAt"] == at(50)


def loss(place: str, at_s: float | None, *, began_s: float = 0, back_s: float | None = None) -> Loss:
    return Loss(
        key=f"{place}/{at_s}", budget="preemption", kind="PREEMPTED", what="", place=place,
        began_s=began_s, at_s=at_s, back_s=back_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "later", "together"),
    [
        (loss("a", 100), loss("b", 700), True),
        (loss("a", 100), loss("b", 701), False),
        (loss("a", 100, back_s=200), loss("b", 800), True),
        (loss("a", 100, back_s=200), loss("b", 801), False),
        (loss("a", 100), loss("b", None), True),
        (loss("a", 100), loss("b", 150, began_s=100), True),
        (loss("a", 100), loss("a", 150, began_s=100), False),
        (loss("a", 100), loss("b", 150, began_s=101), False),
        (loss("a", None), loss("b", None), True),
    ],
)
def test_losses_within_ten_minutes_of_the_first_are_one_interruption(
    first: Loss, later: Loss, together: bool
) -> None:
    assert Interruption((first,)).includes(later) == together
    assert len(group_interruptions([later, first])) == (1 if together else 2)


def test_an_empty_log_replaces_none_that_was_seen() -> None:
    observed = ObservedJob("tw")
    for text in ("ValueError: x", " \n", ""):
        observed.add_log("uid", text)
    assert observed.log("uid") == "ValueError: x"
    for number in range(1000):
        observed.add_log(f"uid-{number}", "text")
    assert observed.log("uid") == ""
    assert sum(bool(observed.log(f"uid-{number}")) for number in range(1000)) < 1000
    assert observed.log("uid-999") == "text"


def test_a_status_counts_the_pods_that_the_job_asks_for() -> None:
    assert job_status(ObservedJob("tw")) == JobStatus("absent", None, 0, 0, 0, "")
    for replicas, count in (
        ({"Master": {}, "Worker": {"replicas": 3}}, 4),
        ({"Master": {"replicas": 1}, "Worker": {"replicas": 1}}, 2),
        ({"Worker": None}, 1),
    ):
        assert job_status(seen(job("Running", pytorchReplicaSpecs=replicas), pod())).pods == count
    for spec, count in (({"trainer": {"numNodes": 3}}, 3), ({}, 1)):
        body = job("Running")
        body["spec"] = spec
        assert job_status(seen(body)).pods == count


def condition(kind: str, status: str, reason: str) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": f"{reason} it"}


PENDING = condition("QuotaReserved", "False", "Pending")
RESERVED = condition("QuotaReserved", "True", "QuotaReserved")


@pytest.mark.parametrize(
    ("active", "conditions", "reason"),
    [
        (True, [], ""),
        (True, [PENDING], "Pending"),
        (True, [RESERVED], ""),
        (True, [PENDING, condition("Evicted", "True", "PodsReadyTimeout")], "Pending"),
        (True, [PENDING, condition("Evicted", "True", "Preempted")], "Preempted"),
        (True, [PENDING, condition("Evicted", "False", "Preempted")], "Pending"),
        (True, [RESERVED, condition("Evicted", "True", "PodsReadyTimeout")], "PodsReadyTimeout"),
        (False, [PENDING, condition("Evicted", "True", "Deactivated")], "Deactivated"),
        (False, [PENDING, condition("Evicted", "True", "PodsReadyTimeout")], "PodsReadyTimeout"),
        (False, [PENDING], "Deactivated"),
        (False, [], "Deactivated"),
    ],
)
def test_a_workload_waits_for_the_reason_that_is_in_force(
    active: bool, conditions: list[Object], reason: str
) -> None:
    body = {
        "metadata": {"uid": "u", "name": "w"},
        "spec": {"active": active},
        "status": {"conditions": conditions},
    }
    found = read_workload(body)
    assert (found.active, found.reason) == (active, reason)


def test_the_attempt_of_a_job_is_its_annotation_else_its_folder() -> None:
    def named(**notes: str) -> str:
        return attempt_of({"metadata": {"annotations": notes}})

    assert named(**{ATTEMPT: "0003", FOLDER: "/home/attempts/0002"}) == "0003"
    assert named(**{FOLDER: "/home/attempts/0002"}) == "0002"
    assert (named(), attempt_of({"metadata": {}})) == ("", "")


def test_the_last_checkpoint_is_the_newest_that_was_committed(tmp_path: Path) -> None:
    attempt = create_attempt(tmp_path)
    assert last_checkpoint_s(attempt) == 0
    for step, time_s in ((2, 100), (4, 300), (6, 200)):
        manifest = tmp_path / "checkpoints" / f"step-{step:08}.0001" / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
        os.utime(manifest, (time_s, time_s))
    (tmp_path / "checkpoints" / "step-00000008.0001").mkdir()
    assert last_checkpoint_s(attempt) == 300
    assert last_checkpoint_s(tmp_path) == 0


@pytest.mark.parametrize(("second", "names"), [(45, ["tw-master-0"]), (55, ["tw-worker-0", "tw-master-0"])])
def test_of_what_one_list_showed_the_times_decide_which_pod_was_lost_first(
    second: int, names: list[str]
) -> None:
    observed = seen(pod(), pod("tw-master-0"), job("Running"))
    failed = pod("tw-master-0", state=ended(1, second=second), phase="Failed")
    observed.replace_pods([deleted("tw-worker-0", 50), failed])
    assert [entry.pod.name for entry in find_incidents(observed)] == names
