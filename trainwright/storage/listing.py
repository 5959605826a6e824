"""Listing of sources: files, folders and globs; cheap where the store has checksums."""

import difflib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError, TrainwrightError
from trainwright.redaction import redacted
from trainwright.storage.access import Access
from trainwright.storage.git import parse_commit
from trainwright.storage.local import digest_files, list_local
from trainwright.storage.reading import md5_by_reading
from trainwright.storage.store import NotFound, store_of, with_retries
from trainwright.storage.uris import WILDCARD, Remote, is_visible, local_path, matcher, remote

TABLE_SUFFIXES = (
    ".parquet",
    ".pq",
    *(f".{kind}{packed}" for kind in ("csv", "jsonl", "ndjson") for packed in ("", ".gz", ".bz2", ".zst")),
)
"""Endings of table files; other files of a folder are not part of a source."""

ANYTHING = Access()
_HINT_RETRY_S = 10.0


def take_listing(source: str, access: Access = ANYTHING, remember: str | None = None) -> Listing:
    """List the table files of a source, with the checksum of each: its content digest is that of any copy.

    Files of stores that have checksums are not read. Local files are, each once and in parallel; ``remember``
    is the folder of a cache of their checksums. A commit of a git repository is one entry. Errors are those
    of :func:`list_files`, and ``ObjectChanged`` if a file is written while it is read.
    """
    if commit := parse_commit(source):  # its name identifies its content: no request is needed
        entry = SourceFile(uri=commit.uri, size=0, checksum=f"git:{commit.commit}", version=commit.commit)
        return Listing(source=source, files=(entry,), protection="versioned")
    files = list_files(source, TABLE_SUFFIXES, access)
    place = remote(source)
    if place is None:
        return Listing(source=source, files=digest_files(files, remember))
    if place.scheme == "https":
        files = [md5_by_reading(file, access) for file in files]
    protection = with_retries(store_of(place, access).protection, "looking at", source, access.retry_s)
    return Listing(source=source, files=tuple(files), protection=protection)


def require_listing(what: str, source: str, version: str) -> Listing:
    """List a source as :func:`take_listing` does, and check that its content is what ``resolve`` found.

    Raises:
        InputError: Its content digest is not ``version``; ``what`` names the source.
    """
    listing = take_listing(source)
    if listing.content_digest != version:
        raise InputError(
            f"{what} changed after `resolve`: expected {version[:12] or '(no version)'}, found "
            f"{listing.content_digest[:12]}",
            where=source,
            hint="Run again: `resolve` lists it first.",
        )
    return listing


def list_files(source: str, suffixes: tuple[str, ...] = (), access: Access = ANYTHING) -> list[SourceFile]:
    """List the files of a source, sorted by URI; remote ones have a checksum and a version.

    Args:
        source: A file, a folder (all files below it, but hidden ones and those that start with ``_``), or a
            glob, in which ``**`` crosses folders.
        suffixes: In a folder, and where a glob leaves the ending open, only files that end with one of
            these, in any case, count; all if empty.
        access: What may be reached.

    Raises:
        InputError: Nothing is there; the message names the nearest that exists. Or a link leads nowhere, or
            back to a folder that it is in.
        PermissionRefused: A folder may not be listed, or a link leads out of the source's folder.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the scheme's driver is not installed.
    """
    place = remote(source)
    if place is None:
        path = cast(Path, local_path(source))
        found = list_local(path, suffixes)
        if not found:
            raise _nothing_local(source, path, suffixes)
    else:
        found = _list_remote(place, suffixes, access)
        if not found:
            raise _nothing_remote(place, suffixes, access)
    return sorted(found, key=lambda entry: entry.uri)


def find(root: str, name: str, access: Access = ANYTHING) -> Iterator[str]:
    """Yield the URIs of all files of one name below a folder, sorted; none if there is no such folder."""
    place = remote(root)
    if place is None:
        found = [str(file) for file in cast(Path, local_path(root)).rglob(name) if file.is_file()]
    else:
        found = [file.uri for file in _pages(_folder(place), access) if file.uri.rsplit("/", 1)[-1] == name]
    yield from sorted(found)


