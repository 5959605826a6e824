"""The interface of a remote store, the failures of a call, and its retries."""

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import BinaryIO, TypeVar

from trainwright.artifacts import SourceFile
from trainwright.errors import DependencyError, InputError, TransientError
from trainwright.redaction import redacted
from trainwright.retries import GaveUp, retry
from trainwright.storage.access import Access
from trainwright.storage.uris import Remote

Sink = Callable[[bytes], object]
"""Receives the bytes of a range as they come."""


class RetryableError(Exception):
    """One call failed, and the next attempt may succeed.

    Attributes:
        wait_s: Seconds that the store asked to wait; 0 if it did not say.
        answered: Whether anything answered.
    """

    def __init__(self, what: str, wait_s: float = 0.0, *, answered: bool = True) -> None:
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


class RemoteStore:
    """One bucket, or one web server. Each call is one attempt; a version is a generation, an id or an ETag.

    A call raises :class:`RetryableError`, :class:`NotFound`, :class:`PreconditionFailed`, or an error of
    :mod:`trainwright.errors`. Of a web server only ``head``, ``pull`` and ``protection`` are called.
    """

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return an object as it is now, or one version of it."""
        raise NotImplementedError

    def page(self, prefix: str, after: str = "") -> tuple[list[SourceFile], str]:
        """Return a page of the objects whose names start with a prefix, and the token of the next page."""
        raise NotImplementedError

    def pull(self, name: str, version: str, start: int, stop: int, sink: Sink) -> None:
        """Send bytes ``[start, stop)`` into the sink, as far as they come."""
        raise NotImplementedError

    def push(self, name: str, content: BinaryIO, size: int, md5: bytes) -> SourceFile:
        """Write an object that must not exist yet; the store checks size and MD5."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        """Remove an object."""
        raise NotImplementedError

    def protection(self) -> str:
        """Return whether a pinned version can still be read later; see ``Listing.protection``."""
        raise NotImplementedError


def store_of(place: Remote, access: Access) -> RemoteStore:
    """Open the store of a URI, without a request."""
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


def failure_of(status: int, said: str, retry_after: str | None = None) -> Exception | None:
    """Return the failure that an HTTP status means for every store; None for a success or any other."""
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
        return NotFound(said)
    if status == HTTPStatus.PRECONDITION_FAILED:
        return PreconditionFailed(said)
    return RetryableError(said, retry_after_s(retry_after)) if status in RETRYABLE_STATUS else None


_T = TypeVar("_T")


def with_retries(call: Callable[[], _T], what: str, where: str, retry_s: float) -> _T:
    """Retry a call of a store by the policy of :mod:`trainwright.retries`.

    Raises:
        TransientError: The store answered, but kept failing.
        DependencyError: Nothing ever answered.
    """
    answers = list[bool]()

    def is_transient(error: Exception) -> bool:
        if isinstance(error, RetryableError):
            answers.append(error.answered)
        return isinstance(error, RetryableError)

    def requested_wait_s(error: Exception) -> float:
        return error.wait_s if isinstance(error, RetryableError) else 0.0

    try:
        return retry(call, is_transient, f"{what} {redacted(where)}", retry_s, requested_wait_s)
    except GaveUp as end:
        failed = f"{what} failed {len(answers)} times in {end.seconds:.0f} s and was given up"
        said, where = redacted(str(end.error)), redacted(where)
    if any(answers):
        hint = "Run the step again later; if it stays, look at the store's status and quota."
        raise TransientError(f"{failed}: {said}", where=where, hint=hint)
    raise DependencyError(
        f"{failed}; nothing answers there: {said}",
        where=where,
        hint="Look at the endpoint, the network and the proxy.",
    )


def retry_after_s(value: str | None) -> float:
    """Parse a ``Retry-After`` header: seconds, or a date; 0 without a valid one."""
    try:
        if not value or value.strip().isdigit():
            return float(value or 0)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
