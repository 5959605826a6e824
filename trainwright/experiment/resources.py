"""Sections ``resources`` and ``steps``: compute and placement of the training job and of the steps' pods."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, JsonValue, field_validator, model_validator

from trainwright.experiment.section import Name, Section

Cores = Annotated[str, Field(pattern=r"^([0-9]*[.])?[0-9]+m?$")]
Memory = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)$")]
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
        raise ValueError("must be an absolute path other than / and without a colon")
    return path


class JobToleration(Section):
    """Toleration of a node taint."""

    key: LabelKey | Literal[""] = Field("", description="Key of the taint; empty for all, with `Exists`.")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Compare the value, or ignore it.")
    value: LabelValue = Field("", description="Value of the taint, with `Equal`.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        "", description="Effect of the taint; empty for all."
    )
    seconds: int | None = Field(
        None, ge=0, description="Seconds to tolerate a `NoExecute` taint. Default: no limit."
    )


class VolumeMount(Section):
    """Volume to mount into every pod: exactly one of `claim`, `secret` and `config`."""

    path: Annotated[str, AfterValidator(_mountable)] = Field(description="Mount path.")
    claim: ObjectName | Literal[""] = Field("", description="Name of a PersistentVolumeClaim.")
    secret: ObjectName | Literal[""] = Field("", description="Name of a Secret.")
    config: ObjectName | Literal[""] = Field("", description="Name of a ConfigMap.")
    read_only: bool = Field(False, description="Mount read-only; a Secret always is.")
    sub_path: str = Field("", description="Path within the volume to mount instead of its root.")
    optional: bool = Field(False, description="Start pods also without the Secret or ConfigMap.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        named = [name for name in ("claim", "secret", "config") if getattr(self, name)]
        if len(named) != 1:
            raise ValueError(f"expected exactly one of claim, secret and config, found {named or 'none'}")
        return self


class JobVariable(Section):
    """Environment variable from a Secret or a ConfigMap, whose value stays in the cluster."""

    name: VariableName = Field(description="Variable, such as `MLFLOW_TRACKING_TOKEN`.")
    secret: ObjectName | Literal[""] = Field("", description="Name of the Secret.")
    config: ObjectName | Literal[""] = Field("", description="Name of the ConfigMap, instead of a Secret.")
    key: str = Field(pattern=r"^[-._a-zA-Z0-9]+$", description="Key within it.")
    optional: bool = Field(False, description="Start pods also without it.")

    @model_validator(mode="after")
    def _one_object(self) -> Self:
        if bool(self.secret) == bool(self.config):
            named = [name for name in (self.secret, self.config) if name]
            raise ValueError(f"expected exactly one of secret and config, found {named or 'none'}")
        return self


class JobPlacement(Section):
    """Scheduling, volumes and identity of the job's pods; clusters only."""

    queue: ObjectName | Literal[""] = Field("", description="Kueue LocalQueue of the job. Default: none.")
    workload_priority: ObjectName | Literal[""] = Field(
        "", description="Kueue WorkloadPriorityClass: order in the queue."
    )
    priority_class: ObjectName | Literal[""] = Field(
        "", description="PriorityClass of the pods: preemption on the nodes."
    )
    max_exec_time_s: int | None = Field(
        None, ge=1, description="Seconds from admission until Kueue evicts the job. Default: no limit."
    )
    tolerations: tuple[JobToleration, ...] = Field((), description="Tolerations of node taints.")
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a node must have."
    )
    affinity: dict[str, JsonValue] = Field(default_factory=dict, description="Kubernetes `affinity`.")
    accelerator: LabelValue = Field("", description="Required value of the node label `accelerator_label`.")
    accelerator_label: LabelKey = Field(
        "nvidia.com/gpu.product",
        description="Node label of the GPU model; on GKE `cloud.google.com/gke-accelerator`.",
    )
    spot: bool = Field(False, description="Use spot nodes.")
    spot_label: str = Field(
        "cloud.google.com/gke-spot=true",
        pattern=r"^[^=\s]+=[^=\s]*$",
        description="Label and taint of spot nodes, as `key=value`.",
    )
    service_account: ObjectName | Literal[""] = Field(
        "", description="ServiceAccount of the pods. Default: the namespace's."
    )
    shared_memory_gib: float | None = Field(
        None,
        gt=0,
        description="Size of `/dev/shm` in GiB, part of `memory_gib`. Default: half of it with GPUs or "
        "several processes.",
    )
    disk_gib: float | None = Field(
        None, gt=0, description="Ephemeral storage of a pod in GiB. Default: no limit."
    )
    volumes: tuple[VolumeMount, ...] = Field((), description="Additional volumes.")
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels of the job and its pods, such as `team` or `cost-center`."
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field((), description="Secrets for pulling the image.")
    env_from_secrets: tuple[JobVariable, ...] = Field(
        (), description="Environment variables from Secrets or ConfigMaps."
    )
    min_nodes: int | None = Field(
        None, ge=1, description="Fewest nodes of an elastic job. Default: not elastic."
    )
    devices: dict[LabelKey, int] = Field(
        default_factory=dict, description='Extended resources of a pod beside GPUs, such as `{"rdma/ib": 1}`.'
    )
    ipc_lock: bool = Field(
        False,
        description="Add the capability `IPC_LOCK`, as RDMA needs it; Pod Security `restricted` and `baseline` "
        "reject it.",
    )
    scheduler: ObjectName | Literal[""] = Field(
        "", description="Scheduler of the pods. Default: Kubernetes' own; for a TrainJob, the runtime's."
    )
    required_topology: LabelKey | Literal[""] = Field(
        "", description="Label of the topology level in one domain of which Kueue must place the pods."
    )
    preferred_topology: LabelKey | Literal[""] = Field(
        "", description="The same, but Kueue uses several domains if one does not suffice."
    )
    runtime: ObjectName = Field(
        "trainwright-torch",
        description="Runtime of a TrainJob; the default is in `deploy/trainer/runtime.yaml`.",
    )
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = Field(
        "ClusterTrainingRuntime", description="`TrainingRuntime` for a runtime of the namespace."
    )


