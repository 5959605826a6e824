"""Compare statistics with those of TFDV's own roads, and make those by an independent hand."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainwright.validate.statistics import QUANTILES, VALUES_KEPT
from trainwright.validate.tfdv import statistics_pb2, stats_impl, tfdv


def options(**given: Any) -> Any:
    return tfdv.StatsOptions(
        num_rank_histogram_buckets=VALUES_KEPT, num_quantiles_histogram_buckets=QUANTILES, **given
    )


def of_dataframe(frame: Any, **given: Any) -> Any:
    with np.errstate(invalid="ignore"):  # infinities have no variance
        return tfdv.generate_statistics_from_dataframe(frame, options(**given))


def of_lists(columns: dict[str, tuple[list[Any], pa.DataType]], **given: Any) -> Any:
    """TFDV's in-memory method on rows written out by hand: a null, or a list of values."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array(rows, pa.large_list(kind)) for rows, kind in columns.values()], list(columns)
    )
    with np.errstate(invalid="ignore"):
        return stats_impl.generate_statistics_in_memory(batch, options(**given))


def assert_same(ours: Any, theirs: Any, *, sketched: bool = False) -> None:
    """Demand the same proto to the last bit, but for the rounding of a mean.

    A column's numbers are added up in ascending order here and in the order of rows there. With ``sketched``
    there are more rows than a sketch holds, and quantiles are left out: they are compared by their ranks.
    """
    mine, other = (_features(statistics) for statistics in (ours, theirs))
    assert list(mine) == list(other)
    assert ours.datasets[0].num_examples == theirs.datasets[0].num_examples
    for name, feature in mine.items():
        _assert_moments(feature, other[name], name)
        for one in (feature, other[name]):
            one.num_stats.ClearField("mean")
            one.num_stats.ClearField("std_dev")
            if sketched:
                one.num_stats.ClearField("histograms")
                one.num_stats.ClearField("median")
        mine_bytes, other_bytes = (
            one.SerializeToString(deterministic=True) for one in (feature, other[name])
        )
        assert mine_bytes == other_bytes, name


def _features(statistics: Any) -> dict[str, Any]:
    copy = statistics_pb2.DatasetFeatureStatisticsList.FromString(statistics.SerializeToString())
    return {
        feature.path.step[0]: feature
        for feature in sorted(copy.datasets[0].features, key=lambda feature: feature.path.step[0])
    }


def _assert_moments(feature: Any, other: Any, name: str) -> None:
    mine, theirs = feature.num_stats, other.num_stats
    size = max(abs(theirs.min), abs(theirs.max), 1e-300)
    size = size if math.isfinite(size) else 1.0
    assert mine.mean == pytest.approx(theirs.mean, rel=1e-9, abs=size * 1e-12, nan_ok=True), name
    assert mine.std_dev == pytest.approx(theirs.std_dev, rel=1e-6, abs=size * 1e-6, nan_ok=True), name
