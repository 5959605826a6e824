"""Section ``run``: owner, prices, budgets, the record in MLflow, alerts and events; ``triggers`` of a schedule."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

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


Days = Annotated[int, Field(ge=1)]


class MonitoredMetric(Section):
    """Limit on a metric that a monitor logs to the MLflow run of the version in production."""

    name: Name = Field(description="Metric; its newest value counts.")
    at_least: float | None = Field(None, description="Smallest accepted value.")
    at_most: float | None = Field(None, description="Largest accepted value, such as of an error.")
    within_days: Days = Field(7, description="Greatest age of the value; an older one is an error.")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("needs either at_least or at_most")
        return self


class Triggers(Section):
    """Conditions of which one starts the pipeline, and limits on how often."""

    new_data: bool = Field(True, description="The source has bytes that nothing was trained on.")
    drift: bool = Field(False, description="`validation.serving_log` moved from `validation.baseline`.")
    max_age_days: Days | None = Field(None, description="The newest version is older.")
    metric: MonitoredMetric | None = Field(None, description="A monitored metric is beyond its limit.")
    cool_down_days: Days = Field(1, description="Fewest days from one start to the next.")
    max_runs: Days = Field(10, description="Most starts within `period_days`.")
    period_days: Days = Field(30, description="Days that `max_runs` counts, this one included.")

    @model_validator(mode="after")
    def _some_condition(self) -> Self:
        if not (self.new_data or self.drift or self.max_age_days or self.metric):
            raise ValueError("no condition: set new_data, drift, max_age_days or metric")
        return self


class StartedBy(Section):
    """The trigger that started a run, and why; it sets this itself."""

    trigger: Name = Field(description="Owner and name of the schedule.")
    date: Name = Field(description="Date that it started the run for.")
    source: str = Field("", description="Digest of the source at that time.")
    reason: Name = Field(description="Conditions that held, with their numbers.")


Outcome = Literal["done", "held", "failed", "cancelled", "over_budget"]

Address = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9_.!#$%&'*+/=?^`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$"
    ),
]
"""E-mail address in ASCII, without a display name."""


class Alert(Section):
    """Message at the end of a run, to a webhook or by e-mail."""

    outcomes: tuple[Outcome, ...] = Field(
        ("failed", "held"), min_length=1, description="Outcomes that send it."
    )
    owner: str = Field("", description="Only runs with this `run.owner`. Default: all.")
    webhook_file: Name | None = Field(None, description="File with the https URL to post to: a secret.")
    format: Literal["json", "slack"] = Field("json", description='`slack` posts `{"text": …}`.')
    email: tuple[Address, ...] = Field((), max_length=100, description="Recipients; needs `run.smtp`.")

    @model_validator(mode="after")
    def _has_one_target(self) -> Self:
        if bool(self.webhook_file) == bool(self.email):
            found = "both" if self.email else "neither"
            raise ValueError(f"expected webhook_file or email, found {found}")
        return self


class Smtp(Section):
    """Mail server for alerts."""

    host: str = Field(pattern=r"^[A-Za-z0-9.:-]+$", description="Name or address of the server.")
    port: int = Field(587, ge=1, le=65535, description="587 for STARTTLS, 465 for TLS.")
    security: Literal["starttls", "tls", "none"] = Field("starttls", description="Encryption.")
    sender: Address = Field(description="Address that alerts come from.")
    user: str = Field("", description="Default: no login.")
    password_file: Name | None = Field(None, description="File with the password of `user`.")

    @model_validator(mode="after")
    def _login_is_encrypted(self) -> Self:
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and password_file belong together; set both or none")
        if self.user and self.security == "none":
            raise ValueError("security is none, so the password would be readable; use starttls or tls")
        return self


class RunSettings(Section):
    """Owner of a run, its record in MLflow, and messages at its end."""

    owner: str = Field("", description="Person or team that owns the run.")
    cost_centre: str = Field("", description="Cost centre that pays for it.")
    prices: Prices | None = Field(None, description="Price table, or the YAML file with it.")
    budget: Budget = Field(Budget(), description="Budget of this run; needs prices.")
    min_gpu_use: Fraction = Field(
        0.3, description="Mean use of a job's GPUs below which the run's end says so."
    )
    mlflow: bool = Field(True, description="Log the run in MLflow, at `registry.tracking_uri`.")
    page: str = Field("", pattern=r"^(https?://\S+)?$", description="Kubeflow's address for browsers.")
    alerts: tuple[Alert, ...] = Field((), max_length=10, description="Messages at the end of the run.")
    smtp: Smtp | None = Field(None, description="Mail server for alerts.")
    openlineage: Name | None = Field(
        None,
        pattern=r"^(https://|[^:]+$)",
        description="File (JSON lines) or https URL for OpenLineage events.",
    )
    openlineage_token_file: Name | None = Field(None, description="File with a bearer token for that URL.")
    started_by: StartedBy | None = Field(None, description="Trigger that started the run; it sets this.")

    @model_validator(mode="after")
    def _mail_has_a_server(self) -> Self:
        if any(alert.email for alert in self.alerts) and self.smtp is None:
            raise ValueError("alerts has a rule with email, but smtp is absent; name the mail server there")
        return self

    def priced(self, gpu_hour: float | None) -> Prices | None:
        """Return the price table: the configured one, or one that has only ``training.tracking.gpu_hour``."""
        if self.prices or gpu_hour is None:
            return self.prices
        return Prices(version="gpu_hour", currency="units", gpu_hour={OTHERS: gpu_hour})
