"""A TrainJob of Kubeflow Trainer v2 and its pods are understood as a PyTorchJob and its pods are."""

from typing import Any

from tests.launch.objects import JOB, UID, at, ended, event, pod
from trainwright.launch.diagnosis.diagnosis import Success, diagnose
from trainwright.launch.diagnosis.incidents import count_interruptions, find_incidents, losses_of
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.status import job_status
from trainwright.launch.diagnosis.waiting import find_waiting
from trainwright.launch.failure import Failure
from trainwright.launch.job import Completion

Object = dict[str, Any]


def train_job(*conditions: tuple[str, str, str], nodes: int = 2) -> Object:
    """Make a TrainJob; a condition is its type, its reason and its message."""
    entries = [
        {"type": kind, "status": "True", "reason": reason, "message": said, "lastTransitionTime": at(60)}
        for kind, reason, said in conditions
    ]
    metadata = {"name": JOB, "uid": UID, "creationTimestamp": at(0)}
    status = {"conditions": entries, "jobsStatus": [{"name": "node", "active": nodes}]}
    return {"metadata": metadata, "spec": {"trainer": {"numNodes": nodes}}, "status": status}


def node(index: int, letters: str = "abcde", **changes: Any) -> Object:
    """Make a pod of a TrainJob: a batch Job stands between them, and its name ends with random letters."""
    name = f"{JOB}-node-0-{index}-{letters}"
    labels = {
        "jobset.sigs.k8s.io/jobset-name": JOB,
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": [{"uid": "batch-1"}]}
    body = pod(f"{JOB}-worker-{index}", metadata=metadata, **changes)
    body["spec"]["containers"][0]["name"] = "node"
    body["status"]["containerStatuses"][0]["name"] = "node"
    return body


def seen(*bodies: Object) -> ObservedJob:
    observed = ObservedJob(JOB, UID)
    for body in bodies:
        if "trainer" in body.get("spec", {}):
            observed.update("TrainJob", "MODIFIED", body)
        elif "involvedObject" in body:
            observed.update("Event", "ADDED", body)
        else:
            observed.update("Pod", "MODIFIED", body)
    return observed


def test_its_pods_are_counted_though_a_batch_job_owns_them() -> None:
    stands = job_status(seen(train_job(), node(0), node(1)))
    assert (stands.phase, stands.running, stands.pods) == ("running", 2, 2)
    assert job_status(seen(train_job(), node(0))).phase == "starting"


def test_rank_0_runs_in_the_pod_of_index_0() -> None:
    pods = seen(train_job(), node(1), node(0)).pods
    assert [(entry.rank or entry.node_rank, entry.chief) for entry in pods] == [(1, False), (0, True)]


def test_complete_is_its_word_for_succeeded() -> None:
    observed = seen(train_job(("Complete", "AllJobsCompleted", "jobset completed")), node(0), node(1))
    done = Completion(attempt="1", outputs={})
    assert isinstance(diagnose(observed, done), Success)
    failure = diagnose(observed)
    assert isinstance(failure, Failure)
    assert (
        failure.what
        == "the job says Succeeded without its completion marker result.json, and no pod shows why"
    )


def test_the_pod_that_failed_first_is_its_cause() -> None:
    failed = train_job(("Failed", "FailedJobs", "jobset failed due to one or more job failures"))
    observed = seen(failed, node(0), node(1, state=ended(137, "OOMKilled")))
    failure = diagnose(observed)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.pod) == ("HOST_OOM", f"{JOB}-node-0-1-abcde")


def test_its_deadline_is_one() -> None:
    failed = train_job(("Failed", "DeadlineExceeded", "TrainJob exceeded its active deadline"))
    failure = diagnose(seen(failed, node(0)))
    assert isinstance(failure, Failure)
    assert failure.kind == "DEADLINE"


def test_a_runtime_that_is_missing_is_no_end_but_a_reason_to_wait() -> None:
    observed = seen(train_job(("Failed", "TrainingRuntimeNotSupported", "unsupported runtime: x")))
    assert diagnose(observed) is None
    held = find_waiting(observed)
    assert held is not None
    assert (held.kind, held.broken, "unsupported runtime: x" in held.words) == ("CONFIG", True, True)
    observed.update("TrainJob", "MODIFIED", train_job())
    observed.update("Pod", "ADDED", node(0))
    assert find_waiting(observed) is None


def test_a_pod_under_another_name_takes_the_place_of_one_that_was_lost() -> None:
    lost = node(1, state=ended(1))
    observed = seen(train_job(), node(0), lost, node(1, "vwxyz", state={"running": {"startedAt": at(55)}}))
    (entry,) = find_incidents(observed)
    assert entry.recovered
    assert count_interruptions(losses_of([entry])) == {"user": 1}
    assert job_status(observed).restarts == 1


def test_events_of_its_workload_and_its_jobs_are_its_own() -> None:
    said = [
        event("Pending", "no quota", name=f"trainjob-{JOB}-1a2b", kind="Workload"),
        event("FailedCreate", "exceeded quota: q", name=f"{JOB}-node-0", kind="Job"),
    ]
    observed = seen(train_job(), *said)
    assert {entry.reason for entry in observed.events} == {"Pending", "FailedCreate"}
    held = find_waiting(observed)
    assert held is not None
    assert held.kind == "QUOTA_WAIT"
