"""``s3://`` and ``minio://`` by boto3: pinned by version id where the bucket has versions, else by ETag.

Every call is one attempt, with the library's own retries off; the one retry policy is
:mod:`trainwright.retries`. Endpoint, region and credentials are the library's own configuration. Only
``minio://`` has a default endpoint of its own, the one that Kubeflow Pipelines gives this scheme. A large
object is uploaded in parts, several at a time, and gets its name only once all have arrived.
"""

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, BinaryIO

import boto3  # type: ignore[import-untyped]
from botocore import exceptions as boto_errors  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.storage.access import Access
from trainwright.storage.store import (
    RETRYABLE_STATUS,
    NotFound,
    PreconditionFailed,
    RetryableError,
    Sink,
    retry_after_s,
    with_retries,
)
from trainwright.storage.uris import redacted

PART = 32 << 20
"""Bytes of a part, and the largest object that is written in one piece; 10,000 parts make 312 GiB."""

_AT_A_TIME = 4
_ACTION = "s3:PutObject"


@dataclass(frozen=True)
class MultipartUpload:
    """A multipart upload; each part is retried on its own, and the store checks its MD5.

    Attributes:
        client: boto3's client.
        bucket: Name of the bucket.
        name: Name of the object.
        uri: The object, for messages.
        errors: Context that translates boto3's errors.
        retry_s: How long each part is retried.
    """

    client: Any
    bucket: str
    name: str
    uri: str
    errors: Callable[[str, str], AbstractContextManager[None]]
    retry_s: float

    def push(self, content: BinaryIO, size: int) -> None:
        """Send all parts, then create the object, if its name is free; else leave nothing behind."""
        with self.errors(self.name, _ACTION):
            upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=self.name)["UploadId"]
        lock, count = threading.Lock(), -(-size // PART)

        def send(number: int) -> dict[str, Any]:
            with lock:  # parts are read as they are sent: memory holds only those
                content.seek(number * PART)
                piece = content.read(PART)
            return self._send(upload, number + 1, piece)

        try:
            with ThreadPoolExecutor(_AT_A_TIME) as pool:
                sent = list(pool.map(send, range(count)))
            with self.errors(self.name, _ACTION):
                self.client.complete_multipart_upload(
                    Bucket=self.bucket,
                    Key=self.name,
                    UploadId=upload,
                    MultipartUpload={"Parts": sent},
                    IfNoneMatch="*",
                )
        except BaseException:
            self._abort(upload)
            raise

    def _send(self, upload: str, number: int, piece: bytes) -> dict[str, Any]:
        md5 = base64.b64encode(hashlib.md5(piece, usedforsecurity=False).digest()).decode()

        def once() -> str:
            with self.errors(self.name, _ACTION):
                done = self.client.upload_part(
                    Bucket=self.bucket,
                    Key=self.name,
                    UploadId=upload,
                    PartNumber=number,
                    Body=piece,
                    ContentMD5=md5,
                )
            return str(done["ETag"])

        where = f"{self.uri} part {number}"
        return {"ETag": with_retries(once, "writing", where, self.retry_s), "PartNumber": number}

    def _abort(self, upload: str) -> None:
        """Abort the upload; a bucket's lifecycle rule removes what stays when that fails."""
        with suppress(Exception):
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=self.name, UploadId=upload)


_PAGE, _PIECE = 1000, 1 << 16
_RETRYABLE_CODES = frozenset({"SlowDown", "RequestTimeout", "InternalError", "Throttling", "BadDigest"})
_REFUSED_CODES = frozenset({"ExpiredToken", "InvalidToken", "AccessDenied"})
_NO_CREDENTIALS = (boto_errors.NoCredentialsError, boto_errors.PartialCredentialsError)
_BROKEN = (
    boto_errors.HTTPClientError,
    boto_errors.ConnectionError,
    boto_errors.IncompleteReadError,
    boto_errors.ResponseStreamingError,
    boto_errors.FlexibleChecksumError,
    ConnectionError,
)
_UNANSWERED = (boto_errors.EndpointConnectionError, boto_errors.ConnectTimeoutError)
_MD5 = 32
_UNSUPPORTED = frozenset({405, 501})
_FORBIDDEN, _ABSENT, _CONFLICT, _FAILED, _ELSEWHERE = 403, 404, 409, 412, 301
_AMAZON = ".amazonaws.com"

PIPELINES_STORE = "http://seaweedfs.kubeflow:9000"
"""Endpoint of ``minio://`` where none is configured, as KFP 2.17's launcher has it
(``DefaultEndpointInMultiUserMode`` in ``backend/src/v2/objectstore/config.go``)."""

PIPELINES_ENDPOINT = "MINIO_ENDPOINT"
PIPELINES_KEYS = ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY")
"""Endpoint and keys of ``minio://`` alone: apart from those of ``s3://``, which may lie in another store."""


_CONFIGURE = (
    "Look at AWS_ENDPOINT_URL_S3, which is written with its scheme (http://HOST:PORT), and at "
    "AWS_DEFAULT_REGION, which is a name or not set."
)
_CREDENTIALS = (
    "The step has no credentials. Give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from a Secret "
    "(docs/storage.md), or its service account a role, and allow {action} on this object."
)


