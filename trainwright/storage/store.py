"""What every remote store can do, and the few ways in which it can fail."""

from collections.abc import Callable
from typing import BinaryIO, Protocol

from trainwright.artifacts import SourceFile
from trainwright.errors import DependencyError, InputError
from trainwright.storage.access import Access
from trainwright.storage.uris import Remote, redacted

Sink = Callable[[bytes], object]
"""Takes the bytes of a range as they come."""


class Passing(Exception):
    """A call failed in a way that may pass.

    Args:
        what: What happened, in the store's words.
        wait_s: How long the store asked to wait; None if it did not say.
        answered: Whether anything answered at all.
    """

    def __init__(self, what: str, wait_s: float | None = None, *, answered: bool = True) -> None:
        super().__init__(redacted(what))  # its text goes into logs
        self.wait_s, self.answered = wait_s, answered


class Absent(Exception):
    """There is no such object, or none of that version, or no such bucket."""


class Taken(Exception):
    """A condition did not hold: the name is taken, or another version lies there now."""


class Moved(DependencyError):
    """The object of that version is gone, or was replaced: the source changed since it was listed."""


class AlreadyThere(InputError):
    """A create-only write found something under its name: another writer was first."""


class Store(Protocol):
    """One bucket, or one web server. Each call is a single try; a version is a generation, an id or an ETag.

    All raise :class:`Passing`, :class:`Absent`, :class:`Taken` or an error of this library, and nothing else.
    """

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return an object as it is now, or one version of it."""
        ...

    def page(self, prefix: str, after: str = "") -> tuple[list[SourceFile], str]:
        """List objects whose names start with a prefix; also return what to ask for next, if anything."""
        ...

    def children(self, prefix: str) -> list[str]:
        """Name what lies directly below a prefix, the first thousand: for people who mistyped."""
        ...

    def pull(self, name: str, version: str, start: int, stop: int, sink: Sink) -> None:
        """Send bytes ``[start, stop)`` into the sink, as far as they come."""
        ...

    def push(self, name: str, content: BinaryIO, size: int, md5: bytes) -> SourceFile:
        """Write an object that must not exist yet; the store checks size and MD5."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object."""
        ...

    def protection(self) -> str:
        """Say whether what is pinned can still be read later, as ``Listing.protection`` does."""
        ...


def store_of(place: Remote, access: Access) -> Store:
    """Open the store that a URI names. Nothing is asked of it yet.

    Raises:
        DependencyError: The scheme's driver is not installed in this environment.
        PermissionRefused: The host may not be read.
    """
    try:
        return _OPEN[place.scheme](place.bucket, access)
    except ImportError as error:
        raise DependencyError(
            f"{place.scheme}:// needs a package that this environment does not have: {error.name}",
            where=place.uri,
            hint="Add it to requirements.in of the image that this step runs in, or use a mounted volume.",
        ) from None


def _gs(bucket: str, access: Access) -> Store:
    from trainwright.storage.gs import Bucket

    return Bucket(bucket, access)


def _s3(bucket: str, access: Access) -> Store:
    from trainwright.storage.s3 import Bucket

    return Bucket(bucket, access)


def _minio(bucket: str, access: Access) -> Store:
    from trainwright.storage.s3 import Bucket

    return Bucket(bucket, access, scheme="minio")


def _https(host: str, access: Access) -> Store:
    from trainwright.storage.https import Server

    return Server(host, access)


_OPEN: dict[str, Callable[[str, Access], Store]] = {
    "gs": _gs,
    "s3": _s3,
    "minio": _minio,
    "https": _https,
}
