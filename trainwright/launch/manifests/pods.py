"""The parts of a pod that all operators share, as JSON of the core API, and the owner of a job.

The owner is the Argo Workflow of the run, read from the owner references of this pod: that needs neither a
parameter, which would be part of the cache key, nor the right to read workflows.
"""

import hashlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.documents import digest_text
from trainwright.errors import TrainwrightError
from trainwright.launch import kubernetes_names
from trainwright.launch.job import Job
from trainwright.launch.manifests import annotations as names
from trainwright.launch.placement import GPU, Placement, SecretVariable, Toleration, Volume

_WORKFLOW = "Workflow"
_POD_NAME = "KFP_POD_NAME"
"""What Kubeflow Pipelines tells every step through the downward API: a host name is cut at 63 characters."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """An object of the job's namespace that owns it, such as the Argo Workflow of the run.

    Attributes:
        api_version: Such as ``argoproj.io/v1alpha1``.
        kind: Such as ``Workflow``.
        name: Its name.
        uid: Its identity: another object of the same name does not own the job.
    """

    api_version: str
    kind: str
    name: str
    uid: str


def own_pod_name() -> str:
    """Return the name of the pod that this process runs in; that of the machine outside of a cluster."""
    return os.environ.get(_POD_NAME) or socket.gethostname()


def find_workflow_owner(
    read_pod: Callable[[str], Mapping[str, Any] | None], pod: str | None = None
) -> tuple[Owner | None, str]:
    """Find the workflow that this pod belongs to.

    A job without an owner is no error: its lease and its deadline still end it.

    Args:
        read_pod: Reads a pod of the namespace; nothing if there is none of that name.
        pod: Name of the pod; this process's own if absent.

    Returns:
        The owner, and the empty string; or nothing, and why there is none.
    """
    name = pod or own_pod_name()
    try:
        found = read_pod(name)
    except TrainwrightError as error:
        return None, f"pod {name} could not be read: {error.what}"
    if found is None:
        return None, f"there is no pod {name} in this namespace"
    references = found.get("metadata", {}).get("ownerReferences") or []
    for entry in references:
        if entry.get("kind") == _WORKFLOW and entry.get("uid"):
            owner = Owner(
                api_version=entry["apiVersion"], kind=entry["kind"], name=entry["name"], uid=entry["uid"]
            )
            return owner, ""
    kinds = ", ".join(str(entry.get("kind")) for entry in references)
    owned = f"its owner is a {kinds}" if kinds else "it has no owner"
    return None, f"pod {name} belongs to no workflow: {owned}"


Body = dict[str, Any]

JOIN_TIMEOUT_S = 900
"""How long the pods of a job wait for one another: images are pulled, nodes are made."""

DEADLINE_MARGIN_S = 120
"""How much later than the launcher's the operator's own deadline is: it is the second line."""

_MORE_GRACE_S = 5
_TEMPORARY = "/tmp"  # noqa: S108  # nosec B108
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # nosec B108
_MIB = 1024


def metadata(job: Job, owner: Owner | None) -> Body:
    """Name, labels, annotations and owner of the job itself."""
    placement = job.placement
    queue = {
        names.QUEUE: placement.queue,
        names.WORKLOAD_PRIORITY: placement.workload_priority,
        names.MAX_EXEC_TIME: str(placement.max_exec_time_s or ""),
    }
    body: Body = {
        "name": job.name,
        "labels": labels(job) | {key: value for key, value in queue.items() if value},
        "annotations": {
            names.RUN_ID: job.run,
            names.SPEC_SHA256: job.digest,
            names.FOLDER: str(job.folder),
            names.ATTEMPT: job.attempt,
        },
    }
    if owner:
        body["ownerReferences"] = [_owner_reference(owner)]
    return body


def _owner_reference(owner: Owner) -> Body:
    """Refer to the owner. It may go before the job has: to block that takes a right that nobody needs."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def labels(job: Job) -> dict[str, str]:
    """Labels of the job and of every pod: whose it is, who pays, and what it belongs to."""
    ours = {
        names.MANAGED_BY: names.OURS,
        names.TASK: job.name.removeprefix("tw-").rpartition("-")[0],
        names.RUN: digest_text(job.run)[:16],
    }
    return dict(job.placement.labels) | ours


def pod_metadata(job: Job) -> Body:
    """Labels and annotations of every pod."""
    notes = {names.NO_SIDECAR: "false", names.NOT_EVICTED: "false"}
    topology = {
        names.REQUIRED_TOPOLOGY: job.placement.required_topology,
        names.PREFERRED_TOPOLOGY: job.placement.preferred_topology,
    }
    notes |= {key: level for key, level in topology.items() if level}
    mine = {names.ATTEMPT: job.attempt} if kubernetes_names.is_label(job.attempt) else {}
    return {"labels": labels(job) | mine, "annotations": notes}


def command(job: Job, rendezvous: tuple[str, ...] = ()) -> list[str]:
    """The command of every pod: the agent, which runs torchrun, which runs the program."""
    agent = ["python", "-m", "trainwright.launch.agent", str(job.folder), *job.watched, "--"]
    return [*agent, f"--max-restarts={job.restarts}", *rendezvous, *job.arguments]


