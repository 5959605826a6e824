"""Every pod on a cluster keeps the rules: those that an overlay of ``deploy/`` makes, and a training's."""

import copy
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.kustomized import resolved
from tests.launch.test_manifests import asked
from trainwright.launch import kubernetes_names, manifests
from trainwright.launch.placement import Placement

Object = dict[str, Any]
Rule = Callable[[Object], Iterator[str]]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OVERLAYS = {"overlays/single-user": "pipeline-runner", "overlays/profile": "default-editor", "kueue": ""}
CALLS_THE_API = {"trainwright-janitor"}
"""Accounts whose own pods need a token; a step's token is asked for by Kubeflow Pipelines."""


def workload(where: str, body: Object, spec: Object, ends: Object) -> Object:
    """What the rules look at: a pod, and what ends whatever makes it."""
    return {"where": where, "kind": body["kind"], "pod": spec, "ends": ends}


def janitor(overlay: str) -> Object:
    (body,) = (body for body in resolved(DEPLOY / overlay) if body["kind"] == "CronJob")
    job = body["spec"]["jobTemplate"]["spec"]
    return workload(overlay, body, job["template"]["spec"], {**body["spec"], **job})


def training(kind: str) -> Iterator[Object]:
    """The pods of a job as its operator makes them: a TrainJob's are the runtime's, patched by the job."""
    job = asked(placement=Placement(service_account="trainwright-job"))
    body = manifests.make_manifest(job, kind)
    if kind == "pytorchjob":
        for replica in body["spec"]["pytorchReplicaSpecs"].values():
            ends = {**body["spec"]["runPolicy"], "restarts": replica["restartPolicy"]}
            yield workload(kind, body, replica["template"]["spec"], ends)
        return
    (runtime,) = yaml.safe_load_all((DEPLOY / "trainer" / "runtime.yaml").read_text())
    made = runtime["spec"]["template"]["spec"]
    (patch,) = body["spec"]["runtimePatches"]
    spec = merged(
        made["replicatedJobs"][0]["template"]["spec"]["template"]["spec"],
        patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
            "spec"
        ],
    )
    (container,) = spec["containers"]
    trainer = body["spec"]["trainer"]
    container |= {"image": trainer["image"], "resources": trainer["resourcesPerNode"]}
    ends = body["spec"] | {"backoffLimit": made["failurePolicy"]["maxRestarts"]}
    yield workload(kind, body, spec, ends | {"restarts": spec["restartPolicy"]})


def merged(below: Object, above: Object) -> Object:
    """Merge a pod with a patch of it; the one container with the one that is patched."""
    found = below | above
    (container,), (changes,) = below["containers"], above["containers"]
    assert container["name"] == changes["name"]
    return found | {"containers": [container | changes]}


def everything() -> list[Object]:
    jobs = [found for kind in ("pytorchjob", "trainjob") for found in training(kind)]
    return [janitor("overlays/single-user"), janitor("overlays/profile"), *jobs]


def restricted(found: Object) -> Iterator[str]:
    """Not root, no rights, nothing writable: the profile "restricted" of Kubernetes, and more."""
    security = found["pod"].get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        yield "may be root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no seccomp profile"
    for container in found["pod"]["containers"]:
        wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
        wanted |= {"capabilities": {"drop": ["ALL"]}}
        if container.get("securityContext") != wanted:
            yield f"{container['name']}: {container.get('securityContext')}"


def bounded(found: Object) -> Iterator[str]:
    """Requests and limits, for cores and memory."""
    for container in found["pod"]["containers"]:
        resources = container.get("resources", {})
        for part in ("requests", "limits"):
            given = resources.get(part, {})
            if not all(kubernetes_names.is_quantity(str(given.get(kind, ""))) for kind in ("cpu", "memory")):
                yield f"{container['name']}: {part} {given}"


def identified(found: Object) -> Iterator[str]:
    """An account of its own, never the namespace's default."""
    if found["pod"].get("serviceAccountName", "default") == "default":
        yield "no service account"


def tokenless(found: Object) -> Iterator[str]:
    """A token of the API is mounted where somebody calls it, and said not to be everywhere else."""
    wanted = found["pod"].get("serviceAccountName") in CALLS_THE_API
    if found["pod"].get("automountServiceAccountToken") is not wanted:
        yield f"automountServiceAccountToken {found['pod'].get('automountServiceAccountToken')}"


def ending(found: Object) -> Iterator[str]:
    """A deadline, and no tries but those of who decides on them: the next round, or the launcher."""
    ends = found["ends"]
    if not 0 < ends.get("activeDeadlineSeconds", 0) <= 8 * 24 * 3600:
        yield f"a deadline of {ends.get('activeDeadlineSeconds')} s"
    tries = ends.get("backoffLimit", 0 if found["kind"] == "PyTorchJob" else None)  # its own policy decides
    if tries != 0 or found["pod"].get("restartPolicy", ends.get("restarts")) != "Never":
        yield f"{tries} tries behind the back of who decides on them"
    if found["kind"] == "CronJob" and ends.get("concurrencyPolicy") != "Forbid":
        yield "two at a time"


