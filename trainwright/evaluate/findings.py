"""Findings of an evaluation: metrics, slices, disparities, plot data and rulings, as frozen data."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.documents import Document
from trainwright.experiment import Evaluation
from trainwright.experiment.evaluation import HIGHER, LOWER
from trainwright.significance import Estimate
from trainwright.verdicts import SEVERITY, NotJudged, Rule, worst

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

Kind = Literal["binary", "multiclass", "regression", "language_model"]
"""Kind of prediction."""


MIN_UNITS = 30
"""With fewer rows of any class, intervals are too narrow to rely on (coverage below 90 %), and so they are
with fewer clusters (Cameron, Gelbach and Miller, Review of Economics and Statistics 90, 2008)."""


@dataclass(frozen=True)
class CurveLine:
    """A curve, x ascending, y in [0, 1], with the finite threshold of each point; shape (points,)."""

    x: Floats
    y: Floats
    threshold: Floats

    def thin(self, points: int) -> "CurveLine":
        """Return at most so many points of the curve, evenly along its way, both ends included."""
        along = np.append(0.0, np.cumsum(np.abs(np.diff(self.x)) + np.abs(np.diff(self.y))))
        kept = np.unique(np.searchsorted(along, np.linspace(0, along[-1], points)))
        kept[0], kept[-1] = 0, len(along) - 1
        return CurveLine(self.x[kept], self.y[kept], self.threshold[kept])


@dataclass(frozen=True)
class CalibrationBins:
    """Mean score of each bin, and what was observed with its 95 % interval; shape (bins,)."""

    score: Floats
    observed: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Histogram:
    """Counts between ``edges``; a series a class, or one of errors; shape (edges - 1,) each."""

    edges: Floats
    series: dict[str, Integers]


@dataclass(frozen=True)
class PlotData:
    """Plot data of one model by class (one for two classes); empty or None where its kind has none."""

    roc: dict[str, CurveLine] = field(default_factory=dict)
    precision_recall: dict[str, CurveLine] = field(default_factory=dict)
    calibration: dict[str, CalibrationBins] = field(default_factory=dict)
    histogram: Histogram | None = None


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """One metric under its flat name, such as ``slice/origin/EWR/recall``."""

    name: str
    value: float
    interval: tuple[float, ...] = ()
    better: str = ""


@dataclass(frozen=True, kw_only=True)
class MeasuredMetrics(Document):
    """Every metric of one evaluation. It lies beside the verdict.

    Attributes:
        predictions: Digest of the evaluated predictions.
        rows_digest: Digest of the keys and labels of the evaluated rows, whatever their order: two models
            with the same one were evaluated on the same examples.
        rows: Number of those rows.
        split: Their split.
        kind: What was predicted: ``binary``, ``multiclass``, ``regression`` or ``language_model``.
        label: Name of the label; empty for a language model.
        measures: The metrics, the one that matters most first.
    """

    FILE: ClassVar[str] = "measured.json"
    predictions: str
    rows_digest: str
    rows: int
    split: str
    kind: str
    label: str = ""
    measures: tuple[MetricValue, ...] = ()


@dataclass(frozen=True)
class Sample:
    """The evaluated rows: their numbers overall, by class and by cluster, and the rows that are left out.

    ``classes`` has the classes as they are shown (``late = 1``), ``class_names`` their names alone;
    ``clusters`` is 0 where every row counts for itself; ``unmatched`` counts rows that only one model scored;
    ``digest`` is the SHA-256 of keys and labels, whatever the order of the rows.
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
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparedBaseline:
    """The baseline: registered version or empty, digests of its predictions and of its model, or empty."""

    version: str
    predictions: str
    model: str


