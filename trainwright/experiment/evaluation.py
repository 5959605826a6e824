"""Section ``evaluation``: what the model must reach."""

import itertools
from typing import Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.metrics import LOWER, METRICS, known
from trainwright.experiment.section import Fraction, Name, Section

Pair = tuple[Name, Name]

_LIMITS = ("at_least", "at_most", "margin", "min_gain")


class ModelRule(Section):
    """One limit on one metric: of the model alone, or against the model in production."""

    metric: Name = Field(
        description="What is limited, such as auc, recall, log_loss, rmse or perplexity; recall/2 of one class."
    )
    at_least: float | None = Field(None, description="The whole interval must lie above this.")
    at_most: float | None = Field(None, description="The whole interval must lie below this.")
    margin: float | None = Field(
        None, gt=0, description="Not worse than the baseline by this much (non-inferiority)."
    )
    min_gain: float | None = Field(
        None, ge=0, description="Better than the baseline by more than this (superiority)."
    )
    scope: Literal["overall", "slice"] = Field(
        "overall", description="All rows at once, or every slice that is large enough."
    )
    by: tuple[Name, ...] = Field((), description="Only slices of these columns; of all `slices` if absent.")
    broken: Literal["fail", "hold"] = Field("fail", description="What a rule that is surely broken decides.")
    undecided: Literal["hold", "warn"] = Field(
        "hold", description="A rule that the rows cannot decide is INCONCLUSIVE (hold), or only told (warn)."
    )

    @model_validator(mode="after")
    def _one_limit_that_makes_sense(self) -> Self:
        metric = known(self.metric)
        if metric is None:
            raise ValueError(f"no metric {self.metric!r}; known are {', '.join(METRICS)}")
        if not metric.better:
            raise ValueError(f"neither more nor less {self.metric} is better; limit it by fairness")
        given = [name for name in _LIMITS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a rule on {self.metric} needs one of {', '.join(_LIMITS)}; it has {given}")
        wrong = "at_least" if metric.better == LOWER else "at_most"
        if given == [wrong]:
            right = "at_most" if wrong == "at_least" else "at_least"
            raise ValueError(f"a {metric.better} {self.metric} is better: give {right}, not {wrong}")
        if metric.fraction and not -1 <= self.limit <= 1:
            raise ValueError(f"{self.metric} lies in [0, 1]; {given[0]} is {self.limit:g}")
        if self.by and self.scope != "slice":
            raise ValueError("by needs scope: slice")
        least = self.at_least if self.min_gain is None else self.min_gain
        if least is not None and metric.fraction and not 0 <= least < 1:
            raise ValueError(
                f"{self.metric} lies in [0, 1]; no model is above {given[0]} {least:g}, or all are"
            )
        if self.at_most is not None and self.at_most <= 0:
            raise ValueError(f"no model has a {self.metric} below {self.at_most:g}")
        return self

    @property
    def kind(self) -> Literal["absolute", "non_inferiority", "superiority"]:
        """What the limit is held against."""
        if self.margin is not None:
            return "non_inferiority"
        return "superiority" if self.min_gain is not None else "absolute"

    @property
    def limit(self) -> float:
        """The number that was given."""
        given = (self.at_least, self.at_most, self.margin, self.min_gain)
        return next(value for value in given if value is not None)


Disparity = Literal[
    "selection_rate_difference",
    "selection_rate_ratio",
    "equal_opportunity",
    "equalized_odds",
    "calibration_gap",
]


class Fairness(Section):
    """How unequally groups may be treated. The measures are those of Fairlearn."""

    by: tuple[Name, ...] = Field(min_length=1, description="Columns that name groups, such as sex and race.")
    intersections: bool = Field(True, description="Also compare the groups of two columns crossed.")
    against: Literal["groups", "overall"] = Field(
        "groups", description="Compare groups with each other, or each with the whole."
    )
    limits: dict[Disparity, Fraction] = Field(
        default_factory=dict,
        description="Largest accepted value by measure; of the ratio the smallest (four-fifths: 0.8).",
    )
    worsening: dict[Disparity, Fraction] = Field(
        default_factory=dict, description="By how much a measure may be worse than the baseline's."
    )
    group_minimum: dict[Name, float] = Field(
        default_factory=dict, description="What a metric must reach in every group, such as recall: 0.5."
    )
    broken: Literal["fail", "hold"] = Field("hold", description="What a limit that is surely broken decides.")

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if not (self.limits or self.worsening or self.group_minimum):
            raise ValueError("fairness without a limit: give limits, worsening or group_minimum")
        for name in self.group_minimum:
            metric = known(name)
            if metric is None or metric.better in ("", LOWER):
                raise ValueError(f"group_minimum names {name!r}; it takes metrics of which more is better")
            if metric.fraction and not 0 <= self.group_minimum[name] < 1:
                raise ValueError(f"{name} lies in [0, 1]; group_minimum is {self.group_minimum[name]:g}")
        return self

    @property
    def groupings(self) -> tuple[tuple[str, ...], ...]:
        """Columns, and pairs of them, whose groups are compared."""
        pairs = tuple(itertools.combinations(self.by, 2)) if self.intersections else ()
        return (*((name,) for name in self.by), *pairs)


class Overfitting(Section):
    """By how much the model may be better on the rows that it was fitted on."""

    at_most: float = Field(ge=0, description="Largest accepted difference, in the metric's own unit.")
    metric: Name = Field("auc", description="What is compared.")
    split: Name = Field(
        "train", description="Split that it was fitted on; training.predict must name it too."
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        metric = known(self.metric)
        if metric is None or not metric.better:
            raise ValueError(f"no metric {self.metric!r} with a better side; known are {', '.join(METRICS)}")
        return self


class Evaluation(Section):
    """What the model must reach before it is registered."""

    split: Name = Field(
        "evaluate", description="Split that is judged; neither learned from nor watched to end the training."
    )
    threshold: Fraction | Literal["model"] = Field(
        0.5, description="A score of at least this predicts label 1; `model`: the one that the model carries."
    )
    rules: tuple[ModelRule, ...] = Field(
        (), description="What must hold. Two classes and no rule at all: an AUC above 0.5."
    )
    slices: tuple[Name, ...] = Field(
        (), max_length=20, description="Columns whose values are looked at one by one."
    )
    crosses: tuple[Pair, ...] = Field((), max_length=20, description="Pairs of columns, such as [sex, race].")
    max_slices: int = Field(
        50, ge=2, le=500, description="Most slices of a column or a pair; rarer values share one."
    )
    min_rows: int = Field(200, ge=1, description="Slices with fewer rows are listed, not judged.")
    min_positives: int = Field(30, ge=1, description="Slices with fewer positives are listed, not judged.")
    min_negatives: int = Field(30, ge=1, description="Slices with fewer negatives are listed, not judged.")
    small_slices: Literal["warn", "hold", "block"] = Field(
        "warn", description="What slices that are too small to be judged decide."
    )
    fairness: Fairness | None = Field(None, description="Limits between groups; not looked at if absent.")
    overfitting: Overfitting | None = Field(
        None, description="Limit on the gap to the rows it was fitted on; not looked at if absent."
    )
    missing_baseline: Literal["fail", "hold", "bootstrap"] = Field(
        "hold",
        description="Where a rule needs a model in production and there is none: refuse, hold, or be the first.",
    )
    cluster: Name | None = Field(
        None, description="Column of what was drawn together, such as a customer; rows count alone if absent."
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Of every interval, two-sided.")
    resamples: int = Field(2000, ge=200, le=100_000, description="Draws of the bootstrap.")
    seed: int = Field(0, ge=0, description="Of those draws.")
    min_auc: Fraction | None = Field(None, description="Short for the rule {metric: auc, at_least: …}.")
    max_recall_gap: Fraction | None = Field(
        None, description="Largest accepted gap of recall between the slices of every column."
    )
    recall_gaps: dict[Name, Fraction] = Field(
        default_factory=dict,
        description="Limits for the slices of single columns, instead of max_recall_gap.",
    )
    max_calibration_error: Fraction | None = Field(
        None, description="Largest accepted expected calibration error."
    )

    @model_validator(mode="after")
    def _judges_new_rows(self) -> Self:
        if self.overfitting and self.overfitting.split == self.split:
            raise ValueError(
                f"split {self.split!r} is what the model was fitted on, as overfitting.split says; judge another"
            )
        return self

    @model_validator(mode="after")
    def _limits_have_slices(self) -> Self:
        if self.min_auc == 1:
            raise ValueError("no model has an AUC above 1; min_auc is 1")
        if unknown := sorted(self.recall_gaps.keys() - set(self.slices)):
            raise ValueError(f"recall_gaps names {unknown}; slices are {list(self.slices)}")
        if self.max_recall_gap is not None and not self.slices:
            raise ValueError("max_recall_gap is the largest gap between slices, and there are no slices")
        for rule in self.rules:
            if unknown := sorted(set(rule.by) - set(self.slices)):
                raise ValueError(f"a rule on {rule.metric} names {unknown}; slices are {list(self.slices)}")
            if rule.scope == "slice" and not (self.slices or self.crosses):
                raise ValueError(f"a rule on {rule.metric} has scope: slice, and there are no slices")
        if same := [pair for pair in self.crosses if pair[0] == pair[1]]:
            raise ValueError(f"crosses names {same[0][0]!r} with itself")
        return self

    def recall_gap(self, column: str) -> float | None:
        """Return the largest accepted gap of recall between the slices of a column; None for no limit."""
        return self.recall_gaps.get(column, self.max_recall_gap)

    @property
    def all_rules(self) -> tuple[ModelRule, ...]:
        """The rules, and those that are written short."""
        short = () if self.min_auc is None else (ModelRule(metric="auc", at_least=self.min_auc),)
        return (*short, *self.rules)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column beside label and scores that is needed, once each."""
        crossed = itertools.chain.from_iterable(self.crosses)
        fair = self.fairness.by if self.fairness else ()
        cluster = (self.cluster,) if self.cluster else ()
        return tuple(dict.fromkeys([*self.slices, *crossed, *fair, *cluster]))

    @property
    def groupings(self) -> tuple[tuple[str, ...], ...]:
        """Columns and pairs of columns that slices are cut from, in the order asked."""
        return (*((name,) for name in self.slices), *self.crosses)
