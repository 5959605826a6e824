"""Why a job does not run yet, and the status of a TrainJob."""

from typing import Any

import pytest

from tests.launch.objects import (
    JOB,
    UID,
    Object,
    at,
    count_interruptions,
    ended,
    event,
    job,
    losses_of,
    observe,
    pod,
    seen,
)
from trainwright.errors import DependencyError
from trainwright.launch.diagnosis.diagnosis import Success, diagnose, limit_failure
from trainwright.launch.diagnosis.incidents import find_incidents
from trainwright.launch.diagnosis.observed_job import ObservedJob
from trainwright.launch.diagnosis.waiting import find_waiting, job_status
from trainwright.launch.failure import Failure
from trainwright.launch.job_directory import Completion

QUEUE = {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
WORKLOAD = "pytorchjob-tw-3fa1c"

# What Kueue says of a workload, the class, whether it is in vain, and our words.
QUEUED = {
    "no quota is free": (
        event(
            "Pending",
            "couldn't assign flavors to pod set master: insufficient unused quota for nvidia.com/gpu in "
            "flavor h100, 8 more needed",
            name=WORKLOAD,
            kind="Workload",
        ),
        "QUOTA_WAIT",
        False,
        "it is in queue gpus: it waits for quota",
    ),
    "more than there is": (
        event(
            "Pending",
            "couldn't assign flavors to pod set worker: insufficient quota for nvidia.com/gpu in flavor "
            "h100, previously considered podsets requests (0) + current podset request (24) > maximum "
            "capacity (16)",
            name=WORKLOAD,
            kind="Workload",
        ),
        "QUOTA_WAIT",
        True,
        "it is in queue gpus: it asks for more than the queue can ever give",
    ),
    "stopped for another job": (
        event(
            "EvictedDueToPreempted",
            "Preempted to accommodate a workload (UID: 9f54, JobUID: 1a2b) due to prioritization in the "
            "ClusterQueue; preemptor path: /gpus; preemptee path: /gpus",
            name=WORKLOAD,
            kind="Workload",
        ),
        "QUOTA_WAIT",
        False,
        "it is in queue gpus: it was preempted by a job of another namespace (prioritization in the "
        "ClusterQueue) and waits for quota",
    ),
    "given up by its queue": (
        event(
            "EvictedDueToDeactivatedDueToRequeuingLimitExceeded",
            "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
            name=WORKLOAD,
            kind="Workload",
        ),
        "QUOTA_WAIT",
        True,
        "it is in queue gpus: the queue has given it up, somebody has to activate its workload",
    ),
    "longer than its queue lets it": (
        event(
            "EvictedDueToDeactivatedDueToMaximumExecutionTimeExceeded",
            "The workload is deactivated due to exceeding the maximum execution time",
            name=WORKLOAD,
            kind="Workload",
        ),
        "DEADLINE",
        True,
        "its queue stopped it: it ran longer than the queue lets it",
    ),
    "no such queue": (
        event("Inadmissible", "LocalQueue gpus doesn't exist", name=WORKLOAD, kind="Workload"),
        "CONFIG",
        True,
        "its queue does not exist: LocalQueue gpus doesn't exist",
    ),
}

# What the scheduler says, and what we make of it.
NODES = {
    "0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {spot: true}. "
    "preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod.": (
        "no node takes pod tw-worker-0: 1 node(s) have too little nvidia.com/gpu free, "
        "3 carry the taint spot=true"
    ),
    "0/9 nodes are available: 9 node(s) didn't match Pod's node affinity/selector.": (
        "no node takes pod tw-worker-0: 9 are not of the kind that was asked for"
    ),
    "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.": (
        "no node takes pod tw-worker-0: its volume claim is not bound yet"
    ),
    "something that no version of Kubernetes has said yet": "no node takes pod tw-worker-0",
}


def suspended() -> Object:
    body = job("Created", metadata=QUEUE)
    body["status"]["conditions"].append(
        {"type": "Suspended", "status": "True", "reason": "PyTorchJobSuspended", "lastTransitionTime": at(1)}
    )
    return body


def unscheduled(message: str, reason: str = "Unschedulable") -> Object:
    return pod(
        state={},
        phase="Pending",
        scheduled={"type": "PodScheduled", "status": "False", "reason": reason, "message": message},
    )


def blocked(reason: str, message: str = "") -> Object:
    return pod(state={"waiting": {"reason": reason, "message": message}}, phase="Pending")


@pytest.mark.parametrize(("said", "kind", "broken", "words"), QUEUED.values(), ids=QUEUED)
def test_waiting_in_a_queue_is_not_waiting_for_nodes(
    said: Object, kind: str, broken: bool, words: str
) -> None:
    observed = seen(suspended(), said)
    held = find_waiting(observed)
    assert held is not None
    assert (held.kind, held.broken, held.words) == (kind, broken, words)
    assert held.message == said["message"]
    assert str(job_status(observed)) == f"queued: {words}"
    assert limit_failure(observed, held.kind, "too long").kind == kind


def test_a_job_that_its_queue_stopped_is_queued_again_and_has_not_ended() -> None:
    observed = seen(job("Running"), pod(), suspended(), pod(metadata={"deletionTimestamp": at(40)}))
    assert job_status(observed).phase == "queued"
    assert diagnose(observed) is None


@pytest.mark.parametrize(("message", "words"), NODES.items())
def test_why_no_node_takes_a_pod_is_said_in_plain_words(message: str, words: str) -> None:
    held = find_waiting(seen(job("Created"), unscheduled(message)))
    assert held is not None
    assert (held.kind, held.words, held.message, held.broken) == ("UNSCHEDULABLE", words, message, False)


@pytest.mark.parametrize(
    ("reason", "words"),
    [("TriggeredScaleUp", "; a node is being added"), ("NotTriggerScaleUp", "; no node will be added")],
)
def test_what_the_autoscaler_does_about_it_is_said_too(reason: str, words: str) -> None:
    said = event(reason, "pod triggered scale-up", name="tw-worker-0", kind="Pod")
    held = find_waiting(seen(job("Created"), unscheduled("0/1 nodes are available"), said))
    assert held is not None
    assert held.words.endswith(words)


def test_a_pod_with_a_scheduling_gate_waits_in_a_queue() -> None:
    held = find_waiting(seen(job("Created"), unscheduled("Scheduling is blocked", "SchedulingGated")))
    assert held is not None
    assert held.kind == "QUOTA_WAIT"


def test_the_cause_in_the_first_message_outlives_the_back_off_that_hides_it() -> None:
    first = blocked("ErrImagePull", 'failed to resolve reference "r/a:1": r/a:1: not found')
    later = blocked("ImagePullBackOff", 'Back-off pulling image "r/a:1"')
    held = find_waiting(seen(job("Created"), first, later))
    assert held is not None
    assert (held.kind, held.reason, held.broken) == ("IMAGE_PULL", "ErrImagePull", True)
    assert "not found" in held.message


@pytest.mark.parametrize(
    "reason", ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"]
)
def test_a_container_that_cannot_be_made_is_asked_for_wrongly(reason: str) -> None:
    held = find_waiting(seen(job("Created"), blocked(reason, 'configmap "x" not found')))
    assert held is not None
    assert (held.kind, held.broken) == ("CONFIG", True)


@pytest.mark.parametrize(
    ("message", "kind", "broken"),
    [
        ('MountVolume.SetUp failed for volume "key" : secret "absent" not found', "CONFIG", True),
        ("Unable to attach or mount volumes: timed out waiting for the condition", "INFRASTRUCTURE", False),
    ],
)
def test_a_pod_that_waits_for_its_volumes_is_told_by_an_event_alone(
    message: str, kind: str, broken: bool
) -> None:
    first = event("FailedMount", "an earlier reason", name="tw-worker-0", kind="Pod", second=20)
    said = event("FailedMount", message, name="tw-worker-0", kind="Pod")
    held = find_waiting(seen(job("Created"), blocked("ContainerCreating"), first, said))
    assert held is not None
    assert (held.kind, held.broken, held.message) == (kind, broken, message)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            'Error creating: pods "tw-master-0" is forbidden: exceeded quota: team, requested: cpu=8',
            "QUOTA_WAIT",
        ),
        (
            'Error creating: pods "tw-master-0" is forbidden: violates PodSecurity "restricted:latest"',
            "CONFIG",
        ),
    ],
)
def test_pods_that_the_api_refuses_are_told_by_an_event_on_the_job(message: str, kind: str) -> None:
    held = find_waiting(seen(job("Created"), event("FailedCreatePod", message)))
    assert held is not None
    assert held.kind == kind


