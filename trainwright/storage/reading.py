"""Reads by URI: a local file as it is, a remote object by pinned, retried ranges."""

import hashlib
import io
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, TransientError
from trainwright.storage.access import Access
from trainwright.storage.checksums import checksum_like
from trainwright.storage.local import PIECE, create_file, entry_of, open_local
from trainwright.storage.store import (
    NotFound,
    ObjectChanged,
    PreconditionFailed,
    RemoteStore,
    RetryableError,
    store_of,
    with_retries,
)
from trainwright.storage.uris import Remote, local_path, redacted, remote

LEAST, MOST = 1 << 18, 1 << 23
"""Bytes of a request: the least after a seek, doubled with each sequential read up to the most."""


class RangeFile(io.RawIOBase):
    """One version of a remote object as a file. Seeking is free; reading requests the missing bytes.

    Sequential reads prefetch the next window: memory has two, of at most :data:`MOST` bytes each. Not for
    several threads at a time.
    """

    def __init__(self, store: RemoteStore, entry: SourceFile, retry_s: float) -> None:
        super().__init__()
        self.entry = entry
        self._store, self._retry_s = store, retry_s
        self._at, self._start, self._window, self._ahead = 0, -1, bytearray(), LEAST
        self._reader: ThreadPoolExecutor | None = None
        self._prefetched: tuple[int, Future[bytearray]] | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset from the start, the current position or the end, without reading."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.entry.size}[whence]
        if base + offset < 0:
            raise ValueError(f"offset {base + offset} lies before the file")
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill a buffer, up to the end of the object; return the number of bytes."""
        view = memoryview(target).cast("B")
        wanted = min(len(view), max(0, self.entry.size - self._at))
        done = self._from_window(view[:wanted])
        while done < wanted:
            sequential = self._at == self._start + len(self._window)
            self._ahead = min(2 * self._ahead, MOST) if sequential else LEAST
            if wanted - done < self._ahead or self._is_prefetched():
                self._move_window(sequential=sequential)
                done += self._from_window(view[done:wanted])
            else:  # large enough to go straight to where it is wanted
                read_range(self._store, self.entry, self._at, view[done:wanted], self._retry_s)
                self._at += wanted - done
                self._start, self._window, done = self._at, bytearray(), wanted
        return wanted

    def close(self) -> None:
        """Cancel the prefetch."""
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _from_window(self, view: memoryview) -> int:
        skip = self._at - self._start
        piece = self._window[skip : skip + len(view)] if 0 <= skip < len(self._window) else bytearray()
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _is_prefetched(self) -> bool:
        return self._prefetched is not None and self._prefetched[0] == self._at

    def _move_window(self, *, sequential: bool) -> None:
        due = self._prefetched[1] if self._prefetched and self._is_prefetched() else None
        self._prefetched = None
        self._window, self._start = due.result() if due else self._load(self._at, self._ahead), self._at
        after = self._at + len(self._window)
        if sequential and after < self.entry.size:
            self._reader = self._reader or ThreadPoolExecutor(1, "read-ahead")
            self._prefetched = (after, self._reader.submit(self._load, after, min(2 * self._ahead, MOST)))

    def _load(self, start: int, length: int) -> bytearray:
        window = bytearray(min(length, self.entry.size - start))
        read_range(self._store, self.entry, start, memoryview(window), self._retry_s)
        return window


def open_remote(uri: str, version: str, access: Access) -> RangeFile:
    """Open one version of a remote object; without one, the current.

    Raises:
        InputError: There is no such object.
        ObjectChanged: There is none of that version.
    """
    place = _remote(uri)
    store = store_of(place, access)
    return RangeFile(store, stat_remote(store, place, version, access.retry_s), access.retry_s)


def stat_remote(store: RemoteStore, place: Remote, version: str, retry_s: float) -> SourceFile:
    """Return an object's size, checksum and version.

    Raises:
        InputError: There is no such object.
        ObjectChanged: There is none of that version.
    """
    try:
        return with_retries(lambda: store.head(place.name, version), "looking at", place.uri, retry_s)
    except (NotFound, PreconditionFailed):
        if version:
            raise object_changed(place.uri, version) from None
        raise InputError("no such object", where=redacted(place.uri)) from None


def read_range(store: RemoteStore, entry: SourceFile, start: int, target: memoryview, retry_s: float) -> None:
    """Read bytes into all of a buffer; a retry resumes where the last attempt broke off.

    Raises:
        ObjectChanged: The version is gone.
    """
    name, got = _remote(entry.uri).name, 0

    def once() -> None:
        nonlocal got
        before = got = got % len(target)  # all came before only if a check at the end failed

        def take(piece: bytes) -> None:
            nonlocal got
            if len(piece) > len(target) - got:  # earlier bytes cannot be trusted either
                got = before
                raise RetryableError("more bytes came than were requested")
            target[got : got + len(piece)] = piece
            got += len(piece)

        store.pull(name, entry.version, start + got, start + len(target), take)
        if got < len(target):
            raise RetryableError(f"{len(target) - got} bytes of {len(target)} did not come")

    if not target:
        return
    try:
        with_retries(once, "reading", entry.uri, retry_s)
    except (NotFound, PreconditionFailed):
        raise object_changed(entry.uri, entry.version) from None


def md5_by_reading(entry: SourceFile, access: Access) -> SourceFile:
    """Read an object whose store has no checksum, in pieces, and return it with its MD5."""
    total, stream = hashlib.md5(usedforsecurity=False), open_remote(entry.uri, entry.version, access)
    while piece := stream.read(MOST):
        total.update(piece)
    return replace(entry, checksum=f"md5:{total.hexdigest()}")


def object_changed(uri: str, version: str) -> ObjectChanged:
    """Return the error for pinned bytes that are gone."""
    return ObjectChanged(
        f"version {version} of this object is gone or was replaced",
        where=redacted(uri),
        hint="The source changed: run the pipeline again, and `resolve` lists it again. Versioning of "
        "the bucket, or mode copy, retains the pinned bytes.",
    )


def _remote(uri: str) -> Remote:
    place = remote(uri)
    assert place is not None  # noqa: S101 - callers have handled local ones
    return place


_AT_A_TIME = 4


def read_whole(uri: str, version: str, access: Access) -> bytes:
    """Read a whole remote object into memory, and check it against its store's checksum.

    Raises:
        TransientError: It arrived damaged.
    """
    stream = open_remote(uri, version, access)
    content = stream.read(stream.entry.size)
    total = checksum_like(stream.entry.checksum)
    total.update(content)
    _require_same(stream.entry, len(content), total.checksum)
    return content


def fetch(entry: SourceFile, path: Path, access: Access = Access()) -> None:  # noqa: B008 - it is frozen
    """Copy a listed file to a local path that must not exist, and check its listed size and checksum.

    Large objects are read by several ranges at a time.

    Args:
        entry: The file, as listed.
        path: The local path.
        access: What may be reached.

    Raises:
        AlreadyExists: The path exists.
        ObjectChanged: The source's bytes are not the listed ones.
        InputError: There is no such file.
        PermissionRefused: It may not be read, or the path not be written.
        TransientError: They arrived damaged, or the store kept failing.
        DependencyError: Nothing answers there, or the disk is full.
    """
    with create_file(path) as target:
        if remote(entry.uri) is None:
            with open_local(Path(entry.uri)) as source:
                _copy(source.read, target)
        else:
            _pull(entry, target, access)
        total = checksum_like(entry.checksum)
        target.seek(0)
        while piece := target.read(PIECE):
            total.update(piece)
        _require_same(entry, target.tell(), total.checksum)


def _copy(read: Callable[[int], bytes], target: BinaryIO) -> None:
    while piece := read(PIECE):
        target.write(piece)


def _pull(entry: SourceFile, target: BinaryIO, access: Access) -> None:
    """Read the ranges of an object in parallel into a file."""
    place = remote(entry.uri)
    assert place is not None  # noqa: S101 - the caller has handled local ones
    store = store_of(place, access)

    def one(start: int) -> None:
        piece = bytearray(min(MOST, entry.size - start))
        read_range(store, entry, start, memoryview(piece), access.retry_s)
        os.pwrite(target.fileno(), piece, start)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(one, range(0, entry.size, MOST)))


def _require_same(entry: SourceFile, size: int, checksum: str) -> None:
    if size == entry.size and checksum in {entry.checksum, ""}:
        return
    what = f"{size} bytes with {checksum or 'no checksum'} came, not the {entry.size} with {entry.checksum}"
    if entry.version:
        raise TransientError(f"damaged in transfer: {what}", where=redacted(entry.uri), hint="Run it again.")
    raise ObjectChanged(
        f"this is not what was listed: {what}", where=redacted(entry.uri), hint="List it again."
    )


BUFFER = 1 << 17
"""Bytes of the read buffer; larger reads bypass it."""


def open_file(uri: str, version: str = "", access: Access = Access()) -> BinaryIO:  # noqa: B008 - it is frozen
    """Open a file for reading bytes: seekable, buffered, and pinned to one version.

    Args:
        uri: A path or a URI.
        version: Generation, version id or ETag of the bytes; empty pins the current one. A disk has none.
        access: What may be reached.

    Raises:
        InputError: There is no such file.
        ObjectChanged: There is none of that version, now or later during the read.
        PermissionRefused: It may not be read.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the scheme's driver is not installed.
    """
    path = local_path(uri)
    if path is not None:
        return open_local(path)
    return cast(BinaryIO, io.BufferedReader(open_remote(uri, version, access), BUFFER))


def read_bytes(uri: str, version: str = "", access: Access = Access()) -> bytes:  # noqa: B008 - it is frozen
    """Read a whole small file, and check a remote one against its store's checksum.

    Arguments and errors are those of :func:`open_file`.
    """
    if local_path(uri) is None:
        return read_whole(uri, version, access)
    with open_file(uri) as stream:
        return stream.read()


def head(uri: str, version: str = "", access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Return the size, checksum and version of one file, without reading it.

    Arguments and errors are those of :func:`open_file`.
    """
    path = local_path(uri)
    return open_remote(uri, version, access).entry if path is None else entry_of(path)
