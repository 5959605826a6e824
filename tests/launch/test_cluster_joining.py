"""There is one job, whatever replies are lost and however often its launcher is started."""

import dataclasses
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launching import api, cluster_job, complete, folder_of, jobs, launcher, running
from tests.launch.standin import Cluster, Refused, cluster
from trainwright.errors import DependencyError, InputError, PermissionRefused, Preempted, TransientError
from trainwright.launch import manifests
from trainwright.launch.cluster.adoption import create_or_adopt
from trainwright.launch.cluster.lease import HOLDER, holder_of
from trainwright.launch.job import Job
from trainwright.launch.job_directory import create_attempt
from trainwright.launch.manifests.annotations import LEASE_UNTIL, SPEC_SHA256

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


def test_of_a_hundred_creations_with_lost_replies_each_makes_one_job(there: Cluster, tmp_path: Path) -> None:
    there.faults.commit_then_drop(verbs=("create",), chance=0.3, times=None)
    there.faults.drop(verbs=("create",), chance=0.1, times=None)
    access, first = api(there), cluster_job(tmp_path)
    uids = set()
    for number in range(TRIES):
        job = dataclasses.replace(first, run=str(number))
        held = create_or_adopt(access, job, manifests.make_manifest(job, "pytorchjob", None), "me", 5)
        assert (held.name, held.found) == (job.name, False)
        uids.add(held.uid)
    created = sum(call.verb == "create" for call in there.calls)
    assert len(jobs(there)) == len(uids) == TRIES < created


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


def test_an_outage_within_the_budget_is_sat_out_and_nothing_is_missed(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: sum(call.verb == "watch" for call in there.calls) >= 2)
        with there.faults.outage():
            before = len(there.calls)
            there.wait(lambda: len(there.calls) > before + 3)
            finish(there, job.name)
    assert coming.result(0).folder == job.folder


def test_an_outage_beyond_the_budget_leaves_the_job_alone(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    with running(lambda: launcher(there, outage_s=0.5).run(job)) as coming:
        there.wait(lambda: sum(call.verb == "watch" for call in there.calls) >= 2)
        outage = there.faults.outage()
        with outage, pytest.raises(TransientError, match="cannot reach the Kubernetes API"):
            coming.result(120)
    assert len(jobs(there)) == 1


def test_a_busy_api_is_waited_for_as_long_as_it_asks(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    there.faults.busy(1, verbs=("create",))
    with running(lambda: launcher(there).run(job)):
        there.wait(lambda: jobs(there))
        finish(there, job.name)
    busy, validated, created = [call.at for call in there.calls if call.verb == "create"]
    assert validated - busy >= 1
    assert created >= validated


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
