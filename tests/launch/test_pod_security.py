"""Every pod of ours satisfies the profile of Pod Security that ``deploy/namespace.yaml`` enforces."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.kustomized import resolved
from tests.launch.test_manifests import asked
from trainwright.launch import manifests
from trainwright.launch.job import JobPlacement

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
LABEL = "pod-security.kubernetes.io/enforce"
Object = dict[str, Any]

ADDED = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
"""Capabilities that a container may add under baseline; under restricted, NET_BIND_SERVICE alone."""

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def findings(pod: Object, *, restricted: bool = False) -> list[str]:
    """Return what of a pod's specification a profile forbids, as Kubernetes' page lists it."""
    security = pod.get("securityContext") or {}
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [f"sysctl {entry['name']}" for entry in security.get("sysctls", [])]
    allowed = VOLUMES if restricted else VOLUMES | {"nfs", "iscsi"}
    found += [
        f"volume {volume}" for volume in pod.get("volumes", []) if not (volume.keys() - {"name"}) <= allowed
    ]
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext") or {}
        capabilities = own.get("capabilities", {})
        found += ["privileged"] * bool(own.get("privileged"))
        found += ["hostPort"] * any(port.get("hostPort") for port in container.get("ports", []))
        both = security | own
        profile = both.get("seccompProfile", {}).get("type", "")
        found += ["seccomp"] * (profile == "Unconfined" or (restricted and not profile))
        most = {"NET_BIND_SERVICE"} if restricted else ADDED
        found += sorted(set(capabilities.get("add", [])) - most)
        if restricted:
            found += ["privilege escalation"] * (own.get("allowPrivilegeEscalation") is not False)
            found += ["capabilities"] * ("ALL" not in capabilities.get("drop", []))
            found += ["root"] * (not both.get("runAsNonRoot") or both.get("runAsUser") == 0)
    return found


def pods(body: Any) -> list[Object]:
    """Find the specifications of pods inside an object."""
    if isinstance(body, list):
        return [pod for entry in body for pod in pods(entry)]
    if not isinstance(body, dict):
        return []
    return [body] if "containers" in body else [pod for entry in body.values() for pod in pods(entry)]


def test_namespace_enforces_baseline_and_no_overlay_can_delete_it() -> None:
    (namespace,) = yaml.safe_load_all((DEPLOY / "namespace.yaml").read_text())
    assert (namespace["kind"], namespace["metadata"]["labels"]) == ("Namespace", {LABEL: "baseline"})
    (profile,) = (path for path in DEPLOY.glob("overlays/profile"))
    assert namespace["metadata"]["name"] == resolved(profile)[0]["metadata"]["namespace"]
    kinds = {body["kind"] for path in DEPLOY.glob("overlays/*") for body in resolved(path)}
    assert "Namespace" not in kinds


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_pods_of_a_job_satisfy_restricted(kind: str) -> None:
    (*found,) = pods(manifests.make_manifest(asked(), kind))
    assert found
    assert [findings(pod, restricted=True) for pod in found] == [[] for _ in found]


def test_pods_of_a_job_that_locks_memory_need_more_than_baseline() -> None:
    job = asked(placement=JobPlacement(ipc_lock=True))
    assert {text for pod in pods(manifests.make_manifest(job, "pytorchjob")) for text in findings(pod)} == {
        "IPC_LOCK"
    }


def test_pods_of_the_janitor_and_of_the_runtime_satisfy_restricted() -> None:
    found = pods(
        [
            resolved(DEPLOY / "overlays" / "profile"),
            yaml.safe_load((DEPLOY / "trainer/runtime.yaml").read_text()),
        ]
    )
    assert len(found) == 2
    assert [findings(pod, restricted=True) for pod in found] == [[], []]


def test_steps_ask_for_nothing_that_baseline_forbids() -> None:
    """Kubeflow Pipelines makes their pods; of ours is what the platform part of a pipeline adds."""
    bodies = [
        body
        for path in (ROOT / "compiled" / "pipelines").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        for body in document.get("platforms", {})
        .get("kubernetes", {})
        .get("deploymentSpec", {})
        .get("executors", {})
        .values()
    ]
    assert bodies
    assert not [body for body in bodies if "hostPathMount" in body]
    contexts = {key for body in bodies for key in body.get("securityContext", {})}
    assert contexts <= {"runAsUser", "runAsGroup", "runAsNonRoot"}
