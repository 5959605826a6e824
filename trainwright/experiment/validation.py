"""Section ``validation``: what the data must look like, and how far it may have moved."""

from typing import Literal

from pydantic import Field

from trainwright.experiment.section import Fraction, Name, Section


class DriftLimit(Section):
    """How far one column may move before it counts as drift."""

    comparator: Literal["jensen_shannon_divergence", "infinity_norm"] = Field(
        description="Jensen-Shannon divergence (any column, base 2) or L-infinity (strings only)."
    )
    threshold: Fraction = Field(description="Largest accepted distance; equal passes.")


class Validation(Section):
    """What the data must look like, and how far it may have moved since the previous span."""

    current: Name = Field("evaluate", description="Split that is judged for drift.")
    previous: Name = Field("train", description="Split it is compared with: the previous span.")
    numeric_threshold: Fraction = Field(0.1, description="Jensen-Shannon limit of numeric columns.")
    categorical_threshold: Fraction = Field(0.05, description="L-infinity limit of string columns.")
    missing_threshold: Fraction = Field(0.05, description="Limit on the change of the share without value.")
    false_alarm_rate: float = Field(0.01, gt=0, lt=1, description="Chance that clean data is held.")
    drift: dict[Name, DriftLimit] = Field(default_factory=dict, description="Limits for single columns.")
    ignore: tuple[Name, ...] = Field((), description="Columns not compared, such as the time itself.")
