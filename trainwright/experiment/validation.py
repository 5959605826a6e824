"""Section ``validation``: what the data must look like, and how far it may have moved."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from trainwright.experiment.data import Runner
from trainwright.experiment.section import Fraction, Name, Section

Severity = Literal["WARN", "HOLD", "BLOCK"]

NEVER_LOWERED = ("COMPARISON_NOT_DONE", "BASELINE_MISSING", "QUARANTINE_SHARE_HIGH")
"""Kinds that no rule of ``severity`` makes milder: the first two would be a pass that nobody gave."""


def _day(value: object) -> object:
    """Read a day as it is written out; pydantic would take a number for seconds since 1970."""
    if isinstance(value, str | date):
        return value
    raise ValueError("a day is written as 2026-01-31")


Day = Annotated[date, BeforeValidator(_day)]


class DriftLimit(Section):
    """How far one column may move before it counts as drift."""

    comparator: Literal["jensen_shannon_divergence", "infinity_norm"] = Field(
        description="Jensen-Shannon divergence (any column, base 2) or L-infinity (strings only)."
    )
    threshold: Fraction = Field(description="Largest accepted distance; equal passes.")


class Volume(Section):
    """How many rows there may be for each row of the baseline."""

    min_ratio: float = Field(0.5, ge=0, description="Fewest rows, as a multiple of the baseline's.")
    max_ratio: float = Field(2.0, gt=0, description="Most rows, as a multiple of the baseline's.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ratio > self.max_ratio:
            raise ValueError(f"min_ratio {self.min_ratio:g} is above max_ratio {self.max_ratio:g}")
        return self


class Gravity(Section):
    """How grave one kind of finding is, in all columns or in one."""

    kind: Name = Field(description="Kind of finding, such as SCHEMA_NEW_COLUMN; * stands for any letters.")
    column: Name | None = Field(None, description="Only in this column; any if absent.")
    against: Literal["previous", "baseline", "serving"] | None = Field(
        None, description="Only of this comparison; any if absent."
    )
    severity: Severity = Field(description="WARN is only told, HOLD asks a person, BLOCK refuses the data.")

    @model_validator(mode="after")
    def _not_waved_through(self) -> Self:
        if self.kind in NEVER_LOWERED and self.severity == "WARN":
            raise ValueError(f"{self.kind} is never only told; suppress it, with a reason and an end")
        return self


class Suppression(Section):
    """A finding that a person knows of, and that does not count until a day."""

    kind: Name = Field(description="Kind of finding, such as SCHEMA_NEW_COLUMN; * stands for any letters.")
    column: Name | None = Field(None, description="Only in this column; any if absent.")
    against: Literal["previous", "baseline", "serving"] | None = Field(
        None, description="Only of this comparison; any if absent."
    )
    reason: Name = Field(description="Why it does not count; shown wherever it does not.")
    until: Day = Field(description="Last day of the data for which it does not count, in UTC.")


class Quarantine(Section):
    """Rows that violate the schema are taken out, as long as they are few."""

    max_share: Fraction = Field(description="Most rows taken out, as a share of a split's; beyond it FAIL.")


class Validation(Section):
    """What the data must look like, and how far it may have moved since the previous span."""

    current: Name = Field("evaluate", description="Split that is judged for drift.")
    previous: Name = Field("train", description="Split it is compared with: the previous span.")
    trained_on: Name | None = Field(
        None, description="Split that the model learns from; `previous` if absent."
    )
    serving: Name | None = Field(
        None, description="Split with rows as they were served; compared with `trained_on`."
    )
    baseline: str = Field(
        "", description="Accepted baseline.json of the model in production: a file or a URI."
    )
    on_missing_baseline: Literal["hold", "fail", "bootstrap", "skip"] = Field(
        "hold",
        description="Where no baseline is named: hold or fail the data, say that it is the first, or do not ask.",
    )
    numeric_threshold: Fraction = Field(0.1, description="Jensen-Shannon limit of numeric columns.")
    categorical_threshold: Fraction = Field(0.05, description="L-infinity limit of string columns.")
    missing_threshold: Fraction = Field(0.05, description="Limit on the change of the share without value.")
    new_values_threshold: Fraction = Field(
        0.05, description="Limit on the share of rows with a value never seen before."
    )
    volume: Volume = Field(
        default_factory=Volume, description="Rows of `trained_on` for each row of the baseline."
    )
    min_label_share: Fraction = Field(0.0, description="Smallest accepted share of any value of the label.")
    false_alarm_rate: float = Field(0.01, gt=0, lt=1, description="Chance that clean data is held.")
    drift: dict[Name, DriftLimit] = Field(default_factory=dict, description="Limits for single columns.")
    ignore: tuple[Name, ...] = Field((), description="Columns not compared, such as the time itself.")
    severity: tuple[Gravity, ...] = Field(
        (), description="Kinds of findings that are graver or milder than usual; the last that fits counts."
    )
    suppressions: tuple[Suppression, ...] = Field((), description="Findings that do not count for now.")
    quarantine: Quarantine | None = Field(
        None, description="Take out rows that violate the schema; none are if absent."
    )
    statistics_store: Name | None = Field(
        None, description="Folder or URI that keeps statistics, so that none are taken twice."
    )
    runner: Runner = Field(default_factory=Runner, description="On what the statistics are taken.")
