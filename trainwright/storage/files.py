"""Files by URI: list, digest, open, find.

A local path, a ``file://`` URI and a mounted volume are one thing and need nothing installed. Other schemes
go through fsspec and the driver that fsspec wants for them, which are imported only when such a URI is met.
"""

import difflib
import glob
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import DependencyError, InputError, PermissionRefused

REMOTE = ("gs", "s3", "https", "memory")
"""Schemes that are handed to fsspec; ``memory`` lives as long as its process and serves for trials."""

TABLE_SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz", ".csv.bz2", ".csv.zst")
"""What a table file's name ends with; in a folder, other files are not part of a source."""

_WILD = re.compile(r"[*?\[]")
_PIECE = 1 << 20


def take_listing(source: str) -> Listing:
    """List the table files of a source and read each once for its checksum.

    Args:
        source: As :func:`list_files` takes it.

    Returns:
        The listing, whose content digest is equal wherever the same bytes lie. List again and compare to
        see whether anything was written meanwhile.

    Raises:
        InputError: Nothing is there.
        DependencyError: The scheme's driver is not installed.
    """
    return Listing(source=source, files=tuple(digest(file) for file in list_files(source, TABLE_SUFFIXES)))


def list_files(source: str, suffixes: tuple[str, ...] = ()) -> list[SourceFile]:
    """List what a source holds now, sorted by URI.

    Args:
        source: A file, a folder (all files below it, through links too, but hidden ones and those that
            start with ``_``), or a glob, in which ``**`` crosses folders.
        suffixes: In a folder, only files that end with one of these, in any case, count; all if empty.

    Raises:
        InputError: Nothing is there; says what is, as near as it can. Or a link leads nowhere, or back to
            a folder that it lies in.
        PermissionRefused: A folder may not be listed.
        DependencyError: The scheme's driver is not installed.
    """
    path = local_path(source)
    entries = _list_remote(source, suffixes) if path is None else _list_local(path, suffixes)
    if not entries:
        raise _nothing(source, path, suffixes)
    return sorted(entries, key=lambda entry: entry.uri)


def digest(entry: SourceFile) -> SourceFile:
    """Read a file once and return its checksum; memory stays flat.

    Raises:
        InputError: There is no such file any more.
        PermissionRefused: It may not be read.
    """
    total = hashlib.md5(usedforsecurity=False)
    with open_file(entry.uri) as stream:
        while piece := stream.read(_PIECE):
            total.update(piece)
    return replace(entry, checksum=f"md5:{total.hexdigest()}")


def open_file(uri: str) -> BinaryIO:
    """Open a file for reading bytes.

    Raises:
        InputError: There is no such file.
        PermissionRefused: It may not be read.
    """
    path = local_path(uri)
    try:
        stream = path.open("rb") if path is not None else _filesystem(uri).open(uri, "rb")
    except FileNotFoundError:
        raise InputError("no such file", where=uri) from None
    except PermissionError:
        raise PermissionRefused("this file may not be read by this process", where=uri) from None
    return cast(BinaryIO, stream)


def find(root: str, name: str) -> Iterator[str]:
    """Give the URIs of all files of one name below a folder, sorted; none if there is no such folder."""
    path = local_path(root)
    if path is not None:
        yield from sorted(str(found) for found in path.rglob(name) if found.is_file())
        return
    filesystem = _filesystem(root)
    for found in sorted(filesystem.find(root)) if filesystem.isdir(root) else []:
        if found.rsplit("/", 1)[-1] == name:
            yield cast(str, filesystem.unstrip_protocol(found))


def local_path(uri: str) -> Path | None:
    """Return the absolute local path that a path or a ``file://`` URI names, or None for a remote one.

    Raises:
        InputError: It is empty, the scheme is not known, or the URI carries a user or a password.
    """
    scheme, separator, _ = uri.partition("://")
    if not uri or "\0" in uri:
        raise InputError(f"{uri!r} names no file", where="source")
    if not separator:
        return Path(os.path.abspath(uri))
    if scheme == "file":
        return Path(os.path.abspath(unquote(urlsplit(uri).path)))
    if scheme not in REMOTE:
        known = ", ".join(("file", *REMOTE))
        raise InputError(f"scheme {scheme!r} is not read here; known are {known}", where="source")
    if "@" in urlsplit(uri).netloc:
        raise InputError(
            f"a {scheme}:// source carries a user or a password",
            where="source",
            hint="Take them out: credentials come from the identity that the step runs under.",
        )
    return None


