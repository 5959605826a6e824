"""Section ``evaluation``: metrics, rules, slices and fairness limits that the model must meet."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from trainwright.experiment.data import DataEngine
from trainwright.experiment.section import Fraction, Name, Section

HIGHER, LOWER = "higher", "lower"

BINARY, MULTICLASS, REGRESSION, LANGUAGE = "binary", "multiclass", "regression", "language_model"


@dataclass(frozen=True)
class Metric:
    """A metric: kinds of label that it is defined for, which is better, and whether it lies in [0, 1].

    ``better`` is empty where neither is, and no rule may name it.
    """

    kinds: tuple[str, ...]
    better: str
    fraction: bool = True


_CLASSES = (BINARY, MULTICLASS)

METRICS = {
    "auc": Metric((BINARY,), HIGHER),
    "average_precision": Metric((BINARY,), HIGHER),
    "accuracy": Metric(_CLASSES, HIGHER),
    "recall": Metric((BINARY,), HIGHER),
    "precision": Metric((BINARY,), HIGHER),
    "f1": Metric((BINARY,), HIGHER),
    "false_positive_rate": Metric((BINARY,), LOWER),
    "selection_rate": Metric((BINARY,), ""),
    "macro_auc": Metric((MULTICLASS,), HIGHER),
    "macro_recall": Metric((MULTICLASS,), HIGHER),
    "macro_precision": Metric((MULTICLASS,), HIGHER),
    "macro_f1": Metric((MULTICLASS,), HIGHER),
    "micro_f1": Metric((MULTICLASS,), HIGHER),
    "log_loss": Metric(_CLASSES, LOWER, fraction=False),
    "brier": Metric(_CLASSES, LOWER, fraction=False),
    "calibration_error": Metric(_CLASSES, LOWER),
    "mae": Metric((REGRESSION,), LOWER, fraction=False),
    "rmse": Metric((REGRESSION,), LOWER, fraction=False),
    "r2": Metric((REGRESSION,), HIGHER, fraction=False),
    "coverage": Metric((REGRESSION,), HIGHER),
    "loss": Metric((LANGUAGE,), LOWER, fraction=False),
    "perplexity": Metric((LANGUAGE,), LOWER, fraction=False),
}
"""Metrics by name. ``recall/2`` or ``recall/setosa`` is the metric of one of several classes."""

_PER_CLASS = ("recall", "precision", "f1", "auc")
"""Metrics that are also defined for one of several classes."""


def find_metric(name: str) -> Metric | None:
    """Return the metric with this name, or None."""
    base, _, of_class = name.partition("/")
    if of_class:
        return Metric((MULTICLASS,), HIGHER) if base in _PER_CLASS else None
    return METRICS.get(name)


def name_class(metric: str, classes: Sequence[str]) -> str:
    """Return a metric with the name of its class for its number, ``recall/2``; empty for an unknown class."""
    base, _, of_class = metric.partition("/")
    if not of_class or of_class in classes:
        return metric
    known = of_class.isdecimal() and int(of_class) < len(classes)
    return f"{base}/{classes[int(of_class)]}" if known else ""


def names_for(kind: str) -> list[str]:
    """Return the metrics that a rule may name, for one kind of label."""
    return [name for name, metric in METRICS.items() if kind in metric.kinds and metric.better]


Pair = tuple[Name, Name]

_LIMITS = ("at_least", "at_most", "margin", "min_gain")
"""Keys of a rule of which exactly one is set."""


class ModelRule(Section):
    """Limit on one metric: absolute, or relative to the production model."""

    metric: Name = Field(
        description="Metric, such as auc or rmse; of one of several classes `recall/setosa`."
    )
    at_least: float | None = Field(None, description="The confidence interval must lie above.")
    at_most: float | None = Field(None, description="The confidence interval must lie below.")
    margin: float | None = Field(None, gt=0, description="Largest loss to the baseline (non-inferiority).")
    min_gain: float | None = Field(None, ge=0, description="Smallest gain over the baseline (superiority).")
    scope: Literal["overall", "slice"] = Field("overall", description="All rows, or each large enough slice.")
    by: tuple[Name, ...] = Field((), description="Slices of these columns. Default: all `slices`.")
    broken: Literal["fail", "hold"] = Field("fail", description="Decision on a violation.")
    undecided: Literal["hold", "warn"] = Field("hold", description="With too few rows: INCONCLUSIVE or warn.")

    @model_validator(mode="after")
    def _one_limit_that_makes_sense(self) -> Self:
        metric = find_metric(self.metric)
        if metric is None:
            raise ValueError(f"no metric {self.metric!r}; known are {', '.join(METRICS)}")
        if not metric.better:
            raise ValueError(f"neither a higher nor a lower {self.metric} is better; limit it with fairness")
        found = [name for name in _LIMITS if getattr(self, name) is not None]
        if len(found) != 1:
            raise ValueError(f"a rule on {self.metric} needs one of {', '.join(_LIMITS)}; it has {found}")
        wrong = "at_least" if metric.better == LOWER else "at_most"
        if found == [wrong]:
            right = "at_most" if wrong == "at_least" else "at_least"
            raise ValueError(f"a {metric.better} {self.metric} is better: set {right}, not {wrong}")
        if metric.fraction and not -1 <= self.limit <= 1:
            raise ValueError(f"{self.metric} lies in [0, 1]; {found[0]} is {self.limit:g}")
        if self.by and self.scope != "slice":
            raise ValueError(f"by {list(self.by)} needs scope slice; scope is {self.scope}")
        least = self.at_least if self.min_gain is None else self.min_gain
        if least is not None and metric.fraction and not 0 <= least < 1:
            raise ValueError(
                f"{self.metric} lies in [0, 1]; with {found[0]} {least:g} no model passes, or every model"
            )
        if self.at_most is not None and self.at_most <= 0:
            raise ValueError(
                f"at_most is {self.at_most:g}, but no model has a {self.metric} below 0; raise it"
            )
        return self

    @property
    def kind(self) -> Literal["absolute", "non_inferiority", "superiority"]:
        """Kind of comparison."""
        if self.margin is not None:
            return "non_inferiority"
        return "superiority" if self.min_gain is not None else "absolute"

    @property
    def limit(self) -> float:
        """The limit that is set."""
        limits = (self.at_least, self.at_most, self.margin, self.min_gain)
        return next(value for value in limits if value is not None)


Disparity = Literal[
    "selection_rate_difference",
    "selection_rate_ratio",
    "equal_opportunity",
    "equalized_odds",
    "calibration_gap",
]


class Fairness(Section):
    """Limits on differences between groups, with the measures of Fairlearn."""

    by: tuple[Name, ...] = Field(min_length=1, description="Columns that define groups.")
    intersections: bool = Field(True, description="Also compare pairs of columns.")
    against: Literal["groups", "overall"] = Field(
        "groups", description="Compare with each other or all rows."
    )
    limits: dict[Disparity, Fraction] = Field({}, description="Largest value; smallest for the ratio (0.8).")
    worsening: dict[Disparity, Fraction] = Field({}, description="Largest worsening by measure.")
    group_minimum: dict[Name, float] = Field({}, description="Smallest metric in every group.")
    broken: Literal["fail", "hold"] = Field("hold", description="Decision on a violation.")

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if not (self.limits or self.worsening or self.group_minimum):
            raise ValueError("fairness has no limit; set limits, worsening or group_minimum")
        for name in self.group_minimum:
            metric = find_metric(name)
            if metric is None or metric.better in ("", LOWER):
                raise ValueError(f"group_minimum names {name!r}; it takes metrics of which higher is better")
            if metric.fraction and not 0 <= self.group_minimum[name] < 1:
                raise ValueError(f"{name} lies in [0, 1]; group_minimum is {self.group_minimum[name]:g}")
        return self

    @property
    def groupings(self) -> tuple[tuple[str, ...], ...]:
        """Columns and pairs of columns whose groups are compared."""
        pairs = tuple(itertools.combinations(self.by, 2)) if self.intersections else ()
        return (*((name,) for name in self.by), *pairs)


class Overfitting(Section):
    """Limit on the gap between the training split and the evaluated split."""

    at_most: float = Field(ge=0, description="Largest gap, in the metric's unit.")
    metric: Name | None = Field(None, description="Metric. Default: auc, macro_auc, rmse or loss.")
    split: Name = Field("train", description="Training split; list it in `training.predict` too.")

    @model_validator(mode="after")
    def _find_metric(self) -> Self:
        metric = find_metric(self.metric) if self.metric else METRICS["auc"]
        if metric is None or not metric.better:
            raise ValueError(
                f"no metric {self.metric!r} of which higher or lower is better; known are {', '.join(METRICS)}"
            )
        return self


class Evaluation(Section):
    """Requirements on the model before it is registered."""

    split: Name = Field("evaluate", description="Split to evaluate; not trained on or watched.")
    threshold: Fraction | Literal["model"] = Field(0.5, description="Smallest score of 1; `model`: its own.")
    rules: tuple[ModelRule, ...] = Field((), description="Limits on metrics.")
    constant_prediction: Literal["fail", "hold", "warn"] = Field(
        "fail", description="Decision on a model whose loss is not below that of a constant prediction."
    )
    slices: tuple[Name, ...] = Field((), max_length=20, description="Columns to slice by.")
    crosses: tuple[Pair, ...] = Field((), max_length=20, description="Pairs of columns to slice by.")
    max_slices: int = Field(50, ge=2, le=500, description="Most slices per column or pair; others share one.")
    min_rows: int = Field(200, ge=1, description="Smaller slices are listed, not judged.")
    min_positives: int = Field(30, ge=1, description="The same for label 1.")
    min_negatives: int = Field(30, ge=1, description="The same for label 0.")
    small_slices: Literal["warn", "hold", "block"] = Field("warn", description="Effect of too small slices.")
    fairness: Fairness | None = Field(None, description="Limits between groups.")
    overfitting: Overfitting | None = Field(None, description="Limit on the gap to the training split.")
    missing_baseline: Literal["fail", "hold", "bootstrap"] = Field(
        "hold", description="Decision without a production model."
    )
    cluster: Name | None = Field(None, description="Column of dependent rows, such as the customer.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Level of the two-sided intervals.")
    resamples: int = Field(2000, ge=200, le=100_000, description="Bootstrap samples.")
    seed: int = Field(0, ge=0, description="Seed of the bootstrap.")
    min_auc: Fraction | None = Field(None, description="Short for `{metric: auc, at_least: …}`.")
    max_recall_gap: Fraction | None = Field(None, description="Largest gap of recall between slices.")
    recall_gaps: dict[Name, Fraction] = Field({}, description="The same by column.")
    max_calibration_error: Fraction | None = Field(None, description="Largest expected calibration error.")
    engine: DataEngine = Field(DataEngine(), description="Engine of `score` and `evaluate`.")

    @model_validator(mode="after")
    def _judges_new_rows(self) -> Self:
        if self.overfitting and self.overfitting.split == self.split:
            raise ValueError(
                f"split {self.split!r} is the training split, as overfitting.split says; evaluate another split"
            )
        return self

    @model_validator(mode="after")
    def _limits_have_slices(self) -> Self:
        if self.min_auc == 1:
            raise ValueError("min_auc is 1, but no model has an AUC above 1; lower it")
        if unknown := sorted(self.recall_gaps.keys() - set(self.slices)):
            raise ValueError(f"recall_gaps names {unknown}; slices are {list(self.slices)}")
        if self.max_recall_gap is not None and not self.slices:
            raise ValueError(
                f"max_recall_gap {self.max_recall_gap:g} compares slices, and slices is empty; name columns"
            )
        for rule in self.rules:
            if unknown := sorted(set(rule.by) - set(self.slices)):
                raise ValueError(f"a rule on {rule.metric} names {unknown}; slices are {list(self.slices)}")
            if rule.scope == "slice" and not (self.slices or self.crosses):
                raise ValueError(
                    f"a rule on {rule.metric} has scope: slice, and slices and crosses are empty"
                )
        if same := [pair for pair in self.crosses if pair[0] == pair[1]]:
            raise ValueError(f"crosses names {same[0][0]!r} with itself")
        return self

    def undefined_for(self, kind: str, classes: Sequence[str] = ()) -> list[str]:
        """Return what this section asks for that a kind of target does not have; left out, it would look kept.

        Args:
            kind: ``binary``, ``multiclass``, ``regression`` or ``language_model``.
            classes: Names of the classes; empty where they are not known yet.
        """
        named = [rule.metric for rule in self.all_rules]
        if self.overfitting and self.overfitting.metric:
            named.append(self.overfitting.metric)
        named += self.fairness.group_minimum if self.fairness else ()
        kinds = {name: metric.kinds for name in named if (metric := find_metric(name))}
        if self.max_recall_gap is not None or self.recall_gaps:
            kinds["max_recall_gap"] = (BINARY,)
        if self.max_calibration_error is not None:
            kinds["max_calibration_error"] = _CLASSES
        found = [
            f"{name} is not defined for a model of kind {kind}"
            for name, of in kinds.items()
            if kind not in of
        ]
        unknown = [name for name in named if classes and not name_class(name, classes)]
        found += [f"{name} names a class that does not exist in {list(classes)}" for name in unknown]
        if kind != BINARY and self.fairness and (self.fairness.limits or self.fairness.worsening):
            found.append(
                f"fairness.limits and worsening are measures of two classes, not of kind {kind}: take "
                "group_minimum, or a rule with scope: slice"
            )
        return found

    def recall_gap(self, column: str) -> float | None:
        """Return the largest gap of recall between the slices of a column, or None for no limit."""
        return self.recall_gaps.get(column, self.max_recall_gap)

    @property
    def all_rules(self) -> tuple[ModelRule, ...]:
        """The rules, with ``min_auc`` as one."""
        short = () if self.min_auc is None else (ModelRule(metric="auc", at_least=self.min_auc),)
        return (*short, *self.rules)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns needed beside label and scores, without duplicates."""
        crossed = itertools.chain.from_iterable(self.crosses)
        fair = self.fairness.by if self.fairness else ()
        cluster = (self.cluster,) if self.cluster else ()
        return tuple(dict.fromkeys([*self.slices, *crossed, *fair, *cluster]))

    @property
    def groupings(self) -> tuple[tuple[str, ...], ...]:
        """Columns and pairs of columns to slice by, in the configured order."""
        return (*((name,) for name in self.slices), *self.crosses)
