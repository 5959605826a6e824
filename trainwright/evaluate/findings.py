"""Findings of an evaluation: metrics, slices, disparities, plot data and rulings, as frozen data."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.documents import Document
from trainwright.experiment import Evaluation
from trainwright.significance import Estimate
from trainwright.verdicts import SEVERITY, NotJudged, Rule, worst

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class CurveLine:
    """A curve, thinned to at most 200 points; arrays of shape (points,).

    Attributes:
        x: Ascending.
        y: In [0, 1].
        threshold: Where a score counts as the class, finite.
    """

    x: Floats
    y: Floats
    threshold: Floats


@dataclass(frozen=True)
class CalibrationBins:
    """Scores against what was observed, in bins of about as many rows; arrays of shape (bins,).

    Attributes:
        score: Mean score, or mean estimate, ascending.
        observed: Share of the class, or mean of the label.
        low: Lower end of the 95 % interval of ``observed``.
        high: Its upper end.
        rows: Rows of each bin.
    """

    score: Floats
    observed: Floats
    low: Floats
    high: Floats
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """Counts between ``edges``; a series a class, or one of errors; shape (edges - 1,) each."""

    edges: Floats
    series: dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class PlotData:
    """Plot data of one model; a plot that its kind does not have is None or empty.

    Attributes:
        roc: By class (one for two classes): true over false positive rate.
        precision_recall: By class: precision over recall.
        calibration: By class, or one of a number: scores against what was observed.
        histogram: Scores by outcome, errors of a number, or losses of a language model.
    """

    roc: dict[str, CurveLine] = field(default_factory=dict)
    precision_recall: dict[str, CurveLine] = field(default_factory=dict)
    calibration: dict[str, CalibrationBins] = field(default_factory=dict)
    histogram: Histogram | None = None


@dataclass(frozen=True)
class GroupRates:
    """One group in a comparison of fairness: its name, its rows, and the rates that are compared.

    ``reason`` says why it is too small to be compared, and is empty if it is not.
    """

    name: str
    rows: int
    rates: dict[str, Estimate]
    reason: str = ""


@dataclass(frozen=True)
class Disparity:
    """The disparity between groups, by one fairness measure.

    Attributes:
        measure: Such as ``equal_opportunity``.
        columns: What the groups are made of: one column, or two crossed.
        against: ``groups``: the largest difference of two; ``overall``: the largest from the whole.
        value: The candidate's; None where it could not be measured.
        baseline: The baseline's; None where there is none.
        worsening: By how much the candidate is worse than the baseline, paired; positive is worse.
        lowest: Name of the group at the low end, such as ``race = B, sex = F``.
        highest: Name of the group at the high end.
        rates: What the two have of the rate that is compared, the lowest first; empty where not measured.
        reason: Why it could not be measured; empty if it could.
    """

    measure: str
    columns: tuple[str, ...]
    against: str
    value: Estimate | None
    baseline: Estimate | None = None
    worsening: Estimate | None = None
    lowest: str = ""
    highest: str = ""
    rates: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class GroupComparison:
    """The comparison of groups: who they are, and how unequal they are."""

    groups: dict[tuple[str, ...], tuple[GroupRates, ...]]
    disparities: tuple[Disparity, ...]


HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """One figure.

    Attributes:
        name: Its flat name, such as ``auc`` or ``slice/origin/EWR/recall``.
        value: The figure; finite.
        interval: Lower and upper end of its 95 % interval; empty where there is none.
        better: ``higher`` or ``lower``; empty where neither is better, as of a number of rows.
    """

    name: str
    value: float
    interval: tuple[float, ...] = ()
    better: str = ""


@dataclass(frozen=True, kw_only=True)
class MeasuredMetrics(Document):
    """Every figure of one judgement. It lies beside the verdict.

    Attributes:
        predictions: Digest of the predictions that were judged.
        rows_digest: Digest of the keys and labels of the judged rows, whatever their order: two models with
            the same one were judged on the same examples.
        rows: How many rows those are.
        split: The split they are of.
        kind: What was predicted: ``binary``, ``multiclass``, ``regression`` or ``language_model``.
        label: What the label is called; empty for a language model.
        measures: The figures, the one that matters most first.
    """

    FILE: ClassVar[str] = "measured.json"
    predictions: str
    rows_digest: str
    rows: int
    split: str
    kind: str
    label: str = ""
    measures: tuple[MetricValue, ...] = ()


_DETAIL = re.compile(r"(slice|fairness)/.*|.*_(low|high)")
"""Names of figures that are not of the whole split, or that are ends of an interval."""

Kind = Literal["binary", "multiclass", "regression", "language_model"]
"""Kind of prediction."""


@dataclass(frozen=True)
class Sample:
    """The rows that were judged.

    Attributes:
        split: The split they are of.
        rows: Rows with a label, that both models scored.
        label_name: Column of the label; empty for a language model.
        classes: Names of the classes, such as ``late = 0``, in order; empty without classes.
        counts: Rows by class, in the same order.
        unlabelled: Rows left out because they have no label.
        unmatched: Rows left out because only one of the two models scored them.
        weighted: Whether rows count by their weight.
        clusters: Groups of rows that were drawn together; 0 where every row counts for itself.
        counts_in_clusters: How many of those have rows of each class; empty without them.
        digest: SHA-256 of the keys and labels of the rows, whatever their order.
    """

    split: str
    rows: int
    label_name: str
    classes: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    unlabelled: int = 0
    unmatched: int = 0
    weighted: bool = False
    clusters: int = 0
    counts_in_clusters: tuple[int, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class ComparedBaseline:
    """The model in production, whose predictions of the same rows were compared.

    Attributes:
        version: Its number in the registry; empty if it has none.
        predictions: Digest of its predictions.
        model: Digest of it; empty where the predictions do not say.
    """

    version: str
    predictions: str
    model: str


@dataclass(frozen=True)
class ComparedMetric:
    """One metric on one set of rows: of the candidate, of the baseline, and the difference.

    Attributes:
        metric: Its name, such as ``auc``; a class's own figure ends in ``/`` and the class.
        better: ``higher`` or ``lower``; empty where neither is better.
        candidate: The candidate's; None where it is not defined on these rows.
        baseline: The baseline's; None where there is none.
        gain: By how much the candidate is better, paired; positive is better, whatever ``better`` is.
        method: Where the intervals come from, in a few words.
        p_value: Of the null hypothesis that both are equally good, two-sided; None without a test.
    """

    metric: str
    better: str
    candidate: Estimate | None
    baseline: Estimate | None = None
    gain: Estimate | None = None
    method: str = ""
    p_value: float | None = None


@dataclass(frozen=True)
class Slice:
    """The figures of the rows that share a value, or two.

    Attributes:
        name: The value; of a crossing ``EWR, 6``.
        rows: Rows with a label.
        counts: Rows by class; empty without classes.
        figures: The figures by metric; those that are not defined here have no estimate.
        reason: Why it is not judged; empty if it is.
    """

    name: str
    rows: int
    counts: tuple[int, ...]
    figures: dict[str, ComparedMetric]
    reason: str = ""


@dataclass(frozen=True)
class Slicing:
    """All slices of a column, or of two crossed.

    Attributes:
        columns: One name, or two.
        slices: Every slice, judged or not.
        edges: Where a column of numbers was cut into buckets, ascending; empty otherwise.
        edges_from: ``baseline`` or ``these rows``: whose quantiles those are; empty otherwise.
    """

    columns: tuple[str, ...]
    slices: tuple[Slice, ...]
    edges: tuple[float, ...] = ()
    edges_from: str = ""

    @property
    def name(self) -> str:
        """The column, or both: ``origin and hour``."""
        return " and ".join(self.columns)

    @property
    def judged(self) -> list[Slice]:
        """The slices that are judged, in order."""
        return [entry for entry in self.slices if not entry.reason]


@dataclass(frozen=True)
class Ruling:
    """The decision of one rule of the section ``evaluation``.

    Attributes:
        name: What is judged, such as ``auc`` or ``recall by origin``.
        decision: One of :data:`trainwright.verdicts.SEVERITY`.
        fact: The number and its limit, in a few words; of a rule on slices, the worst one's.
        rules: The verdict's rules: one, or one per slice, worst first; empty without a number.
        undecided: What it could not judge, with the reason.
        kind: ``absolute``, ``non_inferiority``, ``superiority``, ``fairness``, ``worsening``, ``overfitting``
            or ``baseline``.
        scope: ``overall`` or ``slice``.
    """

    name: str
    decision: str
    fact: str
    rules: tuple[Rule, ...] = ()
    undecided: tuple[NotJudged, ...] = ()
    kind: str = "absolute"
    scope: str = "overall"

    @property
    def worst(self) -> Rule | None:
        """The rule that matters most; None where there is none."""
        return self.rules[0] if self.rules else None

    @property
    def needed(self) -> int:
        """Rows with which it would tell, with 80 %; 0 where that is not known."""
        counts = [rule.needed for rule in self.rules], [entry.needed for entry in self.undecided]
        return max((*counts[0], *counts[1]), default=0)


@dataclass(frozen=True)
class Findings:
    """The figures of a model, and what the rules say of them.

    Attributes:
        evaluation: What was asked.
        kind: What was predicted.
        sample: The rows that were judged.
        baseline: What the candidate was compared with; None if with nothing.
        threshold: A score of at least this counts as label 1; None for other kinds.
        threshold_from: ``section`` or ``model``: who says so.
        overall: Figures over all rows, by metric, the one that matters most first.
        confusion: Rows by true class (first) and predicted class; empty without classes.
        baseline_confusion: The same of the baseline; empty without one.
        curves: What is drawn of the candidate.
        baseline_curves: What is drawn of the baseline; None without one.
        cuts: The slices of each column, and of each crossing, that was asked for.
        fairness: The comparison of groups; None if none was asked for.
        fitted: The figures on the split that the model was fitted on, by metric; empty if not scored.
        overfitting: By metric: by how much the model is better on the rows it was fitted on.
        warnings: What a person should look at, and no rule judges: a column that gives the label away.
        rulings: What each rule says.
    """

    evaluation: Evaluation
    kind: Kind
    sample: Sample
    baseline: ComparedBaseline | None
    threshold: float | None
    threshold_from: str
    overall: dict[str, ComparedMetric]
    confusion: tuple[tuple[int, ...], ...]
    baseline_confusion: tuple[tuple[int, ...], ...]
    curves: PlotData
    baseline_curves: PlotData | None
    cuts: tuple[Slicing, ...]
    fairness: GroupComparison | None
    fitted: dict[str, Estimate]
    overfitting: dict[str, Estimate]
    warnings: tuple[str, ...]
    rulings: tuple[Ruling, ...]

    @property
    def decision(self) -> str:
        """The worst of the rulings."""
        return worst(ruling.decision for ruling in self.rulings)

    @property
    def headline(self) -> str:
        """The decision and its reason, in one line."""
        decisive = [ruling.fact for ruling in self.rulings if ruling.decision == self.decision]
        if self.decision == "PASS":
            return ", ".join(decisive[:2])
        more = f", and {len(decisive) - 1} more" if len(decisive) > 1 else ""
        return f"{self.decision}: {decisive[0]}{more}"

    @property
    def rulings_by_severity(self) -> list[Ruling]:
        """The rulings, the most severe decision first."""
        return sorted(self.rulings, key=lambda ruling: -SEVERITY.index(ruling.decision))

    def overall_metrics(self) -> dict[str, float]:
        """Return the figures of the whole split: few enough to compare runs by."""
        return {name: value for name, value in self._flat() if not _DETAIL.fullmatch(name)}

    def detailed_metrics(self) -> dict[str, float]:
        """Return the figures of slices and groups, and the ends of the overall figures' intervals."""
        return {name: value for name, value in self._flat() if _DETAIL.fullmatch(name)}

    def _flat(self) -> Iterator[tuple[str, float]]:
        for name, found in self.overall.items():
            yield from _flat_figure(name, found)
        for cut in self.cuts:
            for entry in cut.slices:
                place = f"slice/{'*'.join(cut.columns)}/{entry.name}"
                yield f"{place}/rows", float(entry.rows)
                for name, found in entry.figures.items():
                    if found.candidate:
                        yield f"{place}/{name}", found.candidate.value
        for disparity in self.fairness.disparities if self.fairness else ():
            if disparity.value:
                place = f"fairness/{'*'.join(disparity.columns)}/{disparity.measure}"
                yield place if disparity.against == "groups" else f"{place}_to_overall", disparity.value.value
        for name, gap in self.overfitting.items():
            yield f"overfitting/{name}", gap.value


def _flat_figure(name: str, found: ComparedMetric) -> Iterator[tuple[str, float]]:
    if found.candidate:
        yield name, found.candidate.value
        yield f"{name}_low", found.candidate.low
        yield f"{name}_high", found.candidate.high
    if found.baseline:
        yield f"baseline/{name}", found.baseline.value
    if found.gain:
        yield f"gain/{name}", found.gain.value
