"""Small jobs for tests of the stand-in."""

from typing import Any

from tests.launch.standin.clusters import Cluster
from tests.launch.standin.resources import Object


def pytorchjob(
    *kinds: str, name: str = "a", policy: str = "Never", container: Object | None = None, **spec: Any
) -> Object:
    """Make a PyTorchJob with one pod for each ``Master`` or ``Worker`` among ``kinds``.

    Args:
        kinds: Its pods.
        name: Its name.
        policy: Its restart policy.
        container: What its container has beside a name, an image and a command.
        spec: What its specification has beside its replicas.
    """
    whole = {"name": "pytorch", "image": "x", "command": ["python"], **(container or {})}
    template = {"spec": {"containers": [whole], "terminationGracePeriodSeconds": 1}}
    parts = {
        kind: {"replicas": kinds.count(kind), "restartPolicy": policy, "template": template}
        for kind in {*kinds}
    }
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    return {**head, "spec": {"pytorchReplicaSpecs": parts, **spec}}


def trainjob(*, name: str = "a", nodes: int = 2, **spec: Any) -> Object:
    """Make a TrainJob; ``spec`` is what its specification has beside the runtime and the trainer."""
    trainer = {"image": "x", "command": ["python"], "numNodes": nodes, "numProcPerNode": 1}
    head = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}}
    return {**head, "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer, **spec}}


def holding(running: Cluster, kind: str = "PyTorchJob", name: str = "a") -> set[str]:
    """Return which conditions of a job are True."""
    told = ((running.find(kind, name) or {}).get("status") or {}).get("conditions") or []
    return {entry["type"] for entry in told if entry["status"] == "True"}
