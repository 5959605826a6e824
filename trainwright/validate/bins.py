"""Counts of both splits in the same bins, so that a distance between them is one of the data.

TFDV draws each split's histogram from a quantile sketch, assumes that rows lie evenly between two of its
points, and cuts both histograms anew where their bounds differ. For numbers with few values or a long tail
that makes distances of 0.02 to 0.07 between two random halves of one table. Here the previous split's
quantiles are the bounds for both splits, and every row is counted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.validate.forms import numbers, prepared
from trainwright.validate.statistics import by_column
from trainwright.validate.tfdv import statistics_pb2

Cuts = NDArray[np.float64]
Counts = NDArray[np.int64]


def cut_points(feature: Any) -> Cuts | None:
    """Choose where to cut a numeric column, by the statistics of the previous split.

    The bins are: below the smallest value, between the quantiles (upper bound included), above the largest
    value. So what lies outside the previous range has bins of its own, and so has a value that fills a
    whole quantile alone.

    Args:
        feature: The column's ``FeatureNameStatistics``.

    Returns:
        Ascending cut points, shape (bins - 1,), or None if the column has no finite number.
    """
    buckets = [
        bucket
        for histogram in feature.num_stats.histograms
        if histogram.type == statistics_pb2.Histogram.QUANTILES
        for bucket in histogram.buckets
    ]
    points = [value for bucket in buckets for value in (bucket.low_value, bucket.high_value)]
    finite = sorted({value for value in points if math.isfinite(value)})
    if not finite:
        return None
    least = finite[0]
    fills = any(bucket.low_value == bucket.high_value == least for bucket in buckets)
    points = [np.nextafter(least, -np.inf), *([least] if fills else finite[1:2]), *finite[1:]]
    return np.unique(np.asarray(points, np.float64))


def edges(cuts: Cuts) -> list[float]:
    """Return the bounds of the bins, shape (bins + 1,), for drawing; the outer ones are infinite."""
    first = float(np.nextafter(cuts[0], np.inf))  # cuts[0] lies just below the smallest value
    return [-math.inf, first, *(float(cut) for cut in cuts[1:]), math.inf]


def count(batches: Iterable[pa.RecordBatch], cuts: Mapping[str, Cuts]) -> dict[str, Counts]:
    """Count the rows of some numeric columns by bin; null and NaN are in none.

    Args:
        batches: Rows that have the columns of ``cuts``.
        cuts: Cut points by column.

    Returns:
        Counts by column, each of shape (bins,).
    """
    counts = no_counts(cuts)
    for batch in batches:
        wanted = pa.RecordBatch.from_arrays(
            [batch.column(batch.schema.get_field_index(x)) for x in cuts], list(cuts)
        )
        add_counts(counts, prepared(wanted), cuts)
    return counts


def no_counts(cuts: Mapping[str, Cuts]) -> dict[str, Counts]:
    """Return the counts of no rows."""
    return {name: np.zeros(len(points) + 1, np.int64) for name, points in cuts.items()}


def add_counts(
    counts: Mapping[str, Counts], columns: Mapping[str, pa.Array], cuts: Mapping[str, Cuts]
) -> None:
    """Add the rows of prepared columns to ``counts``; their numbers are in order, so each bin is one search.

    Args:
        counts: What was counted so far, by column; changed.
        columns: As :func:`trainwright.validate.forms.prepared` gives them.
        cuts: Cut points by column.
    """
    for name, points in cuts.items():
        if name in columns:
            values = numbers(columns[name])
            ends = np.searchsorted(values, points, side="right")
            counts[name][:] += np.diff(ends, prepend=0, append=len(values))


def with_bins(statistics: Any, counts: Mapping[str, Sequence[int] | Counts]) -> Any:
    """Return a copy of the statistics whose numeric histograms are these counts, bin by bin.

    The bins are numbered, not placed: both splits have the same, so TFDV compares them as they are.
    """
    copy = statistics_pb2.DatasetFeatureStatisticsList.FromString(statistics.SerializeToString())
    for name, feature in by_column(copy).items():
        if feature.HasField("num_stats"):
            del feature.num_stats.histograms[:]
            if name in counts:
                histogram = feature.num_stats.histograms.add(type=statistics_pb2.Histogram.STANDARD)
                for place, rows in enumerate(counts[name]):
                    histogram.buckets.add(low_value=place, high_value=place + 1, sample_count=float(rows))
    return copy
