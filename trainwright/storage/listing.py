"""What a source holds: files, folders and globs; cheap where the store keeps checksums."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError
from trainwright.storage.access import Access
from trainwright.storage.digests import digested
from trainwright.storage.git import parse_commit
from trainwright.storage.globs import counts, fixed, matcher, wild
from trainwright.storage.local import list_local
from trainwright.storage.missing import nothing_local, nothing_remote
from trainwright.storage.retries import retrying
from trainwright.storage.store import Absent, store_of
from trainwright.storage.uris import Remote, local_path, remote

_PACKED = ("", ".gz", ".bz2", ".zst")
TABLE_SUFFIXES = (
    ".parquet",
    ".pq",
    *(f".{kind}{packed}" for kind in ("csv", "jsonl", "ndjson") for packed in _PACKED),
)
"""What a table file's name ends with; in a folder, other files are not part of a source."""

ANYTHING = Access()


def take_listing(source: str, access: Access = ANYTHING, remember: str | None = None) -> Listing:
    """List the table files of a source, with the checksum of each.

    Stores that keep checksums are not read. Files of a disk are, each once and in parallel.

    Args:
        source: As :func:`list_files` takes it; or a commit of a git repository, which is one entry.
        access: What may be reached.
        remember: Folder that remembers checksums of local files, so that an unchanged one is not read again.

    Returns:
        The listing, whose content digest is equal wherever the same bytes lie. List again and compare to
        see whether anything was written meanwhile.

    Raises:
        InputError: Nothing is there.
        Moved: A file was written while it was read.
        PermissionRefused: Something may not be listed, read or reached.
        TransientError: The store kept failing.
        DependencyError: Nothing answers there, or the scheme's driver is not installed.
    """
    if commit := parse_commit(source):  # its name is its content: nothing has to be asked
        entry = SourceFile(uri=commit.uri, size=0, checksum=f"git:{commit.commit}", version=commit.commit)
        return Listing(source=source, files=(entry,), protection="versioned")
    files = list_files(source, TABLE_SUFFIXES, access)
    place = remote(source)
    if place is None:
        return Listing(source=source, files=digested(files, remember))
    if place.scheme == "https":
        from trainwright.storage.ranges import md5_by_reading

        files = [md5_by_reading(file, access) for file in files]
    protection = retrying(store_of(place, access).protection, "looking at", source, access.patience_s)
    return Listing(source=source, files=tuple(files), protection=protection)


def list_files(source: str, suffixes: tuple[str, ...] = (), access: Access = ANYTHING) -> list[SourceFile]:
    """List what a source holds now, sorted by URI.

    Args:
        source: A file, a folder (all files below it, but hidden ones and those that start with ``_``), or a
            glob, in which ``**`` crosses folders.
        suffixes: In a folder, and where a glob leaves the ending open, only files that end with one of
            these, in any case, count; all if empty.
        access: What may be reached.

    Returns:
        Files with size and time of writing; remote ones with checksum and version too.

    Raises:
        InputError: Nothing is there; says what is, as near as it can. Or a link leads nowhere, or back to
            a folder that it lies in.
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
    raise nothing_local(source, path, suffixes)


def find(root: str, name: str, access: Access = ANYTHING) -> Iterator[str]:
    """Give the URIs of all files of one name below a folder, sorted; none if there is no such folder."""
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
    elif wild(place.name):
        found = _matching(place, suffixes, access)
    else:
        found = _object(place, access) or _below(place, suffixes, access)
    if not found:
        raise nothing_remote(place, suffixes, access)
    return found


def _object(place: Remote, access: Access) -> list[SourceFile]:
    """Return the object of that very name, if there is one."""
    if not place.name or place.name.endswith("/"):
        return []
    store = store_of(place, access)
    try:
        return [retrying(lambda: store.head(place.name), "looking at", place.uri, access.patience_s)]
    except Absent:
        return []


def _below(place: Remote, suffixes: tuple[str, ...], access: Access) -> list[SourceFile]:
    folder = replace(place, name=_folder(place.name))
    return [file for file in _pages(folder, access) if counts(file.uri.removeprefix(folder.uri), suffixes)]


def _matching(place: Remote, suffixes: tuple[str, ...], access: Access) -> list[SourceFile]:
    """Return the objects that match a glob; one whose name is the glob itself is taken as it is."""
    start, matches = replace(place, name=""), matcher(place.name, suffixes)
    below = list(_pages(replace(place, name=fixed(place.name)), access))
    exact = [file for file in below if file.uri == place.uri]
    return exact or [file for file in below if matches(file.uri.removeprefix(start.uri))]


def _pages(place: Remote, access: Access) -> Iterator[SourceFile]:
    """Give every object whose name starts with the place's, but the empty ones that stand for folders."""
    store, after = store_of(place, access), ""
    while True:
        ask = partial(store.page, place.name, after)
        try:
            found, after = retrying(ask, "listing", place.uri, access.patience_s)
        except Absent:
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
