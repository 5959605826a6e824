"""Reading by URI: a local file as it is, a remote object by ranges, pinned and tried again."""

import io
from typing import BinaryIO, cast

from trainwright.artifacts import SourceFile
from trainwright.storage.access import Access
from trainwright.storage.local import entry_of, open_local
from trainwright.storage.ranges import opened
from trainwright.storage.transfer import read_whole
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
    return cast(BinaryIO, io.BufferedReader(opened(uri, version, access), BUFFER))


def read_bytes(uri: str, version: str = "", access: Access = Access()) -> bytes:  # noqa: B008 - it is frozen
    """Read a whole small file; a remote one is checked against its store's checksum.

    It takes what :func:`open_file` takes, and raises what that raises.
    """
    if local_path(uri) is None:
        return read_whole(uri, version, access)
    with open_file(uri) as stream:
        return stream.read()


def head(uri: str, version: str = "", access: Access = Access()) -> SourceFile:  # noqa: B008 - it is frozen
    """Look at one file without reading it: its size, and what its store says of checksum and version.

    It takes what :func:`open_file` takes, and raises what that raises.
    """
    path = local_path(uri)
    return opened(uri, version, access).entry if path is None else entry_of(path)
