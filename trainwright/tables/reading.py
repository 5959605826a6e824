"""Read the rows of a snapshot in batches, split by split or in pieces that processes share out."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright.artifacts import RUN_AGAIN, Column, Snapshot, SnapshotFile
from trainwright.errors import InputError
from trainwright.tables.columns import declared, is_declared, require_columns
from trainwright.tables.pinned import open_pinned, stream_batches
from trainwright.tables.writing import ROW_GROUP


def read_split(
    folder: Path, snapshot: Snapshot, split: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read one split whole.

    Args:
        split: Name of the split.
        columns: Columns to read, in this order; all if absent.

    Raises:
        InputError: No such split or column, or a file is not what the manifest says.
    """
    chosen = _select(snapshot.columns, columns)
    tables = []
    for entry in _entries(folder, snapshot, [split]):
        with _opened(folder, entry, chosen) as files:
            parts = [file.read(columns=names) for file, names in files]
            table = pa.Table.from_arrays(
                [column for part in parts for column in part.columns],
                [name for part in parts for name in part.column_names],
            )
            tables.append(declared(table, chosen, entry.uri))
    return pa.concat_tables(tables).combine_chunks()


def iter_batches(
    folder: Path,
    snapshot: Snapshot,
    splits: Sequence[str],
    columns: Sequence[str] | None = None,
    batch_rows: int = ROW_GROUP,
) -> Iterator[pa.RecordBatch]:
    """Read splits in order, one batch after another; memory stays that of a batch and a row group.

    Args:
        columns: Columns to read, in this order; all if absent.

    Raises:
        InputError: No such split or column, or a file is not what the manifest says.
    """
    chosen = _select(snapshot.columns, columns)
    for entry in _entries(folder, snapshot, splits):
        yield from _read_groups(folder, entry, chosen, batch_rows)


def _read_groups(
    folder: Path,
    entry: SnapshotFile,
    columns: Sequence[Column],
    batch_rows: int,
    groups: slice = slice(None),
    *,
    threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Read some row groups of one file, in the types that the manifest declares."""
    names = [column.name for column in columns]
    types = {column.name: column for column in columns}
    with _opened(folder, entry, columns) as files:
        (file, own), *companion = files
        as_it_is = all(is_declared(each.schema_arrow, [types[name] for name in own]) for each, own in files)
        batches = stream_batches(file, batch_rows, own, groups, threads=threads)
        for other, added in companion:
            before = range(file.num_row_groups)[: groups.start or 0]
            start = sum(file.metadata.row_group(index).num_rows for index in before)
            batches = _side_by_side(batches, _rows_from(start, other, batch_rows, added, threads=threads))
        for batch in batches:
            if as_it_is:
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)
            else:
                table = declared(pa.Table.from_batches([batch]), columns, entry.uri)
                yield pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], names=names)


def _rows_from(
    start: int, file: pq.ParquetFile, batch_rows: int, names: Sequence[str], *, threads: bool
) -> Iterator[pa.RecordBatch]:
    """Read a file from a row on."""
    for index in range(file.num_row_groups):
        rows = file.metadata.row_group(index).num_rows
        if start < rows:
            group = slice(index, index + 1)
            for batch in stream_batches(file, batch_rows, names, group, threads=threads):
                yield batch.slice(min(start, batch.num_rows))
                start = max(start - batch.num_rows, 0)
        else:
            start -= rows


def _side_by_side(
    batches: Iterator[pa.RecordBatch], others: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Append the columns of other batches, which have the same rows in batches of any size."""
    rest: pa.RecordBatch | None = None
    for batch in batches:
        parts: list[pa.RecordBatch] = []
        lacking = batch.num_rows
        while lacking:
            rest = rest or next(others)
            part = rest.slice(0, lacking)
            rest, lacking = rest.slice(part.num_rows), lacking - part.num_rows
            parts.append(part)
        table = pa.Table.from_batches(parts).combine_chunks()
        columns = [*batch.columns, *(column.chunk(0) for column in table.columns)]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *table.column_names])


def _select(columns: Sequence[Column], names: Sequence[str] | None) -> list[Column]:
    """Return the columns of these names, in this order; all if absent."""
    if names is None:
        return list(columns)
    require_columns(columns, names, where="snapshot")
    known = {column.name: column for column in columns}
    return [known[name] for name in names]


def _entries(folder: Path, snapshot: Snapshot, splits: Sequence[str]) -> Iterator[SnapshotFile]:
    """Return the files of some splits, in the order of the splits and then of the manifest."""
    for split in splits:
        found = [entry for entry in snapshot.files if entry.split == split]
        if not found:
            known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in snapshot.splits.items())
            raise InputError(f"no split {split!r}; this snapshot has {known}", where=str(folder))
        yield from found


@contextmanager
def _opened(
    folder: Path, entry: SnapshotFile, columns: Sequence[Column]
) -> Iterator[list[tuple[pq.ParquetFile, list[str]]]]:
    """Open a file, and its companion if it has some of the columns, each with the columns to read of it."""
    files, left = list[tuple[pq.ParquetFile, list[str]]](), [column.name for column in columns]
    place: SnapshotFile | None = entry
    with ExitStack() as stack:
        while place and (left or not files):
            file = stack.enter_context(open_pinned(folder, place))
            there = set(file.schema_arrow.names)
            files.append((file, [name for name in left if name in there]))
            left, place = [name for name in left if name not in there], place.companion
        if left:
            raise InputError(
                f"cached input changed: {entry.uri} has no column {', '.join(map(repr, left))}",
                where=entry.uri,
                hint=RUN_AGAIN,
            )
        yield files


_AT_A_TIME = 8
TO_THE_END = 1 << 31
"""What ``last`` is of a file that is one piece: it need not be opened to be counted."""


@dataclass(frozen=True)
class Piece:
    """Some row groups of one file: plain data, which any process can be handed and none needs to close.

    Attributes:
        first: Its first row group of the piece, from 0.
        last: The row group after the piece's last; beyond the end of the file, all the rest.
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
        rows: Most rows a piece, unless one row group alone has more.

    Raises:
        InputError: No such split, or a file is gone or not what the manifest says.
    """
    files = [entry for entry in _entries(folder, snapshot, splits) if entry.rows]

    def cut(entry: SnapshotFile) -> list[Piece]:
        if entry.rows <= rows:
            return [Piece(entry, 0, TO_THE_END, entry.rows, snapshot.columns)]
        with open_pinned(folder, entry, footer_only=True) as file:
            sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        found: list[Piece] = []
        first = held = 0
        for index, size in enumerate([*sizes, rows]):
            if held and held + size > rows:
                found.append(Piece(entry, first, index, held, snapshot.columns))
                first, held = index, 0
            held += size
        return found

    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        return [piece for found in threads.map(cut, files) for piece in found]


def read_piece(
    folder: Path, piece: Piece, columns: Sequence[str] | None = None, batch_rows: int = ROW_GROUP
) -> Iterator[pa.RecordBatch]:
    """Read one piece in batches; decodes in this thread alone, as other processes have the other processors.

    Args:
        columns: Columns to read, in this order; all if absent.

    Raises:
        InputError: No such column, or the file is not what the manifest says.
    """
    chosen, groups = _select(piece.columns, columns), slice(piece.first, piece.last)
    return _read_groups(folder, piece.entry, chosen, batch_rows, groups, threads=False)
