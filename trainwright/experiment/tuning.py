"""Section ``tuning``: search space, sampler, pruner, budget, and confirmation of the winner."""

from collections.abc import Iterator
from typing import Literal, Self, TypeAlias

from pydantic import Field, JsonValue, model_validator

from trainwright.documents import canonical
from trainwright.experiment.section import Name, Section

_Range: TypeAlias = tuple[float, float]
_Whole: TypeAlias = tuple[int, int]
_Value: TypeAlias = bool | int | float | str
Metric: TypeAlias = Literal[
    "held_out_loss", "held_out_auc", "held_out_accuracy", "held_out_rmse", "train_loss"
]

MAXIMIZED = frozenset({"held_out_auc", "held_out_accuracy"})
"""Metrics of which more is better."""


class Dimension(Section):
    """Values of one searched key: exactly one of `float`, `int` and `choice`."""

    float: _Range | None = Field(None, description="Smallest and largest number.")
    int: _Whole | None = Field(None, description="Smallest and largest integer.")
    choice: tuple[JsonValue, ...] | None = Field(None, min_length=1, description="List of values.")
    log: bool = Field(False, description="Search on a logarithmic scale.")
    when: dict[Name, tuple[_Value, ...]] = Field(
        {}, description="Search it only where other searched keys have these values."
    )

    @model_validator(mode="after")
    def _one_range(self) -> Self:
        given = [name for name in ("float", "int", "choice") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs one of float, int and choice; found {', '.join(given) or 'none'}")
        texts = [canonical(value) for value in self.choice or ()]
        if repeated := [text for index, text in enumerate(texts) if text in texts[:index]]:
            raise ValueError(f"choice has {', '.join(repeated)} twice")
        bounds = self.float or self.int
        if bounds and not bounds[0] < bounds[1]:
            raise ValueError(
                f"{given[0]} is from {bounds[0]:g} to {bounds[1]:g}; write the smaller one first"
            )
        if self.log and (bounds is None or bounds[0] <= 0):
            found = f"from {bounds[0]:g}" if bounds else "of choices"
            raise ValueError(f"log needs a range above 0; found one {found}")
        return self


class Pruner(Section):
    """Successive halving: trials pause at rungs, and only the best continue."""

    kind: Literal["none", "asha", "hyperband"] = Field("asha", description="`none`: train every trial fully.")
    reduction: int = Field(2, ge=2, le=10, description="One in so many trials continues at a rung.")
    rungs: int = Field(3, ge=2, le=6, description="Rungs; the first is after 1 / `reduction`^(`rungs`-1).")


class Confirm(Section):
    """Comparison of the best trials with the default configuration, on new seeds."""

    top: int = Field(2, ge=0, le=10, description="Best trials to train again. 0: no confirmation.")
    seeds: int = Field(7, ge=2, le=50, description="Trainings of each, with seeds that no trial had.")
    level: float = Field(0.05, gt=0, lt=0.5, description="Level of the test, after Holm.")

    @model_validator(mode="after")
    def _can_show_something(self) -> Self:
        least = self.top * 2.0 ** (1 - self.seeds)
        if self.top and least > self.level:
            raise ValueError(
                f"{self.seeds} seeds can give no p-value below {least:.3g} for {self.top} trials, and level "
                f"is {self.level:g}; use more seeds or a smaller top"
            )
        return self


class Tuning(Section):
    """Hyperparameter search by `tune_and_register`."""

    space: dict[Name, Dimension] = Field(
        min_length=1, description="Searched keys, such as `training.learning_rate`."
    )
    sampler: Literal["tpe", "random", "grid", "cmaes"] = Field("tpe", description="Optuna's sampler.")
    pruner: Pruner = Field(Pruner(), description="Early end of weak trials.")
    trials: int = Field(20, ge=1, le=10_000, description="Number of trials.")
    parallel: int = Field(1, ge=1, le=256, description="Most trials at a time.")
    metric: Metric = Field("held_out_loss", description="Metric on held-out rows.")
    seed: int = Field(0, ge=0, description="Seed of the sampler.")
    hours: float | None = Field(None, gt=0, description="Start no trial after so long.")
    cost: float | None = Field(None, gt=0, description="Or after so much, by `run.prices`.")
    job_hour: float | None = Field(
        None, ge=0, description="Price of an hour of a trial's job. Default: by `run.prices`."
    )
    study: Name | None = Field(
        None, description="Name to continue it in a later run. Default: the run's own."
    )
    storage: Name | None = Field(
        None, description="Folder of named studies. Default: on the shared volume of a cluster."
    )
    confirm: Confirm = Field(Confirm(), description="Confirmation of the winner.")

    @model_validator(mode="after")
    def _samplable(self) -> Self:
        problems = [problem for key in self.space for problem in self._condition_problems(key)]
        if self.sampler == "grid":
            ranges = [key for key, one in self.space.items() if one.float is not None]
            problems += [f"space.{key} is continuous, and sampler grid needs choice or int" for key in ranges]
        if self.sampler == "cmaes" and self.pruner.kind != "none":
            problems.append(
                "sampler cmaes learns from whole trainings only; set pruner.kind none, or use tpe"
            )
        if self.sampler == "cmaes" and any(one.when or one.choice for one in self.space.values()):
            problems.append("sampler cmaes searches ranges only, without choice and when; use tpe")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _condition_problems(self, key: str) -> Iterator[str]:
        for other, values in self.space[key].when.items():
            if other not in self.space or other == key:
                yield f"space.{key}.when names {other!r}, which is not another searched key"
            elif (choices := self.space[other].choice) is None:
                yield f"space.{key}.when names {other}, which has no choice"
            elif unknown := [value for value in values if value not in choices]:
                yield f"space.{key}.when.{other} is {unknown}, not among {list(choices)}"
            elif self.space[other].when:
                yield f"space.{key}.when names {other}, which is conditional itself"

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Direction of the metric."""
        return "maximize" if self.metric in MAXIMIZED else "minimize"
