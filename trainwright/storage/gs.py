"""``gs://`` by google-cloud-storage: pinned by generation, written only where nothing is.

Every call is one try with the library's own retries off; the one policy is in
:mod:`trainwright.storage.store`. Endpoint and credentials are the library's own configuration.
"""

import base64
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, BinaryIO

import requests
import urllib3
from google.api_core import exceptions as google_errors
from google.auth import exceptions as auth_errors
from google.cloud import storage as google  # type: ignore[import-untyped]

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.http_limits import ANSWER, DOWNLOAD, HttpLimits, limited
from trainwright.redaction import redacted
from trainwright.storage.access import Access
from trainwright.storage.store import RemoteStore, RetryableError, Sink, failure_of

TIMEOUT_S = (10, 60)
"""To connect, and for a server that has gone silent."""

_PAGE = 1000
_FIELDS = "items(name,generation,size,md5Hash,crc32c,updated),nextPageToken"
_ONCE: dict[str, Any] = {"timeout": TIMEOUT_S, "retry": None}
_READ, _WRITE = "roles/storage.objectViewer", "roles/storage.objectCreator"
_log = logging.getLogger("trainwright.storage")
_UNANSWERED = (
    requests.ConnectTimeout,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.MaxRetryError,
    auth_errors.TransportError,
)


class GoogleBucket(RemoteStore):
    """A bucket; see :class:`trainwright.storage.store.RemoteStore`."""

    def __init__(self, name: str, access: Access) -> None:
        self.name, self.access = name, access

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return an object as it is now, or one generation of it."""
        blob = self._blob(name, version)
        with self._errors(name, _READ):
            blob.reload(projection="noAcl", **_ONCE)
            return self._entry(blob)

    def page(self, prefix: str, after: str = "") -> tuple[list[SourceFile], str]:
        """List one page of objects whose names start with a prefix."""
        with self._errors(prefix, _READ):
            found = self._bucket.client.list_blobs(
                self.name,
                prefix=prefix or None,
                page_token=after or None,
                page_size=_PAGE,
                fields=_FIELDS,
                **_ONCE,
            )
            blobs = list(next(found.pages, ()))
            return [self._entry(blob) for blob in blobs], found.next_page_token or ""

    def pull(self, name: str, version: str, start: int, stop: int, sink: Sink) -> None:
        """Send bytes ``[start, stop)`` of one generation into the sink."""
        with self._errors(name, _READ, DOWNLOAD):
            self._blob(name, version).download_to_file(
                SimpleNamespace(write=sink),
                start=start,
                end=stop - 1,
                raw_download=True,
                checksum=None,
                **_ONCE,
            )

    def push(self, name: str, content: BinaryIO, size: int, md5: bytes) -> SourceFile:
        """Write an object that must not exist yet; the store compares what it got with size and MD5."""
        blob = self._blob(name)
        blob.md5_hash = base64.b64encode(md5).decode()
        with self._errors(name, _WRITE):
            blob.upload_from_file(
                content,
                size=size,
                content_type="application/octet-stream",
                if_generation_match=0,
                checksum=None,
                **_ONCE,
            )
            return self._entry(blob)

    def delete(self, name: str) -> None:
        """Remove an object."""
        with self._errors(name, "roles/storage.objectUser"):
            self._blob(name).delete(**_ONCE)

    def protection(self) -> str:
        """Return whether a generation can still be read once it was replaced or removed."""
        bucket = self._bucket
        try:
            with self._errors("", "roles/storage.legacyBucketReader"):
                bucket.reload(**_ONCE)
        except PermissionRefused:
            _log.warning(
                "gs://%s may be protected, but this identity may not look: it counts as not", self.name
            )
            return "pinned_unprotected"
        if bucket.versioning_enabled:
            return "versioned"
        if bucket.retention_period:
            return "retention"
        soft = bucket.soft_delete_policy.retention_duration_seconds
        return "soft_delete" if soft else "pinned_unprotected"

    @property
    def _bucket(self) -> Any:
        with self._errors("", _READ):
            return _client(os.getpid()).bucket(self.name)

    def _blob(self, name: str, version: str = "") -> Any:
        if version and not version.isdigit():
            raise InputError(
                f"{version!r} is no generation",
                where=f"gs://{self.name}/{name}",
                hint="It is a number, as the bucket's own listing has it.",
            )
        return self._bucket.blob(name, generation=int(version) if version else None)

    def _entry(self, blob: Any) -> SourceFile:
        md5, crc32c = blob.md5_hash, blob.crc32c
        kind, digest = ("md5", md5) if md5 else ("crc32c", crc32c)  # a composed object has no MD5
        return SourceFile(
            uri=f"gs://{self.name}/{blob.name}",
            size=int(blob.size or 0),
            checksum=f"{kind}:{base64.b64decode(digest).hex()}",
            version=str(blob.generation),
            written=f"{blob.updated:%Y-%m-%dT%H:%M:%S.%fZ}" if blob.updated else "",
        )

    @contextmanager
    def _errors(self, name: str, role: str, limits: HttpLimits = ANSWER) -> Iterator[None]:
        """Translate the library's errors into those of a store; every answer has limits."""
        try:
            with limited(limits):
                yield
        except google_errors.GoogleAPICallError as error:
            raise self._answer(error, name, role) from None
        except (auth_errors.TransportError, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            cause = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else error
            answered = not isinstance(error, _UNANSWERED) and not isinstance(cause, _UNANSWERED)
            raise RetryableError(f"{type(error).__name__}: {error}", answered=answered) from None
        except ConnectionError as error:
            raise RetryableError(f"{type(error).__name__}: {error}") from None
        except auth_errors.GoogleAuthError as error:
            if error.retryable:
                raise RetryableError(f"credentials: {type(error).__name__}", answered=False) from None
            raise self._refused(name, role, f"there are no credentials that work: {error}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise RetryableError(f"the answer cannot be read: {error!s:.200}") from None

    def _answer(self, error: google_errors.GoogleAPICallError, name: str, role: str) -> Exception:
        status, said = int(error.code or 0), redacted(error.message or "")
        retry_after = getattr(error.response, "headers", {}).get("Retry-After")
        if failure := failure_of(status, f"{status} {said[:200]}", retry_after):
            return failure
        if status in {requests.codes.unauthorized, requests.codes.forbidden}:
            return self._refused(name, role, said)
        if "hash" in said:  # 400: what arrived was not what was sent
            return RetryableError(f"{status} {said[:200]}")
        return InputError(
            f"the store refused the request: {status} {said[:200]}", where=f"gs://{self.name}/{name}"
        )

    def _refused(self, name: str, role: str, said: str) -> PermissionRefused:
        identity = "the identity that the step runs under"
        with suppress(auth_errors.GoogleAuthError):
            credentials = _client(os.getpid())._credentials  # it has no public name
            identity = getattr(credentials, "service_account_email", None) or identity
        return PermissionRefused(
            f"Google Cloud Storage refused: {redacted(said)[:300]}",
            where=f"gs://{self.name}/{name}",
            hint=f"Give {identity} the role {role} on bucket {self.name}.",
        )


@lru_cache(maxsize=1)
def _client(process: int) -> google.Client:  # noqa: ARG001 - a forked process must not share connections
    client = google.Client(project=None)
    client._bucket_metadata_cache = None  # for traces, it asks once more for each bucket
    return client
