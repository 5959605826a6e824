"""Section ``run``: the owner of a run, its cost, its record in MLflow, alerts and events at its end."""

from typing import Self

from pydantic import Field, model_validator

from trainwright.experiment.alerts import Alert, Smtp
from trainwright.experiment.prices import OTHERS, Budget, Prices
from trainwright.experiment.section import Fraction, Name, Section
from trainwright.experiment.triggers import StartedBy


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
