"""Sections ``registry``, ``promotion`` and ``serving``: registration, the way to production, and the canary there."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.resources import ObjectName
from trainwright.experiment.section import Name, Section, Time

Stage = Literal["staging", "canary", "production"]


MODEL_NAME = r"^[^\s._/:\x00-\x1f\x7f][^/:\x00-\x1f\x7f]{0,249}$"
"""What MLflow accepts in file paths and URIs of models."""


MAX_OVERRIDE_DAYS = 30
"""Longest effect of an override, in days from its use."""


class Override(Section):
    """Approval, by a person, of one model whose verdict is not PASS."""

    verdict: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the model verdict to override.")
    approver: Name = Field(description="Person who approves.")
    reason: Name = Field(description="Reason.")
    expires: Time = Field(description="End of its effect, such as 2026-01-31.")


class Registry(Section):
    """Registration of the model in MLflow."""

    model: str = Field(pattern=MODEL_NAME, description="Name of the registered model.")
    tracking_uri: Name = Field(description="MLflow tracking and registry; `sqlite:///FILE` needs no server.")
    page: str = Field("", pattern=r"^(https?://\S+)?$", description="For browsers. Default: `tracking_uri`.")
    retry_s: int = Field(600, ge=0, description="Longest outage of MLflow.")
    audit: Name | None = Field(None, description="Folder or URI of the audit. Default: beside SQLite's file.")
    signing_key: Name | None = Field(
        None, description="File of the key that signs the audit. Default: a local one."
    )
    trust: Name | None = Field(None, description="Folder of the keys to trust and the promotion policy.")
    hub: str = Field(
        "", pattern=r"^(https?://[^\s@?#]+)?$", description="Kubeflow Hub that mirrors versions and stages."
    )
    hub_token_file: Name | None = Field(None, description="File with a bearer token for it.")
    author: str = Field("", description="Author; `promotion.four_eyes` needs another approver.")
    override: Override | None = Field(None, description="Register a model whose verdict is not PASS.")


class CanaryStep(Section):
    """A larger share of the traffic."""

    after: int = Field(ge=1, description="Requests that the canary has answered.")
    share: float = Field(gt=0, le=1, description="Fraction of requests from then on.")


class Canary(Section):
    """Traffic and guards of a canary."""

    share: float = Field(gt=0, le=1, description="Fraction of requests.")
    steps: tuple[CanaryStep, ...] = Field((), description="Shares after that, while no guard is broken.")
    start: Time | None = Field(None, description="Start of traffic. Default: at promotion.")
    guards: dict[Name, float] = Field(
        min_length=1, description="Limits of online metrics; of `canary`: how much worse than production."
    )


class Promotion(Section):
    """Promotion policy: requirements on a version before its next stage."""

    path: tuple[Stage, ...] = Field(
        ("staging", "canary", "production"), min_length=1, description="Stages in order."
    )
    canary: Canary | None = Field(None, description="Required to promote to canary.")
    min_soak_s: int = Field(86_400, ge=0, description="Canary traffic before production.")
    four_eyes: bool = Field(True, description="Production needs an approver other than the author.")
    allow_new_inputs: bool = Field(False, description="Accept inputs or outputs that production lacks.")
    max_override_days: int = Field(
        MAX_OVERRIDE_DAYS, ge=1, le=MAX_OVERRIDE_DAYS, description="Longest effect of an override."
    )
    lease_s: float = Field(30, gt=0, le=3600, description="Expiry of a dead promotion's lease.")
    wait_s: float = Field(300, ge=0, description="Longest wait for another promotion.")

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
    version: str = Field("", pattern=r"^([1-9]\d*)?$", description="Default: that of the stage before.")
    approver: str = Field("", description="Person who approved it. Default: nobody.")
    approval: str = Field(
        "", description="Approver's token: file or URI; required if the policy names approvers."
    )
    expected: str = Field(
        "evaluated", pattern=r"^(evaluated|([1-9]\d*)?)$", description="Version in production; '' for none."
    )
    canary_verdict: str = Field("", description="Canary verdict: file or artifact; required for production.")
    data_verdict: str = Field("", pattern=r"^([0-9a-f]{64})?$", description="Digest of a verdict to accept.")


LogColumn = Literal[
    "request", "time", "version", "score", "prediction", "outcome", "outcome_time", "error", "latency_ms"
]


class InferenceService(Section):
    """A KServe InferenceService that exists; `canary` sets its model and the canary's share of the traffic."""

    name: ObjectName = Field(description="Its name.")
    namespace: ObjectName = Field(description="Its namespace.")
    model_format: Name = Field(description="`modelFormat` that a ServingRuntime of yours supports.")
    runtime: ObjectName | Literal[""] = Field("", description="ServingRuntime. Default: by `model_format`.")
    apply: bool = Field(False, description="Apply the manifest; else only write it.")


class Serving(Section):
    """Requests as they were served, for `canary`."""

    log: Name = Field(description="File, folder or glob: a row per request and version that answered it.")
    format: Literal["auto", "parquet", "csv", "jsonl"] = Field("auto", description="`auto`: by name.")
    columns: dict[LogColumn, Name] = Field({}, description="Column of the log, where names differ.")
    shadow: bool = Field(False, description="Both versions answer each request; else one of them does.")
    slow_ms: float | None = Field(None, gt=0, description="Latency above which an answer is slow.")
    bounds: tuple[float, float] | None = Field(
        None, description="Least and largest number that is predicted; others are cut there."
    )
    service: InferenceService | None = Field(None, description="Where the canary is served.")

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.bounds and self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"bounds are {list(self.bounds)}; expected the smaller one first")
        return self

    def column(self, role: str) -> str:
        """Return the column of the log that has a role."""
        return next((name for key, name in self.columns.items() if key == role), role)
