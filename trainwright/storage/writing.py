"""Create-only writes by URI: whole or not at all, and never over something."""

import hashlib
import io
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.redaction import redacted
from trainwright.storage.access import Access
from trainwright.storage.local import PIECE, create_file, entry_of, naming_path, open_local
from trainwright.storage.reading import RangeFile
from trainwright.storage.store import (
    AlreadyExists,
    NotFound,
    PreconditionFailed,
    RemoteStore,
    RetryableError,
    store_of,
    with_retries,
)
from trainwright.storage.uris import Remote, local_path, remote


def publish(path: Path, uri: str, access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Write a local file to a name that must not exist; return the new object with its SHA-256 and version.

    Raises:
        AlreadyExists: The name exists, and an earlier attempt of this call did not write it.
        PermissionRefused: It may not be written.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the disk is full.
    """
    with open_local(path) as stream:
        return _write(stream, uri, access)


def create(uri: str, content: bytes, access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Create a small object: the commit. Of many writers, exactly one succeeds; see :func:`publish`."""
    return _write(io.BytesIO(content), uri, access)


def remove(uris: Iterable[str], access: Access = Access()) -> None:  # noqa: B008 - it is frozen
    """Remove files; a missing one is no error."""
    for uri in uris:
        path = local_path(uri)
        if path is not None:
            with naming_path(path):
                path.unlink(missing_ok=True)
            continue
        place = _writable(uri)
        with suppress(NotFound):
            delete = partial(store_of(place, access).delete, place.name)
            with_retries(delete, "removing", uri, access.retry_s)


class _Digests(NamedTuple):
    size: int
    md5: bytes
    sha256: str


def _digest(stream: BinaryIO) -> _Digests:
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    while piece := stream.read(PIECE):
        md5.update(piece)
        sha256.update(piece)
        size += len(piece)
    stream.seek(0)
    return _Digests(size, md5.digest(), sha256.hexdigest())


def _write(stream: BinaryIO, uri: str, access: Access) -> SourceFile:
    digests = _digest(stream)
    path = local_path(uri)
    if path is not None:
        with create_file(path) as target:
            shutil.copyfileobj(stream, target, PIECE)
        written = entry_of(path)
    else:
        place = _writable(uri)
        written = _push(store_of(place, access), place, stream, digests, access.retry_s)
    return replace(written, checksum=f"sha256:{digests.sha256}")


def _push(
    store: RemoteStore, place: Remote, stream: BinaryIO, digests: _Digests, retry_s: float
) -> SourceFile:
    """Push until it is there. An attempt whose reply was lost has left our own content under the name."""
    unsure = False

    def once() -> SourceFile:
        nonlocal unsure
        stream.seek(0)
        try:
            return store.push(place.name, stream, digests.size, digests.md5)
        except RetryableError:
            unsure = True
            raise

    try:
        return with_retries(once, "writing", place.uri, retry_s)
    except NotFound:
        hint = "Create it first, or check the name."
        raise InputError(f"there is no bucket {place.bucket!r}", where=place.uri, hint=hint) from None
    except PreconditionFailed:
        found = with_retries(lambda: store.head(place.name), "looking at", place.uri, retry_s)
        if unsure and _same(found, digests, store, retry_s):
            return found
        raise AlreadyExists("an object exists there already", where=place.uri) from None


def _same(found: SourceFile, digests: _Digests, store: RemoteStore, retry_s: float) -> bool:
    """Tell whether an object has our content; it is read only if its store has no MD5 of it."""
    if found.size != digests.size:
        return False
    if found.checksum.startswith("md5:"):
        return found.checksum == f"md5:{digests.md5.hex()}"
    return _digest(cast(BinaryIO, RangeFile(store, found, retry_s))).sha256 == digests.sha256


def _writable(uri: str) -> Remote:
    place = remote(uri)
    if place is None or place.scheme == "https" or not place.name or place.name.endswith("/"):
        raise InputError(
            "nothing can be written there", where=redacted(uri), hint="Name an object in gs:// or s3://."
        )
    return place
