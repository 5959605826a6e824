"""Section ``run``: the owner of a run, its cost, its record in MLflow, alerts and events at its end."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from trainwright.experiment.prices import OTHERS, Budget, Prices
from trainwright.experiment.section import Fraction, Name, Section
from trainwright.experiment.triggers import StartedBy

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
