"""Random access to a remote object: by range, pinned, resumed after a break, read ahead where that pays."""

import hashlib
import io
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.storage.access import Access
from trainwright.storage.retries import retrying
from trainwright.storage.store import Absent, Moved, Passing, Store, Taken, store_of
from trainwright.storage.uris import Remote, redacted, remote

LEAST, MOST = 1 << 18, 1 << 23
"""Bytes asked for at a time: the least after a jump; twice as many each time reading goes straight on."""


class RangeFile(io.RawIOBase):
    """One version of a remote object as a file. Seeking costs nothing; reading asks for what is missing.

    While reading goes straight on, the next window is on its way as this one is read: memory holds two, of at
    most :data:`MOST` bytes each. Not for several threads at a time.
    """

    def __init__(self, store: Store, entry: SourceFile, patience_s: float) -> None:
        super().__init__()
        self.entry = entry
        self._store, self._patience_s = store, patience_s
        self._at, self._start, self._window, self._ahead = 0, -1, bytearray(), LEAST
        self._reader: ThreadPoolExecutor | None = None
        self._coming: tuple[int, Future[bytearray]] | None = None

    def readable(self) -> bool:
        """Reading is what it is for."""
        return True

    def seekable(self) -> bool:
        """Any byte can be next."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset from the start, from here or from the end; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.entry.size}[whence]
        if base + offset < 0:
            raise ValueError(f"offset {base + offset} lies before the file")
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill a buffer as far as the object goes; return how many bytes that was."""
        view = memoryview(target).cast("B")
        wanted = min(len(view), max(0, self.entry.size - self._at))
        done = self._from_window(view[:wanted])
        while done < wanted:
            straight_on = self._at == self._start + len(self._window)
            self._ahead = min(2 * self._ahead, MOST) if straight_on else LEAST
            if wanted - done < self._ahead or self._is_coming():
                self._move_window(straight_on=straight_on)
                done += self._from_window(view[done:wanted])
            else:  # large enough to go straight to where it is wanted
                fill(self._store, self.entry, self._at, view[done:wanted], self._patience_s)
                self._at += wanted - done
                self._start, self._window, done = self._at, bytearray(), wanted
        return wanted

    def close(self) -> None:
        """Give up what is on its way."""
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _from_window(self, view: memoryview) -> int:
        skip = self._at - self._start
        piece = self._window[skip : skip + len(view)] if 0 <= skip < len(self._window) else bytearray()
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _is_coming(self) -> bool:
        return self._coming is not None and self._coming[0] == self._at

    def _move_window(self, *, straight_on: bool) -> None:
        due = self._coming[1] if self._coming and self._is_coming() else None
        self._coming = None
        self._window, self._start = due.result() if due else self._load(self._at, self._ahead), self._at
        after = self._at + len(self._window)
        if straight_on and after < self.entry.size:
            self._reader = self._reader or ThreadPoolExecutor(1, "read-ahead")
            self._coming = (after, self._reader.submit(self._load, after, min(2 * self._ahead, MOST)))

    def _load(self, start: int, length: int) -> bytearray:
        window = bytearray(min(length, self.entry.size - start))
        fill(self._store, self.entry, start, memoryview(window), self._patience_s)
        return window


def opened(uri: str, version: str, access: Access) -> RangeFile:
    """Open one version of a remote object; without one, that which lies there now.

    Raises:
        InputError: There is no such object.
        Moved: There is none of that version.
    """
    place = _remote(uri)
    store = store_of(place, access)
    return RangeFile(store, look(store, place, version, access.patience_s), access.patience_s)


def look(store: Store, place: Remote, version: str, patience_s: float) -> SourceFile:
    """Ask the store for an object's size, checksum and version.

    Raises:
        InputError: There is no such object.
        Moved: There is none of that version.
    """
    try:
        return retrying(lambda: store.head(place.name, version), "looking at", place.uri, patience_s)
    except (Absent, Taken):
        if version:
            raise moved(place.uri, version) from None
        raise InputError("no such object", where=redacted(place.uri)) from None


def fill(store: Store, entry: SourceFile, start: int, target: memoryview, patience_s: float) -> None:
    """Read bytes into a buffer, all of it; after a break, go on where it broke.

    Raises:
        Moved: The version is gone.
    """
    name, got = _remote(entry.uri).name, 0

    def once() -> None:
        nonlocal got
        before = got = got % len(target)  # all of it came before only if a check at its end did not hold

        def take(piece: bytes) -> None:
            nonlocal got
            if len(piece) > len(target) - got:  # then what came before is not to be trusted either
                got = before
                raise Passing("more bytes came than were asked for")
            target[got : got + len(piece)] = piece
            got += len(piece)

        store.pull(name, entry.version, start + got, start + len(target), take)
        if got < len(target):
            raise Passing(f"{len(target) - got} bytes of {len(target)} did not come")

    if not target:
        return
    try:
        retrying(once, "reading", entry.uri, patience_s)
    except (Absent, Taken):
        raise moved(entry.uri, entry.version) from None


def md5_by_reading(entry: SourceFile, access: Access) -> SourceFile:
    """Read an object whose store keeps no checksum, and return it with its MD5; memory stays flat."""
    total, stream = hashlib.md5(usedforsecurity=False), opened(entry.uri, entry.version, access)
    while piece := stream.read(MOST):
        total.update(piece)
    return replace(entry, checksum=f"md5:{total.hexdigest()}")


def moved(uri: str, version: str) -> Moved:
    """Say that the pinned bytes are no longer there."""
    return Moved(
        f"version {version} of this object is gone or was replaced",
        where=redacted(uri),
        hint="The source changed: run the pipeline again, and resolve looks at it anew. Versioning of the "
        "bucket, or mode copy, keeps what was pinned.",
    )


def _remote(uri: str) -> Remote:
    place = remote(uri)
    assert place is not None  # noqa: S101 - local ones never come here
    return place
