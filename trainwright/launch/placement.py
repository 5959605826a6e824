"""Placement of a job's pods on a cluster: derived values, and checks beyond those of the section."""

from collections.abc import Iterator

from trainwright.experiment.resources import JobPlacement, JobToleration
from trainwright.launch import kubernetes_names

RESERVED_LABELS = (
    "app.kubernetes.io/",
    "kubernetes.io/",
    "trainwright/",
    "training.kubeflow.org/",
    "kueue.x-k8s.io/",
)
"""Prefixes of labels that mean something to this library, the operator or the queue."""

GPU = "nvidia.com/gpu"


def identity(placement: JobPlacement) -> dict[str, object]:
    """Return the part that changes what runs, and so makes another job of it.

    The rest says where and when: queue, priorities, scheduler, topology, tolerations, node selection, spot,
    labels, pull secrets. Moving a job to another queue must not start it over.
    """
    fields = {
        "accelerator",
        "service_account",
        "shared_memory_gib",
        "disk_gib",
        "volumes",
        "env_from_secrets",
    }
    body: dict[str, object] = placement.model_dump(include=fields | {"min_nodes", "devices", "ipc_lock"})
    return body | {"runtime": [placement.runtime_kind, placement.runtime]}


def node_labels(placement: JobPlacement) -> dict[str, str]:
    """Return all labels that a node must have."""
    labels = {placement.accelerator_label: placement.accelerator} if placement.accelerator else {}
    if placement.spot:
        key, _, value = placement.spot_label.partition("=")
        labels[key] = value
    return labels | placement.node_selector


def tolerations(placement: JobPlacement) -> tuple[JobToleration, ...]:
    """Return all tolerations of node taints; spot nodes have a taint like their label."""
    if not placement.spot:
        return placement.tolerations
    key, _, value = placement.spot_label.partition("=")
    return (*placement.tolerations, JobToleration(key=key, value=value, effect="NoSchedule"))


def problems(placement: JobPlacement) -> Iterator[str]:
    """Say what the API rejects, or accepts and ignores, and the section does not check by itself."""
    yield from (
        f"labels.{key} belongs to the system" for key in placement.labels if key.startswith(RESERVED_LABELS)
    )
    yield from _entry_problems(placement)
    names = [("volumes", volume.path) for volume in placement.volumes]
    names += [("env_from_secrets", variable.name) for variable in placement.env_from_secrets]
    for where, name in sorted({entry for entry in names if names.count(entry) > 1}):
        yield f"{where} has {name!r} twice"
    for name, count in placement.devices.items():
        if "/" not in name:
            yield f"devices {name!r} is not the name of an extended resource, such as rdma/ib"
        elif name == GPU:
            yield f"devices.{name} belongs into gpus"
        if count < 1:
            yield f"devices.{name} is {count}, must be at least 1"
    topology = [level for level in (placement.required_topology, placement.preferred_topology) if level]
    if len(topology) > 1:
        yield "required_topology and preferred_topology exclude one another"
    if not placement.queue and (topology or placement.workload_priority or placement.max_exec_time_s):
        yield "workload_priority, max_exec_time_s and the topologies mean nothing without a queue"


def _entry_problems(placement: JobPlacement) -> Iterator[str]:
    for index, entry in enumerate(placement.tolerations):
        where = f"tolerations.{index}"
        if not entry.key and entry.operator != "Exists":
            yield f"{where}: without a key, operator has to be Exists"
        if entry.operator == "Exists" and entry.value:
            yield f"{where}: operator Exists takes no value, and value is {entry.value!r}"
        if entry.seconds is not None and entry.effect != "NoExecute":
            yield f"{where}: seconds {entry.seconds} needs effect NoExecute"
    for index, volume in enumerate(placement.volumes):
        if volume.sub_path.startswith("/") or ".." in volume.sub_path.split("/"):
            yield f"volumes.{index}: sub_path {volume.sub_path!r} leads out of the volume"
    for index, variable in enumerate(placement.env_from_secrets):
        if kubernetes_names.RESERVED.fullmatch(variable.name):
            where = f"env_from_secrets.{index}"
            yield f"{where}: {variable.name} is set by the operator, torchrun or the launcher"
