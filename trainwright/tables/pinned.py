"""Open Parquet files, after checking that they hold the bytes that the manifest names."""

import hashlib
import inspect
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from trainwright.artifacts import RUN_AGAIN, SnapshotFile
from trainwright.errors import InputError, PermissionRefused

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
