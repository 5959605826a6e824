"""What the training operator and the nodes do that is easily forgotten: the stand-in does it, too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch.replaying import pod_seen
from tests.launch.standin import Cluster, cluster
from tests.launch.standin.jobs import holding, pytorchjob
from tests.launch.standin.store import Change

GROUP = ("kubeflow.org", "v1", "team", "pytorchjobs")
Object = dict[str, Any]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, processes=False, backoff_s=0.05) as found:
        yield found


def test_an_elastic_job_whose_pods_end_unseen_is_succeeded_and_failed_at_once(running: Cluster) -> None:
    running.put(pytorchjob("Worker", "Worker", elasticPolicy={"minReplicas": 1, "maxReplicas": 2}))
    running.settle()
    with running.operator.outage():
        running.nodes.end_together({"a-worker-0": 0, "a-worker-1": 1})
        running.settle()
        error = refused(running, {"metadata": {"annotations": {"k": "v"}}})
        assert (error.status, "failed calling webhook" in error.body) == (500, True)
    running.settle()
    assert holding(running) == {"Created", "Succeeded", "Failed"}


def refused(running: Cluster, patch: Object) -> k8s.ApiException:
    api = k8s.CustomObjectsApi(running.api_client())
    with pytest.raises(k8s.ApiException) as caught:
        api.patch_namespaced_custom_object(*GROUP, "a", patch)
    return caught.value


def test_whether_a_master_or_its_worker_decides_when_both_end_unseen_is_chance(tmp_path: Path) -> None:
    ends = set()
    for seed in range(8):
        with cluster(tmp_path, processes=False, seed=seed) as found:
            found.put(pytorchjob("Master", "Worker"))
            found.settle()
            with found.operator.outage():
                found.nodes.end_together({"a-master-0": 0, "a-worker-0": 1})
                found.settle()
            found.settle()
            ends.add(frozenset(holding(found) - {"Created"}))
    assert ends == {frozenset({"Succeeded"}), frozenset({"Failed"})}


def test_a_deadline_is_only_seen_when_something_else_happens(running: Cluster) -> None:
    running.put(pytorchjob("Master", runPolicy={"activeDeadlineSeconds": 1}))
    running.settle()
    long_ago = "2026-01-01T00:00:00Z"
    running.operator.stop()
    running.edit("PyTorchJob", "a", lambda body: body["status"].update(startTime=long_ago))
    running.settle()
    running.operator.start()
    running.settle()
    assert "Failed" in holding(running)


def test_a_deadline_alone_wakes_nobody(running: Cluster) -> None:
    running.put(pytorchjob("Master", runPolicy={"activeDeadlineSeconds": 1}))
    running.settle()
    began = running.store.number
    assert not running.store.wait(lambda: running.store.number != began, 1.3)
    assert holding(running) == {"Created", "Running"}
    running.edit("PyTorchJob", "a", lambda body: body["metadata"].update(annotations={"k": "v"}))
    running.settle()
    assert holding(running) == {"Created", "Failed"}


@pytest.mark.parametrize(("policy", "goes"), [("Never", True), ("ExitCode", False)])
def test_a_job_that_failed_by_an_exit_code_is_never_removed(
    running: Cluster, policy: str, goes: bool
) -> None:
    running.put(pytorchjob("Master", policy=policy, runPolicy={"ttlSecondsAfterFinished": 0}))
    running.settle()
    running.nodes.end("a-master-0", 1)
    assert running.store.wait(lambda: not running.objects("PyTorchJob"), 60 if goes else 0.3) == goes


def test_a_pod_without_an_image_a_secret_or_room_says_why_it_waits(running: Cluster) -> None:
    running.nodes.plan("a-worker-0", waits="ErrImagePull")
    body = pytorchjob("Worker", "Worker", "Worker", policy="OnFailure")
    container = body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    running.put(body)
    running.settle()
    said = {event["reason"]: event["message"] for event in running.objects("Event")}
    wanted = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: "
    assert said["FailedScheduling"] == wanted + "2 No preemption victims found for incoming pod."
    running.edit(
        "nodes", "node-0", lambda node: node["status"]["allocatable"].update({"nvidia.com/gpu": "3"})
    )
    running.wait(lambda: _waits(running, "a-worker-0") == {"ImagePullBackOff"})
    running.wait(lambda: _waits(running, "a-worker-0") == {"ErrImagePull"})
    assert _waits(running, "a-worker-1") == set()
    running.nodes.plans.clear()
    running.wait(lambda: _waits(running, "a-worker-0") == set())


def _waits(running: Cluster, name: str) -> set[str]:
    told = (running.find("Pod", name) or {"status": {}})["status"].get("containerStatuses") or []
    return {entry["state"]["waiting"]["reason"] for entry in told if "waiting" in entry["state"]}


@pytest.mark.parametrize(("user", "runs"), [(None, False), (65532, True)])
def test_a_worker_in_a_pod_that_must_not_be_root_needs_a_user_for_the_container_before_it(
    running: Cluster, user: int | None, runs: bool
) -> None:
    """The operator's own container has an image whose user is root, and the node refuses to start it."""
    body = pytorchjob("Master", "Worker")
    context = {"runAsNonRoot": True} | ({"runAsUser": user} if user else {})
    for entry in body["spec"]["pytorchReplicaSpecs"].values():
        entry["template"]["spec"]["securityContext"] = context
    running.put(body)
    running.settle()
    told = running.find("Pod", "a-worker-0")["status"]  # type: ignore[index]
    assert (told["phase"] == "Running") == runs
    (init,) = told["initContainerStatuses"]
    assert runs or init["state"]["waiting"]["reason"] == "CreateContainerConfigError"


