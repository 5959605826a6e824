"""Manifests, their validation, and the owner of a job."""

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s
from pydantic import TypeAdapter, ValidationError

from tests.launch.launching import api, cluster_job, complete, jobs, launcher, running
from tests.launch.standin import Cluster, Refused, cluster
from trainwright.authoring import images
from trainwright.errors import InputError
from trainwright.experiment import resources as section
from trainwright.experiment.resources import (
    JobPlacement,
    JobToleration,
    JobVariable,
    RetryBudget,
    VolumeMount,
)
from trainwright.launch import kubernetes_names, manifests
from trainwright.launch.cluster.launcher import own_workflow
from trainwright.launch.failure import Failure
from trainwright.launch.job import Job

Object = dict[str, Any]

FULL = JobPlacement(
    queue="training",
    workload_priority="research",
    priority_class="trainings",
    max_exec_time_s=7200,
    tolerations=(JobToleration(key="team", value="a", effect="NoExecute", seconds=60),),
    node_selector={"zone": "a"},
    affinity={"nodeAffinity": {}},
    accelerator="NVIDIA-H100-80GB-HBM3",
    spot=True,
    service_account="trainwright-job",
    shared_memory_gib=1.5,
    disk_gib=20,
    volumes=(
        VolumeMount(path="/data", claim="data", read_only=True, sub_path="2013"),
        VolumeMount(path="/etc/team", config="team"),
        VolumeMount(path="/var/run/secrets/store", secret="store", optional=True),  # noqa: S106 - a name
        VolumeMount(path="/other", claim="shared"),
    ),
    labels={"team": "flights", "owner": "ada", "cost-center": "4711"},
    image_pull_secrets=("registry",),
    env_from_secrets=(
        JobVariable(name="MLFLOW_TRACKING_TOKEN", secret="mlflow", key="token"),  # noqa: S106 - a name
    ),
)
OWNER = manifests.owner_reference("run-1", "u-1")


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


PLACED = [JobPlacement(), FULL, FULL.model_copy(update={"min_nodes": 2}), JobPlacement(min_nodes=3)]


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("placement", PLACED)
def test_a_strict_server_takes_every_pytorchjob_that_is_made(
    server: Cluster, placement: JobPlacement, gpus: int
) -> None:
    job = asked(placement=placement, gpus=gpus, run=f"{gpus}{placement.queue}{placement.min_nodes}")
    body = manifests.make_manifest(job, "pytorchjob", OWNER)
    jobs = k8s.CustomObjectsApi(server.api_client())
    made = jobs.create_namespaced_custom_object(
        "kubeflow.org", "v1", "team", "pytorchjobs", body, field_validation="Strict"
    )
    assert made["spec"] == body["spec"]


@pytest.mark.parametrize("placement", [JobPlacement(), FULL.model_copy(update={"priority_class": ""})])
def test_a_strict_server_takes_every_trainjob_that_is_made(server: Cluster, placement: JobPlacement) -> None:
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
    job = asked(placement=JobPlacement(min_nodes=2), restarts=4, budget=RetryBudget(infrastructure=5))
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
    placement = JobPlacement(runtime="trainwright-torch", runtime_kind="TrainingRuntime", queue="training")
    body = manifests.make_manifest(asked(placement=placement), "trainjob")
    spec, trainer = body["spec"], body["spec"]["trainer"]
    assert spec["runtimeRef"]["name"] == "trainwright-torch"
    assert spec["runtimeRef"]["kind"] == "TrainingRuntime"
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (3, 2)
    assert (trainer["image"], spec["activeDeadlineSeconds"]) == (asked().image, 720)
    assert body["metadata"]["labels"][manifests.QUEUE] == "training"
    assert not {"suspend", "managedBy"} & spec.keys()


def test_what_a_trainjob_cannot_say_is_refused_all_at_once() -> None:
    placement = JobPlacement(min_nodes=2, priority_class="high")
    with pytest.raises(InputError) as caught:
        manifests.make_manifest(asked(placement=placement, claim=""), "trainjob")
    for part in ("cannot be elastic", "priority class from the runtime", "not on a mounted claim"):
        assert part in caught.value.what


