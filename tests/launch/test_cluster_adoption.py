"""Creation, adoption, deletion and stop of a job on a cluster."""

import dataclasses
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from kubernetes import client as k8s

from tests.launch.launching import (
    Object,
    api,
    cluster_job,
    complete,
    folder_of,
    jobs,
    launcher,
    running,
    watches,
)
from tests.launch.standin import Cluster, Refused, cluster
from tests.launch.test_role import rules
from trainwright.errors import (
    DependencyError,
    InputError,
    PermissionRefused,
    Preempted,
    PreemptedUnsaved,
    TransientError,
    reported,
)
from trainwright.launch import manifests
from trainwright.launch.cluster.api import Api
from trainwright.launch.cluster.lease import HOLDER, LEASE_UNTIL, create_or_adopt, holder_of, wait_until_gone
from trainwright.launch.job import Job
from trainwright.launch.job_directory import create_attempt
from trainwright.launch.manifests import SPEC_SHA256

TRIES = 100


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def again(job: Job, root: Path) -> Job:
    """Return the same job for another attempt, as a step that is retried makes it."""
    return dataclasses.replace(job, folder=create_attempt(root / "home"))


def finish(there: Cluster, name: str) -> None:
    """Let a job succeed."""
    complete(there.find("PyTorchJob", name) or {})
    there.condition(name, "Succeeded")


@pytest.mark.covers("F21")
def test_of_a_hundred_creations_with_lost_replies_each_makes_one_job(there: Cluster, tmp_path: Path) -> None:
    there.faults.commit_then_drop(verbs=("create",), chance=0.3, times=None)
    there.faults.drop(verbs=("create",), chance=0.1, times=None)
    access, first = api(there), cluster_job(tmp_path)
    uids = set()
    for number in range(TRIES):
        job = dataclasses.replace(first, run=str(number))
        held = create_or_adopt(access, job, manifests.make_manifest(job, "pytorchjob", None), "me", 5)
        assert (held.name, held.adopted) == (job.name, False)
        uids.add(held.uid)
    created = sum(call.verb == "create" for call in there.calls)
    assert len(jobs(there)) == len(uids) == TRIES < created


@pytest.mark.covers("F22")
def test_a_launcher_that_is_started_again_takes_the_running_job_over(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there).run(job)) as first:
        there.wait(lambda: jobs(there))
        before = holder_of(jobs(there)[0])
        with running(lambda: launcher(there).run(again(job, tmp_path))) as second:
            there.wait(lambda: holder_of(jobs(there)[0]) != before)
            with pytest.raises(Preempted, match="has taken over job"):
                first.result(10)
            finish(there, job.name)
    assert second.result(0).folder == job.folder
    assert [call.verb for call in there.calls if call.verb == "delete"] == []
    assert len(jobs(there)) == 1


def test_a_lease_is_there_from_the_first_moment_and_is_renewed(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)

    def lease() -> str:
        return str(jobs(there)[0]["metadata"]["annotations"][LEASE_UNTIL])

    with running(lambda: launcher(there, renew_s=0.05).run(job)):
        there.wait(lambda: jobs(there))
        first = lease()
        assert holder_of(jobs(there)[0])
        there.wait(lambda: lease() > first)
        finish(there, job.name)


