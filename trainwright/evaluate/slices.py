"""Check that a slice has enough rows for an interval."""

from collections.abc import Sequence

from trainwright.evaluate.findings import Kind, Sample, Slice
from trainwright.evaluate.groupings import Grouping
from trainwright.evaluate.partition import Partition

MIN_UNITS = 30
"""With fewer rows of any class, intervals are too narrow to rely on (coverage below 90 %), and so they are
with fewer clusters (Cameron, Gelbach and Miller, Review of Economics and Statistics 90, 2008)."""


def smallest_count(kind: Kind, sample: Sample, metric: str, cluster: str | None) -> tuple[int, str]:
    """Return the smallest number of rows or clusters that a metric depends on, and its description."""
    of_class = metric.partition("/")[2]
    found = [(sample.rows, "rows")]
    counted = [(sample.counts, "rows of")]
    if sample.clusters:
        found.append((sample.clusters, f"values of {cluster}"))
        counted.append((sample.counts_in_clusters, f"values of {cluster} with rows of"))
    for counts, what in counted:
        if kind == "binary" or metric.startswith("macro_"):
            rare = "rarer" if kind == "binary" else "rarest"
            found.append((min(counts), f"{what} the {rare} label"))
        elif of_class:
            found.append((counts[sample.class_names.index(of_class)], f"{what} {class_title(of_class)}"))
    return min(found)


def class_title(name: str) -> str:
    """Write the name of a class so that a number is not taken for a count: ``class 2``, ``setosa``."""
    return f"class {name}" if name.isdecimal() else name


def class_too_small(metric: str, entry: Slice, classes: Sequence[str], least: int) -> str:
    """Say why a slice is too small for the metric of one class, or a mean of all; empty if it is not."""
    of_class = metric.partition("/")[2]
    if metric.startswith("macro_") and entry.counts:
        of_class = classes[min(range(len(entry.counts)), key=entry.counts.__getitem__)]
    if not of_class or not entry.counts:
        return ""
    count = entry.counts[classes.index(of_class)]
    return f"{count:,} of at least {least:,} rows of {class_title(of_class)}" if count < least else ""


def slice_too_small(partition: Partition, grouping: Grouping, index: int) -> str:
    """Say why a slice is not judged; empty if it is."""
    data, section = partition.data, partition.data.evaluation
    rows, counts = int(partition.rows[index]), partition.counts[index].tolist()
    if grouping.names[index] == grouping.pooled:
        return "rare values together"
    if rows < section.min_rows:
        return f"{rows:,} of at least {section.min_rows:,} rows"

    def too_few_units(of_class: int | None = None, what: str = "") -> str:
        units = int(partition.units(of_class)[index]) if data.clustered else MIN_UNITS
        return (
            f"{units} of at least {MIN_UNITS} values of {section.cluster}{what}" if units < MIN_UNITS else ""
        )

    if reason := too_few_units():
        return reason
    of_classes = (1, "positives", section.min_positives), (0, "negatives", section.min_negatives)
    for value, what, least in of_classes if data.kind == "binary" else ():
        if counts[value] < least:
            return f"{counts[value]:,} of at least {least:,} {what}"
        if reason := too_few_units(value, f" with {what}"):
            return reason
    return ""