@dataclass(frozen=True)
class ComparedMetric:
    """One metric on one set of rows: of the candidate, of the baseline, and the paired gain.

    The name of a metric of one class ends in ``/`` and the class. A gain is positive where the candidate is
    better, whatever ``better`` is: ``higher``, ``lower`` or empty. An estimate that is not defined is None.
    ``p_value`` is two-sided, of the null hypothesis that both models are equally good.
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
    """The metrics of the rows that share a value, or two (``EWR, 6``), with the rows by class.

    ``reason`` says why it is not judged, and is empty if it is.
    """

    name: str
    rows: int
    counts: tuple[int, ...]
    figures: dict[str, ComparedMetric]
    reason: str = ""


@dataclass(frozen=True)
class Slicing:
    """All slices of a column, or of two crossed, judged or not.

    ``buckets``: True if slices are buckets of numbers, bounded by quantiles.
    """

    columns: tuple[str, ...]
    slices: tuple[Slice, ...]
    buckets: bool = False

    @property
    def name(self) -> str:
        """The column, or both: ``origin and hour``."""
        return " and ".join(self.columns)

    @property
    def judged(self) -> list[Slice]:
        """The slices that are judged, in order."""
        return [entry for entry in self.slices if not entry.reason]


@dataclass(frozen=True)
class Disparity:
    """The disparity between groups of a column, or of two crossed, by one fairness measure.

    ``against`` is ``groups`` (the largest difference of two) or ``overall`` (the largest from the whole). A
    positive ``worsening`` is worse than the baseline, paired. ``rates`` are those of the lowest and the
    highest group. ``reason`` says why ``value`` is None.
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

    @property
    def flat_name(self) -> str:
        """Its name among the metrics, such as ``fairness/race*sex/equal_opportunity``."""
        ending = "" if self.against == "groups" else "_to_overall"
        return f"fairness/{'*'.join(self.columns)}/{self.measure}{ending}"


@dataclass(frozen=True)
class ConstantComparison:
    """The model's mean loss against that of the best constant prediction for the same rows.

    The constant is chosen on the evaluated rows themselves: the share of each class, the mean, or the
    frequencies of the tokens. No constant that was known before could be better, so only a model whose scores
    tell rows apart gains on it.

    Attributes:
        metric: Metric that is shown: ``log_loss``, ``rmse`` or ``loss``.
        model: Its value for the model.
        constant: Its value for the constant prediction.
        gain: Mean loss of the constant less that of the model, paired row by row; for a number the squared
            error. None where it is not defined.
        reason: Why ``gain`` is None.
    """

    metric: str
    model: float
    constant: float
    gain: Estimate | None
    reason: str = ""


