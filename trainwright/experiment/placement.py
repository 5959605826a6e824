"""Section ``resources.placement``: where and how a job's pods run on a cluster."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from trainwright.experiment.section import Section

ObjectName = Annotated[
    str, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")
]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$")]
LabelKey = Annotated[
    str,
    Field(
        max_length=317,
        pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
    ),
]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _mountable(path: str) -> str:
    if not path.startswith("/") or path == "/" or ":" in path:
        raise ValueError("a path to mount at is absolute, not / itself, and without a colon")
    return path


class Toleration(Section):
    """A taint of a node that the pods put up with."""

    key: LabelKey | Literal[""] = Field("", description="The taint's key; '' for all, with `Exists`.")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Whether the value matters.")
    value: LabelValue = Field("", description="The taint's value, with `Equal`.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        "", description="The taint's effect; '' for all."
    )
    seconds: int | None = Field(
        None, ge=0, description="How long a `NoExecute` taint is put up with; null: for ever."
    )


class VolumeMount(Section):
    """Something else that is mounted into every pod."""

    path: Annotated[str, AfterValidator(_mountable)] = Field(description="Where it is mounted.")
    claim: ObjectName | Literal[""] = Field("", description="PersistentVolumeClaim.")
    secret: ObjectName | Literal[""] = Field("", description="Secret, whose keys become files.")
    config: ObjectName | Literal[""] = Field("", description="ConfigMap, whose keys become files.")
    read_only: bool = Field(False, description="Whether the pods may not write to it; a Secret never can be.")
    sub_path: str = Field("", description="Folder or file within it that is mounted in its place.")
    optional: bool = Field(False, description="Whether the pods start without the Secret or ConfigMap.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        named = [name for name in ("claim", "secret", "config") if getattr(self, name)]
        if len(named) != 1:
            raise ValueError(f"exactly one of claim, secret and config is named, got {named or 'none'}")
        return self


class SecretVariable(Section):
    """An environment variable by reference to a Secret or a ConfigMap: its value never leaves the cluster."""

    name: VariableName = Field(description="The variable, such as `MLFLOW_TRACKING_TOKEN`.")
    secret: ObjectName | Literal[""] = Field("", description="Name of the Secret.")
    config: ObjectName | Literal[""] = Field("", description="Name of the ConfigMap, in place of a Secret.")
    key: str = Field(pattern=r"^[-._a-zA-Z0-9]+$", description="Key within it.")
    optional: bool = Field(False, description="Whether the pods start without it.")

    @model_validator(mode="after")
    def _one_object(self) -> Self:
        if bool(self.secret) == bool(self.config):
            raise ValueError(
                f"exactly one of secret and config is named, got {[*filter(None, (self.secret, self.config))]}"
            )
        return self


class Placement(Section):
    """Where and how the job's pods run on a cluster; without one, none of it matters."""

    queue: ObjectName | Literal[""] = Field(
        "", description="Kueue's LocalQueue that admits the job; '': none."
    )
    workload_priority: ObjectName | Literal[""] = Field(
        "", description="Kueue's WorkloadPriorityClass: the order in the queue."
    )
    priority_class: ObjectName | Literal[""] = Field(
        "", description="PriorityClass of the pods: who makes room for whom on the nodes."
    )
    max_exec_time_s: int | None = Field(
        None, ge=1, description="Seconds after admission in which the queue takes the job out; null: never."
    )
    tolerations: tuple[Toleration, ...] = Field((), description="Taints of nodes that the pods put up with.")
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a node must have."
    )
    affinity: dict[str, JsonValue] = Field(
        default_factory=dict, description="Kubernetes' own `affinity`, for what labels cannot say."
    )
    accelerator: LabelValue = Field(
        "", description="Kind of GPU: the value that `accelerator_label` must have on a node."
    )
    accelerator_label: LabelKey = Field(
        "nvidia.com/gpu.product",
        description="Label of nodes that names their GPU; on GKE `cloud.google.com/gke-accelerator`.",
    )
    spot: bool = Field(
        False, description="Whether the pods run on nodes that can be taken away: labelled and tainted so."
    )
    spot_label: str = Field(
        "cloud.google.com/gke-spot=true",
        pattern=r"^[^=\s]+=[^=\s]*$",
        description="Label and taint of such nodes, as `key=value`.",
    )
    service_account: ObjectName | Literal[""] = Field(
        "", description="Identity of the pods for stores and clouds; '': the namespace's default."
    )
    shared_memory_gib: float | None = Field(
        None,
        gt=0,
        description="Size of `/dev/shm`, part of `memory_gib`; null: half of it with GPUs or several processes.",
    )
    disk_gib: float | None = Field(
        None, gt=0, description="Room on the node's disk for temporary files, a pod; null: what there is."
    )
    volumes: tuple[VolumeMount, ...] = Field((), description="What else is mounted.")
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        description="Labels of the job and its pods, such as `team`, `owner`, `cost-center`.",
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field((), description="Secrets to get the image with.")
    env_from_secrets: tuple[SecretVariable, ...] = Field(
        (), description="Environment variables by reference to a Secret or a ConfigMap."
    )
    min_nodes: int | None = Field(
        None, ge=1, description="Fewest nodes an elastic job goes on with; null: not elastic."
    )
    devices: dict[LabelKey, int] = Field(
        default_factory=dict,
        description='Extended resources of a pod beside its GPUs, such as `{"rdma/ib": 1}`.',
    )
    ipc_lock: bool = Field(
        False,
        description="Whether a pod may lock memory (`IPC_LOCK`), as RDMA needs it; Pod Security `restricted` "
        "and `baseline` reject it.",
    )
    scheduler: ObjectName | Literal[""] = Field(
        "", description="Scheduler of the pods; '': Kubernetes' own. Of a TrainJob it is the runtime's."
    )
    required_topology: LabelKey | Literal[""] = Field(
        "", description="Label of a topology level: Kueue admits the pods into one domain of it, or waits."
    )
    preferred_topology: LabelKey | Literal[""] = Field(
        "", description="The same, but Kueue takes several domains where one does not suffice."
    )
    runtime: ObjectName = Field(
        "trainwright-torch",
        description="Runtime that a TrainJob takes its pods from; `deploy/trainer/runtime.yaml` is the default.",
    )
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = Field(
        "ClusterTrainingRuntime", description="`TrainingRuntime` for one of the namespace."
    )


class Budget(Section):
    """How often another attempt is made, by what ended the one before."""

    preemption: int = Field(10, ge=0, description="Nodes that were taken away.")
    infrastructure: int = Field(3, ge=0, description="Nodes, networks and disks that broke; hangs.")
    user: int = Field(0, ge=0, description="Errors of the program itself, which mostly come back.")
