"""What is refused before any server sees it: all that a real one refused, and the traps that it let pass."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_manifests import FULL, asked
from trainwright.errors import InputError
from trainwright.launch import manifests
from trainwright.launch.manifests import checks
from trainwright.launch.placement import Placement, SecretVariable, Toleration, Volume

Object = dict[str, Any]
DATA = Path(__file__).parent / "data" / "standin" / "admission.json.gz"
RECORDED = {entry["case"]: entry for entry in json.loads(gzip.decompress(DATA.read_bytes()))}

BY_OTHERS = ("namespace", "created", "409", "generateName", "update", "403", "404", "401", "list", "label")
"""How recordings begin that are not about what a job says."""


def about_a_job(case: str) -> bool:
    body = RECORDED[case].get("body")
    return isinstance(body, dict) and "spec" in body and (not case.startswith(BY_OTHERS))


CASES = [
    case
    for case in RECORDED
    if about_a_job(case) and not case.startswith(("metadata.namespace", "method", "unsupported"))
]


def test_there_are_recordings_of_every_kind() -> None:
    assert len(CASES) >= 22
    said = "".join(CASES)
    for part in (
        "unknown field",
        "webhook" if "webhook" in said else "no container",
        "enum",
        "min > max",
        "63",
    ):
        assert part in said


@pytest.mark.parametrize("case", CASES)
def test_what_a_real_cluster_refused_or_should_have_is_refused_here(case: str) -> None:
    plain = set(checks.refusals(RECORDED["created (201)"]["body"]))
    more = set(checks.refusals(RECORDED[case]["body"])) - plain
    assert more, case


def changed(path: str, value: Any, kind: str = "pytorchjob", **job: Any) -> list[str]:
    """Change one thing of a manifest that is right, and return what is said about it."""
    body = manifests.make(asked(**{"placement": FULL if kind == "pytorchjob" else Placement(), **job}), kind)
    assert checks.refusals(body) == []
    target: Any = body
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    for step in steps:
        target = target[step]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return checks.refusals(body)


MASTER = "spec/pytorchReplicaSpecs/Master"
POD = f"{MASTER}/template/spec"
CONTAINER = f"{POD}/containers/0"

WRONG: list[tuple[str, Any, str]] = [
    ("metadata/name", "tw-" + "x" * 50, "at most 52 characters"),
    ("metadata/name", "9lives", "DNS-1035"),
    ("metadata/labels/team", "a b", "'a b' is not the value of a label"),
    (f"{MASTER}/restartPolicy", "Sometimes", "'Sometimes' is not one of Always, OnFailure, Never, ExitCode"),
    (f"{MASTER}/restartPolicy", None, "'(none)' is not one of"),
    (f"{MASTER}/replicas", 2, "Master.replicas is 2, must be 1"),
    ("spec/pytorchReplicaSpecs/Worker/replicas", 0, "Worker.replicas is 0, must be at least 1"),
    (MASTER, None, "has no Master"),
    ("spec/runPolicy/cleanPodPolicy", "Maybe", "'Maybe' is not one of None, Running, All"),
    ("spec/runPolicy/activeDeadlineSeconds", None, "activeDeadlineSeconds is None, must be at least 1"),
    ("spec/runPolicy/backoffLimit", -1, "backoffLimit is -1, must be at least 0"),
    ("spec/runPolicy/suspend", True, "suspend is the queue's to set"),
    ("spec/runPolicy/managedBy", "somebody/else", "managedBy 'somebody/else' is not one of"),
    ("spec/nprocPerNode", "many", "'many' is not auto, cpu, gpu or a number"),
    ("spec/nprocPerNode", 2, "spec.nprocPerNode: expected str, got 2"),
    ("spec/runPolicy/backofLimit", 1, "unknown field; did you mean backoffLimit?"),
    (f"{CONTAINER}/name", "main", "must be ['pytorch']"),
    (f"{CONTAINER}/image", "Two Words", "'Two Words' is not a reference to an image"),
    (f"{CONTAINER}/image", "a/b@sha256:12", "is not a reference to an image"),
    (f"{CONTAINER}/resources/limits/memory", "8 GB", "'8 GB' is not an amount"),
    (f"{CONTAINER}/resources/limits/cpu", "1", "requests.cpu 4 is above its limit 1"),
    (f"{CONTAINER}/resources/limits/memory", "1Gi", "leaves nothing of the memory, 1Gi"),
    (f"{CONTAINER}/env/0/name", "RANK", "RANK is set by the operator or by torchrun"),
    (f"{CONTAINER}/env/0/name", "PET_NNODES", "PET_NNODES is set by the operator"),
    (f"{CONTAINER}/env/0/name", "a-b", "'a-b' is not the name of a variable"),
    (f"{CONTAINER}/command", [], "command is empty"),
    (f"{CONTAINER}/volumeMounts/0/name", "nowhere", "'nowhere' is none of the pod's volumes"),
    (f"{CONTAINER}/volumeMounts/1/mountPath", "/shared", "has /shared twice"),
    (f"{CONTAINER}/securityContext/readOnlyRootFilesystem", False, "readOnlyRootFilesystem is not true"),
    (f"{CONTAINER}/securityContext/allowPrivilegeEscalation", True, "allowPrivilegeEscalation is not false"),
    (f"{CONTAINER}/securityContext/capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "do not drop ALL"),
    (f"{CONTAINER}/securityContext/privileged", True, "privileged is set"),
    (f"{POD}/securityContext", {}, "runAsNonRoot is not true"),
    (f"{POD}/securityContext/runAsUser", None, "containers of the operator would be root"),
    (f"{POD}/securityContext/runAsUser", 0, "containers of the operator would be root"),
    (f"{POD}/automountServiceAccountToken", None, "automountServiceAccountToken is not false"),
    (f"{POD}/restartPolicy", "Never", "is overridden by"),
    (f"{POD}/terminationGracePeriodSeconds", None, "nothing could be saved"),
    (f"{POD}/priorityClassName", "Upper", "'Upper' is not the name of an object"),
    (f"{POD}/volumes/0", {"name": "shared", "hostPath": {"path": "/"}}, "hostPath gives away the node"),
    (f"{POD}/volumes/0/persistentVolumeClaim/claimName", "c" * 254, "cccc"),
    (f"{POD}/nodeSelector/zone", "a/b", "zone=a/b is not a label that a node can have"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_one_thing_that_is_wrong_is_named_with_its_place(path: str, value: Any, said: str) -> None:
    found = changed(path, value)
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec/elasticPolicy/minReplicas", 9, "minReplicas 9 and maxReplicas 3 are not 1 <= min <= max"),
        ("spec/elasticPolicy/maxReplicas", 5, "there are 3 Workers: a start would wait for more"),
        ("spec/elasticPolicy/rdzvBackend", "carrier-pigeon", "'carrier-pigeon' is not one of c10d"),
        ("spec/elasticPolicy/nProcPerNode", 2, "deprecated, and refused together with spec.nprocPerNode"),
        ("spec/elasticPolicy/rdzvConf/0/value", "9,x=1", "it cannot be told apart"),
        ("spec/elasticPolicy", None, "has no Master"),
        ("spec/runPolicy/backoffLimit", None, "backoffLimit is None, must be at least 0"),
    ],
)
def test_what_is_wrong_with_an_elastic_job_is_named(path: str, value: Any, said: str) -> None:
    found = changed(path, value, placement=Placement(min_nodes=2))
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec/trainer/numNodes", 0, "spec.trainer.numNodes is 0"),
        ("spec/trainer/numProcPerNode", "auto", "numProcPerNode: expected int"),
        ("spec/trainer/env/0/name", "PET_MASTER_ADDR", "is set by the operator"),
        ("spec/trainer/args", ["x"] * 3, ""),
        ("spec/trainer/command", ["x"] * 200, "has 200 entries, at most 128"),
        ("spec/runtimeRef/name", "Torch!", "'Torch!' is not the name of a runtime"),
        ("spec/runtimeRef", None, "spec.runtimeRef: missing"),
        ("spec/runtimePatches/0/manager", "trainwright", "is not of the form domain/name"),
        ("spec/activeDeadlineSeconds", 0, "activeDeadlineSeconds is 0"),
        ("spec/podTemplateOverrides", [], "podTemplateOverrides: unknown field"),
    ],
)
def test_what_is_wrong_with_a_trainjob_is_named(path: str, value: Any, said: str) -> None:
    found = changed(path, value, "trainjob")
    assert any(said in line for line in found) if said else found == []


def test_everything_is_named_at_once() -> None:
    body = copy.deepcopy(manifests.make(asked(), "pytorchjob"))
    worker = body["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["restartPolicy"] = "Sometimes"
    worker["template"]["spec"]["containers"][0]["image"] = ""
    body["metadata"]["name"] = "X"
    body["spec"]["extra"] = 1
    assert len(checks.refusals(body)) == 4


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: asked(env={"RANK": "1"}), "env RANK is set by"),
    (lambda: asked(gpus=-1), "gpus is -1"),
    (lambda: asked(memory_gib=float("nan")), "memory_gib is nan"),
    (lambda: asked(placement=Placement(min_nodes=4)), "min_nodes 4 is above nodes 3"),
    (lambda: asked(placement=Placement(shared_memory_gib=8)), "leaves nothing of memory_gib 8"),
    (lambda: asked(placement=Placement(labels={"trainwright/run": "x"})), "belongs to the system"),
    (lambda: asked(placement=Placement(labels={"team": "a b"})), "labels.team 'a b'"),
    (lambda: asked(placement=Placement(workload_priority="high")), "mean nothing without a queue"),
    (lambda: asked(placement=Placement(queue="Team A")), "queue 'Team A' is not the name"),
    (lambda: asked(placement=Placement(tolerations=(Toleration(operator="Exist"),))), "'Exist' is not one"),
    (lambda: asked(placement=Placement(tolerations=(Toleration(value="x"),))), "operator has to be Exists"),
    (lambda: asked(placement=Placement(volumes=(Volume(path="/a"),))), "has 0 of claim, secret, config"),
    (lambda: asked(placement=Placement(volumes=(Volume(path="a", claim="b"),))), "is not an absolute path"),
    (
        lambda: asked(placement=Placement(volumes=(Volume(path="/a", claim="b", sub_path="../c"),))),
        "leads out of the volume",
    ),
    (
        lambda: asked(
            placement=Placement(env_from_secrets=(SecretVariable(name="RANK", secret="a", key="b"),))  # noqa: S106
        ),
        "RANK is set by",
    ),
    (lambda: asked(placement=Placement(runtime_kind="Runtime")), "runtime_kind 'Runtime'"),
    (lambda: asked(placement=Placement(devices={"gpu": 1})), "'gpu' is not the name of an extended resource"),
    (lambda: asked(placement=Placement(devices={"nvidia.com/gpu": 1})), "nvidia.com/gpu belongs into gpus"),
    (lambda: asked(placement=Placement(devices={"rdma/ib": 0})), "devices.rdma/ib is 0, must be at least 1"),
    (lambda: asked(placement=Placement(required_topology="rack")), "mean nothing without a queue"),
    (
        lambda: asked(placement=Placement(queue="q", required_topology="a", preferred_topology="b")),
        "exclude one another",
    ),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_a_job_that_no_cluster_can_run_is_never_made(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert said in caught.value.what


def test_a_job_whose_mounts_meet_is_refused() -> None:
    placement = Placement(volumes=(Volume(path="/shared", claim="other"),))
    with pytest.raises(InputError, match="has /shared twice"):
        manifests.make(asked(placement=placement), "pytorchjob")
