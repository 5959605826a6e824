"""Figures of columns, and the report of a shard, which crosses between processes and machines."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import SnapshotFile, SourceFile
from trainwright.documents import Document, canonical


@dataclass(frozen=True, kw_only=True)
class ColumnFigures:
    """Figures of some rows of a column; ``count`` is that of finite numbers."""

    nulls: int = 0
    nans: int = 0
    count: int = 0
    least: float = 0.0
    most: float = 0.0
    mean: float = 0.0
    spread: float = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers."""
        return float(np.sqrt(self.spread / self.count)) if self.count else 0.0


def measure(column: pa.ChunkedArray) -> ColumnFigures:
    """Measure one batch of a column."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return ColumnFigures(nulls=column.null_count)
    present: NDArray[np.float64] = column.drop_null().cast(pa.float64(), safe=False).to_numpy()
    nans = 0
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(present.sum()):
            nans = int(np.isnan(present).sum())
            present = present[np.isfinite(present)]
        if not len(present):
            return ColumnFigures(nulls=column.null_count, nans=nans)
        mean = _bounded(present.mean())
        spread = _bounded(np.square(present - mean).sum())
    return ColumnFigures(
        nulls=column.null_count,
        nans=nans,
        count=len(present),
        least=float(present.min()),
        most=float(present.max()),
        mean=mean,
        spread=spread,
    )


def _bounded(number: float) -> float:
    """Return a number as JSON can hold it: one beyond the largest float becomes that."""
    return float(np.nan_to_num(number))


def merged(figures: Iterable[ColumnFigures]) -> ColumnFigures:
    """Add up the figures of several sets of rows of one column, in this order."""
    return reduce(_merge, figures, ColumnFigures())


def _merge(one: ColumnFigures, other: ColumnFigures) -> ColumnFigures:
    """Add two sets up; means and spreads as Chan, Golub and LeVeque (1979) do, which loses no digits."""
    total = replace(
        one if one.count else other,
        nulls=one.nulls + other.nulls,
        nans=one.nans + other.nans,
    )
    if not (one.count and other.count):
        return total
    count, apart = one.count + other.count, other.mean - one.mean
    with np.errstate(over="ignore"):
        between = np.square(apart) * one.count / count * other.count
        return replace(
            total,
            count=count,
            least=min(one.least, other.least),
            most=max(one.most, other.most),
            mean=_bounded(one.mean + apart / count * other.count),
            spread=_bounded(one.spread + other.spread + between),
        )


@dataclass(frozen=True, kw_only=True)
class FingerprintRun:
    """A sorted run of fingerprints in a shard's spill, from a byte offset on.

    ``split`` is empty for the key, which is compared across all splits.
    """

    column: str
    split: str
    offset: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Span:
    """Rows of one file that are in one split.

    Attributes:
        labels: Rows with a label.
        classes: Rows by class number, as text; empty for a regression.
        numbers: Figures of the label of a regression.
        oldest: Time in microseconds from 1970; None without a time column, as ``newest``.
    """

    uri: str
    split: str
    rows: int
    labels: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    numbers: ColumnFigures = ColumnFigures()
    oldest: int | None = None
    newest: int | None = None

    def plus(self, other: "Span") -> "Span":
        """Add more rows of the same file and split."""
        return replace(
            self,
            rows=self.rows + other.rows,
            labels=self.labels + other.labels,
            classes=dict(Counter(self.classes) + Counter(other.classes)),
            numbers=merged((self.numbers, other.numbers)),
            oldest=_extreme(min, self.oldest, other.oldest),
            newest=_extreme(max, self.newest, other.newest),
        )


def _extreme(choose: Callable[..., int], *times: int | None) -> int | None:
    """Return the first or the last of the known times; None without any."""
    known = [time for time in times if time is not None]
    return choose(known) if known else None


@dataclass(frozen=True, kw_only=True)
class ShardReport(Document):
    """The result of one shard. It is written create-only: of two attempts at a shard, the first one's counts.

    ``files`` are named as the manifest names them; there are none in reference mode.
    """

    FILE: ClassVar[str] = "shard.json"
    shard: int
    files: tuple[SnapshotFile, ...]
    spans: tuple[Span, ...]
    columns: dict[str, ColumnFigures]
    spill: SourceFile
    runs: tuple[FingerprintRun, ...]

    def packed(self) -> bytes:
        """Write the report as bytes, the same for the same report."""
        return canonical(self.to_json()).encode()


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The reports of all shards, added up: counts by split, with every split; figures by column.

    ``classes`` and ``numbers`` describe the label of each split, as a :class:`Span` does. ``span`` has the
    times of the oldest and the newest row in microseconds from 1970; None without rows or times.
    """

    rows: dict[str, int]
    labels: dict[str, int]
    classes: dict[str, Counter[int]]
    numbers: dict[str, ColumnFigures]
    columns: dict[str, ColumnFigures] = field(default_factory=dict)
    span: tuple[int, int] | None = None

    @property
    def all_rows(self) -> int:
        """Rows in all splits."""
        return sum(self.rows.values())

    @property
    def all_classes(self) -> Counter[int]:
        """Rows by class number, in all splits."""
        return sum(self.classes.values(), Counter())


def add_up(reports: Sequence[ShardReport], names: Iterable[str]) -> Totals:
    """Add up reports in the order of the shards; ``names`` are the splits in the order of the manifest."""
    rows = dict.fromkeys(names, 0)
    labels = dict(rows)
    classes: dict[str, Counter[int]] = {name: Counter() for name in rows}
    numbers = {name: ColumnFigures() for name in rows}
    spans = [span for report in reports for span in report.spans]
    for span in spans:
        rows[span.split] += span.rows
        labels[span.split] += span.labels
        classes[span.split].update({int(number): count for number, count in span.classes.items()})
        numbers[span.split] = merged((numbers[span.split], span.numbers))
    columns = {
        name: merged(report.columns[name] for report in reports if name in report.columns)
        for name in dict.fromkeys(name for report in reports for name in report.columns)
    }
    oldest = _extreme(min, *(span.oldest for span in spans))
    newest = _extreme(max, *(span.newest for span in spans))
    return Totals(
        rows=rows,
        labels=labels,
        classes=classes,
        numbers=numbers,
        columns=columns,
        span=None if oldest is None or newest is None else (oldest, newest),
    )
