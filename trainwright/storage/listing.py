"""Listing of sources: files, folders and globs; cheap where the store has checksums."""

import difflib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError, TrainwrightError
from trainwright.storage.access import Access
from trainwright.storage.checksums import digest_files
from trainwright.storage.git import parse_commit
from trainwright.storage.local import list_local
from trainwright.storage.store import NotFound, store_of, with_retries
from trainwright.storage.uris import (
    Remote,
    fixed_prefix,
    has_wildcard,
    is_visible,
    local_path,
    matcher,
    redacted,
    remote,
)

_NEAR, _SHOWN = 3, 8
_HINT_PATIENCE_S = 10.0


def _nothing_local(source: str, path: Path, suffixes: tuple[str, ...]) -> InputError:
    """Return the error for a local source without files: names the nearest folder that exists."""
    if path.is_dir():
        return InputError(
            f"no file ending in {', '.join(suffixes) or 'anything'} below this folder",
            where=str(path),
            hint=_seen("", _names(path), ""),
        )
    nearest = next(parent for parent in path.parents if parent.is_dir())
    wanted = path.relative_to(nearest).parts[0]
    return InputError(_looked_for(source), where=str(path), hint=_seen(str(nearest), _names(nearest), wanted))


def _nothing_remote(place: Remote, suffixes: tuple[str, ...], access: Access) -> InputError:
    """Return the error for a remote source without files: names the nearest prefix that exists."""
    if place.scheme == "https":
        return InputError("there is no such page", where=redacted(place.uri), hint="Check the path.")
    what, names = _looked_for(place.uri.rstrip("/")), place.name.strip("/").split("/")
    if below := _children(place, "".join(f"{name}/" for name in names if name), access):
        what = f"no file ending in {', '.join(suffixes) or 'anything'} below this folder"
        return InputError(what, where=place.uri, hint=_seen("", below, ""))
    for depth in reversed(range(len(names))):
        folder = "".join(f"{name}/" for name in names[:depth])
        if not has_wildcard(folder) and (found := _children(place, folder, access)):
            return InputError(
                what,
                where=place.uri,
                hint=_seen(f"{place.scheme}://{place.bucket}/{folder}", found, names[depth]),
            )
    return InputError(what, where=place.uri, hint=f"The bucket {place.bucket} has nothing of that kind.")


def _looked_for(source: str) -> str:
    return f"no file matches {source!r}" if has_wildcard(source) else f"no such file or folder: {source!r}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # it may be traversed, but not listed
        return []


def _children(place: Remote, folder: str, access: Access) -> list[str]:
    store = store_of(place, access)
    try:
        return sorted(with_retries(lambda: store.children(folder), "listing", place.uri, _HINT_PATIENCE_S))
    except (NotFound, TrainwrightError):
        return []


def _seen(folder: str, names: list[str], wanted: str) -> str:
    near = difflib.get_close_matches(wanted, names, n=_NEAR) or names
    shown = ", ".join(near[:_SHOWN]) + (", …" if len(names) > len(near[:_SHOWN]) else "")
    said = f"it holds {shown}." if names else "it is empty."
    return f"The nearest that exists is {folder}: {said}" if folder else said


_PACKED = ("", ".gz", ".bz2", ".zst")
TABLE_SUFFIXES = (
    ".parquet",
    ".pq",
    *(f".{kind}{packed}" for kind in ("csv", "jsonl", "ndjson") for packed in _PACKED),
)
"""Endings of table files; other files of a folder are not part of a source."""

ANYTHING = Access()


def take_listing(source: str, access: Access = ANYTHING, remember: str | None = None) -> Listing:
    """List the table files of a source, with the checksum of each.

    Files of stores that have checksums are not read. Local files are, each once and in parallel.

    Args:
        source: As :func:`list_files` takes it; or a commit of a git repository, which is one entry.
        access: What may be reached.
        remember: Folder of the checksum cache of local files.

    Returns:
        The listing, whose content digest is equal wherever the same bytes are.

    Raises:
        InputError: Nothing is there.
        ObjectChanged: A file was written while it was read.
        PermissionRefused: Something may not be listed, read or reached.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the scheme's driver is not installed.
    """
    if commit := parse_commit(source):  # its name identifies its content: no request is needed
        entry = SourceFile(uri=commit.uri, size=0, checksum=f"git:{commit.commit}", version=commit.commit)
        return Listing(source=source, files=(entry,), protection="versioned")
    files = list_files(source, TABLE_SUFFIXES, access)
    place = remote(source)
    if place is None:
        return Listing(source=source, files=digest_files(files, remember))
    if place.scheme == "https":
        from trainwright.storage.reading import md5_by_reading

        files = [md5_by_reading(file, access) for file in files]
    protection = with_retries(store_of(place, access).protection, "looking at", source, access.retry_s)
    return Listing(source=source, files=tuple(files), protection=protection)


