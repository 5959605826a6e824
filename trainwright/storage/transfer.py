"""Whole files: several ranges at a time, checked against size and checksum before anyone sees them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from trainwright.artifacts import SourceFile
from trainwright.errors import TransientError
from trainwright.storage.access import Access
from trainwright.storage.digests import summing
from trainwright.storage.local import PIECE, open_local, placed
from trainwright.storage.ranges import MOST, fill, opened
from trainwright.storage.store import Moved, store_of
from trainwright.storage.uris import redacted, remote

_AT_A_TIME = 4


def read_whole(uri: str, version: str, access: Access) -> bytes:
    """Read a whole remote object into memory, and check it against its store's checksum.

    Raises:
        TransientError: It arrived damaged.
    """
    stream = opened(uri, version, access)
    content = stream.read(stream.entry.size)
    total = summing(stream.entry.checksum)
    total.update(content)
    _require_same(stream.entry, len(content), total.checksum)
    return content


def fetch(entry: SourceFile, path: Path, access: Access = Access()) -> None:  # noqa: B008 - it is frozen
    """Copy a listed file to a local path that must not exist, checked against its listed size and checksum.

    Large objects are read by several ranges at a time.

    Args:
        entry: The file, as it was listed.
        path: Where to.
        access: What may be reached.

    Raises:
        AlreadyThere: Something lies at the path.
        Moved: The source's bytes are not the listed ones.
        InputError: There is no such file.
        PermissionRefused: It may not be read, or the path not be written.
        TransientError: They arrived damaged, or the store kept failing.
        DependencyError: Nothing answers there, or the disk is full.
    """
    with placed(path) as target:
        if remote(entry.uri) is None:
            with open_local(Path(entry.uri)) as source:
                _copy(source.read, target)
        else:
            _pull(entry, target, access)
        total = summing(entry.checksum)
        target.seek(0)
        while piece := target.read(PIECE):
            total.update(piece)
        _require_same(entry, target.tell(), total.checksum)


def _copy(read: Callable[[int], bytes], target: BinaryIO) -> None:
    while piece := read(PIECE):
        target.write(piece)


def _pull(entry: SourceFile, target: BinaryIO, access: Access) -> None:
    """Read the ranges of an object in parallel, each to its place."""
    place = remote(entry.uri)
    assert place is not None  # noqa: S101 - asked before
    store = store_of(place, access)

    def one(start: int) -> None:
        piece = bytearray(min(MOST, entry.size - start))
        fill(store, entry, start, memoryview(piece), access.patience_s)
        os.pwrite(target.fileno(), piece, start)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(one, range(0, entry.size, MOST)))


def _require_same(entry: SourceFile, size: int, checksum: str) -> None:
    if size == entry.size and checksum in {entry.checksum, ""}:
        return
    what = f"{size} bytes with {checksum or 'no checksum'} came, not the {entry.size} with {entry.checksum}"
    if entry.version:
        raise TransientError(f"damaged on the way: {what}", where=redacted(entry.uri), hint="Run it again.")
    raise Moved(f"this is not what was listed: {what}", where=redacted(entry.uri), hint="List it again.")
