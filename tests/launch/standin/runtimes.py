"""Runtimes of Kubeflow Trainer v2, and the JobSets, batch Jobs and pods that come out of them."""

import copy
import secrets
import string
from pathlib import Path

import yaml

from tests.launch.standin import replicas
from tests.launch.standin.patches import strategic
from tests.launch.standin.resources import BY_KIND, Object

NODE, PORT = "node", 29500
INDEX = "batch.kubernetes.io/job-completion-index"
_SET = "jobset.sigs.k8s.io"
_OURS = Path(__file__).resolve().parents[3] / "deploy" / "trainer" / "runtime.yaml"

STOCK: Object = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": NODE,
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                            },
                            "spec": {
                                "template": {
                                    "spec": {"containers": [{"name": NODE, "image": "pytorch/pytorch"}]}
                                }
                            },
                        },
                    }
                ]
            }
        },
    },
}
"""The runtime that every installation of Trainer has."""


def applied() -> Object:
    """Return the runtime that an administrator applies for this library."""
    found: Object = yaml.safe_load(_OURS.read_text())
    return found


def jobset(job: Object, runtime: Object) -> Object:
    """Make a JobSet out of the runtime, the trainer's part of a TrainJob and its patches, in that order."""
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    nodes = nodes_of(job, runtime)
    part = spec["replicatedJobs"][0]
    template = part["template"]["spec"]["template"]
    _put_trainer(job, template, nodes)
    for patch in job["spec"].get("runtimePatches") or []:
        told = _inside(patch, "trainingRuntimeSpec", "template", "spec").get("replicatedJobs") or []
        for entry in told:
            template = strategic(template, _inside(entry, "template", "spec", "template"))
    template["spec"].setdefault("restartPolicy", "OnFailure")
    part["template"]["spec"] |= {
        "template": template,
        "completionMode": "Indexed",
        "parallelism": nodes,
        "completions": nodes,
    }
    spec["suspend"] = bool(job["spec"].get("suspend"))
    resource, name = BY_KIND["JobSet"], job["metadata"]["name"]
    metadata = {"name": name, "ownerReferences": [replicas.owner(job)]}
    return {"apiVersion": resource.api_version, "kind": "JobSet", "metadata": metadata, "spec": spec}


def nodes_of(job: Object, runtime: Object) -> int:
    """Return how many pods a TrainJob asks for."""
    wanted = (job["spec"].get("trainer") or {}).get("numNodes")
    return int(wanted or runtime["spec"]["mlPolicy"].get("numNodes", 1))


def batch_job(owner: Object) -> Object:
    """Make the batch Job of a JobSet."""
    part = copy.deepcopy(owner["spec"]["replicatedJobs"][0])
    name = f"{owner['metadata']['name']}-{part['name']}-0"
    labels = _labels(owner, part)
    spec = part["template"]["spec"] | {"suspend": owner["spec"]["suspend"]}
    pod = spec["template"].setdefault("metadata", {})
    pod["labels"] = {**(pod.get("labels") or {}), **labels}
    outer = (part["template"].get("metadata") or {}).get("labels") or {}
    metadata = {"name": name, "labels": {**outer, **labels}, "ownerReferences": [replicas.owner(owner)]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _labels(owner: Object, part: Object) -> dict[str, str]:
    meta = owner["metadata"]
    return {
        f"{_SET}/jobset-name": meta["name"],
        f"{_SET}/jobset-uid": meta["uid"],
        f"{_SET}/replicatedjob-name": part["name"],
        f"{_SET}/replicatedjob-replicas": "1",
        f"{_SET}/job-index": "0",
        f"{_SET}/restart-attempt": "0",
    }


def pod(job: Object, index: int) -> Object:
    """Make a pod of a batch Job: its name ends with random letters, its index is a label.

    Args:
        job: The batch Job.
        index: Which pod.
    """
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    ending = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
    given = template.get("metadata") or {}
    own = {"batch.kubernetes.io/job-name": meta["name"], "batch.kubernetes.io/controller-uid": meta["uid"]}
    metadata = {
        "name": f"{meta['name']}-{index}-{ending}",
        "labels": {**(given.get("labels") or {}), **own, INDEX: str(index)},
        "annotations": {**(given.get("annotations") or {}), INDEX: str(index)},
        "ownerReferences": [replicas.owner(job)],
    }
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return {**head, "spec": template["spec"], "status": {"phase": "Pending"}}


def index_of(pod: Object) -> int:
    """Return which pod of its job a pod is."""
    return int(pod["metadata"]["labels"][INDEX])


def _inside(body: Object, *path: str) -> Object:
    for step in path:
        body = body.get(step) or {}
    return body


def _put_trainer(job: Object, template: Object, nodes: int) -> None:
    """Put the trainer's part of a job into the container that trains."""
    trainer = job["spec"].get("trainer") or {}
    container = next(entry for entry in template["spec"]["containers"] if entry["name"] == NODE)
    container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    own = [*(container.get("env") or []), *(trainer.get("env") or [])]
    container["env"] = [*own, *_environment(job, nodes)]


def _environment(job: Object, nodes: int) -> list[Object]:
    name = job["metadata"]["name"]
    each = (job["spec"].get("trainer") or {}).get("numProcPerNode", "auto")
    path = f"metadata.annotations['{INDEX}']"
    return [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(each)},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": path}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-{NODE}-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
    ]
