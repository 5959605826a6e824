"""The interface of a remote store, the failures of a call, and its retries."""

import time
from collections.abc import Callable
from typing import BinaryIO, Protocol, TypeVar

from trainwright.artifacts import SourceFile
from trainwright.errors import DependencyError, InputError, TrainwrightError, TransientError
from trainwright.retries import GaveUp, retry
from trainwright.storage.access import Access
from trainwright.storage.uris import Remote, redacted

Sink = Callable[[bytes], object]
"""Receives the bytes of a range as they come."""


class RetryableError(Exception):
    """One call failed, and the next attempt may succeed.

    Args:
        what: The store's message.
        wait_s: Seconds that the store asked to wait; None if it did not say.
        answered: Whether anything answered.
    """

    def __init__(self, what: str, wait_s: float | None = None, *, answered: bool = True) -> None:
        super().__init__(redacted(what))  # its text goes into logs
        self.wait_s, self.answered = wait_s, answered


class NotFound(Exception):
    """There is no such object, or none of that version, or no such bucket."""


class PreconditionFailed(Exception):
    """A condition did not hold: the name exists, or another version is there now."""


class ObjectChanged(DependencyError):
    """The listed version of the object is gone or was replaced: the source changed."""


class AlreadyExists(InputError):
    """The name of a create-only write exists: another writer was first."""


class RemoteStore(Protocol):
    """One bucket, or one web server. Each call is one attempt; a version is a generation, an id or an ETag.

    A call raises :class:`RetryableError`, :class:`NotFound`, :class:`PreconditionFailed`, or an error of
    :mod:`trainwright.errors`.
    """

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return an object as it is now, or one version of it."""
        ...

    def page(self, prefix: str, after: str = "") -> tuple[list[SourceFile], str]:
        """Return a page of the objects whose names start with a prefix, and the token of the next page."""
        ...

    def children(self, prefix: str) -> list[str]:
        """Return the names directly below a prefix, the first thousand: for hints in errors."""
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
        """Return whether a pinned version can still be read later; see ``Listing.protection``."""
        ...


def store_of(place: Remote, access: Access) -> RemoteStore:
    """Open the store of a URI, without a request.

    Raises:
        DependencyError: The scheme's driver is not installed in this environment.
        PermissionRefused: The host may not be read.
    """
    try:
        if place.scheme == "gs":
            from trainwright.storage.gs import GoogleBucket

            return GoogleBucket(place.bucket, access)
        if place.scheme == "https":
            from trainwright.storage.https import WebServer

            return WebServer(place.bucket, access)
        from trainwright.storage.s3 import S3Bucket

        return S3Bucket(place.bucket, access, scheme=place.scheme)
    except ImportError as error:
        raise DependencyError(
            f"{place.scheme}:// needs a package that this environment does not have: {error.name}",
            where=place.uri,
            hint="Add it to requirements.in of the image that this step runs in, or use a mounted volume.",
        ) from None


RETRYABLE_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""

_T = TypeVar("_T")


def with_retries(call: Callable[[], _T], what: str, where: str, retry_s: float) -> _T:
    """Retry a call of a store by the policy of :mod:`trainwright.retries`.

    Args:
        call: One attempt; raises :class:`RetryableError` if the next may succeed.
        what: The action, such as ``reading``; for messages.
        where: The URI.
        retry_s: No attempt starts later than so many seconds after the first failure.

    Raises:
        TransientError: The store answered, but kept failing.
        DependencyError: Nothing ever answered.
    """
    failures = list[RetryableError]()

    def is_transient(error: Exception) -> bool:
        if isinstance(error, RetryableError):
            failures.append(error)
        return isinstance(error, RetryableError)

    try:
        return retry(call, is_transient, f"{what} {redacted(where)}", retry_s, _requested_wait_s)
    except GaveUp as end:
        raise _given_up(failures, what, where, end.seconds) from None


def _requested_wait_s(error: Exception) -> float:
    return (error.wait_s or 0.0) if isinstance(error, RetryableError) else 0.0


def retry_after_s(value: str | None) -> float | None:
    """Parse a ``Retry-After`` header: seconds, or a date; None without a valid one."""
    from email.utils import parsedate_to_datetime

    if not value:
        return None
    try:
        if value.strip().isdigit():
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _given_up(failures: list[RetryableError], what: str, where: str, seconds: float) -> TrainwrightError:
    answered = any(failure.answered for failure in failures)
    said = redacted(str(failures[-1]))
    return (TransientError if answered else DependencyError)(
        f"{what} failed {len(failures)} times in {seconds:.0f} s and was given up"
        f"{'' if answered else '; nothing answers there'}: {said}",
        where=redacted(where),
        hint="Run the step again later; if it stays, look at the store's status and quota."
        if answered
        else "Look at the endpoint, the network and the proxy.",
    )