def test_a_second_pod_that_is_refused_holds_up_the_one_that_is_there() -> None:
    """A quota that lasts for the first pod only: the job has its Master then, and says Running."""
    message = 'Error creating: pods "tw-worker-0" is forbidden: exceeded quota: team, requested: cpu=8'
    refused = event("FailedCreatePod", message, second=60)
    observed = seen(job("Created", "Running"), pod("tw-master-0"), refused)
    held = find_waiting(observed)
    assert held is not None
    assert (held.kind, held.broken, held.message) == ("QUOTA_WAIT", False, message)
    assert str(job_status(observed)) == "queued: the namespace's quota is used up"
    observed.update_pod(pod("tw-worker-0"))
    assert find_waiting(observed) is None


def test_pods_that_were_allowed_in_the_end_hold_up_nothing() -> None:
    message = 'Error creating: pods "tw-worker-0" is forbidden: exceeded quota: team, requested: cpu=8'
    refused = event("FailedCreatePod", message, second=0)
    assert find_waiting(seen(job("Created", "Running"), pod("tw-master-0"), refused)) is None


def test_an_elastic_job_that_runs_with_fewer_pods_waits_for_no_quota() -> None:
    body = job("Created", "Running")
    body["spec"] = {"elasticPolicy": {"minReplicas": 1}, "pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
    refused = event("FailedCreatePod", "exceeded quota: team", second=60)
    assert job_status(seen(body, pod("tw-worker-0"), refused)).phase == "running"


def test_a_job_that_no_operator_has_looked_at_says_so() -> None:
    held = find_waiting(seen(job()))
    assert held is not None
    assert (held.kind, held.reason) == ("INFRASTRUCTURE", "NoStatus")


def test_a_job_that_runs_and_pods_that_start_wait_for_nothing() -> None:
    assert find_waiting(seen(job("Running"), pod())) is None
    starting = seen(job("Created"), blocked("ContainerCreating"), blocked("PodInitializing"))
    assert find_waiting(starting) is None
    assert job_status(starting).phase == "starting"


def test_a_pod_that_got_its_image_after_all_waits_for_nothing() -> None:
    tried = blocked("ErrImagePull", "i/o timeout")
    assert find_waiting(seen(job("Created"), tried)) is not None
    assert find_waiting(seen(job("Created"), tried, pod())) is None


def test_what_is_hopeless_comes_before_what_may_pass() -> None:
    pulling = named("tw-master-0", "ErrImageNeverPull")
    held = find_waiting(seen(job("Created"), unscheduled("0/1 nodes"), pulling))
    assert held is not None
    assert (held.kind, held.pod) == ("IMAGE_PULL", "tw-master-0")


def named(name: str, reason: str) -> Object:
    return pod(name, state={"waiting": {"reason": reason, "message": "m"}}, phase="Pending")


def test_a_job_deleted_while_it_waited_says_what_for() -> None:
    outcome = diagnose(seen(job("Created"), unscheduled("0/1 nodes are available"), gone=True))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.retryable) == ("UNSCHEDULABLE", False)
    assert isinstance(outcome.to_error(), DependencyError)


