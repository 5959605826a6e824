"""Figures of columns, and the report of a shard, which crosses between processes and machines."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import SnapshotFile, SourceFile
from trainwright.documents import Document, canonical

SAMPLE = 65_536
"""Rows of a shard whose texts are counted: enough for what is frequent, at a fraction of the cost."""

_KEPT = 200
_LONGEST = 40


@dataclass(frozen=True, kw_only=True)
class ColumnFigures:
    """Figures of some rows of a column.

    Attributes:
        nulls: Rows without a value; -1 where nobody counted.
        count: Finite numbers among the rows; 0 for a column of other kinds.
        top: The most frequent texts among those, cut to 40 characters, and how often each is there.
    """

    nulls: int = 0
    nans: int = 0
    count: int = 0
    least: float = 0.0
    most: float = 0.0
    mean: float = 0.0
    spread: float = 0.0
    sampled: int = 0
    top: dict[str, int] = field(default_factory=dict)

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers."""
        return float(np.sqrt(self.spread / self.count)) if self.count else 0.0


def measure(column: pa.ChunkedArray, sample: int) -> ColumnFigures:
    """Measure one batch of a column.

    Args:
        sample: How many of its first rows to count texts of, at most.
    """
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _of_numbers(column)
    nulls = column.null_count
    if sample > 0 and (pa.types.is_string(kind) or pa.types.is_boolean(kind)):
        return ColumnFigures(
            nulls=nulls, sampled=min(sample, len(column)), top=_frequent(column.slice(0, sample))
        )
    return ColumnFigures(nulls=nulls)


def _of_numbers(column: pa.ChunkedArray) -> ColumnFigures:
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
    """Return a number as it can be written in JSON: one beyond the largest float becomes that."""
    return float(np.nan_to_num(number))


def _frequent(column: pa.ChunkedArray) -> dict[str, int]:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    found = pc.value_counts(column.drop_null().combine_chunks())
    counts: NDArray[np.int64] = found.field("counts").to_numpy()
    order = np.argsort(-counts, kind="stable")[:_KEPT]
    values = found.field("values").take(pa.array(order)).to_pylist()
    return _most(Counter(dict(_cut(zip(values, counts[order].tolist(), strict=True)))))


def _cut(pairs: Iterable[tuple[Any, int]]) -> Iterator[tuple[str, int]]:
    """Shorten long texts; of several that become one, the first, which is the most frequent, counts."""
    seen = set()
    for value, count in pairs:
        text = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
        if text not in seen:
            seen.add(text)
            yield text, count


def _most(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_KEPT])


def merged(figures: Iterable[ColumnFigures]) -> ColumnFigures:
    """Add up the figures of several sets of rows of one column, in this order."""
    return reduce(_merge, figures, ColumnFigures())


def _merge(one: ColumnFigures, other: ColumnFigures) -> ColumnFigures:
    """Add two sets up; means and spreads as Chan, Golub and LeVeque (1979) do, which loses no digits."""
    numbers = (
        _merge_numbers(one, other) if one.count and other.count else _numbers_of(one if one.count else other)
    )
    return ColumnFigures(
        nulls=-1 if -1 in {one.nulls, other.nulls} else one.nulls + other.nulls,
        nans=one.nans + other.nans,
        sampled=one.sampled + other.sampled,
        top=_most(Counter(one.top) + Counter(other.top)) if other.top else one.top,
        **numbers,
    )


def _numbers_of(figures: ColumnFigures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in ("count", "least", "most", "mean", "spread")}


def _merge_numbers(one: ColumnFigures, other: ColumnFigures) -> dict[str, Any]:
    count, apart = one.count + other.count, other.mean - one.mean
    with np.errstate(over="ignore"):
        between = np.square(apart) * one.count / count * other.count
        return {
            "count": count,
            "least": min(one.least, other.least),
            "most": max(one.most, other.most),
            "mean": _bounded(one.mean + apart / count * other.count),
            "spread": _bounded(one.spread + other.spread + between),
        }


@dataclass(frozen=True, kw_only=True)
class FingerprintRun:
    """A sorted run of fingerprints in a shard's spill.

    Attributes:
        split: The split that the values are in; empty for the key, which is compared across all.
        offset: Where it begins, in bytes.
    """

    column: str
    split: str
    offset: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Span:
    """Rows of one file that are in one split.

    Attributes:
        oldest: The time of the first, in microseconds from 1970.
    """

    uri: str
    split: str
    rows: int
    oldest: int
    newest: int


@dataclass(frozen=True, kw_only=True)
class ShardReport(Document):
    """The result of one shard. It is written create-only: of two attempts at a shard, the first one's counts.

    Attributes:
        files: The files that were written, named as the manifest names them; none in reference mode.
        positives: Rows of label 1, by split.
    """

    FILE: ClassVar[str] = "shard.json"
    shard: int
    files: tuple[SnapshotFile, ...]
    spans: tuple[Span, ...]
    labels: dict[str, int]
    positives: dict[str, int]
    columns: dict[str, ColumnFigures]
    spill: SourceFile
    runs: tuple[FingerprintRun, ...]


def packed(report: ShardReport) -> bytes:
    """Write a report as bytes, the same for the same report."""
    return canonical(report.to_json()).encode()


def unpacked(content: bytes, where: str) -> ShardReport:
    """Read a report again.

    Raises:
        InputError: It is not a report, or of another version of this library.
    """
    return ShardReport.parse(content, where)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The reports of all shards, added up.

    Attributes:
        rows: Rows by split; every split is there.
        positives: Rows of label 1, by split.
        span: Times of the oldest and the newest row, in microseconds from 1970; None without rows.
    """

    rows: dict[str, int]
    labels: dict[str, int]
    positives: dict[str, int]
    columns: dict[str, ColumnFigures] = field(default_factory=dict)
    span: tuple[int, int] | None = None

    @property
    def all_rows(self) -> int:
        """Rows in all splits."""
        return sum(self.rows.values())


def add_up(reports: Sequence[ShardReport], names: Iterable[str]) -> Totals:
    """Add up reports in the order of the shards.

    Args:
        names: The splits, in the order of the manifest.
    """
    rows = dict.fromkeys(names, 0)
    labels, positives = dict(rows), dict(rows)
    spans = [span for report in reports for span in report.spans]
    for span in spans:
        rows[span.split] += span.rows
    for report in reports:
        for split, count in report.labels.items():
            labels[split] += count
            positives[split] += report.positives[split]
    columns = {
        name: merged(report.columns[name] for report in reports if name in report.columns)
        for name in (reports[0].columns if reports else ())
    }
    between = (min(span.oldest for span in spans), max(span.newest for span in spans)) if spans else None
    return Totals(rows=rows, labels=labels, positives=positives, columns=columns, span=between)
