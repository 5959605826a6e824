"""Section ``resources``: on how much the training runs, and where."""

import re
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from trainwright.experiment.placement import Budget, Placement
from trainwright.experiment.section import Name, Section

Cores = Annotated[str, Field(pattern=r"^([0-9]*[.])?[0-9]+m?$")]
Memory = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)$")]


class Size(Section):
    """What the pod of a step asks for, and is limited to."""

    cpu: Cores = Field("1", description="Cores, such as `500m` or `2`.")
    memory: Memory = Field("4G", description="Memory, such as `4G` or `512Mi`.")

    @field_validator("cpu", mode="before")
    @classmethod
    def _written_as_a_number(cls, value: object) -> object:
        """Take ``cpu: 2``, which YAML reads as a number."""
        return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


class Steps(Section):
    """Sizes of the steps' own pods on a cluster; the pods of a training are `resources`."""

    ingest: Size = Field(default_factory=Size)
    validate_: Size = Field(default_factory=Size, alias="validate")
    join: Size = Field(default_factory=Size)
    score: Size = Field(default_factory=Size)
    evaluate: Size = Field(default_factory=Size)
    smoke_test: Size = Field(default_factory=Size, validation_alias=AliasChoices("smoke_test", "probe"))
    materialize: Size = Field(default_factory=Size)

    def parameters(self) -> dict[str, str]:
        """Return each amount under the name of the pipeline's parameter, such as ``ingest_cpu``."""
        sizes = self.model_dump(mode="json", by_alias=True)
        return {f"{step}_{name}": amount for step, size in sizes.items() for name, amount in size.items()}


class Resources(Section):
    """Where and on how much the training runs."""

    launcher: Literal["auto", "local", "pytorchjob", "trainjob"] = Field(
        "auto", description="auto: pytorchjob on a cluster."
    )
    nodes: int = Field(1, ge=1, description="Pods; always 1 with the local launcher.")
    processes: int = Field(2, ge=1, description="Processes a node.")
    restarts: int = Field(
        3, ge=0, description="Times that the processes are started again after one was lost."
    )
    timeout_s: int = Field(3600, ge=1, description="The job is stopped after this many seconds.")
    pending_s: int = Field(
        1800,
        ge=1,
        description="On a cluster: seconds until all pods have to run; waiting in a queue does not count.",
    )
    outage_s: int = Field(
        900,
        ge=1,
        description="On a cluster: longest outage of its API that is sat out; the job goes on meanwhile.",
    )
    grace_s: int = Field(
        30, ge=1, description="Seconds in which a stopped training finishes its step and saves."
    )
    cpu: float = Field(2, gt=0, description="Cores a pod.")
    memory_gib: float = Field(4, gt=0, description="Memory a pod.")
    gpus: int = Field(0, ge=0, description="GPUs a pod.")
    claim: Name = Field(
        "trainwright-shared",
        description="On a cluster: PersistentVolumeClaim that the train step and its job share.",
    )
    mount: str = Field("/shared", pattern=r"^/\S*$", description="On a cluster: where the claim is mounted.")
    placement: Placement = Field(default_factory=Placement)
    budget: Budget = Field(default_factory=Budget)
    links: dict[Name, str] = Field(
        default_factory=dict,
        description="Pages of a dashboard or log system for the step's summary, by title; `{kind}`, "
        "`{namespace}` and `{name}` of the job are filled in.",
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
            wrong.append(
                f"processes {self.processes} use as many GPUs, and gpus is {self.gpus}: make them equal"
            )
        if placement.min_nodes is not None and placement.min_nodes > self.nodes:
            wrong.append(f"placement.min_nodes {placement.min_nodes} is above nodes {self.nodes}")
        if placement.min_nodes is not None and self.launcher == "trainjob":
            wrong.append("placement.min_nodes asks for an elastic job, which a TrainJob cannot be")
        if placement.shared_memory_gib and placement.shared_memory_gib >= self.memory_gib:
            wrong.append(
                f"placement.shared_memory_gib {placement.shared_memory_gib:g} leaves nothing of "
                f"memory_gib {self.memory_gib:g}"
            )
        if wrong:
            raise ValueError("; ".join(wrong))
        return self