class UnsupportedRequest(InputError):
    """The store implements S3, but not this request."""


class S3Bucket:
    """A bucket; see :class:`trainwright.storage.store.Store`."""

    def __init__(self, name: str, access: Access, scheme: str = "s3") -> None:
        self.name, self.access, self._scheme = name, access, scheme
        self._is_encrypted: bool | None = None

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return an object as it is now, or the version that is pinned."""
        with self._errors(name, "s3:GetObject"):
            found = self._client.head_object(Bucket=self.name, Key=name, **_pin(version))
        encrypted = str(found.get("ServerSideEncryption", "")).startswith("aws:")
        return self._entry(name, found["ContentLength"], found, encrypted=encrypted)

    def page(self, prefix: str, after: str = "") -> tuple[list[SourceFile], str]:
        """List one page of objects whose names start with a prefix."""
        if self._versioned:
            rows, following = self._page_of_versions(prefix, after)
        else:
            rows, following = self._page_of_objects(prefix, after)
        encrypted = bool(rows) and self._encrypted(rows)
        return [self._entry(row["Key"], row["Size"], row, encrypted=encrypted) for row in rows], following

    def children(self, prefix: str) -> list[str]:
        """Name what lies directly below a prefix."""
        with self._errors(prefix, "s3:ListBucket"):
            found = self._client.list_objects_v2(
                Bucket=self.name, Prefix=prefix, Delimiter="/", MaxKeys=_PAGE
            )
        names = [row["Key"] for row in found.get("Contents", ())]
        names += [row["Prefix"] for row in found.get("CommonPrefixes", ())]
        return [name.removeprefix(prefix).rstrip("/") for name in names if name != prefix]

    def pull(self, name: str, version: str, start: int, stop: int, sink: Sink) -> None:
        """Send bytes ``[start, stop)`` of the pinned version into the sink."""
        with self._errors(
            name, "s3:GetObject" if not version or version[0] == '"' else "s3:GetObjectVersion"
        ):
            wanted = {"Bucket": self.name, "Key": name, "Range": f"bytes={start}-{stop - 1}", **_pin(version)}
            with closing(self._client.get_object(**wanted)["Body"]) as body:
                for piece in body.iter_chunks(_PIECE):
                    sink(piece)

    def push(self, name: str, content: BinaryIO, size: int, md5: bytes) -> SourceFile:
        """Write an object that must not exist yet; the store compares what it got with its MD5."""
        if size > PART:
            MultipartUpload(
                self._client, self.name, name, self._uri(name), self._errors, self.access.retry_s
            ).push(content, size)
            return self.head(name)
        with self._errors(name, "s3:PutObject"):
            done = self._client.put_object(
                Bucket=self.name,
                Key=name,
                Body=content,
                ContentLength=size,
                ContentMD5=base64.b64encode(md5).decode(),
                IfNoneMatch="*",
            )
        return SourceFile(
            uri=self._uri(name),
            size=size,
            checksum=f"md5:{md5.hex()}",
            version=done.get("VersionId") or done["ETag"],
        )

    def delete(self, name: str) -> None:
        """Remove an object."""
        with self._errors(name, "s3:DeleteObject"):
            self._client.delete_object(Bucket=self.name, Key=name)

    def protection(self) -> str:
        """Say whether a version can still be read once it was replaced or removed."""
        return "versioned" if self._versioned else "pinned_unprotected"

    @property
    def _client(self) -> Any:
        return _client(os.getpid(), self._scheme)

    def _uri(self, name: str) -> str:
        return f"{self._scheme}://{self.name}/{name}"

    @cached_property
    def _versioned(self) -> bool:
        try:
            with self._errors("", "s3:GetBucketVersioning"):
                found = self._client.get_bucket_versioning(Bucket=self.name)
        except (PermissionRefused, UnsupportedRequest):
            return False  # forbidden, or a store without versions: pinned by ETag, and not protected
        return str(found.get("Status", "")) == "Enabled"

    def _encrypted(self, rows: list[dict[str, Any]]) -> bool:
        """Tell whether a bucket's ETags are no MD5s, as with encryption by a key service."""
        if self._is_encrypted is None:
            whole = [row["Key"] for row in rows if len(row["ETag"].strip('"')) == _MD5]
            self._is_encrypted = self.head(whole[0]).checksum.startswith("etag:") if whole else None
        return bool(self._is_encrypted)

    def _page_of_objects(self, prefix: str, after: str) -> tuple[list[dict[str, Any]], str]:
        more = {"ContinuationToken": after} if after else {}
        with self._errors(prefix, "s3:ListBucket"):
            found = self._client.list_objects_v2(Bucket=self.name, Prefix=prefix, MaxKeys=_PAGE, **more)
        return found.get("Contents", []), found.get("NextContinuationToken", "")

    def _page_of_versions(self, prefix: str, after: str) -> tuple[list[dict[str, Any]], str]:
        more = json.loads(after) if after else {}
        with self._errors(prefix, "s3:ListBucketVersions"):
            found = self._client.list_object_versions(Bucket=self.name, Prefix=prefix, MaxKeys=_PAGE, **more)
        marks = {"KeyMarker": found.get("NextKeyMarker"), "VersionIdMarker": found.get("NextVersionIdMarker")}
        rows = [row for row in found.get("Versions", ()) if row["IsLatest"]]
        return rows, json.dumps({key: mark for key, mark in marks.items() if mark}) if found[
            "IsTruncated"
        ] else ""

    def _entry(self, name: str, size: int, row: dict[str, Any], *, encrypted: bool) -> SourceFile:
        digits = row["ETag"].strip('"')
        kind = "md5" if len(digits) == _MD5 and not encrypted else "etag"
        return SourceFile(
            uri=self._uri(name),
            size=int(size),
            checksum=f"{kind}:{digits}",
            version=row.get("VersionId") or f'"{digits}"',
            written=f"{row['LastModified']:%Y-%m-%dT%H:%M:%S.%fZ}",
        )

    @contextmanager
    def _errors(self, name: str, action: str) -> Iterator[None]:
        """Translate the library's errors into those of a store."""
        where = self._uri(name)
        try:
            yield
        except boto_errors.ClientError as error:
            raise self._answer(error, where, action) from None
        except _NO_CREDENTIALS as error:
            raise self._refused(f"there are no credentials: {error}", where, action) from None
        except _BROKEN as error:
            answered = not isinstance(error, _UNANSWERED)
            raise RetryableError(redacted(f"{type(error).__name__}: {error}"), answered=answered) from None
        except (boto_errors.BotoCoreError, ValueError) as error:
            raise InputError(
                f"the request cannot be made: {redacted(str(error))}", where=where, hint=_CONFIGURE
            ) from None

    def _answer(self, error: boto_errors.ClientError, where: str, action: str) -> Exception:
        answer, said = error.response.get("ResponseMetadata", {}), redacted(str(error))[:300]
        status, code = int(answer.get("HTTPStatusCode", 0)), error.response.get("Error", {}).get("Code", "")
        if status == _ABSENT:
            return NotFound(said)
        if status == _FAILED:
            return PreconditionFailed(said)
        if status == _FORBIDDEN or code in _REFUSED_CODES:
            return self._refused(said, where, action)
        if status in RETRYABLE_STATUS or status == _CONFLICT or code in _RETRYABLE_CODES:
            return RetryableError(
                f"{status} {code}", retry_after_s(answer.get("HTTPHeaders", {}).get("retry-after"))
            )
        if status in _UNSUPPORTED:
            return UnsupportedRequest(f"the store does not know this request: {said}", where=where)
        hint = (
            "The bucket lies in another region: set it where the SDK looks." if status == _ELSEWHERE else ""
        )
        return InputError(f"the store refused the request: {said}", where=where, hint=hint)

    def _refused(self, said: str, where: str, action: str) -> PermissionRefused:
        credentials = boto3.session.Session().get_credentials()
        key = (_pipelines_keys()[0] if self._scheme == "minio" else "") or (
            credentials.access_key if credentials else ""
        )
        hint = _CREDENTIALS.format(action=action)
        if key:
            hint = f"Allow {action} on it to the identity of the step, whose access key ends in {key[-4:]}."
        return PermissionRefused(f"the store refused: {said}", where=where, hint=hint)


