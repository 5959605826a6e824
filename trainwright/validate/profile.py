"""What is known of one split."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.tables import iter_batches
from trainwright.validate.bins import Counts, Cuts, count, cut_points
from trainwright.validate.statistics import VALUES_KEPT, by_column, describe, unreadable


@dataclass(frozen=True)
class Profile:
    """Statistics and counts of one split.

    Attributes:
        split: Its name.
        rows: Its rows, more than 0.
        statistics: TFDV's statistics.
        counts: Rows by bin of the numeric columns that are compared, in the bins of both splits.
    """

    split: str
    rows: int
    statistics: Any
    counts: dict[str, Counts]

    def missing(self, column: str) -> int:
        """Return the rows in which a column has no value: null, absent, or a float that is not a number."""
        feature = by_column(self.statistics).get(column)
        if feature is None:
            return self.rows
        common = feature.string_stats if feature.HasField("string_stats") else feature.num_stats
        nan = sum(histogram.num_nan for histogram in feature.num_stats.histograms[:1])
        return min(self.rows, self.rows - int(common.common_stats.num_non_missing) + int(nan))

    def values(self, column: str) -> dict[str, float]:
        """Return the rows by value of a column whose values were counted; empty if they were not."""
        feature = by_column(self.statistics).get(column)
        buckets = feature.string_stats.rank_histogram.buckets if feature is not None else ()
        return {bucket.label: bucket.sample_count for bucket in buckets}

    def uncounted(self, column: str) -> str:
        """Say why the counts of a column's values are missing or not whole; empty if they are whole."""
        feature = by_column(self.statistics).get(column)
        values = self.values(column)
        if feature is None:
            return f"it is not in split {self.split}"
        if not values:
            return f"no values of it in split {self.split}"
        strings = feature.string_stats
        total = strings.common_stats.tot_num_values
        if strings.unique > VALUES_KEPT or not math.isclose(sum(values.values()), total, abs_tol=0.5):
            return (
                f"about {strings.unique:,} distinct values in split {self.split}, of which only the "
                f"{VALUES_KEPT:,} commonest are counted"
            )
        return ""


def foreign_columns(folder: Path, snapshot: Snapshot, splits: Sequence[str]) -> dict[str, str]:
    """Return the columns of a type that TFDV cannot read, with the type; none if there is no split."""
    for batch in iter_batches(folder, snapshot, splits, batch_rows=1):
        return unreadable(batch.schema)
    return {}


def profile_splits(
    folder: Path, snapshot: Snapshot, splits: Sequence[str], schema: Any, numbers: Sequence[str]
) -> dict[str, Profile]:
    """Look at splits, reading each from its files batch by batch.

    Args:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        splits: Splits with rows. The quantiles of the first bound the bins of all; one alone is not binned.
        schema: The reviewed schema.
        numbers: Columns to count in bins, if they hold numbers.
    """
    key = [snapshot.roles["key"]] if "key" in snapshot.roles else []
    described = {name: describe(iter_batches(folder, snapshot, [name]), schema, key) for name in splits}
    cuts = _cuts(described[splits[0]], numbers) if len(splits) > 1 else {}
    return {
        name: Profile(
            split=name,
            rows=snapshot.splits[name],
            statistics=statistics,
            counts=count(iter_batches(folder, snapshot, [name], list(cuts)), cuts) if cuts else {},
        )
        for name, statistics in described.items()
    }


def _cuts(statistics: Any, numbers: Sequence[str]) -> dict[str, Cuts]:
    features = by_column(statistics)
    points = {name: cut_points(features[name]) for name in numbers if name in features}
    return {name: cuts for name, cuts in points.items() if cuts is not None}
