"""Reads by URI: a local file as it is, a remote object by pinned, retried ranges."""

import hashlib
import io
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, TransientError
from trainwright.redaction import redacted
from trainwright.storage.access import Access
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
from trainwright.storage.uris import Remote, local_path, remote

LEAST, MOST = 1 << 18, 1 << 23
"""Bytes of a request: the least after a seek, doubled with each sequential read up to the most."""

BUFFER = 1 << 17
"""Bytes of the read buffer; larger reads bypass it."""

_PARALLEL_RANGES = 4


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
            prefetched = self._prefetched is not None and self._prefetched[0] == self._at
            if wanted - done < self._ahead or prefetched:
                self._move_window(sequential=sequential, prefetched=prefetched)
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

    def _move_window(self, *, sequential: bool, prefetched: bool) -> None:
        due = self._prefetched[1] if self._prefetched and prefetched else None
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


def open_remote(place: Remote, version: str, access: Access) -> RangeFile:
    """Open one version of a remote object; without one, the current."""
    store = store_of(place, access)
    try:
        entry = with_retries(lambda: store.head(place.name, version), "looking at", place.uri, access.retry_s)
    except (NotFound, PreconditionFailed):
        if version:
            raise _object_changed(place.uri, version) from None
        raise InputError("no such object", where=redacted(place.uri)) from None
    return RangeFile(store, entry, access.retry_s)


def read_range(store: RemoteStore, entry: SourceFile, start: int, target: memoryview, retry_s: float) -> None:
    """Read bytes into all of a buffer; a retry resumes where the last attempt broke off."""
    name, got = _require_remote(entry.uri).name, 0

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
        raise _object_changed(entry.uri, entry.version) from None


def md5_by_reading(entry: SourceFile, access: Access) -> SourceFile:
    """Read an object whose store has no checksum, in pieces, and return it with its MD5."""
    stream = cast(BinaryIO, open_remote(_require_remote(entry.uri), entry.version, access))
    total = hashlib.md5(usedforsecurity=False)
    while piece := stream.read(MOST):
        total.update(piece)
    return replace(entry, checksum=f"md5:{total.hexdigest()}")


def _object_changed(uri: str, version: str) -> ObjectChanged:
    return ObjectChanged(
        f"version {version} of this object is gone or was replaced",
        where=redacted(uri),
        hint="The source changed: run the pipeline again, and `resolve` lists it again. Versioning of "
        "the bucket, or mode copy, retains the pinned bytes.",
    )


def _require_remote(uri: str) -> Remote:
    place = remote(uri)
    assert place is not None  # noqa: S101 - callers have handled local ones
    return place


def fetch(entry: SourceFile, path: Path, access: Access = Access()) -> None:  # noqa: B008 - it is frozen
    """Copy a listed file to a local path that must not exist, and check its listed size and checksum.

    Large objects are read by several ranges at a time.

    Raises:
        AlreadyExists: The path exists.
        ObjectChanged: The source's bytes are not the listed ones.
        InputError: There is no such file.
        TransientError: They arrived damaged, or the store kept failing.
    """
    with create_file(path) as target:
        if remote(entry.uri) is None:
            with open_local(Path(entry.uri)) as source:
                shutil.copyfileobj(source, target, PIECE)
        else:
            store = store_of(_require_remote(entry.uri), access)

            def copy_range(start: int) -> None:
                piece = bytearray(min(MOST, entry.size - start))
                read_range(store, entry, start, memoryview(piece), access.retry_s)
                os.pwrite(target.fileno(), piece, start)

            with ThreadPoolExecutor(_PARALLEL_RANGES) as pool:
                list(pool.map(copy_range, range(0, entry.size, MOST)))
        target.seek(0)
        _require_same(entry, target)


def _require_same(entry: SourceFile, content: BinaryIO) -> None:
    """Compare a content with the size and checksum of a listed file."""
    kind, total, size = entry.checksum.partition(":")[0], _hash_like(entry.checksum), 0
    while piece := content.read(PIECE):
        size += len(piece)
        if total is not None:
            total.update(piece)
    checksum = f"{kind}:{total.digest().hex()}" if total is not None else ""
    if size == entry.size and checksum in {entry.checksum, ""}:
        return
    what = f"{size} bytes with {checksum or 'no checksum'} came, not the {entry.size} with {entry.checksum}"
    if entry.version:
        raise TransientError(f"damaged in transfer: {what}", where=redacted(entry.uri), hint="Run it again.")
    raise ObjectChanged(
        f"this is not what was listed: {what}", where=redacted(entry.uri), hint="List it again."
    )


def _hash_like(checksum: str) -> Any:
    """Start a hash of the kind of a checksum ``kind:digits``; None if only its store can compute it."""
    kind = checksum.partition(":")[0]
    if kind == "crc32c":
        import google_crc32c

        return google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    return hashlib.new(kind, usedforsecurity=False) if kind in {"md5", "sha256"} else None


def open_file(uri: str, version: str = "", access: Access = Access()) -> BinaryIO:  # noqa: B008 - it is frozen
    """Open a file for reading bytes: seekable, buffered, and pinned to one version.

    The version is a generation, a version id or an ETag; empty pins the current one. A disk has none.

    Raises:
        InputError: There is no such file.
        ObjectChanged: There is none of that version, now or later during the read.
        PermissionRefused: It may not be read.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the scheme's driver is not installed.
    """
    place = remote(uri)
    if place is None:
        return open_local(cast(Path, local_path(uri)))
    return cast(BinaryIO, io.BufferedReader(open_remote(place, version, access), BUFFER))


def read_bytes(uri: str, version: str = "", access: Access = Access()) -> bytes:  # noqa: B008 - it is frozen
    """Read a whole small file, and check a remote one against its store's checksum; see :func:`open_file`."""
    place = remote(uri)
    if place is None:
        with open_file(uri) as local:
            return local.read()
    stream = open_remote(place, version, access)
    content = cast(bytes, stream.read(stream.entry.size))
    _require_same(stream.entry, io.BytesIO(content))
    return content


def head(uri: str, version: str = "", access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Return the size, checksum and version of one file, without reading it; see :func:`open_file`."""
    place = remote(uri)
    return (
        entry_of(cast(Path, local_path(uri))) if place is None else open_remote(place, version, access).entry
    )


def exists(uri: str, access: Access = Access()) -> bool:  # noqa: B008 - it is frozen
    """Return whether there is a file or an object of this name."""
    path = local_path(uri)
    if path is not None:
        return path.exists()
    place = _require_remote(uri)
    store = store_of(place, access)
    try:
        with_retries(lambda: store.head(place.name), "looking at", place.uri, access.retry_s)
    except NotFound:
        return False
    return True