def _pin(version: str) -> dict[str, str]:
    if not version:
        return {}
    return {"IfMatch": version} if version.startswith('"') else {"VersionId": version}


@lru_cache(maxsize=2)
def _client(process: int, scheme: str) -> Any:  # noqa: ARG001 - a forked process must not share connections
    settings = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=16,
        # As KFP's launcher: other S3 stores may reject the newer checksums. Writes carry an MD5.
        request_checksum_calculation="when_required",
    )
    session = boto3.session.Session()
    if scheme == "minio":
        return _pipelines_client(session, settings)
    return session.client("s3", config=settings)


def _pipelines_keys() -> tuple[str, str]:
    """Return the keys of ``minio://`` alone; empty unless both are set."""
    key, secret = (os.environ.get(name, "") for name in PIPELINES_KEYS)
    return (key, secret) if key and secret else ("", "")


def _pipelines_client(session: boto3.session.Session, settings: Config) -> Any:
    """Connect to the store of Kubeflow Pipelines, with its own keys where the step has them."""
    key, secret = _pipelines_keys()
    endpoint = os.environ.get(PIPELINES_ENDPOINT, "")
    if key:
        return session.client(
            "s3",
            config=settings,
            endpoint_url=endpoint or PIPELINES_STORE,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token="",  # of other keys, where one is set
        )
    client = session.client("s3", config=settings, endpoint_url=endpoint or None)
    if not endpoint and _AMAZON in client.meta.endpoint_url:  # boto3's own default: none is configured
        client = session.client("s3", config=settings, endpoint_url=PIPELINES_STORE)
    return client
