"""Section ``validation``: limits on the schema, quality and drift of the data."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from trainwright.artifacts import TargetKind
from trainwright.experiment.data import ENGINE, DataEngine
from trainwright.experiment.section import Fraction, Name, Section
from trainwright.verdicts import SCHEMA_INFERRED

Severity = Literal["WARN", "HOLD", "BLOCK"]

_REVIEW = (
    f"{SCHEMA_INFERRED} ends with a review: name the reviewed schema in schema_file, or set "
    "on_missing_schema: bootstrap"
)

NEVER_LOWERED = ("COMPARISON_NOT_DONE", "BASELINE_MISSING", "QUARANTINE_SHARE_HIGH", SCHEMA_INFERRED)
"""Kinds of findings that no rule of ``severity`` lowers; the first two mean that nothing was compared."""


def _parse_day(value: object) -> object:
    """Reject a number, which pydantic would read as seconds since 1970."""
    if isinstance(value, str | date):
        return value
    raise ValueError("must be a date such as 2026-01-31")


Day = Annotated[date, BeforeValidator(_parse_day)]


class DriftLimit(Section):
    """Drift limit of one column."""

    comparator: Literal["jensen_shannon_divergence", "infinity_norm"] = Field(
        description="L-infinity is for strings only."
    )
    threshold: Fraction = Field(description="Largest distance that passes.")


class VolumeLimits(Section):
    """Limits on the number of rows, relative to the baseline."""

    min_ratio: float = Field(0.5, ge=0, description="Fewest rows, as a multiple of the baseline's.")
    max_ratio: float = Field(2.0, gt=0, description="Most rows, as a multiple of the baseline's.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ratio > self.max_ratio:
            raise ValueError(f"min_ratio {self.min_ratio:g} is above max_ratio {self.max_ratio:g}")
        return self


class SeverityRule(Section):
    """Severity of a kind of finding."""

    kind: Name = Field(description="Finding, such as `SCHEMA_NEW_COLUMN`; `*` matches any text.")
    column: Name | None = Field(None, description="Column. Default: any.")
    against: Literal["previous", "baseline", "serving"] | None = Field(None, description="Default: any.")
    severity: Severity = Field(description="Report only, wait for a person, or fail the data.")

    @model_validator(mode="after")
    def _not_waved_through(self) -> Self:
        if self.kind == SCHEMA_INFERRED and self.severity == "WARN":
            raise ValueError(_REVIEW)
        if self.kind in NEVER_LOWERED and self.severity == "WARN":
            raise ValueError(
                f"{self.kind} needs severity HOLD or BLOCK, found WARN; to ignore it use suppressions"
            )
        return self


class Suppression(Section):
    """Known finding to ignore until a date."""

    kind: Name = Field(description="Finding, such as `SCHEMA_NEW_COLUMN`; `*` matches any text.")
    column: Name | None = Field(None, description="Column. Default: any.")
    against: Literal["previous", "baseline", "serving"] | None = Field(None, description="Default: any.")
    reason: Name = Field(description="Reason, shown in reports.")
    until: Day = Field(description="Last day of data, in UTC.")

    @model_validator(mode="after")
    def _can_be_ignored(self) -> Self:
        if self.kind == SCHEMA_INFERRED:
            raise ValueError(_REVIEW)
        return self


class ServingLog(Section):
    """Rows as they were served, in files: compared with the features of the training set."""

    source: Name = Field(description="File, folder or glob; `{date}`, `{date:%Y/%m}`: the run's.")
    format: Literal["auto", "parquet", "csv", "jsonl"] = Field("auto", description="`auto`: by name.")
    columns: dict[Name, Name] = Field({}, description="Column of the log by feature, where names differ.")


class Quarantine(Section):
    """Limit on the rows to remove because they violate the schema."""

    max_share: Fraction = Field(description="Largest fraction of a split to remove.")


class Validation(Section):
    """Limits on the schema, quality and drift of the data."""

    current: Name = Field("evaluate", description="Split to check for drift.")
    previous: Name = Field("train", description="Split to compare it with.")
    trained_on: Name | None = Field(None, description="Training split. Default: `previous`.")
    serving: Name | None = Field(None, description="Split of rows logged in serving.")
    serving_log: ServingLog | None = Field(None, description="The same, as files of their own.")
    baseline: str = Field("", description="`baseline.json` of the production model: file or URI.")
    on_missing_baseline: Literal["hold", "fail", "bootstrap", "skip"] = Field(
        "hold", description="`bootstrap`: pass the first data."
    )
    on_missing_schema: Literal["hold", "bootstrap"] = Field(
        "hold", description="`bootstrap`: write the inferred schema to `schema_file`, for later runs."
    )
    on_data_hold: Literal["train", "stop"] = Field("train", description="What the pipeline does on HOLD.")
    numeric_threshold: Fraction = Field(0.1, description="Jensen-Shannon limit of numeric columns.")
    categorical_threshold: Fraction = Field(0.05, description="L-infinity limit of string columns.")
    missing_threshold: Fraction = Field(0.05, description="Largest change of the fraction missing.")
    new_values_threshold: Fraction = Field(0.05, description="Largest fraction of rows with unseen values.")
    volume: VolumeLimits = Field(VolumeLimits(), description="Limits on the rows of `trained_on`.")
    min_label_share: Fraction = Field(0.0, description="Smallest fraction of each label value.")
    false_alarm_rate: float = Field(0.01, gt=0, lt=1, description="Probability that clean data is held.")
    drift: dict[Name, DriftLimit] = Field({}, description="Limits by column.")
    ignore: tuple[Name, ...] = Field((), description="Columns not to compare, such as the time.")
    severity: tuple[SeverityRule, ...] = Field((), description="Changed severities; the last match applies.")
    suppressions: tuple[Suppression, ...] = Field((), description="Findings to ignore.")
    kinds: tuple[TargetKind, ...] = Field((), description="Kinds of label with all metrics; a run adds them.")
    joined: tuple[Name, ...] = Field((), description="Joined features that rules name; a run adds them.")
    quarantine: Quarantine | None = Field(None, description="Remove rows that violate the schema.")
    statistics_store: Name | None = Field(None, description="Folder or URI that caches statistics.")
    engine: DataEngine = Field(
        DataEngine(), validation_alias=ENGINE, description="Engine that computes the statistics."
    )

    def stops(self, decision: str) -> bool:
        """Tell whether a decision about the data ends the run before the training."""
        return decision == "FAIL" or (decision == "HOLD" and self.on_data_hold == "stop")
