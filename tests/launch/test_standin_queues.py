"""TrainJobs, and jobs that wait in a queue, as the stand-in has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client as k8s

from tests.launch.standin import Cluster, cluster
from tests.launch.standin.jobs import holding, pytorchjob, trainjob
from tests.launch.standin.kueue import Kueue

GROUP = ("kubeflow.org", "v1", "team", "pytorchjobs")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False, kueue=True) as found:
        yield found


def queues_of(running: Cluster) -> Kueue:
    assert running.kueue is not None
    running.kueue.add_queue("team-queue")
    return running.kueue


def test_a_queue_holds_a_job_back_until_it_has_room_and_takes_it_away_again(running: Cluster) -> None:
    queues = queues_of(running)
    queues.manual = True
    body = pytorchjob("Master")
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-queue"}
    k8s.CustomObjectsApi(running.api_client()).create_namespaced_custom_object(*GROUP, body)
    running.settle()
    assert holding(running) == {"Created", "Suspended"}
    workload = queues.workload("a")
    assert workload is not None
    assert workload["status"]["conditions"][0]["message"].startswith(
        "couldn't assign flavors to pod set master"
    )
    queues.admit("a")
    running.settle()
    assert holding(running) == {"Created", "Running"}
    queues.preempt("a")
    running.wait(lambda: not running.objects("Pod"))
    running.settle()
    assert holding(running) == {"Created", "Suspended"}
    queues.admit("a")
    running.settle()
    running.nodes.end("a-master-0", 0)
    running.settle()
    assert holding(running) == {"Created", "Succeeded"}
    reasons = [entry["reason"] for entry in (queues.workload("a") or {})["status"]["conditions"]]
    assert reasons == ["QuotaReserved", "Admitted", "QuotaReserved", "Succeeded"]


def test_a_job_of_an_unknown_priority_gets_no_workload(running: Cluster) -> None:
    queues_of(running)
    body = pytorchjob("Master")
    body["metadata"]["labels"] = {
        "kueue.x-k8s.io/queue-name": "team-queue",
        "kueue.x-k8s.io/priority-class": "absent",
    }
    k8s.CustomObjectsApi(running.api_client()).create_namespaced_custom_object(*GROUP, body)
    running.settle()
    assert running.objects("Workload") == []
    assert "WorkloadPriorityClassNotFound" in {event["reason"] for event in running.objects("Event")}
    assert holding(running) == {"Created", "Suspended"}


def pods_of(running: Cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in running.objects("Pod")]


def test_a_trainjob_is_complete_when_all_of_its_pods_are(running: Cluster) -> None:
    running.put(trainjob())
    running.settle()
    first, second = pods_of(running)
    assert (first.startswith("a-node-0-0-"), second.startswith("a-node-0-1-")) == (True, True)
    assert running.find("TrainJob", "a")["status"]["jobsStatus"][0]["ready"] == 1  # type: ignore[index]
    running.nodes.end(first, 0)
    running.settle()
    assert holding(running, "TrainJob") == set()
    running.nodes.end(second, 0)
    running.settle()
    assert holding(running, "TrainJob") == {"Complete"}


def test_a_trainjob_that_failed_runs_again_when_its_jobset_is_gone(running: Cluster) -> None:
    runtime = {"spec": {"backoffLimit": 0}}
    running.edit(
        "clustertrainingruntimes",
        "torch-distributed",
        lambda body: body["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"].update(
            runtime["spec"]
        ),
    )
    running.put(trainjob())
    running.settle()
    running.nodes.end(pods_of(running)[0], 1)
    running.settle()
    assert holding(running, "TrainJob") == {"Failed"}
    assert running.trainer is not None
    running.trainer.collect("a")
    running.settle()
    assert holding(running, "TrainJob") == set()
    staying = [pod for pod in running.objects("Pod") if "deletionTimestamp" not in pod["metadata"]]
    assert len(staying) == 2


def test_a_trainjob_is_suspended_resumed_and_ended_at_its_deadline(running: Cluster) -> None:
    running.put(trainjob(suspend=True, activeDeadlineSeconds=1))
    running.settle()
    assert (holding(running, "TrainJob"), pods_of(running)) == ({"Suspended"}, [])
    running.edit("TrainJob", "a", lambda body: body["spec"].update(suspend=False))
    running.settle()
    assert len(pods_of(running)) == 2
    running.wait(lambda: holding(running, "TrainJob") == {"Failed"})
    told = running.find("TrainJob", "a")["status"]["conditions"]  # type: ignore[index]
    assert [entry["reason"] for entry in told] == ["Resumed", "DeadlineExceeded"]


def test_a_trainjob_of_an_absent_runtime_is_refused(running: Cluster) -> None:
    api = k8s.CustomObjectsApi(running.api_client())
    where = ("trainer.kubeflow.org", "v1alpha1", "team", "trainjobs")
    with pytest.raises(k8s.ApiException) as caught:
        api.create_namespaced_custom_object(*where, trainjob(runtimeRef={"name": "absent"}))
    assert (caught.value.status, "must be created before the TrainJob" in caught.value.body) == (403, True)
