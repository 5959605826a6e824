"""Pieces of a snapshot that processes share out among themselves."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from trainwright.artifacts import Column, Snapshot, SnapshotFile
from trainwright.tables.files import ROW_GROUP
from trainwright.tables.pinned import open_pinned
from trainwright.tables.reading import entries, read_groups, select

_AT_A_TIME = 8
_TO_THE_END = 1 << 31
"""What ``last`` is of a file that is one piece: it need not be opened to be counted."""


@dataclass(frozen=True)
class Piece:
    """Some row groups of one file: plain data, which any process can be handed and none needs to close.

    Attributes:
        entry: The file.
        first: Its first row group of the piece, from 0.
        last: The row group after the piece's last; beyond the end of the file, all the rest.
        rows: Rows in the piece.
        columns: What the manifest declares of the file.
    """

    entry: SnapshotFile
    first: int
    last: int
    rows: int
    columns: tuple[Column, ...]


def pieces(folder: Path, snapshot: Snapshot, splits: Sequence[str], rows: int = 4 * ROW_GROUP) -> list[Piece]:
    """Cut splits into pieces at row groups, in the order in which their rows are read.

    Every row of the splits is in exactly one piece; a file without rows has none. Only files of more than
    ``rows`` rows are opened for it, and none of them is checked yet: that is left to who reads the piece.

    Args:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        splits: Names of the splits.
        rows: Most rows a piece, unless one row group alone has more.

    Raises:
        InputError: No such split, or a file is gone or not what the manifest says.
    """
    files = [entry for entry in entries(folder, snapshot, splits) if entry.rows]

    def cut(entry: SnapshotFile) -> list[Piece]:
        if entry.rows <= rows:
            return [Piece(entry, 0, _TO_THE_END, entry.rows, snapshot.columns)]
        with open_pinned(folder, entry, footer_only=True) as file:
            groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        return list(_cut(entry, groups, rows, snapshot.columns))

    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return [piece for found in threads.map(cut, files) for piece in found]


def _cut(entry: SnapshotFile, groups: list[int], rows: int, columns: tuple[Column, ...]) -> Iterator[Piece]:
    first = held = 0
    for index, size in enumerate(groups):
        if held and held + size > rows:
            yield Piece(entry, first, index, held, columns)
            first, held = index, 0
        held += size
    if held:
        yield Piece(entry, first, len(groups), held, columns)


def read_piece(
    folder: Path, piece: Piece, columns: Sequence[str] | None = None, batch_rows: int = ROW_GROUP
) -> Iterator[pa.RecordBatch]:
    """Read one piece, batch after batch; its file is opened here, and checked once a process.

    Decodes in the calling process alone: others have the other processors.

    Args:
        folder: The snapshot's folder.
        piece: The piece.
        columns: Columns to read, in this order; all if absent.
        batch_rows: Most rows a batch.

    Raises:
        InputError: No such column, or the file is not what the manifest says.
    """
    chosen, groups = select(piece.columns, columns), slice(piece.first, piece.last)
    return read_groups(folder, piece.entry, chosen, batch_rows, groups, threads=False)
