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
    if sample.clusters:
        found.append((sample.clusters, f"values of {cluster}"))
    if kind == "binary" or metric.startswith("macro_"):
        rare = "rarer" if kind == "binary" else "rarest"
        found.append((min(sample.counts), f"rows of the {rare} label"))
    elif number:
        found.append((sample.counts[int(number)], f"rows of class {number}"))
    return min(found)


def too_few(metric: str, entry: Slice, least: int) -> str:
    """Say why a slice is too small for the metric of one class; empty if it is not."""
    number = metric.partition("/")[2]
    if not number or int(number) >= len(entry.counts):
        return ""
    count = entry.counts[int(number)]
    return f"{count:,} of at least {least:,} rows of class {number}" if count < least else ""


def clustered(subject: Subject, place: Integers, parts: int) -> Integers:
    """Return how many clusters each part of the rows has, shape (parts,); without clusters how many rows."""
    of = np.arange(subject.rows) if subject.clusters is None else subject.clusters
    met = np.unique(place * subject.units + of) // subject.units
    return np.bincount(met, minlength=parts).astype(np.int64)


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
    for count, least, what in zip(
        counts[::-1] if subject.candidate.predictions.kind == "binary" else (),
        (asked.min_positives, asked.min_negatives),
        ("positives", "negatives"),
        strict=False,
    ):
        if count < least:
            return f"{count:,} of at least {least:,} {what}"
    return ""