def test_a_lease_that_cannot_be_renewed_is_no_reason_to_stop(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    webhook = there.faults.error(500, 'failed calling webhook "validator"', verbs=("patch",), times=None)
    with running(lambda: launcher(there, renew_s=0.02).run(job)) as coming:
        there.wait(lambda: webhook.hit > 3)
        there.wait(lambda: jobs(there))
        finish(there, job.name)
    assert coming.result(0).folder == job.folder


def test_a_job_of_that_name_with_another_specification_is_left_alone(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    body = manifests.make_manifest(job, "pytorchjob", None)
    body["metadata"]["annotations"][SPEC_SHA256] = "f" * 64
    there.put(body)
    with pytest.raises(InputError, match="is not ours: trainwright/spec-sha256 is ffff"):
        launcher(there).run(job)
    assert len(jobs(there)) == 1


def test_a_job_that_is_being_deleted_is_waited_for_and_made_anew(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    body = manifests.make_manifest(job, "pytorchjob", None)
    body["metadata"]["finalizers"] = ["kueue.x-k8s.io/in-use"]
    old = there.put(body)["metadata"]["uid"]
    api(there).delete(job.name)
    assert "deletionTimestamp" in jobs(there)[0]["metadata"]
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: sum(call.verb == "get" for call in there.calls) > 1)
        there.edit("PyTorchJob", job.name, lambda found: found["metadata"].pop("finalizers"))
        api(there).delete(job.name)
        there.wait(lambda: jobs(there) and jobs(there)[0]["metadata"]["uid"] != old)
        finish(there, job.name)
    assert coming.result(0).folder == job.folder


@pytest.mark.covers("F33")
def test_what_has_succeeded_is_harvested_from_its_folder_without_a_call(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path)
    complete(manifests.make_manifest(job, "pytorchjob", None))
    result = launcher(there).run(again(job, tmp_path))
    assert (result.folder, there.calls) == (job.folder, [])


def test_a_job_that_was_given_up_is_made_anew_when_the_step_is_run_again(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there, settle_s=0.2).run(job)) as coming:
        there.wait(lambda: jobs(there))
        there.condition(job.name, "Failed")
    with pytest.raises(DependencyError):
        coming.result(0)
    old = jobs(there)[0]["metadata"]["uid"]
    second = again(job, tmp_path)
    with running(lambda: launcher(there).run(second)) as coming:
        there.wait(lambda: jobs(there) and jobs(there)[0]["metadata"]["uid"] != old)
        finish(there, job.name)
    assert coming.result(0).folder == second.folder


def test_the_owner_is_the_workflow_of_the_run(there: Cluster, tmp_path: Path) -> None:
    uid = there.put(
        {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "run-1"}}
    )["metadata"]["uid"]
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there, workflow="run-1").run(job)):
        there.wait(lambda: jobs(there))
        (owner,) = jobs(there)[0]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Workflow", "run-1", uid)
        finish(there, job.name)


@pytest.mark.covers("F34")
def test_a_missing_right_is_told_with_its_rule_within_one_call(there: Cluster, tmp_path: Path) -> None:
    token = there.account("system:serviceaccount:team:runner", [])
    with pytest.raises(PermissionRefused) as caught:
        launcher(there, token=token).run(cluster_job(tmp_path))
    assert "not allowed to create pytorchjobs.kubeflow.org in namespace team" in caught.value.what
    rule = "{apiGroups: [kubeflow.org], resources: [pytorchjobs], verbs: [create]}"
    assert caught.value.where == f"Role rule {rule}"
    assert "deploy/base/train.yaml" in caught.value.hint
    assert len(there.calls) == 1


def test_a_right_that_is_missing_while_following_is_told_too(there: Cluster, tmp_path: Path) -> None:
    mine = {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"]}
    token = there.account("runner", [mine | {"verbs": ["create", "get", "list", "watch", "patch", "delete"]}])
    with pytest.raises(PermissionRefused, match=r"not allowed to list pods in namespace team"):
        launcher(there, token=token).run(cluster_job(tmp_path))


@pytest.mark.covers("F34")
def test_without_the_operator_the_step_says_what_to_install(tmp_path: Path) -> None:
    bare = cluster(tmp_path / "cluster", without=("pytorchjobs",))
    with bare as there, pytest.raises(DependencyError, match="knows no pytorchjobs") as caught:
        launcher(there).run(cluster_job(tmp_path))
    assert "training operator v1" in caught.value.hint


def test_a_namespace_that_is_being_removed_is_no_missing_right(there: Cluster, tmp_path: Path) -> None:
    there.verbs.terminating.add("team")
    with pytest.raises(DependencyError, match="namespace team is being removed"):
        launcher(there).run(cluster_job(tmp_path))


def test_a_used_up_quota_is_no_missing_right(there: Cluster, tmp_path: Path) -> None:
    there.verbs.quotas["team", "pytorchjobs"] = 0
    with pytest.raises(DependencyError, match="quota is used up"):
        launcher(there).run(cluster_job(tmp_path))


RECORDED = {
    entry["case"]: entry["response"]
    for entry in json.loads((Path(__file__).parent / "data" / "answers.json").read_text())
}


@pytest.mark.parametrize(
    ("case", "kind", "said"),
    [
        ("unknown field, Strict", InputError, 'unknown field "spec.banana"'),
        ("no image", InputError, "the cluster refuses to create"),
        ("bad quantity", InputError, "is invalid"),
        ("403 ServiceAccount without a Role: create", PermissionRefused, "verbs: [create]"),
        ("401 bad token", PermissionRefused, "does not know this step"),
        ("403 exceeded quota", DependencyError, "quota is used up"),
    ],
)
def test_a_recorded_refusal_is_said_in_our_words(
    there: Cluster, tmp_path: Path, case: str, kind: type[Exception], said: str
) -> None:
    recorded = RECORDED[case]
    body = recorded["body"]
    there.faults.refuse(Refused(recorded["code"], body["reason"], body["message"]))
    with pytest.raises(kind) as caught:
        launcher(there).run(cluster_job(tmp_path))
    assert said in str(caught.value)
    assert len(there.calls) == 1


@pytest.mark.covers("F26")
def test_an_outage_within_the_budget_is_sat_out_and_nothing_is_missed(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: sum(call.verb == "watch" for call in there.calls) >= 2)
        with there.faults.outage():
            before = len(there.calls)
            there.wait(lambda: len(there.calls) > before + 3)
            finish(there, job.name)
    assert coming.result(0).folder == job.folder


@pytest.mark.covers("F26")
def test_an_outage_beyond_the_budget_leaves_the_job_alone(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there, outage_s=0.5).run(job)) as coming:
        there.wait(lambda: sum(call.verb == "watch" for call in there.calls) >= 2)
        outage = there.faults.outage()
        with outage, pytest.raises(TransientError, match="cannot reach the Kubernetes API"):
            coming.result(120)
    assert len(jobs(there)) == 1


