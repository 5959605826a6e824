"""Find the bytes of an earlier listing again, whatever the source holds today, and copy them.

Content identifies a file, so its copy elsewhere will do: in the checkout of the library, for example.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainwright.artifacts import Listing, PinnedSource
from trainwright.errors import InputError, TrainwrightError
from trainwright.experiment import Data
from trainwright.sources import list_source
from trainwright.sources.sources import PINNED
from trainwright.storage import (
    Access,
    ObjectChanged,
    exists,
    fetch,
    head,
    local_path,
    parse_commit,
    take_listing,
)
from trainwright.storage.local import digest_files

_HINT = "Restore these bytes where they were, or name a folder that has them: --data FOLDER."


def restore(pinned: PinnedSource, folder: Path) -> str:
    """Copy the bytes of a source into a folder that does not exist, and return the source to read them from.

    A table or a database is not copied: its location pins it.

    Raises:
        InputError: The first file whose bytes are gone or changed, expected and found.
    """
    data = Data.parse(dict(pinned.data), "data") if pinned.data else None
    if data and data.format in PINNED:
        found = list_source(pinned.source, data, Access(hosts=data.hosts)).content_digest
        if found != pinned.version:
            raise _changed(pinned.source, pinned.version, found)
        return pinned.source
    access = Access(hosts=data.hosts) if data else Access()
    _, listing = _located(pinned, access)
    for name, entry in listing.by_name:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            fetch(entry, target, access)
        except ObjectChanged as error:
            raise InputError(f"the bytes changed meanwhile: {error.what}", where=entry.uri) from None
    if len(listing.files) == 1:
        return str(folder / listing.by_name[0][0])
    return str(folder)


def locate(pinned: PinnedSource) -> tuple[str, str]:
    """Return the prefix of a source's paths, and the folder in its place, where all its bytes are.

    Both are empty if they are where they were, or in a commit of a repository. Other files do not matter.
    """
    return ("", "") if parse_commit(pinned.source) else _located(pinned, Access())[0]


def _moves(pinned: PinnedSource) -> Iterator[tuple[str, str]]:
    """Yield prefixes of the paths with folders that may stand in their place; first the place itself."""
    yield "", ""
    if local_path(pinned.source) is not None:
        parts = pinned.source.split("/")
        for root in pinned.roots:
            for end in range(2, len(parts)):
                yield "/".join(parts[:end]), root


def _located(pinned: PinnedSource, access: Access) -> tuple[tuple[str, str], Listing]:
    """Return the first place that has all bytes; else raise the error of the recorded place."""
    problem: TrainwrightError | None = None
    for old, new in _moves(pinned):
        try:
            moved = _moved(pinned, old, new)
            return (old, new), _require_same(moved, access) if moved.files else _listed(moved, access)
        except (InputError, ObjectChanged) as error:
            problem = problem or error
    assert problem is not None  # noqa: S101 - the first place is always tried
    raise InputError(problem.what, where=problem.where or pinned.source, hint=_HINT)


def _moved(pinned: PinnedSource, old: str, new: str) -> PinnedSource:
    def move(path: str) -> str:
        return new + path.removeprefix(old) if old and path.startswith(f"{old}/") else path

    files = tuple(replace(entry, uri=move(entry.uri)) for entry in pinned.files)
    return replace(pinned, source=move(pinned.source), files=files)


def _require_same(pinned: PinnedSource, access: Access) -> Listing:
    """Check each listed file where it is pinned: local ones by their bytes, others by their store."""
    for entry in pinned.files:
        if not entry.version and not exists(entry.uri, access):
            raise InputError(f"this file is gone: expected {entry.checksum}", where=entry.uri, hint=_HINT)
    local = [head(entry.uri) for entry in pinned.files if local_path(entry.uri) is not None]
    now = {entry.uri: entry for entry in digest_files(local)}
    for entry in pinned.files:
        found = now.get(entry.uri) or head(entry.uri, entry.version, access)
        checksum = found.checksum or entry.checksum  # a web server has none: the copy is compared
        if (found.size, checksum) != (entry.size, entry.checksum):
            raise _changed(entry.uri, entry.checksum, checksum)
    return Listing(source=pinned.source, files=pinned.files)


def _listed(pinned: PinnedSource, access: Access) -> Listing:
    """List a source whose files are not recorded; later files of a folder that only grows do not count."""
    if pinned.versions:
        files = tuple(head(uri, version, access) for uri, version in sorted(pinned.versions.items()))
        now = Listing(source=pinned.source, files=files)
    else:
        now = take_listing(pinned.source, access)
    until = pinned.written_until[:19]
    for files in (now.files, tuple(entry for entry in now.files if entry.written[:19] <= until)):
        listing = replace(now, files=files)
        if listing.content_digest == pinned.version:
            return listing
    raise _changed(pinned.source, pinned.version, now.content_digest)


def _changed(where: str, expected: str, found: str) -> InputError:
    return InputError(
        f"the bytes are not those of the run: expected {expected}, found {found}", where=where, hint=_HINT
    )
