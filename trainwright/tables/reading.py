"""Reading a snapshot: every file is checked against the manifest before its rows are believed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright.artifacts import RUN_AGAIN, Column, Snapshot, SnapshotFile
from trainwright.errors import InputError
from trainwright.tables.columns import require_columns
from trainwright.tables.files import ROW_GROUP
from trainwright.tables.pinned import open_pinned
from trainwright.tables.plain import declared, is_declared
from trainwright.tables.streams import stream_batches


def read_split(
    folder: Path, snapshot: Snapshot, split: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read one split whole.

    Args:
        folder: The snapshot's folder.
        snapshot: Its manifest.
        split: Name of the split.
        columns: Columns to read, in this order; all if absent.

    Raises:
        InputError: No such split or column, or a file is not what the manifest says.
    """
    chosen = select(snapshot.columns, columns)
    tables = []
    for entry in entries(folder, snapshot, [split]):
        with open_pinned(folder, entry) as file:
            _require_there(file, chosen, entry)
            table = file.read(columns=[column.name for column in chosen])
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
        folder: The snapshot's folder.
        snapshot: Its manifest.
        splits: Names of the splits.
        columns: Columns to read, in this order; all if absent.
        batch_rows: Most rows a batch.

    Raises:
        InputError: No such split or column, or a file is not what the manifest says.
    """
    chosen = select(snapshot.columns, columns)
    for entry in entries(folder, snapshot, splits):
        yield from read_groups(folder, entry, chosen, batch_rows)


def read_groups(
    folder: Path,
    entry: SnapshotFile,
    columns: Sequence[Column],
    batch_rows: int,
    groups: slice = slice(None),
    *,
    threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Read some row groups of one file of a manifest, in the types that the manifest declares.

    Args:
        folder: The manifest's folder.
        entry: The file.
        columns: Columns to read, in this order.
        batch_rows: Most rows a batch.
        groups: Which row groups; all if absent.
        threads: Decode columns side by side.

    Raises:
        InputError: The file is not what the manifest says.
    """
    names = [column.name for column in columns]
    with open_pinned(folder, entry) as file:
        _require_there(file, columns, entry)
        as_it_is = is_declared(file.schema_arrow, columns)
        for batch in stream_batches(file, batch_rows, names, groups, threads=threads):
            if as_it_is:
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)
            else:
                table = declared(pa.Table.from_batches([batch]), columns, entry.uri)
                yield pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], names=names)


def select(columns: Sequence[Column], names: Sequence[str] | None) -> list[Column]:
    """Return the columns of these names, in this order; all if absent."""
    if names is None:
        return list(columns)
    require_columns(columns, names, where="snapshot")
    known = {column.name: column for column in columns}
    return [known[name] for name in names]


def entries(folder: Path, snapshot: Snapshot, splits: Sequence[str]) -> Iterator[SnapshotFile]:
    """Give the files of some splits, in the order of the splits and then of the manifest."""
    for split in splits:
        found = [entry for entry in snapshot.files if entry.split == split]
        if not found:
            known = ", ".join(f"{name} ({rows:,} rows)" for name, rows in snapshot.splits.items())
            raise InputError(f"no split {split!r}; this snapshot has {known}", where=str(folder))
        yield from found


def _require_there(file: pq.ParquetFile, columns: Sequence[Column], entry: SnapshotFile) -> None:
    there = set(file.schema_arrow.names)
    if missing := [column.name for column in columns if column.name not in there]:
        raise InputError(
            f"cached input changed: {entry.uri} has no column {', '.join(map(repr, missing))}",
            where=entry.uri,
            hint=RUN_AGAIN,
        )
