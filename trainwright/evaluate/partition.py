"""Sums over the parts of a partition of the rows, and every figure of each part with its interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.evaluate.findings import Compared, Floats
from trainwright.evaluate.formulas import COUNTS, Formula, Sums, trials
from trainwright.evaluate.shares import is_share, known_no_better, never_certain, snapped
from trainwright.evaluate.subject import Integers, Side, Subject
from trainwright.experiment.metrics import HIGHER, LOWER, known
from trainwright.significance import (
    Estimate,
    delong,
    delong_difference,
    intervals,
    mcnemar,
    paired_difference,
    placements,
    wilson,
)


@dataclass(frozen=True)
class Tally:
    """The sums of one model.

    Attributes:
        total: Of each part.
        drawn: Of each part in every draw.
        left_out: Of each part with one unit left out in turn; None where blocks of rows are drawn.
        units: As many rows, or clusters, were drawn.
    """

    total: Sums
    drawn: Sums
    left_out: Sums | None
    units: int

    def effective(self, total: Floats, drawn: Floats) -> Floats:
        """Return as how many units alike a sum of weights counts, shape (parts,).

        Where rows have weights, or come in clusters, the sum of few of them varies from draw to draw as much
        as that of so many alike (Kish, Survey Sampling, 1965, section 11.7).

        Args:
            total: The sum in the data, shape (parts,).
            drawn: The sum in every draw, shape (draws, parts).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            varied = np.var(drawn, axis=0) / total**2
        found: Floats = np.maximum(1 / (np.where(total > 0, varied, 1.0) + 1 / self.units), 1.0)
        return found


@dataclass(frozen=True)
class Partition:
    """Rows put into parts.

    Attributes:
        subject: What is measured.
        place: The part of each row, shape (rows,).
        parts: How many there are.
        tallies: Of the candidate, and of the baseline where there is one.
        rows: Rows of each part, shape (parts,).
    """

    subject: Subject
    place: Integers
    parts: int
    tallies: tuple[Tally, ...]
    rows: Integers

    def members(self) -> list[Integers]:
        """Return the rows of each part."""
        order = np.argsort(self.place, kind="stable")
        return np.split(order, np.cumsum(self.rows)[:-1])


def divide(subject: Subject, place: Integers, parts: int) -> Partition:
    """Add up every feature of every part, in the data and in each draw."""
    tallies = tuple(_tally(subject, entry, place, parts) for entry in subject.sides)
    return Partition(subject, place, parts, tallies, np.bincount(place, minlength=parts))


def _tally(subject: Subject, entry: Side, place: Integers, parts: int) -> Tally:
    names = tuple(entry.columns)
    sums = subject.sampler.add_up(place, parts, list(entry.columns.values()))
    total = sums.sum(axis=0)
    left_out = Sums(names, total, sums) if subject.skewed else None
    return Tally(Sums(names, total), Sums(names, subject.sampler.draw(sums)), left_out, subject.units)


def figures(partition: Partition, *, of_classes: bool = False) -> list[dict[str, Compared]]:
    """Return the figures of each part by metric; those of single classes too if ``of_classes``."""
    subject = partition.subject
    found: list[dict[str, Compared]] = [{} for _ in range(partition.parts)]
    if subject.candidate.predictions.kind == "binary":
        for index, rows in enumerate(partition.members()):
            found[index]["auc"] = _area(subject, rows)
    exact = _exact(partition) if subject.exact and subject.classes else {}
    for name, formula in subject.formulas.items():
        if "/" in name and not of_classes:
            continue
        measured = _resampled(partition, name, formula)
        for index in range(partition.parts):
            found[index][name] = _merge(measured[index], exact.get(name, {}).get(index))
    return found


def _merge(drawn: Compared, exact: Compared | None) -> Compared:
    """Take the exact intervals where there are any."""
    if exact is None:
        return drawn
    gain = exact.gain or drawn.gain
    method = exact.method if exact.gain or not drawn.gain else f"{exact.method}; gain {drawn.method}"
    return Compared(drawn.metric, drawn.better, exact.candidate, exact.baseline, gain, method, exact.p_value)


def better_of(name: str) -> str:
    """Return which side of a metric is better, or nothing."""
    metric = known(name)
    return metric.better if metric else ""


def _resampled(partition: Partition, name: str, formula: Formula) -> list[Compared]:
    """Return a metric of every part with bootstrap intervals."""
    measured = [_applied(tally, formula, fraction=is_share(name)) for tally in partition.tallies]
    each = [
        _estimates(partition, tally, name, *entry)
        for tally, entry in zip(partition.tallies, measured, strict=True)
    ]
    gains: list[Estimate | None] = [None] * partition.parts
    sign = -1.0 if better_of(name) == LOWER else 1.0
    if len(measured) > 1:
        (value, drawn, left), (other, drawn_other, left_other) = measured
        away = None if left is None or left_other is None else sign * (left - left_other)
        ends = intervals(
            sign * (value - other),
            sign * (drawn - drawn_other),
            away,
            partition.subject.evaluation.confidence,
        )
        gains = [_estimate(*entry) for entry in zip(sign * (value - other), *ends, strict=True)]
        if not partition.subject.same:
            better, worse = each if sign > 0 else each[::-1]
            gains = [known_no_better(*entry) for entry in zip(gains, better, worse, strict=True)]
    baseline = each[1] if len(each) > 1 else [None] * partition.parts
    parts = zip(each[0], baseline, gains, strict=True)
    return [Compared(name, better_of(name), one, two, gain, "bootstrap") for one, two, gain in parts]


