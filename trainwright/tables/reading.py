"""Read a snapshot from the files of its manifest, split by split or in pieces that processes share out."""

import hashlib
import inspect
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright.artifacts import RUN_AGAIN, Column, Snapshot, SnapshotFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.tables.columns import declared, is_declared, require_columns
from trainwright.tables.writing import ROW_GROUP

STREAM_BUFFER = 1 << 18
"""Bytes of a column that are read from a disk at a time."""

_REMOTE_BUFFER = 1 << 22
_FETCHED_AT_ONCE = 64 << 20
"""Bytes up to which a row group of a remote file is fetched in few requests, and held."""


def open_parquet(source: Path | BinaryIO, *, check_pages: bool = True) -> pq.ParquetFile:
    """Open a Parquet file for reading in batches.

    From a disk, columns are read side by side through small buffers: a row group of a million rows and 20
    columns then takes 42 MB, where pyarrow's default, which fetches it whole beforehand, takes 117 MB. Over
    a network that would be many small requests: there, row groups of usual size are fetched whole, and
    columns of larger ones through large buffers.

    Args:
        check_pages: Check the pages that carry a checksum, where this pyarrow can (not yet in 10, which TFDV
            needs). Parquet itself returns wrong values after a bit flip.

    Raises:
        pyarrow.ArrowException: It is not a Parquet file, or not a whole one.
    """
    known = inspect.signature(pq.ParquetFile.__init__).parameters
    option = "page_checksum_verification"
    check = {option: True} if check_pages and option in known else {}
    if isinstance(source, Path):
        return pq.ParquetFile(source, buffer_size=STREAM_BUFFER, pre_buffer=False, **check)
    metadata = pq.read_metadata(source)
    largest = max((metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=0)
    if largest <= _FETCHED_AT_ONCE:
        return pq.ParquetFile(source, metadata=metadata, pre_buffer=True, **check)
    return pq.ParquetFile(source, metadata=metadata, buffer_size=_REMOTE_BUFFER, pre_buffer=False, **check)


def stream_batches(
    file: pq.ParquetFile,
    batch_rows: int,
    columns: Sequence[str] | None = None,
    groups: slice = slice(None),
    *,
    threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Read a Parquet file in batches, one row group after another.

    Asked for several row groups at once, pyarrow keeps what it has read until the end: a peak of 580 MB
    for a file of 6 million rows and 11 columns, against 53 MB this way.

    Args:
        columns: Columns to read; all if absent.
        groups: Which row groups; all if absent.
        threads: Decode columns side by side; not worth it where processes share the processors out.
    """
    for index in range(file.num_row_groups)[groups]:
        yield from file.iter_batches(batch_rows, row_groups=[index], columns=columns, use_threads=threads)


@contextmanager
def open_pinned(folder: Path, entry: SnapshotFile, *, footer_only: bool = False) -> Iterator[pq.ParquetFile]:
    """Open a file of a manifest; what Arrow says about it while it is open names the file.

    A file on a disk is checked by its size and checksum, once a process; Parquet itself returns wrong values
    after a bit flip. An object in a store is read in the version that the manifest pins, and its pages are
    checked where it carries their checksums.

    Args:
        footer_only: Check the size alone, because no rows are read here.

    Raises:
        InputError: The file is gone, is not the one that the manifest names, or lies outside its folder.
        PermissionRefused: It may not be read.
    """
    path = _local_path(folder, entry)
    if path is not None:
        try:
            _check_local(path, entry, folder, footer_only=footer_only)
        except PermissionError:
            raise PermissionRefused(
                "this file may not be read by this process",
                where=str(path),
                hint="Let the user of this process read it.",
            ) from None
        with _naming(entry), open_parquet(path, check_pages=False) as file:
            _require_rows(file, entry)
            yield file
        return
    with _pinned_stream(entry) as stream, _naming(entry):
        file = open_parquet(stream)
        _require_rows(file, entry)
        yield file


def _local_path(folder: Path, entry: SnapshotFile) -> Path | None:
    """Return the path of a file, or None for an object in a store."""
    if "://" in entry.uri:
        from trainwright.storage import local_path

        return local_path(entry.uri)
    path = folder.absolute() / entry.uri
    if not (Path(entry.uri).is_absolute() or path.resolve().is_relative_to(folder.resolve())):
        raise InputError(f"the manifest names a file outside its folder: {entry.uri}", where=str(folder))
    return path


def _check_local(path: Path, entry: SnapshotFile, folder: Path, *, footer_only: bool) -> None:
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _gone(entry, str(folder)) from None
    if not stat.S_ISREG(state.st_mode):
        raise _gone(entry, str(folder))
    if state.st_size != entry.size:
        raise _changed(entry, f"{state.st_size:,} bytes", f"{entry.size:,}", str(folder))
    if footer_only:
        return
    kind, _, expected = entry.checksum.partition(":")
    if kind not in {"sha256", "md5"}:
        raise InputError(
            f"{entry.uri} has a checksum of kind {kind!r}; a file on a disk is checked by sha256, md5",
            where=str(folder),
        )
    found = _digest_of(path, kind, state.st_size, state.st_mtime_ns)
    if found != expected:
        raise _changed(entry, f"{kind}:{found[:12]}", f"{kind}:{expected[:12]}", str(folder))


@cache
def _digest_of(path: Path, kind: str, size: int, mtime_ns: int) -> str:  # noqa: ARG001 - the cache's key
    """Digest a file once a process, and the processes forked from it, as long as nobody writes to it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


@contextmanager
def _pinned_stream(entry: SnapshotFile) -> Iterator[BinaryIO]:
    """Open an object in its pinned version."""
    from trainwright import storage

    if not entry.version:
        raise InputError(
            "an object in a store is not pinned by a version in the manifest", where=entry.uri, hint=RUN_AGAIN
        )
    try:
        with storage.open_file(entry.uri, entry.version) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size != entry.size:
                raise _changed(entry, f"{size:,} bytes", f"{entry.size:,}", entry.uri)
            stream.seek(0)
            yield stream
    except storage.ObjectChanged:
        try:
            now = storage.head(entry.uri)
        except InputError:
            raise _gone(entry, entry.uri) from None
        raise _changed(entry, f"version {now.version}", entry.version, entry.uri) from None


def _require_rows(file: pq.ParquetFile, entry: SnapshotFile) -> None:
    if file.metadata.num_rows != entry.rows:
        raise _changed(entry, f"{file.metadata.num_rows:,} rows", f"{entry.rows:,}", entry.uri)


def _gone(entry: SnapshotFile, where: str) -> InputError:
    return InputError(f"cached input is gone: no {entry.uri}", where=where, hint=RUN_AGAIN)


def _changed(entry: SnapshotFile, found: str, expected: str, where: str) -> InputError:
    return InputError(
        f"cached input changed: {entry.uri} has {found}, the manifest says {expected}",
        where=where,
        hint=RUN_AGAIN,
    )


@contextmanager
def _naming(entry: SnapshotFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # the disk's own, which errors.in_our_words knows
        raise InputError(f"the Parquet file cannot be read: {error!s:.300}", where=entry.uri) from None


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
