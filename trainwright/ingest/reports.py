"""What a worker hands back of its shard: a small document, never rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from trainwright.artifacts import SnapshotFile, SourceFile
from trainwright.documents import Document, canonical
from trainwright.ingest.figures import Figures, merged


@dataclass(frozen=True, kw_only=True)
class Run:
    """A sorted run of fingerprints in a shard's spill.

    Attributes:
        column: Whose values they are of.
        split: The split that the values are in; empty for the key, which is compared across all.
        offset: Where it begins, in bytes.
        count: How many there are.
    """

    column: str
    split: str
    offset: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Span:
    """Rows of one file that are in one split.

    Attributes:
        uri: The file.
        split: The split.
        rows: How many rows.
        oldest: The time of the first, in microseconds from 1970.
        newest: The time of the last.
    """

    uri: str
    split: str
    rows: int
    oldest: int
    newest: int


@dataclass(frozen=True, kw_only=True)
class ShardReport(Document):
    """What one shard came to. It is written create-only: of two attempts at a shard, the first one's counts.

    Attributes:
        shard: Its place among the shards.
        files: The files that were written, named as the manifest names them; none in reference mode.
        spans: Rows by file and split.
        labels: Rows with a label, by split.
        positives: Rows of label 1, by split.
        columns: What each column holds.
        spill: The file of fingerprints.
        runs: What is where in it.
    """

    FILE: ClassVar[str] = "shard.json"
    shard: int
    files: tuple[SnapshotFile, ...]
    spans: tuple[Span, ...]
    labels: dict[str, int]
    positives: dict[str, int]
    columns: dict[str, Figures]
    spill: SourceFile
    runs: tuple[Run, ...]


def packed(report: ShardReport) -> bytes:
    """Write a report as bytes, the same for the same report."""
    return canonical(report.to_json()).encode()


def unpacked(content: bytes, where: str) -> ShardReport:
    """Read a report again.

    Raises:
        InputError: It is none, or of another version of this library.
    """
    return ShardReport.parse(content, where)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The reports of all shards, added up.

    Attributes:
        rows: Rows by split; every split is there.
        labels: Rows with a label, by split.
        positives: Rows of label 1, by split.
        columns: What each column holds.
        span: Times of the oldest and the newest row, in microseconds from 1970; None without rows.
    """

    rows: dict[str, int]
    labels: dict[str, int]
    positives: dict[str, int]
    columns: dict[str, Figures] = field(default_factory=dict)
    span: tuple[int, int] | None = None

    @property
    def all_rows(self) -> int:
        """Rows in all splits."""
        return sum(self.rows.values())


def add_up(reports: Sequence[ShardReport], names: Iterable[str]) -> Totals:
    """Add up reports in the order of the shards.

    Args:
        reports: One a shard.
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
