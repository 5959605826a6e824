"""Placement of a job's pods on a cluster: queue, nodes, volumes, secrets, labels."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trainwright.launch import kubernetes_names

OURS = ("app.kubernetes.io/", "kubernetes.io/", "trainwright/", "training.kubeflow.org/", "kueue.x-k8s.io/")
"""Prefixes of labels that mean something to this library, the operator or the queue."""

GPU = "nvidia.com/gpu"

_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_OPERATORS = ("Equal", "Exists")


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """A taint of a node that the pods put up with.

    Attributes:
        key: The taint's key; empty for all, with ``Exists``.
        operator: ``Equal`` or ``Exists``.
        value: The taint's value, with ``Equal``.
        effect: ``NoSchedule``, ``PreferNoSchedule`` or ``NoExecute``; empty for all.
        seconds: How long a ``NoExecute`` taint is put up with; absent: for ever.
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None

    def problems(self) -> Iterator[str]:
        """Say what the API would refuse, or take and never match."""
        if self.operator not in _OPERATORS:
            yield f"operator {self.operator!r} is not one of {', '.join(_OPERATORS)}"
        if self.effect not in _EFFECTS:
            yield f"effect {self.effect!r} is not one of {', '.join(_EFFECTS[1:])}"
        if self.key and not kubernetes_names.is_key(self.key):
            yield f"key {self.key!r} is not the key of a taint"
        if not self.key and self.operator != "Exists":
            yield "without a key, operator has to be Exists"
        if self.operator == "Exists" and self.value:
            yield f"operator Exists takes no value, and value is {self.value!r}"
        if not kubernetes_names.is_label(self.value):
            yield f"value {self.value!r} is not the value of a taint"
        if self.seconds is not None and (self.effect != "NoExecute" or self.seconds < 0):
            yield f"seconds {self.seconds} needs effect NoExecute, and to be at least 0"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Something else that is mounted into every pod; exactly one of the three sources is named.

    Attributes:
        path: Where it is mounted.
        claim: Name of a PersistentVolumeClaim.
        secret: Name of a Secret, whose keys become files.
        config: Name of a ConfigMap, whose keys become files.
        read_only: Whether the pods may not write to it; a Secret or a ConfigMap never can be written to.
        sub_path: Folder or file within it that is mounted in its place.
        optional: Whether the pods start without the Secret or ConfigMap.
    """

    path: str
    claim: str = ""
    secret: str = ""
    config: str = ""
    read_only: bool = False
    sub_path: str = ""
    optional: bool = False

    def problems(self) -> Iterator[str]:
        """Say what the API would refuse."""
        named = [name for name in (self.claim, self.secret, self.config) if name]
        if len(named) != 1:
            yield f"{self.path} has {len(named)} of claim, secret, config; it takes exactly 1"
        yield from (
            f"{name!r} is not the name of an object"
            for name in named
            if not kubernetes_names.is_subdomain(name)
        )
        if not self.path.startswith("/") or ":" in self.path or self.path == "/":
            yield f"path {self.path!r} is not an absolute path that can be mounted at"
        if self.sub_path.startswith("/") or ".." in self.sub_path.split("/"):
            yield f"sub_path {self.sub_path!r} leads out of the volume"


@dataclass(frozen=True, kw_only=True)
class SecretVariable:
    """An environment variable that the node reads from a Secret or a ConfigMap: the job has only its name.

    Attributes:
        name: The variable, such as ``MLFLOW_TRACKING_TOKEN``.
        key: Key within the Secret or the ConfigMap.
        secret: Name of the Secret.
        config: Name of the ConfigMap, in place of a Secret.
        optional: Whether the pods start without it, too.
    """

    name: str
    key: str
    secret: str = ""
    config: str = ""
    optional: bool = False

    def problems(self) -> Iterator[str]:
        """Say what the API would refuse, or what would change the job itself."""
        if not kubernetes_names.is_variable(self.name):
            yield f"{self.name!r} is not the name of a variable"
        if kubernetes_names.RESERVED.fullmatch(self.name):
            yield f"{self.name} is set by the operator, torchrun or the launcher"
        if bool(self.secret) == bool(self.config):
            yield f"{self.name} names secret {self.secret!r} and config {self.config!r}; it takes exactly 1"
        elif not kubernetes_names.is_subdomain(self.secret or self.config):
            kind = "Secret" if self.secret else "ConfigMap"
            yield f"{kind.lower()} {self.secret or self.config!r} is not the name of a {kind}"
        if not kubernetes_names.is_config_key(self.key):
            yield f"key {self.key!r} is not a key of a Secret or a ConfigMap"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Placement of a job's pods on a cluster. The local launcher ignores it.

    Attributes:
        queue: Kueue's LocalQueue that admits the job; empty: none.
        workload_priority: Kueue's WorkloadPriorityClass: the order in the queue.
        priority_class: PriorityClass of the pods: who makes room for whom on the nodes.
        max_exec_time_s: Seconds after admission in which Kueue takes the job out again; absent: never.
        tolerations: Taints of nodes that the pods put up with.
        node_selector: Labels that a node must have.
        affinity: Kubernetes' own ``affinity``, for what labels cannot say.
        accelerator: Kind of GPU: a node must have it as the value of ``accelerator_label``.
        accelerator_label: The label of nodes that names their GPU; differs from one provider to another.
        spot: Whether the pods may run on nodes that can be taken away: ``spot_label`` is selected, and its
            taint of the same key and value is tolerated.
        spot_label: The label, ``key=value``, of such nodes.
        service_account: Identity of the pods for stores and clouds; empty: the namespace's default. It has
            no token of the Kubernetes API.
        shared_memory_gib: Size of ``/dev/shm``, part of the pod's memory; absent: half of it with GPUs or
            with several processes, else Kubernetes' 64 MiB.
        disk_gib: Ephemeral storage for temporary files; absent: no request.
        volumes: What else is mounted.
        labels: Labels of the job and its pods, such as ``team``, ``owner``, ``cost-center``.
        image_pull_secrets: Secrets with which the nodes get the image.
        env_from_secrets: Environment variables by reference to a Secret or a ConfigMap.
        min_nodes: Fewest nodes with which an elastic job goes on; absent: the job is not elastic.
        devices: Extended resources of a pod beside its GPUs, such as ``{"rdma/ib": 1}``: resource and count.
        ipc_lock: Whether the container may lock memory (capability ``IPC_LOCK``), as RDMA needs it.
        scheduler: Name of the scheduler that places the pods; empty: Kubernetes' own.
        required_topology: Label of nodes that names a topology level; Kueue puts all pods of a role into one
            domain of it, or admits none. Empty: not asked for.
        preferred_topology: The same, where a second domain is better than waiting.
        runtime: Name of the runtime that a TrainJob takes its pods from.
        runtime_kind: ``ClusterTrainingRuntime``, or ``TrainingRuntime`` for one of the namespace.
    """

    queue: str = ""
    workload_priority: str = ""
    priority_class: str = ""
    max_exec_time_s: int | None = None
    tolerations: tuple[Toleration, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: dict[str, Any] = field(default_factory=dict)
    accelerator: str = ""
    accelerator_label: str = "nvidia.com/gpu.product"
    spot: bool = False
    spot_label: str = "cloud.google.com/gke-spot=true"
    service_account: str = ""
    shared_memory_gib: float | None = None
    disk_gib: float | None = None
    volumes: tuple[Volume, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()
    env_from_secrets: tuple[SecretVariable, ...] = ()
    min_nodes: int | None = None
    devices: dict[str, int] = field(default_factory=dict)
    ipc_lock: bool = False
    scheduler: str = ""
    required_topology: str = ""
    preferred_topology: str = ""
    runtime: str = "trainwright-torch"
    runtime_kind: str = "ClusterTrainingRuntime"

    @property
    def decisive(self) -> dict[str, object]:
        """The part that changes what runs, and so makes another job of it.

        The rest says where and when: queue, priorities, scheduler, topology, tolerations, node selection,
        spot, labels, the secrets that images are pulled with. Moving a job to another queue must not
        start it over.
        """
        return {
            "accelerator": self.accelerator,
            "service_account": self.service_account,
            "shared_memory_gib": self.shared_memory_gib,
            "disk_gib": self.disk_gib,
            "volumes": [vars(volume) for volume in self.volumes],
            "env_from_secrets": [vars(variable) for variable in self.env_from_secrets],
            "min_nodes": self.min_nodes,
            "devices": dict(self.devices),
            "ipc_lock": self.ipc_lock,
            "runtime": [self.runtime_kind, self.runtime],
        }

    @property
    def selector(self) -> dict[str, str]:
        """All labels that a node must have."""
        chosen = {self.accelerator_label: self.accelerator} if self.accelerator else {}
        if self.spot:
            key, _, value = self.spot_label.partition("=")
            chosen[key] = value
        return {**chosen, **self.node_selector}

    @property
    def tolerated(self) -> tuple[Toleration, ...]:
        """All taints that the pods put up with."""
        if not self.spot:
            return self.tolerations
        key, _, value = self.spot_label.partition("=")
        return (*self.tolerations, Toleration(key=key, value=value, effect="NoSchedule"))

    def problems(self) -> Iterator[str]:
        """Say everything that the API would refuse, or take and not do."""
        yield from _names(self)
        yield from _labels(self)
        yield from _topology(self)
        yield from _devices(self)
        parts: dict[str, tuple[Toleration | Volume | SecretVariable, ...]] = {
            "tolerations": self.tolerations,
            "volumes": self.volumes,
            "env_from_secrets": self.env_from_secrets,
        }
        for name, entries in parts.items():
            for index, entry in enumerate(entries):
                yield from (f"{name}.{index}: {problem}" for problem in entry.problems())
        yield from _twice("volumes", [volume.path for volume in self.volumes])
        yield from _twice("env_from_secrets", [variable.name for variable in self.env_from_secrets])
        if self.max_exec_time_s is not None and self.max_exec_time_s < 1:
            yield f"max_exec_time_s is {self.max_exec_time_s}, must be at least 1"
        if not self.queue and (self.workload_priority or self.max_exec_time_s):
            yield "workload_priority and max_exec_time_s mean nothing without a queue"
        for name, amount in (("shared_memory_gib", self.shared_memory_gib), ("disk_gib", self.disk_gib)):
            if amount is not None and not amount > 0:
                yield f"{name} is {amount}, must be above 0"
        if self.runtime_kind not in _RUNTIMES:
            yield f"runtime_kind {self.runtime_kind!r} is not one of {', '.join(_RUNTIMES)}"
        if self.min_nodes is not None and self.min_nodes < 1:
            yield f"min_nodes is {self.min_nodes}, must be at least 1"


def _names(placement: Placement) -> Iterator[str]:
    names = ("queue", "workload_priority", "priority_class", "service_account", "scheduler", "runtime")
    given = {name: getattr(placement, name) for name in names}
    given |= {f"image_pull_secrets.{index}": name for index, name in enumerate(placement.image_pull_secrets)}
    for where, name in given.items():
        if (name or "." in where) and not kubernetes_names.is_subdomain(name):
            yield f"{where} {name!r} is not the name of an object: small letters, digits, - and ."


def _labels(placement: Placement) -> Iterator[str]:
    for where, labels in (("labels", placement.labels), ("node_selector", placement.selector)):
        for key, value in labels.items():
            if not kubernetes_names.is_key(key):
                yield f"{where}: {key!r} is not the key of a label"
            if not kubernetes_names.is_label(value):
                yield (
                    f"{where}.{key} {value!r} is not the value of a label: at most 63 letters, digits, "
                    "-, _ and ., a letter or digit at both ends"
                )
    yield from (f"labels.{key} belongs to the system" for key in placement.labels if key.startswith(OURS))


def _topology(placement: Placement) -> Iterator[str]:
    levels = {name: getattr(placement, name) for name in ("required_topology", "preferred_topology")}
    for name, level in levels.items():
        if level and not kubernetes_names.is_key(level):
            yield f"{name} {level!r} is not the key of a label"
    if all(levels.values()):
        yield "required_topology and preferred_topology exclude one another"
    if any(levels.values()) and not placement.queue:
        yield "required_topology and preferred_topology mean nothing without a queue"


def _devices(placement: Placement) -> Iterator[str]:
    for name, count in placement.devices.items():
        if "/" not in name or not kubernetes_names.is_key(name):
            yield f"devices {name!r} is not the name of an extended resource, such as rdma/ib"
        elif name == GPU:
            yield f"devices.{name} belongs into gpus"
        if count < 1:
            yield f"devices.{name} is {count}, must be at least 1"


def _twice(where: str, names: list[str]) -> Iterator[str]:
    yield from (
        f"{where} has {name!r} twice" for name in sorted({name for name in names if names.count(name) > 1})
    )
