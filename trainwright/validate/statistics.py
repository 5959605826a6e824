"""TFDV's statistics of a split, straight from the Arrow batches of its files.

TFDV's own combiners do the work; only the road to them is ours. No file is converted, no Beam pipeline is
built, and memory stays that of a batch. The rows give the same statistics as TFDV's
``generate_statistics_from_dataframe``, but for a float NaN: pandas makes it a missing value, here it is
counted as NaN.
"""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.validate.tfdv import array_util, schema_pb2, stats_impl, tfdv

VALUES_KEPT = 10_000
"""Distinct values of a column that are counted exactly. TFDV keeps 1,000 and drops the rest in silence."""

QUANTILES = 20
"""Buckets of equal weight in a numeric column's quantile histogram."""


class Statistics:
    """Statistics of rows that arrive batch by batch.

    Args:
        schema: Says which numbers are categories, whose values are then counted one by one.
        uncounted: Columns whose values are not counted, such as a key: all are distinct.
    """

    def __init__(self, schema: Any, uncounted: Iterable[str] = ()) -> None:
        options = tfdv.StatsOptions(
            schema=_without_counts(schema, frozenset(uncounted)),
            num_rank_histogram_buckets=VALUES_KEPT,
            num_quantiles_histogram_buckets=QUANTILES,
        )
        self._generators = stats_impl.get_generators(options, in_memory=True)
        self._parts = [generator.create_accumulator() for generator in self._generators]

    def add(self, batch: pa.RecordBatch) -> Self:
        """Add rows."""
        rows = listed(batch)
        with np.errstate(invalid="ignore"):  # infinities have no mean and no variance: TFDV writes NaN
            self._parts = [
                generator.add_input(part, rows)
                for generator, part in zip(self._generators, self._parts, strict=True)
            ]
        return self

    def merge(self, other: Self) -> Self:
        """Add the rows that another has seen; it must have been made with the same schema."""
        parts = zip(self._generators, self._parts, other._parts, strict=True)
        with np.errstate(invalid="ignore"):
            self._parts = [
                generator.merge_accumulators([generator.compact(mine), generator.compact(theirs)])
                for generator, mine, theirs in parts
            ]
        return self

    def finish(self) -> Any:
        """Return the statistics as TFDV's ``DatasetFeatureStatisticsList`` with one dataset."""
        return stats_impl.extract_statistics_output(self._parts, self._generators)


def _without_counts(schema: Any, columns: frozenset[str]) -> Any:
    copy = schema_pb2.Schema.FromString(schema.SerializeToString())
    for feature in copy.feature:
        if feature.name in columns and feature.type == schema_pb2.BYTES:
            feature.string_domain.is_categorical = schema_pb2.StringDomain.CATEGORICAL_NO
    return copy


def describe(batches: Iterable[pa.RecordBatch], schema: Any, uncounted: Iterable[str] = ()) -> Any:
    """Compute the statistics of some rows.

    Args:
        batches: Rows, all of the same columns.
        schema: See :class:`Statistics`.
        uncounted: See :class:`Statistics`.
    """
    statistics = Statistics(schema, uncounted)
    for batch in batches:
        statistics.add(batch)
    return statistics.finish()


def by_column(statistics: Any) -> dict[str, Any]:
    """Return the statistics of each top-level column (``FeatureNameStatistics``) by its name."""
    return {feature.path.step[0]: feature for feature in statistics.datasets[0].features}


def listed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Bring a batch into the form that TFDV takes: every row a list of values, or null.

    Columns of a type that TFDV cannot take are left out; :func:`unreadable` names them.
    """
    names, arrays = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        flat = readable(column)
        if flat is not None:
            several = pa.types.is_large_list(flat.type)
            names.append(name)
            arrays.append(flat if several else array_util.ToSingletonListArray(flat))
    return pa.RecordBatch.from_arrays(arrays, names)


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
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())  # noqa: PLR2004
    return array.cast(target)


def _target(kind: pa.DataType) -> pa.DataType | None:
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
        (of.is_string(kind) or of.is_large_string(kind), pa.large_binary()),
        (of.is_binary(kind) or of.is_large_binary(kind) or of.is_null(kind), pa.large_binary()),
    )
    return next((target for holds, target in forms if holds), None)
