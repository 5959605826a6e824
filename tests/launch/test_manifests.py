"""What an operator is asked for: the same job gives the same manifest, and a server takes it as it is."""

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.launch.standin import Cluster, cluster
from trainwright.authoring import images
from trainwright.errors import InputError
from trainwright.launch import manifests
from trainwright.launch.job import Budget, Job
from trainwright.launch.manifests import annotations as names
from trainwright.launch.manifests.pods import Owner
from trainwright.launch.placement import Placement, SecretVariable, Toleration, Volume

Object = dict[str, Any]

FULL = Placement(
    queue="training",
    workload_priority="research",
    priority_class="trainings",
    max_exec_time_s=7200,
    tolerations=(Toleration(key="team", value="a", effect="NoExecute", seconds=60),),
    node_selector={"zone": "a"},
    affinity={"nodeAffinity": {}},
    accelerator="NVIDIA-H100-80GB-HBM3",
    spot=True,
    service_account="trainwright-job",
    shared_memory_gib=1.5,
    disk_gib=20,
    volumes=(
        Volume(path="/data", claim="data", read_only=True, sub_path="2013"),
        Volume(path="/etc/team", config="team"),
        Volume(path="/var/run/secrets/store", secret="store", optional=True),  # noqa: S106 - a name
        Volume(path="/other", claim="shared"),
    ),
    labels={"team": "flights", "owner": "ada", "cost-center": "4711"},
    image_pull_secrets=("registry",),
    env_from_secrets=(
        SecretVariable(name="MLFLOW_TRACKING_TOKEN", secret="mlflow", key="token"),  # noqa: S106 - a name
    ),
)
OWNER = Owner(api_version="argoproj.io/v1alpha1", kind="Workflow", name="run-1", uid="u-1")


def asked(**changes: Any) -> Job:
    settings: dict[str, Any] = {
        "run": "gs://bucket/runs/1/train/model",
        "task": "train",
        "image": "registry.example:5000/trainwright/torch@sha256:" + "a" * 64,
        "program": ("-m", "trainwright.train", "{folder}/specification.json"),
        "folder": Path("/shared/trainwright/jobs/1/attempts/0001"),
        "nodes": 3,
        "processes": 2,
        "cpu": 4,
        "memory_gib": 8,
        "timeout_s": 600,
        "claim": "shared",
        "mount": "/shared",
    }
    return Job(**settings | changes)


def pod_of(body: Object) -> tuple[Object, Object]:
    """Return the pod of a manifest, and its container as it will run."""
    if body["kind"] == "PyTorchJob":
        replicas = body["spec"]["pytorchReplicaSpecs"]
        template = next(iter(replicas.values()))["template"]
        return template, template["spec"]["containers"][0]
    (patch,) = body["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template, trainer = job["template"]["spec"]["template"], body["spec"]["trainer"]
    container = {**template["spec"]["containers"][0], **trainer, "resources": trainer["resourcesPerNode"]}
    return template, container


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), operator=False) as running:
        yield running


PLACED = [Placement(), FULL, dataclasses.replace(FULL, min_nodes=2), Placement(min_nodes=3)]


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("placement", PLACED)
def test_a_strict_server_takes_every_pytorchjob_that_is_made(
    server: Cluster, placement: Placement, gpus: int
) -> None:
    job = asked(placement=placement, gpus=gpus, run=f"{gpus}{placement.queue}{placement.min_nodes}")
    body = manifests.make_manifest(job, "pytorchjob", OWNER)
    jobs = k8s.CustomObjectsApi(server.api_client())
    made = jobs.create_namespaced_custom_object(
        "kubeflow.org", "v1", "team", "pytorchjobs", body, field_validation="Strict"
    )
    assert made["spec"] == body["spec"]


@pytest.mark.parametrize("placement", [Placement(), dataclasses.replace(FULL, priority_class="")])
def test_a_strict_server_takes_every_trainjob_that_is_made(server: Cluster, placement: Placement) -> None:
    job = asked(placement=placement, run=f"trainjob {placement.queue}")
    body = manifests.make_manifest(job, "trainjob", OWNER)
    jobs = k8s.CustomObjectsApi(server.api_client())
    made = jobs.create_namespaced_custom_object(
        "trainer.kubeflow.org", "v1alpha1", "team", "trainjobs", body, field_validation="Strict"
    )
    assert made["spec"]["trainer"] == body["spec"]["trainer"]


