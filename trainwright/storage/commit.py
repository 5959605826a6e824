"""Writing by URI: under a fresh name, whole or not at all, and never over something."""

import hashlib
import io
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.storage.access import Access
from trainwright.storage.local import entry_of, open_local, placed, remove_local
from trainwright.storage.ranges import RangeFile
from trainwright.storage.retries import retrying
from trainwright.storage.store import Absent, AlreadyThere, Passing, Store, Taken, store_of
from trainwright.storage.uris import Remote, local_path, redacted, remote

_PIECE = 1 << 20


@dataclass(frozen=True)
class _Sums:
    """What a content comes to, read once."""

    size: int
    md5: bytes
    sha256: str

    @classmethod
    def of(cls, stream: BinaryIO) -> "_Sums":
        md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
        while piece := stream.read(_PIECE):
            md5.update(piece)
            sha256.update(piece)
            size += len(piece)
        stream.seek(0)
        return cls(size, md5.digest(), sha256.hexdigest())


def publish(path: Path, uri: str, access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Write a local file to a place where nothing lies yet, and check that it arrived whole.

    Args:
        path: The file.
        uri: Where to; a path, ``gs://`` or ``s3://``. Its folder is made where there is such a thing.
        access: How long to try.

    Returns:
        What lies there now: its SHA-256, size and version.

    Raises:
        AlreadyThere: Something lies there, and it is not what an earlier try of this call wrote.
        PermissionRefused: It may not be written.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the disk is full.
    """
    with open_local(path) as stream:
        return _write(stream, uri, access)


def create(uri: str, content: bytes, access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Write a small object that must not exist: the commit. Of many writers, exactly one succeeds.

    Args:
        uri: Where to; a path, ``gs://`` or ``s3://``.
        content: All of it.
        access: How long to try.

    Returns:
        What lies there now.

    Raises:
        AlreadyThere: Another was first.
        PermissionRefused: It may not be written.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the disk is full.
    """
    return _write(io.BytesIO(content), uri, access)


def remove(uris: Iterable[str], access: Access = Access()) -> None:  # noqa: B008 - it is frozen
    """Remove files; one that is not there is no error.

    Raises:
        PermissionRefused: One may not be removed.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there.
    """
    for uri in uris:
        path = local_path(uri)
        if path is not None:
            remove_local(path)
            continue
        place = _writable(uri)
        with suppress(Absent):
            store = store_of(place, access)
            retrying(partial(store.delete, place.name), "removing", uri, access.patience_s)


def _write(stream: BinaryIO, uri: str, access: Access) -> SourceFile:
    sums = _Sums.of(stream)
    path = local_path(uri)
    if path is not None:
        with placed(path) as target:
            shutil.copyfileobj(stream, target, _PIECE)
        return replace(entry_of(path), checksum=f"sha256:{sums.sha256}")
    place = _writable(uri)
    pushed = _push(store_of(place, access), place, stream, sums, access.patience_s)
    return replace(pushed, checksum=f"sha256:{sums.sha256}")


def _push(store: Store, place: Remote, stream: BinaryIO, sums: _Sums, patience_s: float) -> SourceFile:
    """Push until it is there. A try whose reply was lost has left our own content under the name."""
    unsure = False

    def once() -> SourceFile:
        nonlocal unsure
        stream.seek(0)
        try:
            return store.push(place.name, stream, sums.size, sums.md5)
        except Passing:
            unsure = True
            raise

    try:
        return retrying(once, "writing", place.uri, patience_s)
    except Absent:
        raise InputError(
            f"there is no bucket {place.bucket!r}",
            where=place.uri,
            hint="Make it first, or look at the name.",
        ) from None
    except Taken:
        found = retrying(lambda: store.head(place.name), "looking at", place.uri, patience_s)
        if unsure and _same(found, sums, store, patience_s):
            return found
        raise AlreadyThere("an object lies there already", where=place.uri) from None


def _same(found: SourceFile, sums: _Sums, store: Store, patience_s: float) -> bool:
    """Tell whether an object holds our content; it is read again only where its store keeps no MD5 of it."""
    if found.size != sums.size:
        return False
    if found.checksum.startswith("md5:"):
        return found.checksum == f"md5:{sums.md5.hex()}"
    return _Sums.of(cast(BinaryIO, RangeFile(store, found, patience_s))).sha256 == sums.sha256


def _writable(uri: str) -> Remote:
    place = remote(uri)
    if place is None or place.scheme == "https" or not place.name or place.name.endswith("/"):
        raise InputError(
            "nothing can be written there", where=redacted(uri), hint="Name an object in gs:// or s3://."
        )
    return place
