"""What is counted of a shard while its rows go by."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright.artifacts import UNASSIGNED, SnapshotFile, SourceFile
from trainwright.experiment import Data
from trainwright.ingest.figures import SAMPLE, Figures, measure, merged
from trainwright.ingest.reports import Run, ShardReport, Span
from trainwright.ingest.spills import SpillWriter
from trainwright.ingest.splits import division
from trainwright.tables import fingerprints


class Tally:
    """Divides the rows of a shard into splits, and counts and fingerprints them on the way.

    Args:
        data: Roles of columns, splits, columns that must be disjoint.
        spill: Where the fingerprints go.
    """

    def __init__(self, data: Data, spill: BinaryIO) -> None:
        self._data = data
        self._division = division(data)
        self._spill = SpillWriter(spill)
        self._columns: dict[str, Figures] = {}
        self._left_to_sample = SAMPLE
        self._spans: dict[tuple[str, str], Span] = {}
        self._labels: defaultdict[str, int] = defaultdict(int)
        self._positives: defaultdict[str, int] = defaultdict(int)

    def divide(self, rows: pa.Table, uri: str) -> Iterator[tuple[str, pa.Table]]:
        """Give the rows of each split, counted.

        Args:
            rows: Some rows, their roles prepared.
            uri: The file that they are from.
        """
        self._measure(rows)
        if not rows.num_rows:
            return
        self._spill.add(self._data.key, "", fingerprints(rows[self._data.key]))
        for split, part in self._division.divide(rows, self._division.places(rows)):
            self._count(split, part, uri)
            if split != UNASSIGNED:
                self._keep_apart(split, part)
            yield split, part

    def finish(self) -> tuple[Run, ...]:
        """End the spill."""
        return self._spill.finish()

    def report(
        self, shard: int, *, files: tuple[SnapshotFile, ...], spill: SourceFile, runs: tuple[Run, ...]
    ) -> ShardReport:
        """Say what was counted."""
        return ShardReport(
            shard=shard,
            files=files,
            spans=tuple(self._spans.values()),
            labels=dict(self._labels),
            positives=dict(self._positives),
            columns=self._columns,
            spill=spill,
            runs=runs,
        )

    def _measure(self, rows: pa.Table) -> None:
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            found = measure(column, self._left_to_sample)
            self._columns[name] = merged((self._columns.get(name, Figures()), found))
        self._left_to_sample = max(0, self._left_to_sample - rows.num_rows)

    def _count(self, split: str, rows: pa.Table, uri: str) -> None:
        label = rows[self._data.label]
        self._labels[split] += len(label) - label.null_count
        self._positives[split] += pc.sum(label).as_py() or 0
        ends = pc.min_max(rows[self._data.time].cast(pa.int64())).as_py()
        here = Span(uri=uri, split=split, rows=rows.num_rows, oldest=ends["min"], newest=ends["max"])
        before = self._spans.get((uri, split), replace(here, rows=0))
        self._spans[uri, split] = replace(
            here,
            rows=before.rows + here.rows,
            oldest=min(before.oldest, here.oldest),
            newest=max(before.newest, here.newest),
        )

    def _keep_apart(self, split: str, rows: pa.Table) -> None:
        for name in self._data.disjoint:
            present = rows[name].drop_null()
            if pa.types.is_floating(present.type):
                present = present.filter(pc.invert(pc.is_nan(present)))
            self._spill.add(name, split, fingerprints(present))