@pytest.mark.covers("F26")
def test_a_busy_api_is_waited_for_as_long_as_it_asks(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    there.faults.busy(1, verbs=("create",))
    with running(lambda: launcher(there).run(job)):
        there.wait(lambda: jobs(there))
        finish(there, job.name)
    busy, validated, created = [call.at for call in there.calls if call.verb == "create"]
    assert validated - busy >= 1
    assert created >= validated


@pytest.mark.covers("F27")
def test_a_watch_that_has_expired_or_was_closed_misses_no_end(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: sum(call.verb == "watch" for call in there.calls) >= 2)
        there.close_watches()
        there.wait(lambda: sum(call.verb == "watch" for call in there.calls) >= 4)
        there.expire(watches=True)
        finish(there, job.name)
    assert coming.result(0).folder == job.folder


def test_two_launchers_that_begin_at_once_make_one_job(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    others = [again(job, tmp_path) for _ in range(3)]
    gate = threading.Barrier(3)
    held = []

    def begin(mine: Job, name: str) -> None:
        gate.wait()
        held.append(
            create_or_adopt(api(there), mine, manifests.make_manifest(mine, "pytorchjob", None), name, 5)
        )

    threads = [threading.Thread(target=begin, args=(mine, str(n))) for n, mine in enumerate(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (there_is,) = jobs(there)
    assert {entry.uid for entry in held} == {there_is["metadata"]["uid"]}
    assert {entry.folder for entry in held} == {folder_of(there_is)}
    assert there_is["metadata"]["annotations"][HOLDER] in {"0", "1", "2"}


def delete_and_wait(access: Api, name: str, uid: str, gone_s: float) -> None:
    access.delete(name, uid)
    wait_until_gone(access, name, uid, gone_s)


@pytest.fixture
def one_node(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, operator=False, processes=False, nodes=1) as found:
        found.nodes.plan(process=False, on_term=143)
        yield found


def leave(one_node: Cluster, root: Path, *, ours: bool = True) -> tuple[str, str]:
    """Make a job with a pod that runs and has a second to end; return the job's name and identity."""
    made = one_node.put(manifests.make_manifest(cluster_job(root), "pytorchjob"))
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    labels = {"training.kubeflow.org/job-name": name} | (
        {manifests.MANAGED_BY: manifests.OURS} if ours else {}
    )
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": name, "uid": uid}
    pod = {"name": f"{name}-master-0", "labels": labels}
    pod["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    spec = {"containers": [{"name": "pytorch", "image": "x"}], "terminationGracePeriodSeconds": 1}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec, "status": {"phase": "Pending"}}
    one_node.put(body)
    one_node.wait(lambda: _phase(one_node) == "Running")
    return name, uid


def _phase(one_node: Cluster) -> str:
    return str(one_node.objects("Pod")[0]["status"].get("phase"))


def unsaid(one_node: Cluster) -> None:
    """Forget that the node controller has said anything of the pod."""
    for event in one_node.objects("Event"):
        if event["reason"] == "NodeNotReady":
            k8s.CoreV1Api(one_node.api_client()).delete_namespaced_event(event["metadata"]["name"], "team")


def ready_again(one_node: Cluster) -> None:
    """Let the pod say that it is ready: its node is back, and cannot end it."""

    def note(pod: Object) -> None:
        for entry in pod["status"]["conditions"]:
            if entry["type"] == "Ready":
                entry["status"] = "True"

    one_node.edit("Pod", one_node.objects("Pod")[0]["metadata"]["name"], note)


@pytest.mark.parametrize("doubt", [unsaid, ready_again, None])
def test_a_pod_whose_node_may_still_run_it_is_left_alone_and_named(
    one_node: Cluster, tmp_path: Path, doubt: Callable[[Cluster], None] | None
) -> None:
    """Its GPU is not free: a node that answers and cannot end a process would get a second one for it."""
    name, uid = leave(one_node, tmp_path, ours=doubt is not None)
    one_node.nodes.lose("node-0")
    if doubt:
        doubt(one_node)
    with pytest.raises(DependencyError, match="does not go away within 5 s") as caught:
        delete_and_wait(api(one_node), name, uid, 5)
    assert not [call for call in one_node.calls if (call.verb, call.resource) == ("delete", "pods")]
    assert "cannot end a process (a driver that hangs), drained and restarted" in caught.value.hint
    assert (f"it is kept by {name}-master-0 on node node-0" in caught.value.what) == (doubt is not None)


def test_without_the_right_to_remove_pods_it_is_said_what_is_missing(
    one_node: Cluster, tmp_path: Path
) -> None:
    kept = [
        rule
        for rule in rules("trainwright-train")
        if "delete" not in rule["verbs"] or rule["apiGroups"] != [""]
    ]
    token = one_node.account("system:serviceaccount:team:runner", [*kept, READS], "team")
    name, uid = leave(one_node, tmp_path)
    one_node.nodes.lose("node-0")
    with pytest.raises(DependencyError, match="not allowed to delete pods") as caught:
        delete_and_wait(api(one_node, token=token), name, uid, 8)
    assert "does not go away within 8 s" in caught.value.what


READS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}


def test_the_next_attempt_follows_although_a_node_died_with_a_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, processes=False) as one_node:
        one_node.nodes.plan(process=False, on_term=143)
        job = cluster_job(tmp_path, grace_s=1)
        token = one_node.account("system:serviceaccount:team:runner", rules("trainwright-train"), "team")
        with running(lambda: launcher(one_node, gone_s=20, token=token).run(job)) as coming:
            one_node.wait(lambda: len(one_node.objects("Pod")) == 2 and watches(one_node))
            worker = f"{job.name}-worker-0"
            one_node.wait(
                lambda: (one_node.find("Pod", worker) or {"status": {}})["status"].get("phase") == "Running"
            )
            one_node.nodes.lose(one_node.find("Pod", worker)["spec"]["nodeName"])  # type: ignore[index]
            k8s.CoreV1Api(one_node.api_client()).delete_namespaced_pod(worker, "team", grace_period_seconds=1)
            one_node.wait(lambda: [body for body in jobs(one_node) if "/0002" in _folder(body)])
            complete(jobs(one_node)[0])
            one_node.wait(
                lambda: (
                    (one_node.find("Pod", f"{job.name}-master-0") or {"status": {}})["status"].get("phase")
                    == "Running"
                )
            )
            one_node.nodes.end(f"{job.name}-master-0", 0)
        assert coming.result(0).folder.name == "0002"
        assert f"pod {worker} was removed: its node node-" in capsys.readouterr().err


def _folder(body: Object) -> str:
    return str(body["metadata"]["annotations"][manifests.FOLDER])


POINTS = 13
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.launch.launching"])


@pytest.fixture
def plain_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, operator=False) as found:
        yield found


class Elsewhere:
    """A cluster that runs in another process."""

    def __init__(self, url: str) -> None:
        self._url = url

    def api_client(self, token: str) -> object:
        from kubernetes import client as k8s

        settings = k8s.Configuration()
        settings.host, settings.retries = self._url, False
        settings.api_key = {"authorization": f"Bearer {token}"}
        return k8s.ApiClient(settings)


def launch(url: str, root: str, pace: dict[str, float]) -> None:
    """What the process of a launcher does."""
    os.chdir(root)
    with reported("train"):
        launcher(Elsewhere(url), **pace).run(cluster_job(Path(root)))  # type: ignore[arg-type]


def started(plain_cluster: Cluster, root: Path, **pace: float) -> BaseProcess:
    process = _FORKS.Process(target=launch, args=(plain_cluster.url, str(root), {"renew_s": 0.05} | pace))
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    process.join(180)
    return process.exitcode


@pytest.mark.covers("F23")
def test_a_launcher_that_is_killed_at_any_of_its_calls_is_followed_by_one_that_goes_on(
    plain_cluster: Cluster, tmp_path: Path
) -> None:
    for point in range(1, POINTS + 1):
        before, process = len(plain_cluster.calls), started(plain_cluster, tmp_path)
        plain_cluster.wait(lambda before=before, point=point: len(plain_cluster.calls) >= before + point)  # type: ignore[misc]
        process.kill()
        assert ended(process) == -signal.SIGKILL
    job = cluster_job(tmp_path)
    with running(lambda: launcher(plain_cluster).run(job)) as coming:
        plain_cluster.wait(lambda: jobs(plain_cluster))
        [only] = jobs(plain_cluster)
        complete(only)
        plain_cluster.condition(job.name, "Succeeded")
    assert coming.result(0).folder == folder_of(only)  # not always 0001: a kill may leave its empty folder
    created = [
        call
        for call in plain_cluster.calls
        if call.verb == "create" and not call.dry_run and call.code == 201
    ]
    assert len(created) == 1
    assert not [call for call in plain_cluster.calls if call.verb == "delete"]


@pytest.mark.covers("F24")
@pytest.mark.parametrize("saved", [False, True])
def test_a_launcher_that_is_told_to_stop_deletes_its_job_before_anything_else(
    plain_cluster: Cluster, tmp_path: Path, saved: bool
) -> None:
    """It waits for hours between two looks: a deletion that waited for the next one would never come."""
    if saved:
        manifest = tmp_path / "home" / "checkpoints" / "step-00000001.0001" / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
    process = started(plain_cluster, tmp_path, renew_s=10_000, tick_s=10_000)
    waits = {("watch", "pods"), ("watch", "pytorchjobs"), ("list", "events")}
    plain_cluster.wait(lambda: waits <= {(call.verb, call.resource) for call in plain_cluster.calls})
    before = len(plain_cluster.calls)
    assert process.pid
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == (Preempted if saved else PreemptedUnsaved).code
    assert [(call.verb, call.resource, call.code) for call in plain_cluster.calls[before:]] == [
        ("delete", "pytorchjobs", 200)
    ]
    assert jobs(plain_cluster) == []


@pytest.mark.covers("F24")
def test_a_launcher_that_is_told_to_stop_while_the_api_is_silent_leaves_nothing(
    plain_cluster: Cluster, tmp_path: Path
) -> None:
    plain_cluster.faults.slow(1.0, verbs=("create",))
    process = started(plain_cluster, tmp_path)
    plain_cluster.wait((tmp_path / "home" / "attempts" / "0001").exists)
    assert process.pid
    os.kill(process.pid, signal.SIGTERM)
    code = ended(process)
    if code == PreemptedUnsaved.code:
        assert jobs(plain_cluster) == []
    else:  # the signal came before the launcher's handler was plain_cluster: nothing had been asked for
        assert (code, jobs(plain_cluster)) == (-signal.SIGTERM, [])


def test_a_deletion_whose_reply_is_lost_is_asked_for_again(plain_cluster: Cluster, tmp_path: Path) -> None:
    process = started(plain_cluster, tmp_path)
    plain_cluster.wait(lambda: any(call.verb == "patch" for call in plain_cluster.calls))
    plain_cluster.faults.drop(verbs=("delete",), times=2)
    assert process.pid
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == PreemptedUnsaved.code
    assert jobs(plain_cluster) == []
