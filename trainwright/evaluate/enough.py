"""Whether there are rows enough, and clusters, for an interval to stand on."""

from collections.abc import Sequence

import numpy as np

from trainwright.evaluate.findings import Kind, Sample, Slice
from trainwright.evaluate.grouping import Grouping
from trainwright.evaluate.subject import Integers, Subject

FEWEST = 30
"""With fewer rows of any class, intervals are too narrow to stand on (coverage below 90 %), and so they are
with fewer clusters (Cameron, Gelbach and Miller, Review of Economics and Statistics 90, 2008)."""


def how_few(kind: Kind, sample: Sample, metric: str, cluster: str | None) -> tuple[int, str]:
    """Return how few there are of what a metric is about, and what that is."""
    number = metric.partition("/")[2]
    found = [(sample.rows, "rows")]
    counted = [(sample.counts, "rows of")]
    if sample.clusters:
        found.append((sample.clusters, f"values of {cluster}"))
        counted.append((sample.counts_in_clusters, f"values of {cluster} with rows of"))
    for counts, what in counted:
        if kind == "binary" or metric.startswith("macro_"):
            rare = "rarer" if kind == "binary" else "rarest"
            found.append((min(counts), f"{what} the {rare} label"))
        elif number:
            found.append((counts[int(number)], f"{what} class {number}"))
    return min(found)


def too_few(metric: str, entry: Slice, least: int) -> str:
    """Say why a slice is too small for the metric of one class, or a mean of all; empty if it is not."""
    number = metric.partition("/")[2]
    if metric.startswith("macro_") and entry.counts:
        number = str(min(range(len(entry.counts)), key=entry.counts.__getitem__))
    if not number or int(number) >= len(entry.counts):
        return ""
    count = entry.counts[int(number)]
    return f"{count:,} of at least {least:,} rows of class {number}" if count < least else ""


def clustered(subject: Subject, place: Integers, parts: int, rows: Integers | None = None) -> Integers:
    """Return how many clusters each part has, shape (parts,); without clusters how many rows.

    Args:
        subject: The rows.
        place: The part of each, shape (rows,).
        parts: How many there are.
        rows: Indices of those that count; all if None.
    """
    of = np.arange(subject.rows) if subject.clusters is None else subject.clusters
    cell = place * subject.units + of
    met = np.unique(cell if rows is None else cell[rows]) // subject.units
    return np.bincount(met, minlength=parts).astype(np.int64)


def by_class(subject: Subject) -> tuple[int, ...]:
    """Return how many clusters have rows of each class; empty without clusters, or without classes."""
    if subject.clusters is None or not subject.classes:
        return ()
    label = subject.candidate.predictions.label.astype(np.int64)
    return tuple(clustered(subject, label, subject.classes).tolist())


def too_small(subject: Subject, grouping: Grouping, index: int, rows: Integers, counts: Sequence[int]) -> str:
    """Say why a slice is not judged; empty if it is."""
    asked = subject.evaluation
    if grouping.names[index] == grouping.pooled:
        return "rare values together"
    if len(rows) < asked.min_rows:
        return f"{len(rows):,} of at least {asked.min_rows:,} rows"
    units = len(rows) if subject.clusters is None else len(np.unique(subject.clusters[rows]))
    if subject.clusters is not None and units < FEWEST:
        return f"{units} of at least {FEWEST} values of {asked.cluster}"
    binary = subject.candidate.predictions.kind == "binary"
    return _too_few_of_a_class(subject, rows, counts) if binary else ""


def _too_few_of_a_class(subject: Subject, rows: Integers, counts: Sequence[int]) -> str:
    asked, label = subject.evaluation, subject.candidate.predictions.label[rows]
    for value, what, least in ((1, "positives", asked.min_positives), (0, "negatives", asked.min_negatives)):
        if counts[value] < least:
            return f"{counts[value]:,} of at least {least:,} {what}"
        if subject.clusters is None:
            continue
        units = len(np.unique(subject.clusters[rows[label == value]]))
        if units < FEWEST:
            return f"{units} of at least {FEWEST} values of {asked.cluster} with {what}"
    return ""
