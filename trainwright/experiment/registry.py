"""Sections ``registry`` and ``promotion``: registration of the model and its way to production."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from trainwright.experiment.section import Name, Section, Time

Stage = Literal["staging", "canary", "production"]


class Override(Section):
    """Approval, by a person, of one model whose verdict is not PASS."""

    verdict: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the model verdict to override.")
    approver: Name = Field(description="Person who approves.")
    reason: Name = Field(description="Reason.")
    expires: Time = Field(description="End of its effect on registration and promotion, such as 2026-01-31.")


class Registry(Section):
    """Registration of the model in MLflow."""

    model: Name = Field(description="Name of the registered model.")
    tracking_uri: Name = Field(
        description="Address of MLflow tracking and registry; `sqlite:///FILE` needs no server."
    )
    page: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="Address of MLflow for links in a browser. Default: `tracking_uri`, unless it is a "
        "Service of the cluster.",
    )
    retry_s: int = Field(600, ge=0, description="Seconds to retry an unavailable MLflow.")
    audit: Name | None = Field(
        None, description="Folder or URI of the audit of promotions. Default: beside the SQLite file."
    )
    author: str = Field(
        "", description="Author of the training; `promotion.four_eyes` needs another approver."
    )
    override: Override | None = Field(None, description="Register a model whose verdict is not PASS.")

    @field_validator("model")
    @classmethod
    def _can_be_named(cls, name: str) -> str:
        if re.search(r"[/:\x00-\x1f\x7f]", name) or name.startswith((".", "_")) or len(name) > 250:  # noqa: PLR2004
            raise ValueError(
                "must be a name of at most 250 characters without '/', ':' and control characters that "
                "does not start with '.' or '_'"
            )
        if "'" in name and '"' in name:
            raise ValueError("must not have two kinds of quotes: MLflow could not search for it")
        return name


class Canary(Section):
    """Traffic and guards of a canary."""

    share: float = Field(gt=0, le=1, description="Fraction of requests that it answers.")
    start: Time | None = Field(None, description="Start of its traffic. Default: at promotion.")
    guards: dict[Name, float] = Field(min_length=1, description="Limits of online metrics by name.")


class Promotion(Section):
    """Promotion policy: requirements on a version before its next stage."""

    path: tuple[Stage, ...] = Field(
        ("staging", "canary", "production"),
        min_length=1,
        description="Stages of every version in order; the last is production.",
    )
    canary: Canary | None = Field(None, description="Canary settings; required to promote to canary.")
    min_soak_s: int = Field(86_400, ge=0, description="Seconds of canary traffic before production.")
    four_eyes: bool = Field(True, description="Require an approver other than the author for production.")
    allow_new_inputs: bool = Field(
        False, description="Accept inputs or outputs that the production model does not have."
    )
    lease_s: float = Field(
        30, gt=0, le=3600, description="Seconds until the lease of a dead promotion expires."
    )
    wait_s: float = Field(300, ge=0, description="Seconds to wait for another promotion of the model.")

    @model_validator(mode="after")
    def _path_leads_to_production(self) -> Self:
        order = [stage for stage in ("staging", "canary", "production") if stage in self.path]
        if list(self.path) != order or order[-1] != "production":
            raise ValueError(
                f"path is {list(self.path)}; expected staging, canary, production in this order, of which "
                "only production is required"
            )
        if self.canary is not None and "canary" not in self.path:
            raise ValueError(f"canary is set, but path {list(self.path)} has no canary; remove one")
        return self


class PromotionRequest(Section):
    """Request to move one version to a stage."""

    to: Literal["staging", "canary", "production", "archived"] = Field(description="Stage to move it to.")
    by: Name = Field(description="Person who requests it.")
    reason: Name = Field(description="Reason, recorded in the audit.")
    version: str = Field(
        "", pattern=r"^([1-9]\d*)?$", description="Version. Default: the one in the stage before."
    )
    approver: str = Field("", description="Person who approved it. Default: nobody.")
    expected: str = Field(
        "evaluated",
        pattern=r"^(evaluated|([1-9]\d*)?)$",
        description="Version that must still be in production; '' for none, `evaluated` for the one that it "
        "was compared with.",
    )
    canary_verdict: str = Field(
        "", description="File or URI of the verdict on the canary; required for production."
    )
    data_verdict: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="Digest of a data verdict to accept although it is not PASS; `reason` says why.",
    )
