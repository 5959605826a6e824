"""Columns in the form that TFDV takes, sorted, and counted in bins that both samples share.

Each column of a batch is sorted by itself first: TFDV's quantile sketch and the search for a value's bin are
three to thirty times cheaper on sorted values, and no statistic depends on the order of rows. TFDV's own
histograms are noise for numbers with few values (docs/components/validate.md): the reference's quantiles
bound the bins of both samples here, and every row is counted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.drift.comparison import Counts, Cuts
from trainwright.validate.tfdv import array_util, statistics_pb2

_DAYS_OR_SECONDS = 32
"""Bits of the temporal types that are stored in a shorter integer."""


def prepared(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Bring the columns of a batch into types that TFDV takes, each one's numbers in ascending order.

    The columns of a row lie apart afterwards: no statistic looks at two of them. Columns of a type that TFDV
    cannot take are left out; :func:`unreadable` names them.
    """
    pairs = zip(batch.schema.names, batch.columns, strict=True)
    flat = {name: column if is_text(column.type) else readable(column) for name, column in pairs}
    return {name: _in_order(column) for name, column in flat.items() if column is not None}


def listed(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Make every row of prepared columns a list of values, or null."""
    arrays = [
        column if pa.types.is_large_list(column.type) else array_util.ToSingletonListArray(column)
        for column in columns.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def numbers(column: pa.Array) -> NDArray[np.float64]:
    """Return the numbers of a prepared column in ascending order, null and NaN left out; none of other types.

    Shape (numbers,); whole numbers beyond 2 to the 53rd are rounded.
    """
    if pa.types.is_large_list(column.type):
        column = _in_order(column.flatten())
    if not _is_number(column.type):
        return np.empty(0)
    values = column.slice(0, len(column) - column.null_count).to_numpy().astype(np.float64, copy=False)
    found: NDArray[np.float64] = values[: np.searchsorted(values, np.inf, side="right")]
    return found


def _in_order(column: pa.Array) -> pa.Array:
    """Put the numbers of a column into ascending order, NaN and then null last; leave others as they are."""
    if not _is_number(column.type):
        return column
    values = column.drop_null().to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        values = values + 0.0  # one form of zero: which of -0.0 and 0.0 comes first depends on the processor
    found = pa.array(np.sort(values), column.type)
    return pa.concat_arrays([found, pa.nulls(column.null_count, column.type)]) if column.null_count else found


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether TFDV takes a column unchanged: text, which it reads like bytes."""
    of = pa.types
    return any(holds(kind) for holds in (of.is_string, of.is_large_string, of.is_binary, of.is_large_binary))


def unreadable(schema: pa.Schema) -> dict[str, str]:
    """Return the columns that TFDV cannot take, with their types: structs, maps, unions."""
    return {field.name: str(field.type) for field in schema if _target(field.type) is None}


def readable(array: pa.Array) -> pa.Array | None:
    """Bring a column into a type that TFDV takes, or return None.

    Integers and booleans become 64-bit and 8-bit integers, decimals and floats doubles, strings bytes.
    Timestamps become whole seconds since 1970 in UTC, dates days; a time of the day or a duration stays the
    number it is stored as.
    """
    target = _target(array.type)
    if target is None or target == array.type:
        return None if target is None else array
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False)
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == _DAYS_OR_SECONDS else pa.int64())
    return array.cast(target)


def _target(kind: pa.DataType) -> Any:
    """Return the type under which TFDV takes a column; None if it does not."""
    of = pa.types
    if of.is_list(kind) or of.is_large_list(kind):
        inner = _target(kind.value_type)
        flat = inner is not None and not of.is_large_list(inner) and not of.is_temporal(kind.value_type)
        return pa.large_list(inner) if flat else None
    if of.is_dictionary(kind):
        return _target(kind.value_type)
    forms = (
        (of.is_boolean(kind), pa.int8()),
        (of.is_unsigned_integer(kind), pa.uint64()),
        (of.is_signed_integer(kind) or of.is_temporal(kind), pa.int64()),
        (of.is_float32(kind) or of.is_float64(kind) or of.is_decimal(kind), pa.float64()),
        (of.is_null(kind) or is_text(kind), pa.large_binary()),
    )
    return next((target for holds, target in forms if holds), None)


def cut_points(feature: Any) -> Cuts | None:
    """Choose where to cut a numeric column, by the statistics of the previous split.

    The bins are: below the smallest value, between the quantiles (upper bound included), above the largest
    value. So what lies outside the previous range has bins of its own, and so has a value that fills a
    whole quantile alone.
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


def no_counts(cuts: Mapping[str, Cuts]) -> dict[str, Counts]:
    """Return the counts of no rows."""
    return {name: np.zeros(len(points) + 1, np.int64) for name, points in cuts.items()}


def add_counts(
    counts: Mapping[str, Counts], columns: Mapping[str, pa.Array], cuts: Mapping[str, Cuts]
) -> None:
    """Add the rows of prepared columns to ``counts``; each bin is one search of the sorted numbers."""
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


def by_column(statistics: Any) -> dict[str, Any]:
    """Return the statistics of each top-level column (``FeatureNameStatistics``) by its name."""
    return {feature.path.step[0]: feature for feature in statistics.datasets[0].features}
