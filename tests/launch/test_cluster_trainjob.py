"""A TrainJob through its launcher: queues, namespaces that reject its pods, deletion, several attempts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch.launching import Object, api, cluster_job, complete, launcher, running, watches
from tests.launch.standin import Cluster, cluster
from tests.launch.standin.answers import Refused
from tests.launch.standin.resources import Resource
from tests.launch.test_role import rules
from trainwright.errors import DependencyError, Hang, InputError
from trainwright.experiment.resources import JobPlacement, RetryBudget
from trainwright.launch import manifests
from trainwright.launch.cluster import observer
from trainwright.launch.cluster.api import TRAINJOB
from trainwright.launch.cluster.lease import wait_until_gone, wait_until_name_is_free
from trainwright.launch.failure import Failure


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(observer, "_WATCH_S", 6)  # a launcher that is stopped goes on when its watch ends
    with cluster(tmp_path, processes=False, kueue=True) as found:
        assert found.kueue is not None
        found.apply_runtime()
        found.kueue.add_queue("training")
        found.nodes.plan(process=False, on_term=143)
        yield found


def queued(root: Path, **placement: Any) -> Any:
    return cluster_job(root, placement=JobPlacement(queue="training", **placement), grace_s=1)


def pods(there: Cluster, attempt: str = "") -> list[Object]:
    found = there.objects("Pod")
    return [pod for pod in found if attempt in ("", pod["metadata"]["labels"].get(manifests.ATTEMPT))]


def all_run(there: Cluster, count: int = 2) -> bool:
    return sum(pod["status"].get("phase") == "Running" for pod in pods(there)) == count and watches(there)


def succeed(there: Cluster, name: str) -> None:
    complete(there.find("TrainJob", name) or {})
    for pod in pods(there):
        there.nodes.end(pod["metadata"]["name"], 0)


@pytest.mark.parametrize("release", ["trainjob-2.2", "trainjob"])
def test_a_trainjob_in_a_queue_starts_with_either_release_of_trainer(
    there: Cluster, tmp_path: Path, release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there.verbs.schemas["trainjob"] = release
    job = queued(tmp_path)
    with running(lambda: launcher(there, kind=TRAINJOB).run(job)) as coming:
        there.wait(lambda: all_run(there))
        succeed(there, job.name)
    assert coming.result(0).folder.name == "0001"
    said = capsys.readouterr().err
    assert "restarting" not in said


def test_who_preempted_a_job_is_said(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert there.kueue is not None
    job, queues = queued(tmp_path), there.kueue
    other = {"labels": {"kueue.x-k8s.io/queue-name": "training"}, "name": "other"}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"image": "x", "numNodes": 1}}
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": other,
        "spec": spec,
    }
    told: list[str] = []
    with running(lambda: launcher(there, kind=TRAINJOB).run(job)) as coming:
        there.wait(lambda: all_run(there))
        k8s.CustomObjectsApi(there.api_client()).create_namespaced_custom_object(
            "trainer.kubeflow.org", "v1alpha1", "team", "trainjobs", body
        )
        there.wait(lambda: queues.workload("other"))
        queues.preempt(job.name, by="other")
        there.wait(lambda: told.append(capsys.readouterr().err) or "preempted by" in "".join(told))
        queues.admit(job.name)
        there.wait(lambda: all_run(there, 3))
        succeed(there, job.name)
    assert coming.result(0)
    line = "it was preempted by TrainJob other (prioritization in the ClusterQueue) and waits for quota"
    assert f"queued: it is in queue training: {line}\n" in "".join(told)


def refuses_cpu(resource: Resource, body: Object) -> None:
    """Reject pods as a LimitRange does."""
    if resource.kind == "Pod":
        why = "maximum cpu usage per Container is 100m, but limit is 300m"
        name = body["metadata"]["name"]
        raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {why}')


def test_pods_that_a_limit_range_rejects_end_the_job_with_its_sentence(
    there: Cluster, tmp_path: Path
) -> None:
    there.verbs.before.append(refuses_cpu)
    job = cluster_job(tmp_path)
    with pytest.raises(InputError, match="maximum cpu usage per Container is 100m"):
        launcher(there, kind=TRAINJOB, broken_s=0.3).run(job)
    assert Failure.read(job.folder).kind == "CONFIG"


def test_a_used_up_quota_of_the_namespace_is_waited_for_and_said(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there.verbs.quotas["team", "pods"] = 0
    job = cluster_job(tmp_path)
    with pytest.raises(DependencyError, match="the namespace's quota is used up"):
        launcher(there, kind=TRAINJOB, pending_s=2).run(job)
    assert "queued: the namespace's quota is used up" in capsys.readouterr().err


def test_a_queue_that_can_never_give_that_much_ends_the_job(there: Cluster, tmp_path: Path) -> None:
    assert there.kueue is not None
    there.kueue.most["cpu"] = "500m"
    with pytest.raises(DependencyError, match="more than the queue can ever give"):
        launcher(there, kind=TRAINJOB, broken_s=0.3).run(queued(tmp_path))
    assert not there.objects("TrainJob")


@pytest.mark.parametrize("admitted", [False, True])
def test_a_workload_that_somebody_deactivates_ends_the_job(
    there: Cluster, tmp_path: Path, admitted: bool
) -> None:
    assert there.kueue is not None
    queues, job = there.kueue, queued(tmp_path)
    queues.manual = not admitted
    with running(lambda: launcher(there, kind=TRAINJOB, broken_s=0.3).run(job)) as coming:
        there.wait(lambda: queues.workload(job.name) and (not admitted or all_run(there)))
        queues.deactivate(job.name)
    with pytest.raises(DependencyError, match="somebody has to activate its workload"):
        coming.result(0)


def test_a_job_beyond_the_time_of_its_queue_ends(there: Cluster, tmp_path: Path) -> None:
    job = queued(tmp_path, max_exec_time_s=1)
    with pytest.raises(Hang, match="it ran longer than the queue lets it"):
        launcher(there, kind=TRAINJOB, broken_s=0.3).run(job)


def test_a_runtime_that_does_not_exist_is_named_with_the_command_that_makes_it(
    there: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match='"nope" not found') as caught:
        launcher(there, kind=TRAINJOB).run(cluster_job(tmp_path, placement=JobPlacement(runtime="nope")))
    assert caught.value.hint.startswith("kubectl apply -f deploy/trainer/runtime.yaml")


def test_a_stopped_launcher_leaves_one_jobset_and_no_new_pod(there: Cluster, tmp_path: Path) -> None:
    token = there.account("system:serviceaccount:team:runner", rules("trainwright-train"), "team")
    follows = launcher(there, kind=TRAINJOB, token=token, settle_s=1.0)
    # A signal ends this launcher, which runs on here, at once: it begins no attempt for pods that are gone.
    job = cluster_job(tmp_path, grace_s=1, budget=RetryBudget(preemption=0))
    with running(lambda: follows.run(job)):
        there.wait(lambda: all_run(there))
        follows._stop()  # what SIGTERM does; a signal reaches the main thread only
        there.wait(lambda: not pods(there) and not there.objects("JobSet"))
        complete_later = there.store.created["pods"]
        there.settle()
    assert (there.store.created["jobsets"], complete_later) == (1, 2)


def test_the_next_attempt_begins_when_no_pod_of_the_last_one_is_left(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path, grace_s=1)
    with running(lambda: launcher(there, kind=TRAINJOB).run(job)) as coming:
        there.wait(lambda: all_run(there))
        victim = pods(there)[1]["metadata"]["name"]
        k8s.CoreV1Api(there.api_client()).create_namespaced_pod_eviction(
            victim, "team", k8s.V1Eviction(metadata=k8s.V1ObjectMeta(name=victim, namespace="team"))
        )
        there.wait(lambda: pods(there, "0002"))
        assert not pods(there, "0001")
        there.wait(lambda: all_run(there))
        succeed(there, job.name)
    assert coming.result(0).folder.name == "0002"
    assert {pod["metadata"]["labels"][manifests.ATTEMPT] for pod in pods(there)} <= {"0002"}


def test_a_job_is_not_made_anew_beside_the_pods_of_one_that_was_deleted(
    there: Cluster, tmp_path: Path
) -> None:
    there.nodes.plan(process=False)  # they take their whole grace
    name = there.put(manifests.make_manifest(cluster_job(tmp_path), "trainjob"))["metadata"]["name"]
    there.wait(lambda: [pod["status"].get("phase") for pod in pods(there)] == ["Running", "Running"])
    access = api(there, kind=TRAINJOB)
    access.delete(name)
    there.wait(lambda: all("deletionTimestamp" in pod["metadata"] for pod in pods(there)))
    assert (len(pods(there)), access.job(name)) == (2, None)
    with pytest.raises(DependencyError, match=f"job {name} does not go away"):
        wait_until_name_is_free(access, name, 0.5)
    for pod in pods(there):
        access.remove_pod(pod["metadata"]["name"], pod["metadata"]["uid"])
    wait_until_name_is_free(access, name, 5)


def test_waiting_for_the_pods_of_a_deleted_job_ends_when_another_launcher_creates_the_next_one(
    there: Cluster, tmp_path: Path
) -> None:
    """Its pods keep the name busy for as long as they run: who waits attaches to that job instead."""
    body = manifests.make_manifest(cluster_job(tmp_path), "trainjob")
    name = there.put(body)["metadata"]["name"]
    there.wait(lambda: [pod["status"].get("phase") for pod in pods(there)] == ["Running", "Running"])
    wait_until_gone(api(there, kind=TRAINJOB), name, "", 1)


def test_a_runtime_that_kills_pods_before_they_can_save_is_told_once(
    there: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shorten(body: Object) -> None:
        part = body["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
        part["template"]["spec"]["terminationGracePeriodSeconds"] = 20

    there.edit("ClusterTrainingRuntime", "trainwright-torch", shorten)
    job = cluster_job(tmp_path, grace_s=60)
    with running(lambda: launcher(there, kind=TRAINJOB).run(job)) as coming:
        there.wait(lambda: all_run(there))
        succeed(there, job.name)
    assert coming.result(0)
    said = capsys.readouterr().err
    assert said.count("the pods are killed 20 s after SIGTERM, and may need 65 s to save") == 1
    assert f"logs of all its pods: kubectl logs -n team -l jobset.sigs.k8s.io/jobset-name={job.name} " in said
