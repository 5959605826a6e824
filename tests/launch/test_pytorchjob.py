"""The cluster launcher against a stand-in API: one job, the truth about it, and nothing left running."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch.cluster import JOBS, Cluster, Object, status
from tests.launch.programs import job
from trainwright.errors import (
    DependencyError,
    Diverged,
    Hang,
    InputError,
    PermissionRefused,
    PreemptedUnsaved,
    TrainwrightError,
    TransientError,
)
from trainwright.launch.api import Api
from trainwright.launch.job import Completion, Job
from trainwright.launch.manifest import DIGEST, FOLDER, to_manifest
from trainwright.launch.pytorchjob import PyTorchJobs
from trainwright.launch.ranks import RankError

DATA = Path(__file__).parent / "data"
OBSERVED: dict[str, Any] = json.loads((DATA / "observed.json").read_text())
ANSWERS = {entry["case"]: entry["response"] for entry in json.loads((DATA / "answers.json").read_text())}

Connected = tuple[Cluster, k8s.ApiClient]


def cluster_job(root: Path, **changes: Any) -> Job:
    return job(root, "", **{"claim": "shared", "mount": str(root), "nodes": 2, **changes})


def launcher(client: k8s.ApiClient, **changes: float) -> PyTorchJobs:
    settings = {"poll_s": 0.02, "pending_s": 5.0, "broken_s": 5.0, "settle_s": 0.1} | changes
    outage_s = settings.pop("outage_s", 5.0)
    return PyTorchJobs(Api(client, "team", outage_s=outage_s, pause_s=0.01), **settings)


def complete(found: Object) -> None:
    """Do what rank 0 does at the very end of the attempt that a job names."""
    folder = Path(found["metadata"]["annotations"][FOLDER])
    Completion(attempt=folder.name, outputs={"model": "abc"}).write(folder)


def succeeding(cluster: Cluster) -> Callable[[Object], None]:
    def created(found: Object) -> None:
        complete(found)
        cluster.condition(found["metadata"]["name"], "Succeeded", "job is successfully completed.")

    return created


def ending(cluster: Cluster, *conditions: str, pods: list[Object] | None = None) -> Callable[[Object], None]:
    """End every job with some conditions and pods, and without a marker."""

    def created(found: Object) -> None:
        name = found["metadata"]["name"]
        for pod in pods or []:
            renamed = {**pod["metadata"], "name": f"{name}-{pod['metadata']['name'].partition('-')[2]}"}
            cluster.pods.append({**pod, "metadata": renamed})
        for kind in conditions:
            cluster.condition(name, kind, f"job {kind.lower()}")

    return created


def test_the_manifest_says_what_the_job_says(tmp_path: Path) -> None:
    asked = cluster_job(tmp_path, nodes=3, processes=2, cpu=4, memory_gib=1.5, gpus=2, timeout_s=600)
    body = to_manifest(asked)
    spec = body["spec"]
    assert body["metadata"]["annotations"] == {DIGEST: asked.digest, FOLDER: str(asked.folder)}
    assert spec["nprocPerNode"] == "2"
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
    assert spec["runPolicy"]["backoffLimit"] == 0
    assert spec["runPolicy"]["activeDeadlineSeconds"] > 600
    assert spec["runPolicy"]["ttlSecondsAfterFinished"] == 86400
    replicas = spec["pytorchReplicaSpecs"]
    assert {role: entry["replicas"] for role, entry in replicas.items()} == {"Master": 1, "Worker": 2}
    assert {entry["restartPolicy"] for entry in replicas.values()} == {"Never"}
    template = replicas["Worker"]["template"]
    assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert template["spec"]["automountServiceAccountToken"] is False
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = template["spec"]["containers"]
    assert container["name"] == "pytorch"
    assert container["image"] == asked.image
    assert container["command"][:3] == ["python", "-m", "trainwright.launch.agent"]
    assert container["command"][-3:] == list(asked.arguments)
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "1536Mi", "nvidia.com/gpu": "2"}
    assert {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"} in container["env"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {str(tmp_path), "/dev/shm"}  # noqa: S108


def test_a_job_of_one_node_has_no_workers(tmp_path: Path) -> None:
    assert list(to_manifest(cluster_job(tmp_path, nodes=1))["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_a_job_without_a_claim_or_with_a_bad_image_is_refused_before_any_call(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        to_manifest(cluster_job(tmp_path, claim="", image="two words"))
    assert "not on a mounted claim" in caught.value.what
    assert "'two words' is not an image reference" in caught.value.what


def test_a_job_that_succeeds_returns_its_marker(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected
    cluster.created = succeeding(cluster)
    result = launcher(client).run(cluster_job(tmp_path))
    assert result.completion.outputs == {"model": "abc"}
    assert result.folder == tmp_path / "attempt-1"
    assert cluster.creations == 1


def test_a_job_that_succeeds_without_its_marker_is_no_success(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected
    cluster.created = ending(cluster, "Succeeded", pods=OBSERVED["success-static"]["pods"])
    with pytest.raises(DependencyError, match=r"without its completion marker result\.json"):
        launcher(client).run(cluster_job(tmp_path))


def test_an_evicted_master_that_exits_0_is_no_success(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected
    cluster.created = ending(cluster, "Succeeded", pods=OBSERVED["evicted-master-exit0"]["pods"])
    with pytest.raises(PreemptedUnsaved, match=r"master-0 was taken off its node \(EvictionByEvictionAPI\)"):
        launcher(client).run(cluster_job(tmp_path))


@pytest.mark.parametrize("marked", [True, False])
def test_when_a_job_is_succeeded_and_failed_the_marker_decides(
    connected: Connected, tmp_path: Path, marked: bool
) -> None:
    cluster, client = connected
    end = ending(cluster, "Succeeded", "Failed", pods=OBSERVED["operator-outage"]["pods"])

    def created(found: Object) -> None:
        if marked:
            complete(found)
        end(found)

    cluster.created = created
    if marked:
        assert launcher(client).run(cluster_job(tmp_path)).completion.outputs == {"model": "abc"}
    else:
        with pytest.raises(TrainwrightError, match="worker-1 ended with exit code 1"):
            launcher(client).run(cluster_job(tmp_path))


def test_the_first_failing_rank_is_heard_with_its_pod(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected
    end = ending(cluster, "Failed", pods=OBSERVED["user-exception-never"]["pods"])

    def created(found: Object) -> None:
        folder = Path(found["metadata"]["annotations"][FOLDER])
        RankError.of(Diverged("the loss is not finite", hint="Lower the rate."), 1).save(folder)
        end(found)

    cluster.created = created
    with pytest.raises(Diverged, match="the loss is not finite") as caught:
        launcher(client).run(cluster_job(tmp_path))
    assert re.fullmatch(r"pod tw-train-\w+-worker-0, rank 1", caught.value.where)


def test_a_lost_reply_does_not_make_a_second_job(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected
    cluster.created = succeeding(cluster)
    for index in range(20):
        cluster.faults = ["commit-then-drop", "drop", (500, status(500, "InternalError", "webhook"))]
        root = tmp_path / str(index)
        assert launcher(client).run(cluster_job(root, run=str(index))).folder == root / "attempt-1"
        assert cluster.creations == len(cluster.jobs) == index + 1


def test_a_launcher_that_is_started_again_follows_the_job_that_runs(
    connected: Connected, tmp_path: Path
) -> None:
    cluster, client = connected
    first = cluster_job(tmp_path)
    cluster.answer("POST", f"{JOBS}?fieldValidation=Strict", to_manifest(first))
    cluster.condition(first.name, "Running")
    threading.Timer(0.3, lambda: succeeding(cluster)(cluster.jobs[first.name])).start()
    second_folder = tmp_path / "attempt-2"
    second_folder.mkdir()
    result = launcher(client).run(cluster_job(tmp_path, folder=second_folder))
    assert result.folder == first.folder
    assert cluster.creations == 1


@pytest.mark.parametrize("conditions", [["Failed"], ["Succeeded"]])
def test_a_spent_job_of_an_earlier_attempt_is_replaced(
    connected: Connected, tmp_path: Path, conditions: list[str]
) -> None:
    cluster, client = connected
    cluster.created = ending(cluster, *conditions)
    with pytest.raises(DependencyError):
        launcher(client).run(cluster_job(tmp_path))
    cluster.created = succeeding(cluster)
    second_folder = tmp_path / "attempt-2"
    second_folder.mkdir()
    result = launcher(client).run(cluster_job(tmp_path, folder=second_folder))
    assert result.folder == second_folder
    assert (cluster.creations, len(cluster.jobs)) == (2, 1)


def test_a_job_of_that_name_with_another_specification_is_left_alone(
    connected: Connected, tmp_path: Path
) -> None:
    cluster, client = connected
    asked = cluster_job(tmp_path)
    cluster.jobs[asked.name] = {"metadata": {"name": asked.name, "annotations": {DIGEST: "f" * 64}}}
    with pytest.raises(InputError, match="with another specification"):
        launcher(client).run(asked)
    assert asked.name in cluster.jobs


def test_an_outage_within_the_budget_is_sat_out(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected
    busy = (429, status(429, "TooManyRequests", "slow down"))

    def created(found: Object) -> None:
        cluster.faults = [busy, "drop", (503, status(503, "ServiceUnavailable", "down")), busy]
        succeeding(cluster)(found)

    cluster.created = created
    assert launcher(client).run(cluster_job(tmp_path)).completion.outputs == {"model": "abc"}
    assert cluster.faults == []


def test_an_outage_beyond_the_budget_leaves_the_job_alone(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected

    def created(found: Object) -> None:
        cluster.faults = [(500, status(500, "InternalError", "etcd is away"))] * 1000

    cluster.created = created
    with pytest.raises(TransientError, match="answers 500: etcd is away"):
        launcher(client, outage_s=0.2).run(cluster_job(tmp_path))
    assert len(cluster.jobs) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_is_told_to_stop_deletes_its_job_first(
    connected: Connected, tmp_path: Path, number: signal.Signals
) -> None:
    cluster, client = connected
    told: list[float] = []

    def stop() -> None:
        told.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Timer(0.3, stop).start()
    with pytest.raises(PreemptedUnsaved, match=f"stopped by {number.name}"):
        launcher(client, poll_s=30).run(cluster_job(tmp_path))
    assert time.monotonic() - told[0] < 0.5
    assert cluster.jobs == {}
    assert cluster.calls[-1][0] == "DELETE"


def test_a_job_that_takes_too_long_is_deleted(connected: Connected, tmp_path: Path) -> None:
    cluster, client = connected
    with pytest.raises(Hang, match="did not end within 1 s and was deleted: training had not begun"):
        launcher(client).run(cluster_job(tmp_path, timeout_s=1))
    assert cluster.jobs == {}


@pytest.mark.parametrize(
    ("scenario", "limit", "kind", "said"),
    [
        ("image-pull", "broken_s", DependencyError, "ErrImagePull"),
        ("config-error", "broken_s", InputError, 'secret "absent" not found'),
        ("unschedulable", "pending_s", DependencyError, "Insufficient nvidia.com/gpu"),
    ],
)
def test_a_job_whose_pods_cannot_start_is_deleted_with_the_reason(
    connected: Connected, tmp_path: Path, scenario: str, limit: str, kind: type[TrainwrightError], said: str
) -> None:
    cluster, client = connected
    cluster.created = ending(cluster, "Created", pods=OBSERVED[scenario]["pods"])
    with pytest.raises(kind, match="could not start and was deleted") as caught:
        launcher(client, **{limit: 0.2}).run(cluster_job(tmp_path))
    assert said in caught.value.what
    assert cluster.jobs == {}


@pytest.mark.parametrize("marked", [True, False])
def test_of_a_job_that_somebody_deleted_the_marker_decides(
    connected: Connected, tmp_path: Path, marked: bool
) -> None:
    cluster, client = connected

    def created(found: Object) -> None:
        if marked:
            complete(found)
        threading.Timer(0.1, cluster.jobs.clear).start()

    cluster.created = created
    if marked:
        assert launcher(client).run(cluster_job(tmp_path)).completion.outputs == {"model": "abc"}
    else:
        with pytest.raises(DependencyError, match="deleted by someone else"):
            launcher(client).run(cluster_job(tmp_path))


@pytest.mark.parametrize(
    ("case", "kind", "said"),
    [
        ("unknown field, Strict", InputError, 'unknown field "spec.banana"'),
        ("no image", InputError, "the training operator refuses the job"),
        ("bad quantity", InputError, "is invalid"),
        (
            "403 ServiceAccount without a Role: create",
            PermissionRefused,
            "create, get and delete",
        ),
        ("404 CRD/group not installed: create", DependencyError, "Install the Kubeflow training operator"),
        ("401 bad token", PermissionRefused, "not allowed"),
        ("403 exceeded quota", DependencyError, "quota is used up"),
    ],
)
def test_a_recorded_refusal_is_said_in_our_words(
    connected: Connected, tmp_path: Path, case: str, kind: type[TrainwrightError], said: str
) -> None:
    cluster, client = connected
    recorded = ANSWERS[case]
    cluster.faults = [(recorded["code"], recorded["body"])]
    with pytest.raises(kind) as caught:
        launcher(client).run(cluster_job(tmp_path))
    assert said in str(caught.value)
    assert len(cluster.calls) == 1


def test_outside_of_a_pod_there_is_no_cluster() -> None:
    with pytest.raises(DependencyError, match="no access to a cluster"):
        PyTorchJobs.in_cluster()
