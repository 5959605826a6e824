"""Sections ``registry`` and ``promotion``: where the model is registered, and how it gets into production."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from trainwright.experiment.section import Name, Section, Time

Stage = Literal["staging", "canary", "production"]


class Override(Section):
    """A person's word for a model whose verdict is not PASS. It is for one verdict, and it ends."""

    verdict: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="Digest of the model verdict that is overridden."
    )
    approver: Name = Field(description="Who answers for it.")
    reason: Name = Field(description="Why the model goes on all the same.")
    expires: Time = Field(
        description="From then on it counts neither for registering nor for promoting, as 2026-01-31."
    )


class Registry(Section):
    """Where the model is registered."""

    model: Name = Field(description="Name of the registered model.")
    tracking_uri: Name = Field(
        description="MLflow tracking and registry address; sqlite:///FILE works alone."
    )
    page: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="MLflow's address as a browser reaches it, for links; '' where that is `tracking_uri`. A Service of a cluster gets no link.",
    )
    retry_s: int = Field(600, ge=0, description="Keep trying this long while that address does not answer.")
    audit: Name | None = Field(
        None,
        description="Folder or URI of the audit, where promotions are decided; absent: beside the SQLite file.",
    )
    author: str = Field(
        "", description="Who answers for the training; a policy may ask for another approver."
    )
    override: Override | None = Field(None, description="Register a model whose verdict is not PASS.")

    @field_validator("model")
    @classmethod
    def _can_be_named(cls, name: str) -> str:
        if re.search(r"[/:\x00-\x1f\x7f]", name) or name.startswith((".", "_")) or len(name) > 250:  # noqa: PLR2004
            raise ValueError("a model's name has no '/' and no ':', and does not start with '.' or '_'")
        if "'" in name and '"' in name:
            raise ValueError("a model's name has no two kinds of quotes: MLflow could not find it again")
        return name


class Canary(Section):
    """Which share of the requests a canary gets, and what is watched meanwhile."""

    share: float = Field(gt=0, le=1, description="Fraction of the requests that it answers.")
    start: Time | None = Field(None, description="When it starts to answer; absent: with the promotion.")
    guards: dict[Name, float] = Field(
        min_length=1, description="Metrics that are watched online, each with the limit that it must keep."
    )


class Promotion(Section):
    """What a version must show before it may go further; it is reviewed like the rest of the file."""

    path: tuple[Stage, ...] = Field(
        ("staging", "canary", "production"),
        min_length=1,
        description="Stages that every version passes one after the other; the last is production.",
    )
    canary: Canary | None = Field(None, description="How a canary runs; asked for on the way to it.")
    min_soak_s: int = Field(86_400, ge=0, description="Seconds that a canary must have answered requests.")
    four_eyes: bool = Field(True, description="Production asks for an approver who is not the author.")
    allow_new_inputs: bool = Field(
        False, description="Accept a model that asks for columns, or gives outputs, that production does not."
    )
    lease_s: float = Field(
        30,
        gt=0,
        le=3600,
        description="After so long without a sign of life, another promotion counts as dead.",
    )
    wait_s: float = Field(300, ge=0, description="How long to wait for another promotion of the same model.")

    @model_validator(mode="after")
    def _path_leads_to_production(self) -> Self:
        order = [stage for stage in ("staging", "canary", "production") if stage in self.path]
        if list(self.path) != order or order[-1] != "production":
            raise ValueError(
                f"path is {list(self.path)}; it is staging, canary, production in this order, of which all "
                "but the last may be left out"
            )
        if self.canary is not None and "canary" not in self.path:
            raise ValueError("canary is set, and the path has no canary")
        return self


class PromotionRequest(Section):
    """One version's next stage, who asks for it and why."""

    to: Literal["staging", "canary", "production", "archived"] = Field(
        description="The stage to bring it to."
    )
    by: Name = Field(description="Who asks for it.")
    reason: Name = Field(description="Why; it goes into the audit.")
    version: str = Field(
        "",
        pattern=r"^([1-9]\d*)?$",
        description="The version; empty: the one that stands in the stage before.",
    )
    approver: str = Field("", description="Who approved it; empty: nobody.")
    expected: str = Field(
        "evaluated",
        pattern=r"^(evaluated|([1-9]\d*)?)$",
        description="Version that must still be in production, '' for none; `evaluated`: the one that it was "
        "compared with.",
    )
    canary_verdict: str = Field(
        "", description="File or URI of the verdict on the canary; asked for on the way to production."
    )
    data_verdict: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="Digest of the data verdict that is accepted though it is not PASS; `reason` says why.",
    )