def _applied(tally: Tally, formula: Formula, *, fraction: bool) -> tuple[Floats, Floats, Floats | None]:
    def of(sums: Sums) -> Floats:
        return snapped(formula(sums)) if fraction else formula(sums)

    return of(tally.total), of(tally.drawn), None if tally.left_out is None else of(tally.left_out)


def _estimate(value: float, low: float, high: float) -> Estimate | None:
    if np.isnan(value) or np.isnan(low):
        return None
    return Estimate(float(value), float(low), float(high))


def _estimates(
    partition: Partition, tally: Tally, name: str, value: Floats, drawn: Floats, left: Floats | None
) -> list[Estimate | None]:
    confidence = partition.subject.evaluation.confidence
    low, high = intervals(value, drawn, left, confidence)
    found = [_estimate(*entry) for entry in zip(value, low, high, strict=True)]
    if not is_share(name):
        return found
    # Where too many draws are not defined, nothing is known but that it is a share.
    found = [
        entry or (None if np.isnan(number) else Estimate(float(number), 0.0, 1.0))
        for entry, number in zip(found, value, strict=True)
    ]
    counted = tally.effective(trials(name, tally.total), trials(name, tally.drawn))
    return [never_certain(*entry, confidence) for entry in zip(found, counted.tolist(), strict=True)]


def _exact(partition: Partition) -> dict[str, dict[int, Compared]]:
    """Return the proportions of every part: Wilson's intervals, and Newcombe's of paired differences."""
    subject, confidence = partition.subject, partition.subject.evaluation.confidence
    agreed = _agreements(partition) if subject.baseline else {}
    found: dict[str, dict[int, Compared]] = {}
    for name in COUNTS if subject.classes == 2 else ("accuracy", "micro_f1"):  # noqa: PLR2004
        counted = [_counts(tally.total, name, subject.classes) for tally in partition.tallies]
        found[name] = {}
        for index in range(partition.parts):
            rows = [float(entry[1][index]) for entry in counted]
            if not min(rows) > 0:
                continue
            hits = [float(entry[0][index]) for entry in counted]
            each = [wilson(hit, trial, confidence) for hit, trial in zip(hits, rows, strict=True)]
            gain, p_value = None, None
            if name in agreed:
                both = float(agreed[name][index])
                gain, p_value = _paired(name, both, hits, rows[0], confidence)
            method = "Wilson; gain Newcombe, McNemar mid-p" if gain else "Wilson"
            other = each[1] if len(each) > 1 else None
            found[name][index] = Compared(name, better_of(name), each[0], other, gain, method, p_value)
    return found


def _counts(total: Sums, name: str, classes: int) -> tuple[Floats, Floats]:
    if classes == 2 and name in COUNTS and "hits" in total.names:  # noqa: PLR2004
        return COUNTS[name](total)
    right: Floats = np.sum([total[f"hits/{k}"] for k in range(classes)], axis=0)
    return right, total["rows"]


def _paired(
    name: str, both: float, hits: list[float], rows: float, confidence: float
) -> tuple[Estimate, float]:
    only = [hits[0] - both, hits[1] - both]
    p_value = mcnemar(round(only[0]), round(only[1]))
    if better_of(name) == LOWER:
        only.reverse()
    return paired_difference(both, only[0], only[1], rows - both - sum(only), confidence), p_value


def _agreements(partition: Partition) -> dict[str, Floats]:
    """Return in how many rows both models succeed, by metric; each of shape (parts,)."""
    sides, place, parts = partition.subject.sides, partition.place, partition.parts

    def count(both: Floats) -> Floats:
        return np.bincount(place, weights=both, minlength=parts).astype(np.float64)

    ours, theirs = (_right(entry) for entry in sides)
    found = {"accuracy": count(ours * theirs), "micro_f1": count(ours * theirs)}
    if "selected" not in sides[0].columns:
        return found
    label = sides[0].columns["positives"]
    selected = sides[0].columns["selected"] * sides[1].columns["selected"]
    return found | {
        "recall": count(selected * label),
        "false_positive_rate": count(selected * (1 - label)),
        "selection_rate": count(selected),
    }


def _right(entry: Side) -> Floats:
    columns = entry.columns
    if "selected" in columns:
        right: Floats = (columns["selected"] == columns["positives"]).astype(np.float64)
        return right
    hits = [column for name, column in columns.items() if name.startswith("hits/")]
    return np.asarray(np.sum(hits, axis=0), np.float64)


def _area(subject: Subject, rows: NDArray[np.int64]) -> Compared:
    """Return the area under the ROC curve over some rows."""
    confidence = subject.evaluation.confidence
    label = subject.candidate.predictions.label[rows]
    scores = [entry.predictions.scores[rows, 0] for entry in subject.sides]
    counts = int(label.sum()), int(len(label) - label.sum())
    none = Compared("auc", HIGHER, None)
    if not min(counts):
        return none
    if subject.exact:
        each = [delong(label, score, confidence) for score in scores]
        paired = len(scores) > 1 and min(counts) > 1
        gain = delong_difference(label, scores[0], scores[1], confidence) if paired else None
        method = "DeLong"
    else:
        weight = subject.candidate.predictions.weight
        heavy = None if weight is None else weight[rows]
        if heavy is not None and not (heavy[label == 1].sum() > 0 and heavy[label == 0].sum() > 0):
            return none
        clusters = None
        if subject.clusters is not None:
            _, clusters = np.unique(subject.clusters[rows], return_inverse=True)
        found = placements(label, scores, weight=heavy, clusters=clusters)
        each = [found.estimate(index, confidence) for index in range(len(scores))]
        gain = found.difference(confidence) if len(scores) > 1 else None
        method = "DeLong, of clusters" if subject.clusters is not None else "DeLong, weighted"
    return Compared("auc", HIGHER, each[0], each[1] if len(each) > 1 else None, gain, method)