class RetryBudget(Section):
    """Retries of the job by class of interruption."""

    preemption: int = Field(10, ge=0, description="Preemptions and evictions.")
    infrastructure: int = Field(3, ge=0, description="Failed nodes, networks and disks; hangs.")
    user: int = Field(0, ge=0, description="Errors of the program.")


class StepSize(Section):
    """Request and limit of a step's pod."""

    cpu: Cores = Field("1", description="Cores, such as `500m` or `2`.")
    memory: Memory = Field("4G", description="Memory, such as `4G` or `512Mi`.")

    @field_validator("cpu", mode="before")
    @classmethod
    def _written_as_a_number(cls, value: object) -> object:
        """Accept ``cpu: 2``, which YAML reads as a number."""
        return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


class Steps(Section):
    """Sizes of the steps' own pods on a cluster; those of the training job are `resources`."""

    ingest: StepSize = Field(default_factory=StepSize, description="Size of `ingest`.")
    validate_: StepSize = Field(default_factory=StepSize, alias="validate", description="Size of `validate`.")
    join: StepSize = Field(default_factory=StepSize, description="Size of `join`.")
    score: StepSize = Field(default_factory=StepSize, description="Size of `score`.")
    evaluate: StepSize = Field(default_factory=StepSize, description="Size of `evaluate`.")
    smoke_test: StepSize = Field(
        default_factory=StepSize,
        validation_alias=AliasChoices("smoke_test", "probe"),
        description="Size of `smoke_test`.",
    )
    materialize: StepSize = Field(default_factory=StepSize, description="Size of `materialize`.")

    def parameters(self) -> dict[str, str]:
        """Return each amount by the name of the pipeline's parameter, such as ``ingest_cpu``."""
        sizes = self.model_dump(mode="json", by_alias=True)
        return {f"{step}_{name}": amount for step, size in sizes.items() for name, amount in size.items()}


class Resources(Section):
    """Launcher, size and limits of the training job."""

    launcher: Literal["auto", "local", "pytorchjob", "trainjob"] = Field(
        "auto", description="`auto`: `pytorchjob` on a cluster, else `local`."
    )
    nodes: int = Field(1, ge=1, description="Number of pods; 1 with the local launcher.")
    processes: int = Field(2, ge=1, description="Processes per node.")
    restarts: int = Field(3, ge=0, description="Restarts of the processes after one is lost.")
    timeout_s: int = Field(3600, ge=1, description="Timeout of the job in seconds.")
    pending_s: int = Field(
        1800, ge=1, description="On a cluster: seconds until all pods must run, without time in a queue."
    )
    outage_s: int = Field(
        900, ge=1, description="On a cluster: longest API outage to tolerate in seconds; the job continues."
    )
    grace_s: int = Field(30, ge=1, description="Seconds for a stopped training to save a checkpoint.")
    cpu: float = Field(2, gt=0, description="Cores per pod.")
    memory_gib: float = Field(4, gt=0, description="Memory per pod in GiB.")
    gpus: int = Field(0, ge=0, description="GPUs per pod.")
    claim: Name = Field(
        "trainwright-shared",
        description="On a cluster: PersistentVolumeClaim that the train step and its job share.",
    )
    mount: str = Field("/shared", pattern=r"^/\S*$", description="On a cluster: mount path of `claim`.")
    placement: JobPlacement = Field(default_factory=JobPlacement, description="Placement of the pods.")
    budget: RetryBudget = Field(default_factory=RetryBudget, description="Retry budget.")
    links: dict[Name, str] = Field(
        default_factory=dict,
        description="Links for the step's summary by title, such as a dashboard; may use the job's `{kind}`, "
        "`{namespace}` and `{name}`.",
    )

    @field_validator("links")
    @classmethod
    def _are_addresses(cls, links: dict[str, str]) -> dict[str, str]:
        for title, template in links.items():
            rest = re.sub(r"\{(kind|namespace|name)\}", "", template)
            if not re.fullmatch(r"https?://[^\s{}()<>]+", rest):
                raise ValueError(
                    f"{title} is {template!r}; expected an address (https://…) with no other placeholders "
                    "than {kind}, {namespace} and {name}"
                )
        return links

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