def _filesystem(uri: str) -> Any:
    scheme = uri.partition("://")[0]
    try:
        import fsspec  # type: ignore[import-untyped]

        return fsspec.filesystem(scheme, **({} if scheme == "memory" else {"skip_instance_cache": True}))
    except ImportError as error:
        raise DependencyError(
            f"{scheme}:// needs a package that this environment does not have: {error}",
            where=uri,
            hint="Add it to requirements.in of the image that this step runs in, or use a mounted volume.",
        ) from None


def _list_local(path: Path, suffixes: tuple[str, ...]) -> list[SourceFile]:
    try:
        if path.is_file():
            return [_local_entry(path)]
        if path.is_dir():
            return [_local_entry(found) for found in _below(path, suffixes, ())]
        found = (Path(name) for name in glob.glob(str(path), recursive=True) if not os.path.isdir(name))
        return [_local_entry(name) for name in found]
    except PermissionError as error:
        raise PermissionRefused(f"listing was refused: {error}", where=str(path)) from None


def _below(folder: Path, suffixes: tuple[str, ...], above: tuple[Path, ...]) -> Iterator[Path]:
    """Give the files below a folder that count. What cannot be looked into is an error, never left out."""
    real = folder.resolve()
    if real in above:
        raise InputError(f"a link leads back to {real}, which holds it", where=str(folder))
    for path in folder.iterdir():
        if path.is_dir():
            if _counts(path.name, ()):
                yield from _below(path, suffixes, (*above, real))
        elif _counts(path.name, suffixes):
            yield path


def _local_entry(path: Path) -> SourceFile:
    try:
        state = path.stat()
    except FileNotFoundError:
        raise InputError("a link to a file that is not there, or one just removed", where=str(path)) from None
    return SourceFile(uri=str(path), size=state.st_size, checksum="", written=_moment(state.st_mtime_ns))


def _moment(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _counts(name: str, suffixes: tuple[str, ...]) -> bool:
    hidden = any(part.startswith((".", "_")) for part in name.split("/"))
    return not hidden and (not suffixes or name.lower().endswith(suffixes))


def _list_remote(source: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    filesystem = _filesystem(source)
    root = cast(str, filesystem._strip_protocol(source)).rstrip("/")
    try:
        if _WILD.search(source):
            found = filesystem.glob(source, detail=True)
        elif filesystem.isfile(source):
            found = {root: filesystem.info(source)}
        else:
            below = filesystem.find(source, detail=True) if filesystem.isdir(source) else {}
            found = {name: info for name, info in below.items() if _counts(name[len(root) + 1 :], suffixes)}
    except PermissionError as error:
        raise PermissionRefused(f"listing was refused: {error}", where=source) from None
    return [
        SourceFile(
            uri=filesystem.unstrip_protocol(name),
            size=int(info["size"] or 0),
            checksum="",
            version=_state(info),
        )
        for name, info in found.items()
        if info["type"] == "file"
    ]


def _state(info: dict[str, Any]) -> str:
    marks = ("generation", "etag", "ETag", "VersionId", "mtime", "LastModified", "created")
    return str({mark: info[mark] for mark in marks if mark in info})


def _nothing(source: str, path: Path | None, suffixes: tuple[str, ...]) -> InputError:
    """Say that nothing was found, and what lies nearest."""
    looked = f"no file matches {source!r}" if _WILD.search(source) else f"no such file or folder: {source!r}"
    if path is None:
        return InputError(looked, where="source", hint="Check the bucket, the path and who may list it.")
    if path.is_dir():
        return InputError(
            f"no file ending in {', '.join(suffixes) or 'anything'} below this folder",
            where=str(path),
            hint=_seen(path),
        )
    nearest = next(parent for parent in path.parents if parent.is_dir())
    return InputError(
        looked, where=str(path), hint=f"The nearest that exists is {nearest}: {_seen(nearest, path.name)}"
    )


def _seen(folder: Path, wanted: str = "") -> str:
    names = sorted(os.listdir(folder))
    near = difflib.get_close_matches(wanted, names, n=3) or names
    shown = ", ".join(near[:8]) + (", …" if len(names) > len(near[:8]) else "")
    return f"it holds {shown}." if names else "it is empty."