def environment(job: Job) -> list[Body]:
    """Variables of every process: values that anybody may see, and references to Secrets and ConfigMaps."""
    plain: list[Body] = [{"name": name, "value": value} for name, value in sorted(job.environment.items())]
    return plain + [
        {"name": variable.name, "valueFrom": _value_from(variable)}
        for variable in job.placement.env_from_secrets
    ]


def _value_from(variable: SecretVariable) -> Body:
    """Return where the node reads a variable from."""
    kind = "secretKeyRef" if variable.secret else "configMapKeyRef"
    name = variable.secret or variable.config
    return {kind: {"name": name, "key": variable.key, "optional": variable.optional}}


def resources(job: Job) -> Body:
    """Requests and limits, which are the same: a pod that gets less than it was promised stops all others."""
    asked = {"cpu": f"{job.cpu:g}", "memory": _mebibytes(job.memory_gib)}
    if job.placement.disk_gib:
        asked["ephemeral-storage"] = _mebibytes(job.placement.disk_gib)
    if job.gpus:
        asked[GPU] = str(job.gpus)
    asked |= {name: str(count) for name, count in job.placement.devices.items()}
    return {"requests": asked, "limits": dict(asked)}


def shared_memory_gib(job: Job) -> float | None:
    """Return the size of ``/dev/shm``, which counts as memory of the pod; nothing for Kubernetes' 64 MiB."""
    if job.placement.shared_memory_gib:
        return job.placement.shared_memory_gib
    return job.memory_gib / 2 if job.gpus or job.processes > 1 else None


def volumes(job: Job) -> tuple[list[Body], list[Body]]:
    """Return the volumes of a pod and where its container mounts them."""
    temporary: Body = {"sizeLimit": _mebibytes(job.placement.disk_gib)} if job.placement.disk_gib else {}
    made: list[Body] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": job.claim}},
        {"name": "tmp", "emptyDir": temporary},
    ]
    mounts: list[Body] = [
        {"name": "shared", "mountPath": job.mount},
        {"name": "tmp", "mountPath": _TEMPORARY},
    ]
    if shared := shared_memory_gib(job):
        made.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _mebibytes(shared)}})
        mounts.append({"name": "shm", "mountPath": _SHARED_MEMORY})
    for volume in job.placement.volumes:
        source = _volume_source(job, volume)
        name = "shared" if source is None else f"more-{_short_digest(source)}"
        if source is not None and all(entry["name"] != name for entry in made):
            made.append({"name": name, **source})
        mounts.append({"name": name, **_volume_mount(volume)})
    return made, mounts


def _volume_source(job: Job, volume: Volume) -> Body | None:
    """Return what a volume is made from; nothing where it is the claim that is there anyway."""
    if volume.secret:
        return {"secret": {"secretName": volume.secret, "defaultMode": 0o440, "optional": volume.optional}}
    if volume.config:
        return {"configMap": {"name": volume.config, "defaultMode": 0o440, "optional": volume.optional}}
    return None if volume.claim == job.claim else {"persistentVolumeClaim": {"claimName": volume.claim}}


def _short_digest(source: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()[:8]


def _volume_mount(volume: Volume) -> Body:
    mount: Body = {"mountPath": volume.path}
    if volume.read_only or not volume.claim:
        mount["readOnly"] = True
    return mount | ({"subPath": volume.sub_path} if volume.sub_path else {})


def container_security(placement: Placement) -> Body:
    """Return what a container may do: nothing, but to lock memory where RDMA needs it."""
    more = {"add": ["IPC_LOCK"]} if placement.ipc_lock else {}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **more},
        "readOnlyRootFilesystem": True,
    }


USER = 65532
"""User and group of every container of a pod; our images have the same one in them."""

POD_SECURITY: Body = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""With the above, what the profile ``restricted`` of Pod Security asks for, and a root nobody writes to.

The user has a number because of a container that is not ours: the training operator puts one in front of
each Worker beside a Master (``init-pytorch``, of the image ``alpine:3.10``), which would be root. A node
refuses to start such a one in a pod that is not to be root (``CreateContainerConfigError``).
"""


def grace_s(job: Job) -> int:
    """Seconds that a pod which is to go gets: what its processes get, and the agent's own."""
    return job.grace_s + _MORE_GRACE_S


def scheduling(placement: Placement) -> Body:
    """The fields of a pod that say where it runs."""
    body: Body = {}
    if placement.selector:
        body["nodeSelector"] = placement.selector
    if placement.affinity:
        body["affinity"] = placement.affinity
    if placement.tolerated:
        body["tolerations"] = [_toleration(entry) for entry in placement.tolerated]
    if placement.service_account:
        body["serviceAccountName"] = placement.service_account
    if placement.image_pull_secrets:
        body["imagePullSecrets"] = [{"name": name} for name in placement.image_pull_secrets]
    return body


def _toleration(entry: Toleration) -> Body:
    fields = {
        "key": entry.key,
        "operator": entry.operator,
        "value": entry.value,
        "effect": entry.effect,
        "tolerationSeconds": entry.seconds,
    }
    return {name: value for name, value in fields.items() if value not in {"", None}}


def _mebibytes(gib: float) -> str:
    return f"{round(gib * _MIB)}Mi"