@pytest.mark.covers("A10")
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
    assert template["metadata"]["annotations"] == {
        "sidecar.istio.io/inject": "false",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
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
    placement = FULL if kind == "pytorchjob" else FULL.model_copy(update={"priority_class": ""})
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
    said = (
        labels[manifests.QUEUE],
        labels[manifests.WORKLOAD_PRIORITY],
        labels["kueue.x-k8s.io/max-exec-time-seconds"],
    )
    assert said == ("training", "research", "7200")
    assert "suspend" not in body["spec"]["runPolicy"]
    plain = manifests.make_manifest(asked(), "pytorchjob")["metadata"]["labels"]
    assert not [key for key in plain if key.startswith("kueue")]


def test_a_job_says_whose_it_is_and_goes_with_its_owner() -> None:
    job = asked(folder=Path("/shared/trainwright/jobs/1/attempts/0002"))
    metadata = manifests.make_manifest(job, "pytorchjob", OWNER)["metadata"]
    assert metadata["annotations"] == {
        manifests.RUN_ID: job.run,
        manifests.SPEC_SHA256: job.digest,
        manifests.FOLDER: "/shared/trainwright/jobs/1/attempts/0002",
        manifests.ATTEMPT: "0002",
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


RDMA = JobPlacement(queue="q", devices={"rdma/ib": 2}, ipc_lock=True, required_topology="cloud.example/rack")


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_devices_memory_locks_and_topology_reach_the_pods_only_when_asked_for(kind: str) -> None:
    template, container = pod_of(manifests.make_manifest(asked(placement=RDMA), kind))
    assert container["resources"]["requests"]["rdma/ib"] == container["resources"]["limits"]["rdma/ib"] == "2"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    level = template["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"]
    assert level == "cloud.example/rack"


def test_a_scheduler_is_a_pytorchjobs_own_and_a_trainjobs_runtime_has_it() -> None:
    job = asked(placement=JobPlacement(scheduler="volcano"))
    template, _ = pod_of(manifests.make_manifest(job, "pytorchjob"))
    assert template["spec"]["schedulerName"] == "volcano"
    with pytest.raises(InputError, match="scheduler from the runtime trainwright-torch"):
        manifests.make_manifest(job, "trainjob")


DATA = Path(__file__).parent / "data" / "standin" / "admission.json.gz"
RECORDED = {entry["case"]: entry for entry in json.loads(gzip.decompress(DATA.read_bytes()))}

BY_OTHERS = ("namespace", "created", "409", "generateName", "update", "403", "404", "401", "list", "label")
"""How recordings begin that are not about the content of a job."""

REJECTED = [
    case
    for case, entry in RECORDED.items()
    if isinstance(entry.get("body"), dict)
    and "spec" in entry["body"]
    and not case.startswith((*BY_OTHERS, "metadata.namespace", "method", "unsupported"))
    and entry["code"] in (400, 403, 422)
]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def test_enough_rejections_are_recorded() -> None:
    assert len(REJECTED) >= 15
    assert {RECORDED[case]["code"] for case in REJECTED} == {400, 403, 422}


@pytest.mark.parametrize("case", REJECTED)
def test_dry_run_of_an_invalid_job_is_an_input_error_and_creates_nothing(there: Cluster, case: str) -> None:
    with pytest.raises(InputError):
        api(there).validate(RECORDED[case]["body"])
    assert jobs(there) == []


def test_dry_run_of_a_valid_job_creates_nothing(there: Cluster, tmp_path: Path) -> None:
    body = manifests.make_manifest(cluster_job(tmp_path), "pytorchjob")
    api(there).validate(body)
    assert jobs(there) == []
    assert api(there).create(body)["metadata"]["uid"] == jobs(there)[0]["metadata"]["uid"]


def test_launcher_ends_with_10_and_names_the_field_when_the_dry_run_fails(
    there: Cluster, tmp_path: Path
) -> None:
    job = cluster_job(tmp_path, placement=JobPlacement(affinity={"nodeAfinity": {}}))
    with pytest.raises(InputError, match=r'unknown field "spec\.\S+\.affinity\.nodeAfinity"') as caught:
        launcher(there).run(job)
    assert caught.value.code == 10
    assert [(call.verb, call.code) for call in there.calls] == [("create", 400)]
    assert jobs(there) == []
    failure = Failure.read(job.folder)
    assert (failure.kind, failure.code) == ("CONFIG", 10)
    assert "nodeAfinity" in failure.what


def test_job_is_created_where_a_webhook_does_not_support_dry_runs(there: Cluster, tmp_path: Path) -> None:
    job = cluster_job(tmp_path)
    said = 'admission webhook "quota.example.com" does not support dry run'
    there.faults.refuse(Refused(400, "BadRequest", said), verbs=("create",))
    with running(lambda: launcher(there).run(job)) as coming:
        there.wait(lambda: jobs(there))
        complete(jobs(there)[0])
        there.condition(job.name, "Succeeded")
    assert coming.result(0).folder == job.folder
    assert [call.code for call in there.calls if call.verb == "create"] == [400, 201]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"placement": JobPlacement(volumes=(VolumeMount(path="/shared", claim="other"),))},
            "has /shared twice",
        ),
        ({"image": "Two Words"}, "'Two Words' is not a reference to an image"),
        ({"image": "a/b@sha256:12"}, "is not a reference to an image"),
        ({"claim": "c" * 254}, "is not the name of a PersistentVolumeClaim"),
        ({"claim": ""}, "is not on a mounted claim"),
    ],
)
def test_manifest_is_refused_for_what_no_server_rejects(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        manifests.make_manifest(asked(**change), "pytorchjob")


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: asked(placement=JobPlacement(labels={"trainwright/run": "x"})), "belongs to the system"),
    (lambda: asked(placement=JobPlacement(workload_priority="high")), "mean nothing without a queue"),
    (
        lambda: asked(placement=JobPlacement(tolerations=(JobToleration(value="x"),))),
        "operator has to be Exists",
    ),
    (
        lambda: asked(placement=JobPlacement(volumes=(VolumeMount(path="/a", claim="b", sub_path="../c"),))),
        "leads out of the volume",
    ),
    (
        lambda: asked(
            placement=JobPlacement(env_from_secrets=(JobVariable(name="RANK", secret="a", key="b"),))  # noqa: S106
        ),
        "RANK is set by",
    ),
    (
        lambda: asked(placement=JobPlacement(devices={"gpu": 1})),
        "'gpu' is not the name of an extended resource",
    ),
    (
        lambda: asked(placement=JobPlacement(devices={"nvidia.com/gpu": 1})),
        "nvidia.com/gpu belongs into gpus",
    ),
    (
        lambda: asked(placement=JobPlacement(devices={"rdma/ib": 0})),
        "devices.rdma/ib is 0, must be at least 1",
    ),
    (lambda: asked(placement=JobPlacement(required_topology="rack")), "mean nothing without a queue"),
    (
        lambda: asked(placement=JobPlacement(queue="q", required_topology="a", preferred_topology="b")),
        "exclude one another",
    ),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_invalid_job_is_rejected_when_it_is_described(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert said in caught.value.what


def own_pod(own_cluster: Cluster, *owners: Object) -> None:
    """Store the pod of this step."""
    metadata = {"name": "step", "ownerReferences": list(owners)}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Succeeded"}}
    own_cluster.put(body | {"spec": {"nodeName": "node-0", "containers": []}})


@pytest.fixture
def own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("KFP_POD_NAME", "step")
    with cluster(tmp_path / "cluster", operator=False) as found:
        yield found


def test_launcher_finds_the_workflow_of_its_own_pod(own_cluster: Cluster) -> None:
    reference = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
    made = own_cluster.put({**reference, "metadata": {"name": "run-1"}})
    own_pod(own_cluster, {**reference, "name": "run-1", "uid": made["metadata"]["uid"]})
    assert own_workflow(api(own_cluster)) == "run-1"


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        (None, "there is no pod step here"),
        ([], "belongs to no workflow: it has no owner"),
        ([{"apiVersion": "v1", "kind": "ConfigMap"}], "belongs to no workflow: its owner is a ConfigMap"),
    ],
)
def test_job_has_no_owner_and_the_reason_is_logged_when_the_pod_has_no_workflow(
    own_cluster: Cluster, capsys: pytest.CaptureFixture[str], owners: list[Object] | None, said: str
) -> None:
    if owners is not None:
        made = [own_cluster.put({**owner, "metadata": {"name": "owner"}}) for owner in owners]
        found = zip(owners, made, strict=True)
        own_pod(
            own_cluster,
            *({**owner, "name": "owner", "uid": body["metadata"]["uid"]} for owner, body in found),
        )
    assert own_workflow(api(own_cluster)) == ""
    assert said in capsys.readouterr().err


def test_missing_right_to_read_pods_leaves_the_job_without_an_owner(
    own_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_workflow(api(own_cluster, token=own_cluster.account("runner", []))) == ""
    assert "pod step could not be read" in capsys.readouterr().err


TEXTS = [
    "a",
    "A",
    "a-b",
    "a.b",
    "-a",
    "a-",
    "a_b",
    "",
    "a/b",
    "x/a.b",
    "X/a",
    "a" * 64,
    "a" * 63,
    "a b",
    "1",
    "a..b",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        (section.ObjectName, kubernetes_names.is_subdomain),
        (section.LabelValue, kubernetes_names.is_label),
        (section.VariableName, kubernetes_names.is_variable),
    ],
    ids=["object", "value", "variable"],
)
def test_an_author_is_told_the_same_as_the_launcher_would_tell(kind: Any, holds: Any, text: str) -> None:
    try:
        TypeAdapter(kind).validate_python(text)
        taken = True
    except ValidationError:
        taken = False
    assert taken == holds(text)
