"""Section ``triggers`` of a schedule: the conditions under which it starts its pipeline."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from trainwright.experiment.section import Name, Section

Days = Annotated[int, Field(ge=1)]


class MonitoredMetric(Section):
    """Limit on a metric that a monitor logs to the MLflow run of the version in production."""

    name: Name = Field(description="Metric; its newest value counts.")
    at_least: float | None = Field(None, description="Smallest accepted value.")
    at_most: float | None = Field(None, description="Largest accepted value, such as of an error.")
    within_days: Days = Field(7, description="Greatest age of the value; an older one is an error.")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("needs either at_least or at_most")
        return self


class Triggers(Section):
    """Conditions of which one starts the pipeline, and limits on how often."""

    new_data: bool = Field(True, description="The source has bytes that nothing was trained on.")
    drift: bool = Field(False, description="`validation.serving_log` moved from `validation.baseline`.")
    max_age_days: Days | None = Field(None, description="The newest version is older.")
    metric: MonitoredMetric | None = Field(None, description="A monitored metric is beyond its limit.")
    cool_down_days: Days = Field(1, description="Fewest days from one start to the next.")
    max_runs: Days = Field(10, description="Most starts within `period_days`.")
    period_days: Days = Field(30, description="Days that `max_runs` counts, this one included.")

    @model_validator(mode="after")
    def _some_condition(self) -> Self:
        if not (self.new_data or self.drift or self.max_age_days or self.metric):
            raise ValueError("no condition: set new_data, drift, max_age_days or metric")
        return self


class StartedBy(Section):
    """The trigger that started a run, and why; it sets this itself."""

    trigger: Name = Field(description="Owner and name of the schedule.")
    date: Name = Field(description="Date that it started the run for.")
    source: str = Field("", description="Digest of the source at that time.")
    reason: Name = Field(description="Conditions that held, with their numbers.")
