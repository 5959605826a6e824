"""Checkout of a Feast repository: its own folder, or a temporary copy of the files below its URI.

The listed versions are copied, and each file is checked against its size and checksum. So a step works on
exactly the bytes of its cache key.
"""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainwright.artifacts import Listing, SourceFile
from trainwright.errors import InputError
from trainwright.featurestore.repository import SETTINGS
from trainwright.retries import OUTAGE_S
from trainwright.storage import fetch, fetch_commit, head, join, local_path, parse_commit, take_listing
from trainwright.storage.git import FORM

_AT_A_TIME = 8
_STORES = ("s3://", "gs://", "minio://")


@dataclass(frozen=True)
class Checkout:
    """A repository's files on this machine, in a ``fetched`` temporary copy or its own folder.

    It is ``pinned`` if ``uri`` itself names the content, as a commit does.
    """

    uri: str
    folder: Path
    fetched: bool
    pinned: bool = False

    def origin(self, place: str) -> str:
        """Return the URI that a file was fetched from; of another file, its real path or its URI."""
        path = None if parse_commit(place) else local_path(place)
        if path is None:
            return place
        real = Path(os.path.realpath(path))
        if self.fetched and real.is_relative_to(self.folder):
            return join(self.uri, real.relative_to(self.folder).as_posix())
        return str(real)


def is_remote(repository: str) -> bool:
    """Tell whether a repository has to be fetched."""
    return parse_commit(repository) is not None or local_path(repository) is None


def require_version(source: str, version: str) -> Listing:
    """List the files of a repository, and check their content digest."""
    listing = take_listing(source)
    found = listing.content_digest
    if found != version:
        raise InputError(
            f"the features are {found[:12]}, expected {version[:12]}: they changed after `resolve`",
            where=source,
            hint="Run again: `resolve` lists them first.",
        )
    return listing


@contextmanager
def checked_out(repository: str, listing: Listing) -> Iterator[Checkout]:
    """Yield the folder of a repository: its own, or a temporary copy that is removed afterwards.

    A repository is a folder, its URI in an object store, or a commit of git. From an object store, the files
    of ``listing`` below the URI are fetched, in the versions that were listed.

    Raises:
        InputError: There is no repository, its URI is unsupported, or the listing lacks it.
    """
    commit = parse_commit(repository)
    path = None if commit else local_path(repository)
    if path is not None:
        yield Checkout(uri=repository, folder=path, fetched=False)
        return
    with tempfile.TemporaryDirectory(prefix="trainwright-features-") as scratch:
        folder = Path(os.path.realpath(scratch)) / "repository"
        uri = repository.rstrip("/")
        if commit:
            fetch_commit(commit, folder, OUTAGE_S)
            if not (folder / SETTINGS).is_file():
                hint = "Name the folder that holds it: #subdirectory=FOLDER."
                raise InputError(f"no Feast repository here: no {SETTINGS}", where=uri, hint=hint)
        else:
            files = _listed_below(uri, listing)
            with ThreadPoolExecutor(_AT_A_TIME) as pool:
                # join rejects a name that leads out of the folder
                list(pool.map(lambda name: fetch(files[name], Path(join(str(folder), name))), files))
        yield Checkout(uri=uri, folder=folder, fetched=True, pinned=commit is not None)


def _listed_below(uri: str, listing: Listing) -> dict[str, SourceFile]:
    """Return the listed files of a repository by their names in it."""
    if not uri.startswith(_STORES):
        raise InputError(
            "a Feast repository cannot be fetched from there",
            where=uri,
            hint=f"Name a folder, a prefix of an object store ({', '.join(_STORES)}), or {FORM}.",
        )
    root = f"{uri}/"
    found = {file.uri.removeprefix(root): file for file in listing.files if file.uri.startswith(root)}
    if SETTINGS in found:
        return found
    try:
        head(root + SETTINGS)
    except InputError as error:
        raise InputError(
            f"no Feast repository here: no {SETTINGS}", where=uri, hint="Name the prefix that holds it."
        ) from error
    raise InputError(
        f"a change of the features would go unseen: source does not hold {root}{SETTINGS}",
        where=listing.source,
        hint=f"Name all of the repository but compiled Python: {root}**/*[!c]",
    )