def test_the_same_job_gives_the_same_manifest_and_shares_nothing_with_the_next() -> None:
    first = manifests.make_manifest(asked(placement=FULL), "pytorchjob", OWNER)
    kept = copy.deepcopy(first)
    pod_of(first)[1]["securityContext"]["capabilities"]["drop"].clear()
    pod_of(first)[0]["metadata"]["labels"]["team"] = "changed"
    assert manifests.make_manifest(asked(placement=FULL), "pytorchjob", OWNER) == kept


def test_a_job_of_fixed_size_is_a_master_and_workers_that_fail_at_once() -> None:
    spec = manifests.make_manifest(asked(), "pytorchjob")["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert {role: entry["replicas"] for role, entry in replicas.items()} == {"Master": 1, "Worker": 2}
    assert {entry["restartPolicy"] for entry in replicas.values()} == {"Never"}
    assert spec["nprocPerNode"] == "2"
    assert spec["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "activeDeadlineSeconds": 720,
        "ttlSecondsAfterFinished": 86_400,
    }
    assert "elasticPolicy" not in spec
    assert list(manifests.make_manifest(asked(nodes=1), "pytorchjob")["spec"]["pytorchReplicaSpecs"]) == [
        "Master"
    ]


def test_an_elastic_job_has_workers_only_and_waits_for_no_more_than_there_are() -> None:
    job = asked(placement=Placement(min_nodes=2), restarts=4, budget=Budget(infrastructure=5))
    spec = manifests.make_manifest(job, "pytorchjob")["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    worker, policy = spec["pytorchReplicaSpecs"]["Worker"], spec["elasticPolicy"]
    assert (worker["replicas"], worker["restartPolicy"]) == (3, "OnFailure")
    assert (policy["minReplicas"], policy["maxReplicas"], policy["maxRestarts"]) == (2, 3, 4)
    assert policy["rdzvBackend"] == "c10d"
    assert {entry["key"] for entry in policy["rdzvConf"]} == {"join_timeout", "last_call_timeout"}
    assert (spec["nprocPerNode"], "nProcPerNode" in policy) == ("2", False)
    allowed = job.budget.preemption + job.budget.infrastructure + job.budget.user
    assert spec["runPolicy"]["backoffLimit"] > allowed * job.nodes, "the launcher comes first: it keeps logs"


def test_a_trainjob_names_its_runtime_and_patches_its_pods() -> None:
    placement = Placement(runtime="trainwright-torch", runtime_kind="TrainingRuntime", queue="training")
    body = manifests.make_manifest(asked(placement=placement), "trainjob")
    spec, trainer = body["spec"], body["spec"]["trainer"]
    assert spec["runtimeRef"]["name"] == "trainwright-torch"
    assert spec["runtimeRef"]["kind"] == "TrainingRuntime"
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (3, 2)
    assert (trainer["image"], spec["activeDeadlineSeconds"]) == (asked().image, 720)
    assert body["metadata"]["labels"][names.QUEUE] == "training"
    assert not {"suspend", "managedBy"} & spec.keys()


def test_what_a_trainjob_cannot_say_is_refused_all_at_once() -> None:
    placement = Placement(min_nodes=2, priority_class="high")
    with pytest.raises(InputError) as caught:
        manifests.make_manifest(asked(placement=placement, claim=""), "trainjob")
    for part in ("cannot be elastic", "priority class from the runtime", "not on a mounted claim"):
        assert part in caught.value.what


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_every_pod_runs_as_restricted_as_it_can(kind: str) -> None:
    template, container = pod_of(manifests.make_manifest(asked(gpus=2), kind))
    spec, context = template["spec"], container["securityContext"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": images.USER,
        "runAsGroup": images.USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert template["metadata"]["annotations"] == {names.NO_SIDECAR: "false", names.NOT_EVICTED: "false"}
    if kind == "pytorchjob":  # a TrainJob's grace is the runtime's
        assert spec["terminationGracePeriodSeconds"] > asked().grace_s
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes[mounts["/tmp"]]["emptyDir"] == {}  # noqa: S108 - the one place that can be written to
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4096Mi"}  # noqa: S108
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "8192Mi", "nvidia.com/gpu": "2"}


def test_a_pytorchjobs_pods_have_no_token_of_the_api() -> None:
    template, _ = pod_of(manifests.make_manifest(asked(), "pytorchjob"))
    assert template["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_all_of_a_placement_reaches_the_pods(kind: str) -> None:
    placement = FULL if kind == "pytorchjob" else dataclasses.replace(FULL, priority_class="")
    body = manifests.make_manifest(asked(placement=placement), kind)
    template, container = pod_of(body)
    spec, labels = template["spec"], template["metadata"]["labels"]
    assert labels.items() >= FULL.labels.items()
    assert body["metadata"]["labels"].items() >= FULL.labels.items()
    assert spec["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "cloud.google.com/gke-spot": "true",
        "zone": "a",
    }
    taints = [(entry["key"], entry.get("tolerationSeconds")) for entry in spec["tolerations"]]
    assert taints == [("team", 60), ("cloud.google.com/gke-spot", None)]
    assert (spec["serviceAccountName"], spec["affinity"]) == ("trainwright-job", {"nodeAffinity": {}})
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec.get("priorityClassName", "") == placement.priority_class
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    sources = {path: volumes[mount["name"]] for path, mount in mounts.items()}
    assert sources["/data"]["persistentVolumeClaim"] == {"claimName": "data"}
    assert (mounts["/data"]["readOnly"], mounts["/data"]["subPath"]) == (True, "2013")
    assert sources["/etc/team"]["configMap"]["name"] == "team"
    assert sources["/var/run/secrets/store"]["secret"]["optional"] is True
    assert mounts["/other"]["name"] == mounts["/shared"]["name"] == "shared"
    assert sources["/tmp"]["emptyDir"] == {"sizeLimit": "20480Mi"}  # noqa: S108
    assert container["resources"]["limits"]["ephemeral-storage"] == "20480Mi"


def test_a_secret_is_referred_to_and_never_copied() -> None:
    _, container = pod_of(manifests.make_manifest(asked(placement=FULL), "pytorchjob"))
    (entry,) = (entry for entry in container["env"] if entry["name"] == "MLFLOW_TRACKING_TOKEN")
    assert entry == {
        "name": "MLFLOW_TRACKING_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "mlflow", "key": "token", "optional": False}},
    }


def test_a_queue_is_asked_by_labels_and_suspend_is_left_to_it() -> None:
    body = manifests.make_manifest(asked(placement=FULL), "pytorchjob")
    labels = body["metadata"]["labels"]
    said = (labels[names.QUEUE], labels[names.WORKLOAD_PRIORITY], labels[names.MAX_EXEC_TIME])
    assert said == ("training", "research", "7200")
    assert "suspend" not in body["spec"]["runPolicy"]
    plain = manifests.make_manifest(asked(), "pytorchjob")["metadata"]["labels"]
    assert not [key for key in plain if key.startswith("kueue")]


def test_a_job_says_whose_it_is_and_goes_with_its_owner() -> None:
    job = asked(folder=Path("/shared/trainwright/jobs/1/attempts/0002"))
    metadata = manifests.make_manifest(job, "pytorchjob", OWNER)["metadata"]
    assert metadata["annotations"] == {
        names.RUN_ID: job.run,
        names.SPEC_SHA256: job.digest,
        names.FOLDER: "/shared/trainwright/jobs/1/attempts/0002",
        names.ATTEMPT: "0002",
    }
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Workflow", "run-1", "u-1")
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (False, False)
    assert "ownerReferences" not in manifests.make_manifest(job, "pytorchjob")["metadata"]


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_nodes_wait_fifteen_minutes_for_one_another(kind: str) -> None:
    _, container = pod_of(manifests.make_manifest(asked(), kind))
    command = container["command"]
    agent = command.index("--")
    assert command[:3] == ["python", "-m", "trainwright.launch.agent"]
    assert "--rdzv-conf=timeout=900" in command[agent:]
    assert command[-1] == "/shared/trainwright/jobs/1/attempts/0001/specification.json"


def test_there_is_no_manifest_of_a_kind_that_is_not_known() -> None:
    with pytest.raises(InputError, match="no kind of job 'mpijob'; known are pytorchjob, trainjob"):
        manifests.make_manifest(asked(), "mpijob")


RDMA = Placement(queue="q", devices={"rdma/ib": 2}, ipc_lock=True, required_topology="cloud.example/rack")


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_devices_memory_locks_and_topology_reach_the_pods_only_when_asked_for(kind: str) -> None:
    template, container = pod_of(manifests.make_manifest(asked(placement=RDMA), kind))
    assert container["resources"]["requests"]["rdma/ib"] == container["resources"]["limits"]["rdma/ib"] == "2"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    level = template["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"]
    assert level == "cloud.example/rack"


def test_a_scheduler_is_a_pytorchjobs_own_and_a_trainjobs_runtime_has_it() -> None:
    job = asked(placement=Placement(scheduler="volcano"))
    template, _ = pod_of(manifests.make_manifest(job, "pytorchjob"))
    assert template["spec"]["schedulerName"] == "volcano"
    with pytest.raises(InputError, match="scheduler from the runtime trainwright-torch"):
        manifests.make_manifest(job, "trainjob")
