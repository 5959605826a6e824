"""What is known of one split."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.artifacts import Snapshot
from trainwright.experiment.data import Runner
from trainwright.validate import looking
from trainwright.validate.bins import Counts, Cuts, cut_points
from trainwright.validate.looking import Lookout
from trainwright.validate.statistics import VALUES_KEPT, by_column


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


def foreign_columns(
    folder: Path, snapshot: Snapshot, splits: Sequence[str], unread: Any | None = None
) -> dict[str, str]:
    """Return the columns of which there are no statistics, with their types; none if there is no split.

    Args:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        splits: Splits with rows.
        unread: The schema, if columns that it does not name are not read; absent, only those of a type that
            TFDV cannot read are returned.
    """
    found = looking.foreign_columns(folder, snapshot, list(splits)) if splits else {}
    return found | (looking.unnamed_columns(snapshot, unread) if splits and unread is not None else {})


def profile_splits(
    folder: Path,
    snapshot: Snapshot,
    splits: Sequence[str],
    schema: Any,
    numbers: Sequence[str],
    *,
    runner: Runner | None = None,
    store: str = "",
    new_columns: bool = True,
) -> dict[str, Profile]:
    """Look at splits, piece by piece, on the processes or the engine of ``runner``.

    Args:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        splits: Splits with rows. The quantiles of the first bound the bins of all; one alone is not binned.
        schema: The reviewed schema.
        numbers: Columns to count in bins, if they hold numbers.
        runner: On what the rows are read; two processes if absent. It changes nothing of the result.
        store: Folder or URI where statistics and counts are kept, and looked for first; none if empty.
        new_columns: Whether statistics are taken of columns, too, that the schema does not name.
    """
    lookout = Lookout(folder, snapshot, schema, runner or Runner(), store, new_columns)
    first = lookout.statistics(splits[0])
    cuts = own_cuts(first, numbers) if len(splits) > 1 else {}
    found = {splits[0]: (first, lookout.counts(splits[0], cuts))}
    found |= {name: lookout.both(name, cuts) for name in splits[1:]}
    return {
        name: Profile(split=name, rows=snapshot.splits[name], statistics=statistics, counts=counts)
        for name, (statistics, counts) in found.items()
    }


def count_split(
    folder: Path,
    snapshot: Snapshot,
    split: str,
    cuts: Mapping[str, Cuts],
    *,
    runner: Runner | None = None,
    store: str = "",
) -> dict[str, Counts]:
    """Count the rows of a split in given bins, on the processes or the engine of ``runner``.

    Args:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        split: A split with rows.
        cuts: Cut points by column; every column must be in the snapshot.
        runner: See :func:`profile_splits`.
        store: See :func:`profile_splits`.
    """
    return Lookout(folder, snapshot, None, runner or Runner(), store).counts(split, cuts)


def own_cuts(statistics: Any, numbers: Sequence[str]) -> dict[str, Cuts]:
    """Return where columns are cut by the quantiles of their own split; only those that hold numbers."""
    features = by_column(statistics)
    points = {name: cut_points(features[name]) for name in numbers if name in features}
    return {name: cuts for name, cuts in points.items() if cuts is not None}
