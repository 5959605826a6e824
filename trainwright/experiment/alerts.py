"""Keys ``alerts`` and ``smtp`` of section ``run``: who hears of the end of a run."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from trainwright.experiment.section import Name, Section

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
