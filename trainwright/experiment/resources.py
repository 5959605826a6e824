"""Sections ``resources`` and ``steps``: compute and placement of the training job and of the steps' pods."""

from typing import Annotated, Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, model_validator

from trainwright.experiment.section import Name, Section

Cores = Annotated[str, Field(pattern=r"^([0-9]*[.])?[0-9]+m?$")]
Memory = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)$")]
ObjectName = Annotated[
    str, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")
]
LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_KEY = r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
LabelValue = Annotated[str, Field(max_length=63, pattern=rf"^{LABEL_VALUE}$")]
LabelKey = Annotated[str, Field(max_length=317, pattern=rf"^{_KEY}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


MountPath = Annotated[str, Field(pattern=r"^/[^:]+$")]
Link = Annotated[str, Field(pattern=r"^https?://([^\s{}()<>]|\{(kind|namespace|name)\})+$")]


class JobToleration(Section):
    """Toleration of a node taint."""

    key: LabelKey | Literal[""] = Field("", description="Taint key; empty for all, with `Exists`.")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Compare the value, or ignore it.")
    value: LabelValue = Field("", description="Taint value, with `Equal`.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field("", description="Empty: all.")
    seconds: int | None = Field(None, ge=0, description="Limit of a `NoExecute` toleration.")


class VolumeMount(Section):
    """Volume to mount into every pod: exactly one of `claim`, `secret` and `config`."""

    path: MountPath = Field(description="Mount path.")
    claim: ObjectName | Literal[""] = Field("", description="PersistentVolumeClaim.")
    secret: ObjectName | Literal[""] = Field("", description="Secret.")
    config: ObjectName | Literal[""] = Field("", description="ConfigMap.")
    read_only: bool = Field(False, description="Mount read-only; a Secret always is.")
    sub_path: str = Field("", description="Path within the volume.")
    optional: bool = Field(False, description="Start pods without the Secret or ConfigMap too.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        named = [name for name in ("claim", "secret", "config") if getattr(self, name)]
        if len(named) != 1:
            raise ValueError(f"expected exactly one of claim, secret and config, found {named or 'none'}")
        return self


class JobVariable(Section):
    """Environment variable from a Secret or a ConfigMap, whose value stays in the cluster."""

    name: VariableName = Field(description="Variable, such as `MLFLOW_TRACKING_TOKEN`.")
    secret: ObjectName | Literal[""] = Field("", description="Secret.")
    config: ObjectName | Literal[""] = Field("", description="ConfigMap, instead of a Secret.")
    key: str = Field(pattern=r"^[-._a-zA-Z0-9]+$", description="Key within it.")
    optional: bool = Field(False, description="Start pods without it too.")

    @model_validator(mode="after")
    def _one_object(self) -> Self:
        if bool(self.secret) == bool(self.config):
            named = [name for name in (self.secret, self.config) if name]
            raise ValueError(f"expected exactly one of secret and config, found {named or 'none'}")
        return self


class JobPlacement(Section):
    """Scheduling, volumes and identity of the job's pods; clusters only."""

    queue: ObjectName | Literal[""] = Field(
        "", description="Kueue LocalQueue; needs `run.owner` and `run.cost_centre`."
    )
    workload_priority: ObjectName | Literal[""] = Field("", description="Kueue WorkloadPriorityClass.")
    priority_class: ObjectName | Literal[""] = Field("", description="PriorityClass of the pods.")
    max_exec_time_s: int | None = Field(None, ge=1, description="Time until Kueue evicts the admitted job.")
    tolerations: tuple[JobToleration, ...] = Field((), description="Tolerations of node taints.")
    node_selector: dict[LabelKey, LabelValue] = Field({}, description="Required node labels.")
    affinity: dict[str, JsonValue] = Field({}, description="Kubernetes `affinity`.")
    accelerator: LabelValue = Field("", description="Required value of `accelerator_label`.")
    accelerator_label: LabelKey = Field("nvidia.com/gpu.product", description="Node label of the GPU model.")
    spot: bool = Field(False, description="Use spot nodes.")
    spot_label: str = Field(
        "cloud.google.com/gke-spot=true", pattern=rf"^{_KEY}={LABEL_VALUE}$", description="Label and taint."
    )
    service_account: ObjectName | Literal[""] = Field("", description="Default: the namespace's.")
    shared_memory_gib: float | None = Field(None, gt=0, description="Size of `/dev/shm`, in `memory_gib`.")
    disk_gib: float | None = Field(None, gt=0, description="Ephemeral storage of a pod.")
    volumes: tuple[VolumeMount, ...] = Field((), description="Additional volumes.")
    labels: dict[LabelKey, LabelValue] = Field(
        {}, description="Labels of the job and its pods; with a queue also those of `run`."
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field((), description="Secrets for pulling the image.")
    env_from_secrets: tuple[JobVariable, ...] = Field((), description="Variables from Secrets or ConfigMaps.")
    min_nodes: int | None = Field(None, ge=1, description="Fewest nodes. Default: not elastic.")
    devices: dict[LabelKey, int] = Field({}, description='Extended resources, such as `{"rdma/ib": 1}`.')
    ipc_lock: bool = Field(False, description="`IPC_LOCK`, for RDMA; Pod Security `baseline` rejects it.")
    scheduler: ObjectName | Literal[""] = Field("", description="Scheduler of the pods.")
    required_topology: LabelKey | Literal[""] = Field("", description="Topology level for all pods.")
    preferred_topology: LabelKey | Literal[""] = Field("", description="The same, if one domain suffices.")
    runtime: ObjectName = Field("trainwright-torch", description="Runtime of a TrainJob (`deploy/trainer/`).")
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = Field(
        "ClusterTrainingRuntime", description="Scope of the runtime."
    )


class RetryBudget(Section):
    """Retries of the job by class of interruption."""

    preemption: int = Field(10, ge=0, description="Preemptions and evictions.")
    infrastructure: int = Field(3, ge=0, description="Failed nodes, networks, disks; hangs.")
    user: int = Field(0, ge=0, description="Errors of the program.")


class StepSize(Section):
    """Request and limit of a step's pod."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # YAML reads cpu: 2 as a number

    cpu: Cores = Field("1", description="Cores, such as `500m`.")
    memory: Memory = Field("4G", description="Memory, such as `4G`.")


class Steps(Section):
    """Sizes of the steps' own pods on a cluster; those of the training job are `resources`."""

    ingest: StepSize = Field(StepSize(), description="Size of `ingest`.")
    validate_: StepSize = Field(StepSize(), alias="validate", description="Size of `validate`.")
    join: StepSize = Field(StepSize(), description="Size of `join`.")
    score: StepSize = Field(StepSize(), description="Size of `score`.")
    evaluate: StepSize = Field(StepSize(), description="Size of `evaluate`.")
    smoke_test: StepSize = Field(
        StepSize(), validation_alias=AliasChoices("smoke_test", "probe"), description="Size of `smoke_test`."
    )
    materialize: StepSize = Field(StepSize(), description="Size of `materialize`.")

    def parameters(self) -> dict[str, str]:
        """Return each amount by the name of the pipeline's parameter, such as ``ingest_cpu``."""
        sizes = self.model_dump(mode="json", by_alias=True)
        return {f"{step}_{name}": amount for step, size in sizes.items() for name, amount in size.items()}


class Resources(Section):
    """Launcher, size and limits of the training job."""

    launcher: Literal["auto", "local", "pytorchjob", "trainjob"] = Field(
        "auto", description="`auto`: `pytorchjob` on a cluster, else `local`."
    )
    nodes: int = Field(1, ge=1, description="Pods; 1 with the local launcher.")
    processes: int = Field(1, ge=1, description="Processes per node; they share `cpu`.")
    restarts: int = Field(3, ge=0, description="Restarts after a lost process.")
    timeout_s: int = Field(3600, ge=1, description="Timeout of the job.")
    pending_s: int = Field(1800, ge=1, description="Longest start of all pods, without queueing.")
    outage_s: int = Field(900, ge=1, description="Longest outage of the cluster's API.")
    grace_s: int = Field(30, ge=1, description="Time to save a checkpoint after a stop.")
    cpu: float = Field(2, gt=0, description="Cores per pod.")
    memory_gib: float = Field(4, gt=0, description="Memory per pod in GiB.")
    gpus: int = Field(0, ge=0, description="GPUs per pod.")
    claim: Name = Field("trainwright-shared", description="PersistentVolumeClaim of step and job.")
    mount: str = Field("/shared", pattern=r"^/\S*$", description="Mount path of `claim`.")
    placement: JobPlacement = Field(JobPlacement(), description="Placement of the pods.")
    budget: RetryBudget = Field(RetryBudget(), description="Retry budget.")
    links: dict[Name, Link] = Field(
        {}, description="Links for the summary, with the job's `{kind}`, `{namespace}` and `{name}`."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        placement, wrong = self.placement, []
        if self.gpus and self.gpus != self.processes:
            wrong.append(f"processes {self.processes} must equal gpus {self.gpus}, one GPU for each process")
        if placement.min_nodes is not None and placement.min_nodes > self.nodes:
            wrong.append(f"placement.min_nodes {placement.min_nodes} is above nodes {self.nodes}")
        if placement.min_nodes is not None and self.launcher == "trainjob":
            wrong.append(
                f"placement.min_nodes {placement.min_nodes} requests an elastic job, which a TrainJob cannot "
                "be; use launcher pytorchjob"
            )
        if placement.shared_memory_gib and placement.shared_memory_gib >= self.memory_gib:
            wrong.append(
                f"placement.shared_memory_gib {placement.shared_memory_gib:g} must be below memory_gib "
                f"{self.memory_gib:g}"
            )
        if wrong:
            raise ValueError("; ".join(wrong))
        return self