@dataclass(frozen=True)
class Ruling:
    """The decision of one rule of the section ``evaluation``.

    Attributes:
        name: What is judged, such as ``auc`` or ``recall by origin``.
        decision: One of :data:`trainwright.verdicts.SEVERITY`.
        fact: The number and its limit, in a few words; of a rule on slices, the worst one's.
        rules: The verdict's rules: one, or one per slice, worst first; empty without a number.
        undecided: What it could not judge, with the reason.
        kind: ``absolute``, ``non_inferiority``, ``superiority``, ``fairness``, ``worsening``,
            ``overfitting``, ``baseline`` or ``constant``.
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
    def needed(self) -> int:
        """Rows that would decide it with a power of 80 %; 0 where that is not known."""
        counts = [rule.needed for rule in self.rules], [entry.needed for entry in self.undecided]
        return max((*counts[0], *counts[1]), default=0)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of an evaluation: every metric, and the rulings on them.

    Attributes:
        unscored: The version in production, if there is one and there are no predictions of it.
        threshold: A score of at least this counts as label 1; None for other kinds.
        overall: Metrics over all rows, by name, the one that matters most first.
        constant: The loss against that of a constant prediction.
        confusion: Rows by true class (first) and predicted class; empty without classes.
        cuts: The slices of each configured column and crossing.
        groups: The groups that fairness compares, by column or crossing.
        gaps: Gaps of recall between the slices of the columns that have a limit on it.
        fitted_sample: The rows that the model was fitted on; None where they were not scored.
        fitted: The metrics on those rows, by name.
        overfitting: By metric: by how much the model is better on the rows it was fitted on.
        warnings: What a person should look at, and no rule judges: a column that gives the label away.
    """

    evaluation: Evaluation
    kind: Kind
    sample: Sample
    overall: dict[str, ComparedMetric]
    constant: ConstantComparison
    curves: PlotData
    baseline: ComparedBaseline | None = None
    unscored: str = ""
    threshold: float | None = None
    confusion: tuple[tuple[int, ...], ...] = ()
    baseline_confusion: tuple[tuple[int, ...], ...] = ()
    baseline_curves: PlotData | None = None
    cuts: tuple[Slicing, ...] = ()
    groups: tuple[Slicing, ...] = ()
    disparities: tuple[Disparity, ...] = ()
    gaps: dict[str, Disparity] = field(default_factory=dict)
    fitted_sample: Sample | None = None
    fitted: dict[str, Estimate] = field(default_factory=dict)
    overfitting: dict[str, Estimate] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    rulings: tuple[Ruling, ...] = ()

    @property
    def threshold_from(self) -> str:
        """``model`` or ``section``: the source of the threshold."""
        return "model" if self.evaluation.threshold == "model" else "section"

    @property
    def all_cuts(self) -> list[Slicing]:
        """The slices and the groups, each column or crossing once."""
        return list({cut.columns: cut for cut in (*self.cuts, *self.groups)}.values())

    @property
    def decision(self) -> str:
        """The worst of the rulings: PASS, HOLD, FAIL or INCONCLUSIVE."""
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

    def measures(self) -> Iterator[MetricValue]:
        """Return every defined metric with its interval, the ones over all rows first."""
        yield from _measures("", self.overall)
        for name, gap in self.overfitting.items():
            yield _measure(f"overfitting/{name}", gap, LOWER)
        for entry in self.disparities:
            if entry.value:
                better = HIGHER if "ratio" in entry.measure else LOWER
                yield _measure(entry.flat_name, entry.value, better)
        for cut in self.cuts:
            for part in cut.slices:
                place = f"slice/{'*'.join(cut.columns)}/{part.name}/"
                yield MetricValue(name=f"{place}rows", value=float(part.rows))
                yield from _measures(place, part.figures)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the whole split by flat name, such as ``auc`` and ``gain/auc``; finite."""
        found = {entry.name: entry.value for entry in self.measures() if not entry.name.startswith(_DETAILS)}
        for name, entry in self.overall.items():
            found |= {f"baseline/{name}": entry.baseline.value} if entry.baseline else {}
            found |= {f"gain/{name}": entry.gain.value} if entry.gain else {}
        return found

    @property
    def details(self) -> dict[str, float]:
        """The metrics of slices and groups, and the ends of the overall metrics' intervals."""
        found = {entry.name: entry.value for entry in self.measures() if entry.name.startswith(_DETAILS)}
        for name, entry in self.overall.items():
            if entry.candidate:
                found |= {f"{name}_low": entry.candidate.low, f"{name}_high": entry.candidate.high}
        return found

    def draw(self, curve: Any) -> None:
        """Log the confusion matrix and the ROC curve, where there are any, to a ``ClassificationMetrics``."""
        if self.confusion:
            curve.log_confusion_matrix(list(self.sample.classes), [list(row) for row in self.confusion])
        if roc := self.roc:
            curve.log_roc_curve(roc.x.tolist(), roc.y.tolist(), roc.threshold.tolist())

    @property
    def roc(self) -> CurveLine | None:
        """The ROC curve that Kubeflow's page draws; None unless there are two classes."""
        found = self.curves.roc.get("") if self.kind == "binary" else None
        return found and found.thin(_LOGGED_POINTS)


_LOGGED_POINTS = 100
_DETAILS = ("slice/", "fairness/")


def _measures(place: str, figures: dict[str, ComparedMetric]) -> Iterator[MetricValue]:
    for name, entry in figures.items():
        if entry.candidate:
            yield _measure(f"{place}{name}", entry.candidate, entry.better)


def _measure(name: str, found: Estimate, better: str) -> MetricValue:
    return MetricValue(name=name, value=found.value, interval=(found.low, found.high), better=better)