def test_what_a_queue_said_once_does_not_hold_a_job_up_whose_pods_run() -> None:
    """The queue was made a moment later; the event stays for an hour."""
    said = event("Inadmissible", "LocalQueue gpus doesn't exist", name=WORKLOAD, kind="Workload")
    observed = seen(suspended(), said)
    held = find_waiting(observed)
    assert held
    assert held.kind == "CONFIG"
    resumed = suspended()
    resumed["status"]["conditions"][-1] |= {"status": "False", "reason": "PyTorchJobResumed"}
    observed.update_job(resumed)
    observed.update_pod(pod("tw-master-0"))
    observed.update_pod(pod())
    assert find_waiting(observed) is None


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


def seen_trainjob(*bodies: Object) -> ObservedJob:
    observed = ObservedJob(JOB, UID)
    for body in bodies:
        if "trainer" in body.get("spec", {}):
            observe(observed, "TrainJob", "MODIFIED", body)
        elif "involvedObject" in body:
            observe(observed, "Event", "ADDED", body)
        else:
            observe(observed, "Pod", "MODIFIED", body)
    return observed


def test_its_pods_are_counted_though_a_batch_job_owns_them() -> None:
    stands = job_status(seen_trainjob(train_job(), node(0), node(1)))
    assert (stands.phase, stands.running, stands.pods) == ("running", 2, 2)
    assert job_status(seen_trainjob(train_job(), node(0))).phase == "starting"


