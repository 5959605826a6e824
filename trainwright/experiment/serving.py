"""Section ``serving``: the log of served requests, and the KServe InferenceService of the model."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.resources import ObjectName
from trainwright.experiment.section import Name, Section

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
