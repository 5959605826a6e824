"""Key ``prices`` of section ``run``: what an hour of each resource costs, and the budgets for it."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from trainwright.errors import InputError
from trainwright.experiment.resources import Resources
from trainwright.experiment.section import Fraction, Name, Section

Price = Annotated[float, Field(ge=0)]

OTHERS = "default"
"""Product that stands for all GPUs without a price of their own."""


class Budget(Section):
    """Limits on cost."""

    soft: float | None = Field(None, gt=0, description="Cost from which a run's end says so.")
    hard: float | None = Field(None, gt=0, description="Cost that no job may lead beyond.")


class SharedBudget(Budget):
    """Budget of a calendar month (UTC) for all runs with these values."""

    pipeline: str = Field("", description="Name of the pipeline.")
    model: str = Field("", description="`registry.model`.")
    owner: str = Field("", description="`run.owner`.")
    cost_centre: str = Field("", description="`run.cost_centre`.")

    @model_validator(mode="after")
    def _names_somebody(self) -> Self:
        if not self.named:
            raise ValueError("expected one of pipeline, model, owner and cost_centre, found none")
        return self

    @property
    def named(self) -> dict[str, str]:
        """The values that a run must have to be charged."""
        found = {name: getattr(self, name) for name in ("pipeline", "model", "owner", "cost_centre")}
        # Kubeflow names a pipeline with hyphens.
        return {name: value.replace("-", "_") for name, value in found.items() if value}

    def covers(self, run: Mapping[str, str]) -> bool:
        """Tell whether a run with these values is charged to it."""
        return all(run.get(name, "").replace("-", "_") == value for name, value in self.named.items())

    def __str__(self) -> str:
        """Name it by its values."""
        return ", ".join(f"{name} {getattr(self, name)}" for name in self.named)


class Prices(Section):
    """Prices an hour, and budgets."""

    version: Name = Field(description="Version of the table, which every cost names.")
    currency: Name = Field(description="Currency, such as `EUR`.")
    cpu_hour: Price = Field(0.0, description="Price of a core.")
    memory_gib_hour: Price = Field(0.0, description="Price of a GiB of memory.")
    gpu_hour: dict[Name, Price] = Field(
        {}, description="Price of a GPU by `resources.placement.accelerator`; `default` for others."
    )
    spot: Fraction = Field(1.0, description="Factor for a job on spot nodes.")
    budgets: tuple[SharedBudget, ...] = Field((), max_length=100, description="Budgets of a month.")

    def hour(self, cpu: float, memory_gib: float) -> float:
        """Return the price of an hour of a pod without GPUs."""
        return cpu * self.cpu_hour + memory_gib * self.memory_gib_hour

    def job_hour(self, resources: Resources) -> float:
        """Return the price of an hour of all pods of a training job.

        Raises:
            InputError: Its GPUs have no price.
        """
        placement, gpu = resources.placement, 0.0
        if resources.gpus:
            product = placement.accelerator or OTHERS
            price = self.gpu_hour.get(product, self.gpu_hour.get(OTHERS))
            if price is None:
                raise InputError(
                    f"no price for GPU {product}; the table has {', '.join(self.gpu_hour) or 'none'}",
                    where="run.prices.gpu_hour",
                    hint=f"Add {product}, or {OTHERS} for all others.",
                )
            gpu = resources.gpus * price
        pod = self.hour(resources.cpu, resources.memory_gib) + gpu
        return resources.nodes * pod * (self.spot if placement.spot else 1.0)