def test_rank_0_runs_in_the_pod_of_index_0() -> None:
    pods = seen_trainjob(train_job(), node(1), node(0)).pods
    assert [(entry.place[-1], entry.chief) for entry in pods] == [("1", False), ("0", True)]


def test_complete_is_its_word_for_succeeded() -> None:
    observed = seen_trainjob(
        train_job(("Complete", "AllJobsCompleted", "jobset completed")), node(0), node(1)
    )
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
    observed = seen_trainjob(failed, node(0), node(1, state=ended(137, "OOMKilled")))
    failure = diagnose(observed)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.pod) == ("HOST_OOM", f"{JOB}-node-0-1-abcde")


def test_its_deadline_is_one() -> None:
    failed = train_job(("Failed", "DeadlineExceeded", "TrainJob exceeded its active deadline"))
    failure = diagnose(seen_trainjob(failed, node(0)))
    assert isinstance(failure, Failure)
    assert failure.kind == "DEADLINE"


def test_a_runtime_that_is_missing_is_no_end_but_a_reason_to_wait() -> None:
    observed = seen_trainjob(train_job(("Failed", "TrainingRuntimeNotSupported", "unsupported runtime: x")))
    assert diagnose(observed) is None
    held = find_waiting(observed)
    assert held is not None
    assert (held.kind, held.broken, "unsupported runtime: x" in held.words) == ("CONFIG", True, True)
    observe(observed, "TrainJob", "MODIFIED", train_job())
    observe(observed, "Pod", "ADDED", node(0))
    assert find_waiting(observed) is None


def test_a_pod_under_another_name_takes_the_place_of_one_that_was_lost() -> None:
    lost = node(1, state=ended(1))
    observed = seen_trainjob(
        train_job(), node(0), lost, node(1, "vwxyz", state={"running": {"startedAt": at(55)}})
    )
    (entry,) = find_incidents(observed)
    assert entry.recovered
    assert count_interruptions(losses_of([entry])) == {"user": 1}
    assert job_status(observed).restarts == 1


def test_events_of_its_workload_and_its_jobs_are_its_own() -> None:
    said = [
        event("Pending", "no quota", name=f"trainjob-{JOB}-1a2b", kind="Workload"),
        event("FailedCreate", "exceeded quota: q", name=f"{JOB}-node-0", kind="Job"),
    ]
    observed = seen_trainjob(train_job(), *said)
    assert {entry.reason for entry in observed.events} == {"Pending", "FailedCreate"}
    held = find_waiting(observed)
    assert held is not None
    assert held.kind == "QUOTA_WAIT"
