"""The runtime of Kubeflow Trainer v2 that every cluster has, and the pods that are made out of a runtime."""

import copy
import secrets
import string

from tests.launch.standin import replicas
from tests.launch.standin.patches import strategic
from tests.launch.standin.resources import Object

NODE, PORT = "node", 29500
INDEX, SET = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/jobset-uid"

RUNTIME: Object = {
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
"""The runtime that every cluster has."""


def pod(job: Object, runtime: Object, index: int, nodes: int, jobset: str) -> Object:
    """Make a pod out of the runtime, the trainer's part of the job and the patches, in that order.

    Args:
        job: The TrainJob.
        runtime: Its runtime.
        index: Which pod.
        nodes: How many there are.
        jobset: Identity of the JobSet.
    """
    part = copy.deepcopy(runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"])
    template = part["spec"]["template"]
    _put_trainer(job, template, nodes)
    for patch in job["spec"].get("runtimePatches") or []:
        told = _inside(patch, "trainingRuntimeSpec", "template", "spec").get("replicatedJobs") or []
        for entry in told:
            template = strategic(template, _inside(entry, "template", "spec", "template"))
    template["spec"].setdefault("restartPolicy", "OnFailure")
    metadata = _metadata(job, part, template, index, jobset)
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return {**head, "spec": template["spec"], "status": {"phase": "Pending"}}


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


def _metadata(job: Object, part: Object, template: Object, index: int, jobset: str) -> Object:
    name, given = job["metadata"]["name"], template.get("metadata") or {}
    ending = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
    labels = {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": NODE}
    labels |= {"batch.kubernetes.io/job-name": f"{name}-{NODE}-0", INDEX: str(index), SET: jobset}
    outer = _inside(part, "metadata").get("labels") or {}
    return {
        "name": f"{name}-{NODE}-0-{index}-{ending}",
        "labels": {**outer, **(given.get("labels") or {}), **labels},
        "annotations": {**(given.get("annotations") or {}), INDEX: str(index)},
        "ownerReferences": [replicas.owner(job)],
    }


def index_of(pod: Object) -> int:
    """Return which pod of its job a pod is."""
    return int(pod["metadata"]["labels"][INDEX])


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


def jobset_of(pod: Object) -> str:
    """Return the identity of the JobSet that a pod was made for."""
    return str(pod["metadata"]["labels"].get(SET, ""))
