"""Section ``run``: the owner of a run, its record in MLflow, alerts and OpenLineage events at its end."""

from typing import Self

from pydantic import Field, model_validator

from trainwright.experiment.alerts import Alert, Smtp
from trainwright.experiment.section import Name, Section
from trainwright.experiment.triggers import StartedBy


class RunSettings(Section):
    """Owner of a run, its record in MLflow, and messages at its end."""

    owner: str = Field("", description="Person or team that owns the run.")
    cost_centre: str = Field("", description="Cost centre that pays for it.")
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
