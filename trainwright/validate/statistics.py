"""TFDV's statistics of rows, straight from their Arrow batches.

TFDV's own combiners do the work; only the road to them is ours. No file is converted, and memory stays that
of a batch. The rows give the same statistics as TFDV's ``generate_statistics_from_dataframe``, but for a
float NaN: pandas makes it a missing value, here it is counted as NaN. Quantiles of more rows than a sketch
holds are within :data:`SKETCH_ERROR` of their rank, on TFDV's road as on ours.
"""

import pickle
from collections.abc import Iterable
from typing import Any, Self

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.validate.combiners import QUANTILES, VALUES_KEPT, Combiners, counted_as
from trainwright.validate.forms import listed, prepared, readable, unreadable

__all__ = [
    "QUANTILES",
    "SKETCH_ERROR",
    "VALUES_KEPT",
    "Statistics",
    "by_column",
    "describe",
    "readable",
    "unreadable",
]

SKETCH_ERROR = 0.01
"""Largest error of a quantile's rank, as a share of the rows: TFDV's own setting of its sketch."""


class Statistics:
    """Statistics of rows that arrive batch by batch.

    Args:
        schema: Says which numbers are categories, whose values are then counted one by one.
        uncounted: Columns whose values are not counted, such as a key: all are distinct.
    """

    def __init__(self, schema: Any, uncounted: Iterable[str] = ()) -> None:
        self._combiners = Combiners(counted_as(schema, uncounted))
        self._parts = self._combiners.begin()

    def add(self, batch: pa.RecordBatch) -> Self:
        """Add rows."""
        return self.add_listed(listed(prepared(batch)))

    def add_listed(self, rows: pa.RecordBatch) -> Self:
        """Add rows that are in TFDV's form already."""
        self._parts = self._combiners.add(self._parts, rows)
        return self

    def merge(self, other: Self) -> Self:
        """Add the rows that another has seen, which is used up; both must be of the same schema."""
        return self._merge(self._combiners.compact(other._parts))

    def packed(self) -> bytes:
        """Return what was seen so far as bytes, for a process that was given the same schema."""
        return pickle.dumps(self._combiners.compact(self._parts), protocol=pickle.HIGHEST_PROTOCOL)

    def merge_packed(self, parts: bytes) -> Self:
        """Add the rows that another process has seen. Only for bytes that our own processes sent."""
        return self._merge(pickle.loads(parts))  # noqa: S301  # nosec B301

    def _merge(self, parts: list[Any]) -> Self:
        self._parts = self._combiners.merge([self._combiners.compact(self._parts), parts])
        return self

    def finish(self) -> Any:
        """Return the statistics as TFDV's ``DatasetFeatureStatisticsList`` with one dataset."""
        return self._combiners.finish(self._parts)


def describe(batches: Iterable[pa.RecordBatch], schema: Any, uncounted: Iterable[str] = ()) -> Any:
    """Compute the statistics of some rows in this process.

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
