"""The pods and services of a PyTorchJob, as the training operator makes them."""

import copy
from typing import Any

from tests.launch.standin.resources import Object

PORT = 23456
CONTAINER, OPERATOR = "pytorch", "pytorchjob-controller"
ROOTS = "alpine:3.10"
"""An image whose user is root."""

_LABEL = "training.kubeflow.org"


def defaulted(spec: Object) -> Object:
    """Return the replicas of a job with what the operator assumes where nothing is said."""
    found = {}
    for kind, entry in spec["pytorchReplicaSpecs"].items():
        found[kind] = {"replicas": 1, "restartPolicy": "OnFailure", **copy.deepcopy(entry)}
    return found


def labels(job: str, kind: str = "", index: int | None = None) -> dict[str, str]:
    """Return the labels of a job's pods."""
    found = {f"{_LABEL}/job-name": job, f"{_LABEL}/operator-name": OPERATOR}
    if kind:
        found[f"{_LABEL}/replica-type"] = kind.lower()
    if index is not None:
        found[f"{_LABEL}/replica-index"] = str(index)
    return found


def owner(body: Object) -> Object:
    """Return the reference by which an object owns what its controller made."""
    meta = body["metadata"]
    told = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**told, "controller": True, "blockOwnerDeletion": True}


def pod(job: Object, kind: str, index: int, entry: Object) -> Object:
    """Make a pod.

    Args:
        job: The job.
        kind: ``Master`` or ``Worker``.
        index: Which one.
        entry: The kind's part of the job, with defaults.
    """
    name, spec = job["metadata"]["name"], copy.deepcopy(entry["template"]["spec"])
    template = entry["template"].get("metadata") or {}
    marks = {**(template.get("labels") or {}), **labels(name, kind, index)}
    kinds = job["spec"]["pytorchReplicaSpecs"]
    if kind == "Master" or ("Master" not in kinds and index == 0):
        marks[f"{_LABEL}/job-role"] = "master"
    metadata = {"name": f"{name}-{kind.lower()}-{index}", "labels": marks, "ownerReferences": [owner(job)]}
    if template.get("annotations"):
        metadata["annotations"] = dict(template["annotations"])
    policy = entry["restartPolicy"]
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    for container in spec["containers"]:
        container["env"] = [*(container.get("env") or []), *_environment(job, kind, index)]
        if container["name"] == CONTAINER and not _has_port(container):
            port = {"name": "pytorchjob-port", "containerPort": PORT, "protocol": "TCP"}
            container["ports"] = [*(container.get("ports") or []), port]
    if kind == "Worker" and "Master" in kinds:
        spec["initContainers"] = [*(spec.get("initContainers") or []), _waits_for(f"{name}-master-0")]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def service(job: Object, kind: str, index: int) -> Object:
    """Make the service that gives a pod its name in the network."""
    name = job["metadata"]["name"]
    marks = labels(name, kind, index)
    metadata = {"name": f"{name}-{kind.lower()}-{index}", "labels": marks, "ownerReferences": [owner(job)]}
    port = {"name": "pytorchjob-port", "protocol": "TCP", "port": PORT, "targetPort": PORT}
    spec = {"clusterIP": "None", "type": "ClusterIP", "selector": marks, "ports": [port]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _has_port(container: Object) -> bool:
    return any(port.get("name") == "pytorchjob-port" for port in container.get("ports") or [])


def _waits_for(master: str) -> Object:
    """What the operator puts before a Worker; it says nothing of security, and its image's user is root."""
    command = f"for i in $(seq 100); do nslookup {master} && exit 0; sleep 2; done; exit 1"
    limits, requests = {"cpu": "100m", "memory": "20Mi"}, {"cpu": "50m", "memory": "10Mi"}
    return {
        "name": "init-pytorch",
        "image": ROOTS,
        "command": ["sh", "-c", command],
        "resources": {"limits": limits, "requests": requests},
    }


def _environment(job: Object, kind: str, index: int) -> list[Object]:
    """List the variables that the operator adds behind the user's own."""
    spec, name = job["spec"], job["metadata"]["name"]
    counts = {key: entry["replicas"] for key, entry in defaulted(spec).items()}
    pods, each = sum(counts.values()), spec.get("nprocPerNode", "auto")
    values: dict[str, Any] = {"PYTHONUNBUFFERED": 1}
    if "Master" in counts:
        rank = index if kind == "Master" else index + 1
        values |= {"MASTER_PORT": PORT, "PET_MASTER_PORT": PORT}
        values |= {"MASTER_ADDR": f"{name}-master-0", "PET_MASTER_ADDR": f"{name}-master-0"}
        values |= {
            "WORLD_SIZE": pods * (int(each) if each.isdigit() else 1),
            "RANK": rank,
            "PET_NODE_RANK": rank,
        }
    values["PET_NPROC_PER_NODE"] = each
    elastic = spec.get("elasticPolicy")
    if elastic is None:
        values["PET_NNODES"] = pods
    else:
        values |= _elastic(elastic, name, counts)
    return [{"name": key, "value": str(value)} for key, value in values.items()]


def _elastic(elastic: Object, name: str, counts: dict[str, int]) -> dict[str, Any]:
    """Return torchrun's variables for a job that may change its size."""
    host, workers = elastic.get("rdzvHost") or f"{name}-worker-0", counts.get("Worker", 0)
    least, most = elastic.get("minReplicas", workers), elastic.get("maxReplicas", workers)
    values: dict[str, Any] = {
        "PET_RDZV_ENDPOINT": f"{host}:{elastic.get('rdzvPort', PORT)}",
        "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d"),
        "PET_NNODES": f"{least}:{most}",
    }
    if elastic.get("rdzvId"):
        values["PET_RDZV_ID"] = elastic["rdzvId"]
    if "maxRestarts" in elastic:
        values["PET_MAX_RESTARTS"] = elastic["maxRestarts"]
    if elastic.get("rdzvConf"):
        values["PET_RDZV_CONF"] = ",".join(
            f"{entry['key']}={entry['value']}" for entry in elastic["rdzvConf"]
        )
    return values
