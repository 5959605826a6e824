"""A job that is deleted is gone before the next attempt is made, also where a lost node holds its pods."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client as k8s

from tests.launch.launching import Object, api, cluster_job, complete, jobs, launcher, running, watches
from tests.launch.standin import Cluster, cluster
from tests.launch.test_role import rules
from trainwright.errors import DependencyError
from trainwright.launch import manifests
from trainwright.launch.cluster.deletion import delete_and_wait
from trainwright.launch.manifests import annotations as names


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, operator=False, processes=False, nodes=1) as found:
        found.nodes.plan(process=False, on_term=143)
        yield found


def leave(there: Cluster, root: Path, *, ours: bool = True) -> tuple[str, str]:
    """Make a job with a pod that runs and has a second to end; return the job's name and identity."""
    made = there.put(manifests.make_manifest(cluster_job(root), "pytorchjob"))
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    labels = {"training.kubeflow.org/job-name": name} | ({names.MANAGED_BY: names.OURS} if ours else {})
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": name, "uid": uid}
    pod = {"name": f"{name}-master-0", "labels": labels}
    pod["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    spec = {"containers": [{"name": "pytorch", "image": "x"}], "terminationGracePeriodSeconds": 1}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec, "status": {"phase": "Pending"}}
    there.put(body)
    there.wait(lambda: _phase(there) == "Running")
    return name, uid


def _phase(there: Cluster) -> str:
    return str(there.objects("Pod")[0]["status"].get("phase"))


def unsaid(there: Cluster) -> None:
    """Forget that the node controller has said anything of the pod."""
    for event in there.objects("Event"):
        if event["reason"] == "NodeNotReady":
            k8s.CoreV1Api(there.api_client()).delete_namespaced_event(event["metadata"]["name"], "team")


def ready_again(there: Cluster) -> None:
    """Let the pod say that it is ready: its node is back, and cannot end it."""

    def note(pod: Object) -> None:
        for entry in pod["status"]["conditions"]:
            if entry["type"] == "Ready":
                entry["status"] = "True"

    there.edit("Pod", there.objects("Pod")[0]["metadata"]["name"], note)


@pytest.mark.parametrize("doubt", [unsaid, ready_again, None])
def test_a_pod_whose_node_may_still_run_it_is_left_alone_and_named(
    there: Cluster, tmp_path: Path, doubt: Callable[[Cluster], None] | None
) -> None:
    """Its GPU is not free: a node that answers and cannot end a process would get a second one for it."""
    name, uid = leave(there, tmp_path, ours=doubt is not None)
    there.nodes.lose("node-0")
    if doubt:
        doubt(there)
    with pytest.raises(DependencyError, match="does not go away within 5 s") as caught:
        delete_and_wait(api(there), name, uid, 5)
    assert not [call for call in there.calls if (call.verb, call.resource) == ("delete", "pods")]
    assert "cannot end a process (a driver that hangs), drained and restarted" in caught.value.hint
    assert (f"it is kept by {name}-master-0 on node node-0" in caught.value.what) == (doubt is not None)


def test_without_the_right_to_remove_pods_it_is_said_what_is_missing(there: Cluster, tmp_path: Path) -> None:
    kept = [
        rule
        for rule in rules("trainwright-train")
        if "delete" not in rule["verbs"] or rule["apiGroups"] != [""]
    ]
    token = there.account("system:serviceaccount:team:runner", [*kept, READS], "team")
    name, uid = leave(there, tmp_path)
    there.nodes.lose("node-0")
    with pytest.raises(DependencyError, match="not allowed to delete pods") as caught:
        delete_and_wait(api(there, token=token), name, uid, 8)
    assert "does not go away within 8 s" in caught.value.what


READS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}


def test_the_next_attempt_follows_although_a_node_died_with_a_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, processes=False) as there:
        there.nodes.plan(process=False, on_term=143)
        job = cluster_job(tmp_path, grace_s=1)
        token = there.account("system:serviceaccount:team:runner", rules("trainwright-train"), "team")
        with running(lambda: launcher(there, gone_s=20, token=token).run(job)) as coming:
            there.wait(lambda: len(there.objects("Pod")) == 2 and watches(there))
            worker = f"{job.name}-worker-0"
            there.wait(
                lambda: (there.find("Pod", worker) or {"status": {}})["status"].get("phase") == "Running"
            )
            there.nodes.lose(there.find("Pod", worker)["spec"]["nodeName"])  # type: ignore[index]
            k8s.CoreV1Api(there.api_client()).delete_namespaced_pod(worker, "team", grace_period_seconds=1)
            there.wait(lambda: [body for body in jobs(there) if "/0002" in _folder(body)])
            complete(jobs(there)[0])
            there.wait(
                lambda: (
                    (there.find("Pod", f"{job.name}-master-0") or {"status": {}})["status"].get("phase")
                    == "Running"
                )
            )
            there.nodes.end(f"{job.name}-master-0", 0)
        assert coming.result(0).folder.name == "0002"
        assert f"pod {worker} was removed: its node node-" in capsys.readouterr().err


def _folder(body: Object) -> str:
    return str(body["metadata"]["annotations"][names.FOLDER])
