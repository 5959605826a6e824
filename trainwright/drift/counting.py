"""Counts of columns, batch by batch, in the form that two samples are compared in; rows of a serving log."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.drift.baseline import CountedSample
from trainwright.drift.comparison import Counts, Cuts
from trainwright.drift.findings import Kind
from trainwright.errors import InputError
from trainwright.experiment import Data, ServingLog, Share
from trainwright.sources import Sources, open_source
from trainwright.storage import Access, require_listing

VALUES_KEPT = 10_000
"""Distinct values of a column that are counted."""

QUANTILES, SAMPLED_ROWS = 20, 1_000_000
"""Bins of equal weight of a numeric column, and the most rows that they are taken from."""


def kind_of(column: pa.DataType) -> Kind:
    """Return how a column is compared: by bins, by its values, or, of other types, not at all."""
    of = pa.types
    column = column.value_type if of.is_dictionary(column) else column
    if of.is_boolean(column) or of.is_string(column) or of.is_large_string(column):
        return "categories"
    known = (of.is_integer, of.is_floating, of.is_decimal, of.is_timestamp, of.is_date, of.is_null)
    return "numbers" if any(holds(column) for holds in known) else "nested"


def find_cuts(batches: Iterable[pa.RecordBatch], rows: int, numbers: Sequence[str]) -> dict[str, Cuts]:
    """Return where to cut numeric columns: at the quantiles of evenly spread rows.

    The bins are: below the smallest value, between quantiles (upper bound included), above the largest.
    """
    every = max(1, -(-rows // SAMPLED_ROWS))
    sampled: dict[str, list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = {name: [] for name in numbers}
    for batch in batches:
        for name in numbers:
            values = _numbers(batch.column(name))
            sampled[name].append(values[np.isfinite(values)][::every])
    found = {}
    for name, parts in sampled.items():
        values = np.concatenate([np.empty(0), *parts])
        if values.size:
            points = np.quantile(values, np.linspace(0, 1, QUANTILES + 1), method="inverted_cdf")
            first = points[:1] if points[0] == points[1] else points[1:2]
            found[name] = np.unique([np.nextafter(points[0], -np.inf), *first, *points[1:]])
    return found


@dataclass
class _Tally:
    """Counts so far."""

    rows: int = 0
    absent: Counter[str] = field(default_factory=Counter)
    by_value: dict[str, Counter[str]] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def count(
    split: str, batches: Iterable[pa.RecordBatch], kinds: Mapping[str, Kind], cuts: Mapping[str, Cuts]
) -> CountedSample:
    """Count the rows of every column: without a value, by value, and by bin where there are ``cuts``."""
    tally = _Tally(counts={name: np.zeros(len(points) + 1, np.int64) for name, points in cuts.items()})
    for batch in batches:
        tally.rows += batch.num_rows
        for name, kind in kinds.items():
            if name in batch.schema.names:
                _add(tally, name, batch.column(name), kind, cuts.get(name), split)
    return CountedSample(split, tally.rows, tally.counts, dict(tally.absent), tally.by_value, tally.reasons)


def _add(tally: _Tally, name: str, column: pa.Array, kind: Kind, cuts: Cuts | None, split: str) -> None:
    if kind == "numbers":
        values = np.sort(_numbers(column))  # NaN last
        known = values[: np.searchsorted(values, np.inf, side="right")]
        tally.absent[name] += len(values) - len(known)
        if cuts is not None:
            ends = np.searchsorted(known, cuts, side="right")
            tally.counts[name] += np.diff(ends, prepend=0, append=len(known))
        return
    tally.absent[name] += column.null_count
    if kind != "categories" or name in tally.reasons:
        return
    counted = tally.by_value.setdefault(name, Counter())
    for entry in pc.value_counts(column.drop_null().cast(pa.string())).to_pylist():
        counted[entry["values"]] += entry["counts"]
    if len(counted) > VALUES_KEPT:
        del tally.by_value[name]
        tally.reasons[name] = f"more than {VALUES_KEPT:,} distinct values in {split}"


def _numbers(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a column as floats, in which null is NaN; times are whole numbers."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    values = column.cast(pa.float64(), safe=False)
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = values.to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True)
class ServedRows:
    """The rows of a serving log.

    Attributes:
        columns: Column of the log by feature, of those that it has in a type that can be compared.
        unlike: Arrow type of the other features that it has.
    """

    sources: Sources
    columns: Mapping[str, str]
    unlike: Mapping[str, str]

    @classmethod
    def open(cls, log: ServingLog, source: str, version: str, kinds: Mapping[str, Kind]) -> "ServedRows":
        """Open the log, and check that it is the one that was listed when the run began.

        Args:
            log: Its format, and its columns where their names differ.
            source: File, folder or glob, with its date filled in.
            version: Its content digest, as `resolve` found it.
            kinds: How each feature is compared.
        """
        listing = require_listing("the serving log", source, version)
        data = Data(source=source, format=log.format, splits={"serving": Share(fraction=1)})
        sources = open_source(listing, data, Access())
        types = {field.name: field.type for field in sources.schema}
        unknown = [f"{name}: {column}" for name, column in log.columns.items() if name not in kinds]
        unknown += [f"{name}: {column}" for name, column in log.columns.items() if column not in types]
        if unknown:
            raise InputError(
                f"validation.serving_log.columns names no feature, or no column of the log: {unknown}",
                where=source,
                hint=f"Features: {', '.join(kinds)}. Columns of the log: {', '.join(types)}.",
            )
        columns = {name: log.columns.get(name, name) for name in kinds}
        there = {name: column for name, column in columns.items() if column in types}
        unlike = {
            name: str(types[column])
            for name, column in there.items()
            if kind_of(types[column]) != kinds[name] and not pa.types.is_null(types[column])
        }
        return cls(sources, {name: there[name] for name in there.keys() - unlike.keys()}, unlike)

    @property
    def untimed(self) -> frozenset[str]:
        """Features of the log that are no times: a baseline counts those in a unit of its own."""
        types = {field.name: field.type for field in self.sources.schema}
        return frozenset(
            name for name, column in self.columns.items() if not pa.types.is_temporal(types[column])
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, under the names of the features."""
        for part in self.sources.parts():
            for _, _, rows in self.sources.batches(part):
                chosen = rows.select(list(self.columns.values())).rename_columns(list(self.columns))
                yield from chosen.to_batches()