def test_a_missing_secret_is_a_configuration_error(running: Cluster) -> None:
    body = pytorchjob("Master")
    container = body["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k"}}}]
    running.put(body)
    running.settle()
    assert _waits(running, "a-master-0") == {"CreateContainerConfigError"}
    told = running.find("Pod", "a-master-0")["status"]["containerStatuses"][0]  # type: ignore[index]
    assert told["state"]["waiting"]["message"] == 'secret "absent" not found'


def test_a_lost_node_keeps_its_pods_until_it_is_removed(running: Cluster) -> None:
    running.put(pytorchjob("Worker", "Worker", policy="OnFailure"))
    running.settle()
    node = running.find("Pod", "a-worker-0")["spec"]["nodeName"]  # type: ignore[index]
    running.nodes.lose(node)
    running.settle()
    pod = running.find("Pod", "a-worker-0")
    assert pod is not None
    assert "deletionTimestamp" in pod["metadata"]
    assert "DeletionByTaintManager" in {entry.get("reason") for entry in pod["status"]["conditions"]}
    running.nodes.remove(node)
    running.settle()
    found = running.find("Pod", "a-worker-0")
    assert found is not None
    assert found["spec"]["nodeName"] != node


def test_a_preempted_pod_is_made_again_and_one_without_disk_fails_where_it_is(running: Cluster) -> None:
    running.nodes.plan("*", process=False, on_term=137)
    running.put(pytorchjob("Worker", "Worker", policy="OnFailure"))
    running.settle()
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in running.objects("Pod")}
    seen: list[str] = []

    def see(change: Change) -> None:
        if change.resource.kind == "Pod":
            seen.append(pod_seen(change.body, change.type))

    running.store.listen(see)
    running.nodes.evict("a-worker-0", by="preemption")
    running.settle()
    assert uids["a-worker-0"] != running.objects("Pod")[0]["metadata"]["uid"]
    assert "Failed, terminated 137 Error after 0 restarts, PreemptionByScheduler, deleted" in seen
    running.operator.stop()
    running.nodes.starve("a-worker-1")
    running.settle()
    pod = running.objects("Pod")[1]
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (uids["a-worker-1"], "Failed")
    assert pod["status"]["reason"] == "Evicted"
    assert "TerminationByKubelet" in {entry.get("reason") for entry in pod["status"]["conditions"]}