def list_files(source: str, suffixes: tuple[str, ...] = (), access: Access = ANYTHING) -> list[SourceFile]:
    """List the files of a source, sorted by URI.

    Args:
        source: A file, a folder (all files below it, but hidden ones and those that start with ``_``), or a
            glob, in which ``**`` crosses folders.
        suffixes: In a folder, and where a glob leaves the ending open, only files that end with one of
            these, in any case, count; all if empty.
        access: What may be reached.

    Returns:
        Files with size and time of writing; remote ones with checksum and version too.

    Raises:
        InputError: Nothing is there; the message names the nearest that exists. Or a link leads nowhere, or
            back to a folder that it is in.
        PermissionRefused: A folder may not be listed, or a link leads out of the source's folder.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the scheme's driver is not installed.
    """
    place = remote(source)
    entries = _list_local(source, suffixes) if place is None else _list_remote(place, suffixes, access)
    return sorted(entries, key=lambda entry: entry.uri)


def _list_local(source: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    path = local_path(source)
    assert path is not None  # noqa: S101 - what is not remote is local
    if found := list_local(path, suffixes):
        return found
    raise _nothing_local(source, path, suffixes)


def find(root: str, name: str, access: Access = ANYTHING) -> Iterator[str]:
    """Yield the URIs of all files of one name below a folder, sorted; none if there is no such folder."""
    place = remote(root)
    if place is None:
        path = local_path(root)
        found = [str(file) for file in path.rglob(name) if file.is_file()] if path else []
    else:
        below = replace(place, name=_folder(place.name))
        found = [file.uri for file in _pages(below, access) if file.uri.rsplit("/", 1)[-1] == name]
    yield from sorted(found)


def _list_remote(place: Remote, suffixes: tuple[str, ...], access: Access) -> list[SourceFile]:
    if place.scheme == "https":
        found = _object(place, access)
    elif has_wildcard(place.name):
        found = _matching(place, suffixes, access)
    else:
        found = _object(place, access) or _below(place, suffixes, access)
    if not found:
        raise _nothing_remote(place, suffixes, access)
    return found


def _object(place: Remote, access: Access) -> list[SourceFile]:
    """Return the object of exactly that name, if there is one."""
    if not place.name or place.name.endswith("/"):
        return []
    store = store_of(place, access)
    try:
        return [with_retries(lambda: store.head(place.name), "looking at", place.uri, access.retry_s)]
    except NotFound:
        return []


def _below(place: Remote, suffixes: tuple[str, ...], access: Access) -> list[SourceFile]:
    folder = replace(place, name=_folder(place.name))
    return [
        file for file in _pages(folder, access) if is_visible(file.uri.removeprefix(folder.uri), suffixes)
    ]


def _matching(place: Remote, suffixes: tuple[str, ...], access: Access) -> list[SourceFile]:
    """Return the objects that match a glob; one whose name is the glob itself comes first."""
    start, matches = replace(place, name=""), matcher(place.name, suffixes)
    below = list(_pages(replace(place, name=fixed_prefix(place.name)), access))
    exact = [file for file in below if file.uri == place.uri]
    return exact or [file for file in below if matches(file.uri.removeprefix(start.uri))]


def _pages(place: Remote, access: Access) -> Iterator[SourceFile]:
    """Give every object whose name starts with the place's, but the empty ones that stand for folders."""
    store, after = store_of(place, access), ""
    while True:
        ask = partial(store.page, place.name, after)
        try:
            found, after = with_retries(ask, "listing", place.uri, access.retry_s)
        except NotFound:
            raise InputError(
                f"there is no bucket {place.bucket!r}",
                where=place.uri,
                hint=f"A source is written {place.scheme}://BUCKET/PATH.",
            ) from None
        yield from (file for file in found if not file.uri.endswith("/"))
        if not after:
            return


def _folder(name: str) -> str:
    return f"{name.rstrip('/')}/" if name.strip("/") else ""