def _list_remote(place: Remote, suffixes: tuple[str, ...], access: Access) -> list[SourceFile]:
    """List the object of exactly that name, the matches of a glob, or the files below a folder."""
    wild = WILDCARD.search(place.name) if place.scheme != "https" else None
    if wild:
        below = list(_pages(replace(place, name=place.name[: wild.start()]), access))
        if exact := [file for file in below if file.uri == place.uri]:
            return exact
        start, matches = replace(place, name="").uri, matcher(place.name, suffixes)
        return [file for file in below if matches(file.uri.removeprefix(start))]
    if place.name and not place.name.endswith("/"):
        store = store_of(place, access)
        with suppress(NotFound):
            return [with_retries(partial(store.head, place.name), "looking at", place.uri, access.retry_s)]
    if place.scheme == "https":
        return []
    folder = _folder(place)
    return [
        file for file in _pages(folder, access) if is_visible(file.uri.removeprefix(folder.uri), suffixes)
    ]


def _folder(place: Remote) -> Remote:
    return replace(place, name=f"{place.name.rstrip('/')}/" if place.name.strip("/") else "")


def _pages(place: Remote, access: Access) -> Iterator[SourceFile]:
    """Yield every object whose name starts with the place's, but the empty ones that stand for folders."""
    store, after = store_of(place, access), ""
    while True:
        try:
            found, after = with_retries(
                partial(store.page, place.name, after), "listing", place.uri, access.retry_s
            )
        except NotFound:
            raise InputError(
                f"there is no bucket {place.bucket!r}",
                where=place.uri,
                hint=f"A source is written {place.scheme}://BUCKET/PATH.",
            ) from None
        yield from (file for file in found if not file.uri.endswith("/"))
        if not after:
            return


def _nothing_local(source: str, path: Path, suffixes: tuple[str, ...]) -> InputError:
    """Return the error for a local source without files: names the nearest folder that exists."""
    nearest = next(folder for folder in (path, *path.parents) if folder.is_dir())
    try:
        names = sorted(os.listdir(nearest))
    except OSError:  # it may be traversed, but not listed
        names = []
    if nearest == path:
        return InputError(_no_suffix(suffixes), where=str(path), hint=_seen("", names, ""))
    wanted = path.relative_to(nearest).parts[0]
    return InputError(_no_match(source), where=str(path), hint=_seen(str(nearest), names, wanted))


def _nothing_remote(place: Remote, suffixes: tuple[str, ...], access: Access) -> InputError:
    """Return the error for a remote source without files: names the nearest prefix that exists."""
    if place.scheme == "https":
        return InputError("there is no such page", where=redacted(place.uri), hint="Check the path.")
    store, names = store_of(place, access), place.name.strip("/").split("/")
    for depth in reversed(range(len(names) + 1)):
        folder = "".join(f"{name}/" for name in names[:depth] if name)
        found: list[str] = []
        if not WILDCARD.search(folder):
            with suppress(NotFound, TrainwrightError):
                page, _ = with_retries(partial(store.page, folder), "listing", place.uri, _HINT_RETRY_S)
                start = f"{place.scheme}://{place.bucket}/{folder}"
                found = sorted({file.uri.removeprefix(start).split("/")[0] for file in page} - {""})
        if found and depth == len(names):
            return InputError(_no_suffix(suffixes), where=place.uri, hint=_seen("", found, ""))
        if found:
            hint = _seen(f"{place.scheme}://{place.bucket}/{folder}", found, names[depth])
            return InputError(_no_match(place.uri.rstrip("/")), where=place.uri, hint=hint)
    hint = f"The bucket {place.bucket} has nothing of that kind."
    return InputError(_no_match(place.uri.rstrip("/")), where=place.uri, hint=hint)


def _no_suffix(suffixes: tuple[str, ...]) -> str:
    return f"no file ending in {', '.join(suffixes) or 'anything'} below this folder"


def _no_match(source: str) -> str:
    matches = WILDCARD.search(source)
    return f"no file matches {source!r}" if matches else f"no such file or folder: {source!r}"


def _seen(folder: str, names: list[str], wanted: str) -> str:
    """Say what a folder holds: the names most like the wanted one, or the first few."""
    near = (difflib.get_close_matches(wanted, names, n=3) or names)[:8]
    shown = ", ".join(near) + (", …" if len(names) > len(near) else "")
    said = f"it holds {shown}." if names else "it is empty."
    return f"The nearest that exists is {folder}: {said}" if folder else said