def pinned(found: Object) -> Iterator[str]:
    """An image by its digest, from a registry that is named."""
    for container in found["pod"]["containers"]:
        if not re.fullmatch(r"[\w.-]+(:\d+)?/.+@sha256:[0-9a-f]{64}", container["image"]):
            yield container["image"]


RULES: tuple[Rule, ...] = (restricted, bounded, identified, tokenless, ending, pinned)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("found", everything(), ids=lambda found: f"{found['kind']} {found['where']}")
def test_a_pod_on_the_cluster_keeps_the_rule(rule: Rule, found: Object) -> None:
    assert list(rule(found)) == []


def container(found: Object) -> Object:
    first: Object = found["pod"]["containers"][0]
    return first


BREAKS: list[tuple[Rule, Callable[[Object], object]]] = [
    (restricted, lambda found: found["pod"]["securityContext"].pop("runAsNonRoot")),
    (restricted, lambda found: found["pod"]["securityContext"].update(seccompProfile={"type": "Unconfined"})),
    (restricted, lambda found: container(found)["securityContext"].update(privileged=True)),
    (restricted, lambda found: container(found)["securityContext"].pop("readOnlyRootFilesystem")),
    (bounded, lambda found: container(found)["resources"].pop("limits")),
    (bounded, lambda found: container(found)["resources"].pop("requests")),
    (bounded, lambda found: container(found)["resources"]["limits"].pop("memory")),
    (bounded, lambda found: container(found)["resources"]["requests"].update(cpu="much")),
    (identified, lambda found: found["pod"].pop("serviceAccountName")),
    (tokenless, lambda found: found["pod"].pop("automountServiceAccountToken")),
    (tokenless, lambda found: found["pod"].update(serviceAccountName="trainwright-job")),
    (ending, lambda found: found["ends"].pop("activeDeadlineSeconds")),
    (ending, lambda found: found["ends"].update(backoffLimit=6)),
    (ending, lambda found: found["pod"].update(restartPolicy="OnFailure")),
    (ending, lambda found: found["ends"].update(concurrencyPolicy="Allow")),
    (pinned, lambda found: container(found).update(image="registry.example/trainwright/launcher:0.1.0")),
    (pinned, lambda found: container(found).update(image="trainwright/launcher")),
]


@pytest.mark.parametrize("number", range(len(BREAKS)), ids=lambda number: BREAKS[number][0].__name__)
def test_the_rule_refuses_what_breaks_it(number: int) -> None:
    rule, break_it = BREAKS[number]
    found = copy.deepcopy(janitor("overlays/profile"))
    break_it(found)
    assert list(rule(found))


@pytest.mark.parametrize(("overlay", "account"), [pair for pair in OVERLAYS.items() if pair[1]])
def test_an_overlay_binds_whom_steps_run_as_and_stays_in_its_namespace(overlay: str, account: str) -> None:
    made = resolved(DEPLOY / overlay)
    (namespace,) = {body["metadata"]["namespace"] for body in made}
    bindings = {body["metadata"]["name"]: body for body in made if body["kind"] == "RoleBinding"}
    roles = {body["metadata"]["name"] for body in made if body["kind"] == "Role"}
    accounts = {body["metadata"]["name"] for body in made if body["kind"] == "ServiceAccount"}
    assert {body["roleRef"]["name"] for body in bindings.values()} == roles
    for binding in bindings.values():
        assert all(subject["namespace"] == namespace for subject in binding["subjects"])
        names = {subject["name"] for subject in binding["subjects"]}
        assert names - accounts <= {account}
        assert (account in names) == (binding["metadata"]["name"] == "trainwright-train")
    assert all(
        body["automountServiceAccountToken"] is False for body in made if "automount" in str(body.keys())
    )


def test_only_profiles_have_the_account_of_ci() -> None:
    """A single-user API asks nobody who calls, so rights there would only look like a lock."""
    having = [
        overlay
        for overlay in OVERLAYS
        if "trainwright-ci" in [body["metadata"]["name"] for body in resolved(DEPLOY / overlay)]
    ]
    assert having == ["overlays/profile"]


def test_what_is_not_understood_is_no_overlay(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: []\nsecretGenerator: []\n")
    with pytest.raises(AssertionError, match="secretGenerator"):
        resolved(tmp_path)


def named(made: list[Object]) -> dict[tuple[str, str, str], Object]:
    return {
        (body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]): body for body in made
    }


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl to compare with")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_makes_the_same(overlay: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / overlay], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert named(list(yaml.safe_load_all(done.stdout))) == named(resolved(DEPLOY / overlay))
