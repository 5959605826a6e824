"""Reading by URI: a local file as it is, a remote object by ranges, pinned and tried again."""

import io
from pathlib import Path
from typing import BinaryIO, cast

from trainwright.artifacts import SourceFile
from trainwright.storage.access import Access
from trainwright.storage.local import entry_of, open_local
from trainwright.storage.uris import local_path

BUFFER = 1 << 17
"""Bytes that small reads are served from; larger ones go past it."""


def open_file(uri: str, version: str = "", access: Access = Access()) -> BinaryIO:  # noqa: B008 - it is frozen
    """Open a file for reading bytes: seekable, buffered, and the same bytes however long it is read.

    Args:
        uri: A path or a URI.
        version: Generation, version id or ETag that the bytes must be of; empty takes what lies there now,
            and keeps to it. A disk has none.
        access: What may be reached.

    Raises:
        InputError: There is no such file.
        Moved: There is none of that version, now or later while it is read.
        PermissionRefused: It may not be read.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the scheme's driver is not installed.
    """
    path = local_path(uri)
    if path is not None:
        return open_local(path)
    from trainwright.storage.ranges import opened

    return cast(BinaryIO, io.BufferedReader(opened(uri, version, access), BUFFER))


def read_bytes(uri: str, version: str = "", access: Access = Access()) -> bytes:  # noqa: B008 - it is frozen
    """Read a whole small file; a remote one is checked against its store's checksum.

    Args:
        uri: A path or a URI.
        version: As :func:`open_file` takes it.
        access: What may be reached.

    Raises:
        As :func:`open_file`.
    """
    path = local_path(uri)
    if path is not None:
        with open_local(path) as stream:
            return stream.read()
    from trainwright.storage.transfer import read_whole

    return read_whole(uri, version, access)


def head(uri: str, version: str = "", access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Look at one file without reading it: its size, and what its store says of checksum and version.

    Args:
        uri: A path or a URI.
        version: As :func:`open_file` takes it.
        access: What may be reached.

    Raises:
        As :func:`open_file`.
    """
    path = local_path(uri)
    if path is not None:
        return entry_of(path)
    from trainwright.storage.ranges import opened

    return opened(uri, version, access).entry


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
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the disk is full.
    """
    from trainwright.storage.transfer import fetch_whole

    fetch_whole(entry, path, access)
