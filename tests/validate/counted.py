"""A fast path from rows to the drift decision: rows are counted by numpy, all that follows is the gate's own.

A split of 25,000 rows through Parquet, TFDV's sketches and the page takes a second; through here, some
milliseconds. ``test_study.py`` shows that both roads give the same numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.drift.comparison import ColumnComparison, SamplePair, decide, measure_missing, measure_unseen
from trainwright.drift.findings import JENSEN_SHANNON, L_INFINITY, Limit
from trainwright.validate.profile import Profile
from trainwright.validate.tfdv import schema_pb2, statistics_pb2
from trainwright.validate.validate import measure

QUANTILES = 20


@dataclass(frozen=True)
class Column:
    """A column as numbers: values, or the codes of categories; what is missing is NaN, or -1.

    ``names`` are those of the categories; none for numbers.
    """

    values: NDArray[Any]
    names: Sequence[str] = ()

    def take(self, rows: NDArray[np.int64]) -> "Column":
        return Column(self.values[rows], self.names)

    @property
    def present(self) -> NDArray[Any]:
        """The values that are not missing."""
        missing = self.values < 0 if self.names else np.isnan(self.values)
        found: NDArray[Any] = self.values[~missing]
        return found


Rows = Mapping[str, Column]


def schema_of(rows: Rows) -> Any:
    """A schema that says of every column whether it is a number or a category."""
    schema = schema_pb2.Schema()
    for name, column in rows.items():
        schema.feature.add(name=name, type=schema_pb2.BYTES if column.names else schema_pb2.FLOAT)
    return schema


def limits_of(rows: Rows, threshold: float = 0.0) -> tuple[Limit, ...]:
    """A limit for every column; at 0, chance alone decides."""
    return tuple(
        Limit(name, "categories", L_INFINITY, threshold)
        if column.names
        else Limit(name, "numbers", JENSEN_SHANNON, threshold)
        for name, column in rows.items()
    )


def cuts_of(column: Column) -> NDArray[np.float64]:
    """Cut by the quantiles of a sample: below its smallest value, after each twentieth, at its largest."""
    values = np.sort(column.present)
    places = np.ceil(np.arange(1, QUANTILES + 1) / QUANTILES * len(values)).astype(int) - 1
    points = values[places]
    return np.unique(np.concatenate([[np.nextafter(values[0], -np.inf)], points]))


def profile(split: str, rows: Rows, size: int, cuts: Mapping[str, NDArray[np.float64]]) -> Profile:
    """Count a sample as the gate does, into statistics of TFDV's form."""
    statistics = statistics_pb2.DatasetFeatureStatisticsList()
    dataset = statistics.datasets.add(num_examples=size)
    counts = {}
    for name, column in rows.items():
        feature = dataset.features.add(
            type=statistics_pb2.FeatureNameStatistics.STRING
            if column.names
            else statistics_pb2.FeatureNameStatistics.FLOAT
        )
        feature.path.step.append(name)
        present = column.present
        if column.names:
            own = feature.string_stats
            found = np.bincount(present, minlength=len(column.names))
            for code in np.flatnonzero(found):
                own.rank_histogram.buckets.add(label=column.names[code], sample_count=float(found[code]))
            own.unique = int(np.count_nonzero(found))
        else:
            own = feature.num_stats
            places = np.searchsorted(cuts[name], present, side="left")
            counts[name] = np.bincount(places, minlength=len(cuts[name]) + 1)
        own.common_stats.num_non_missing = len(present)
        own.common_stats.tot_num_values = len(present)
        own.common_stats.num_missing = size - len(present)
    return Profile(split, size, statistics, counts)


def compared(current: Rows, previous: Rows, limits: Sequence[Limit], schema: Any) -> list[ColumnComparison]:
    """Measure everything that the gate measures between two samples."""
    sizes = [len(next(iter(rows.values())).values) for rows in (current, previous)]
    cuts = {name: cuts_of(column) for name, column in previous.items() if not column.names}
    return compared_in(current, previous, limits, schema, cuts, sizes)


def compared_in(
    current: Rows,
    previous: Rows,
    limits: Sequence[Limit],
    schema: Any,
    cuts: Mapping[str, NDArray[np.float64]],
    sizes: Sequence[int],
) -> list[ColumnComparison]:
    """The same, in given bins."""
    profiles = [profile("evaluate", current, sizes[0], cuts), profile("train", previous, sizes[1], cuts)]
    pair = SamplePair("previous", *profiles, cuts)
    drift, unseen = measure(pair, schema, limits), measure_unseen(pair, limits, threshold=0.0)
    assert drift.not_judged == unseen.not_judged == ()
    return [*drift.measured, *unseen.measured, *measure_missing(pair, list(current), threshold=0.0).measured]


def moved(measured: Sequence[ColumnComparison], rate: float) -> list[ColumnComparison]:
    """What moved, when all limits are as configured and chance may alarm at this rate."""
    return [entry for entry in decide(measured, rate) if entry.moved]
