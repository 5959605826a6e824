"""The Parquet files of one shard: one for each split that has rows in it, or more where a shard is long."""

from types import TracebackType
from typing import Self

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import SnapshotFile
from trainwright.ingest.places import Outbox
from trainwright.tables import FileWriter


class ShardFiles:
    """Writes the rows of a shard, split by split, as they come.

    A file is ended after the batch that brings it to ``most_rows``, so a stream that is one long shard
    becomes many files.

    Args:
        outbox: Where the files go.
        most_rows: Rows a file.
    """

    def __init__(self, outbox: Outbox, most_rows: int) -> None:
        self._outbox, self._most_rows = outbox, most_rows
        self._open: dict[str, FileWriter] = {}
        self._done: list[SnapshotFile] = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was not finished."""
        for writer in self._open.values():
            writer.abandon()

    def append(self, split: str, rows: pa.Table) -> None:
        """Add rows to a split."""
        writer = self._open.get(split)
        if writer is not None and writer.rows >= self._most_rows:
            self._end(split)
            writer = None
        if writer is None:
            writer = self._open[split] = FileWriter(self._outbox.data_path(split, self._pieces(split)))
        writer.append(rows)

    def finish(self) -> tuple[SnapshotFile, ...]:
        """End every file, send it to its place, and say what the manifest says of it."""
        for split in tuple(self._open):
            self._end(split)
        return tuple(self._done)

    def _end(self, split: str) -> None:
        piece = self._pieces(split)
        self._done.append(self._outbox.send_data(split, piece, self._open[split].finish()))
        del self._open[split]

    def _pieces(self, split: str) -> int:
        return sum(entry.split == split for entry in self._done)
