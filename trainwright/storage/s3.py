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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cached_property, lru_cache
from http import HTTPStatus
from typing import Any, BinaryIO

import boto3  # type: ignore[import-untyped]
from botocore import exceptions as boto_errors  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.handlers import add_expect_header  # type: ignore[import-untyped]

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.http_limits import ANSWER, DOWNLOAD, HttpLimits, limited
from trainwright.redaction import redacted
from trainwright.storage.access import Access
from trainwright.storage.store import RemoteStore, RetryableError, Sink, failure_of, with_retries

PART = 32 << 20
"""Bytes of a part, and the largest object that is written in one piece; 10,000 parts make 312 GiB."""

_PARALLEL_PARTS = 4
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
_READ, _LIST, _WRITE = "s3:GetObject", "s3:ListBucket", "s3:PutObject"

PIPELINES_STORE = "http://seaweedfs.kubeflow:9000"
"""Endpoint of ``minio://`` where none is configured, as KFP 2.17's launcher has it
(``DefaultEndpointInMultiUserMode`` in ``backend/src/v2/objectstore/config.go``)."""


class UnsupportedRequest(InputError):
    """The store implements S3, but not this request."""


class S3Bucket(RemoteStore):
    """A bucket; see :class:`trainwright.storage.store.RemoteStore`."""

    def __init__(self, name: str, access: Access, scheme: str = "s3") -> None:
        self.name, self.access, self._scheme = name, access, scheme
        self._is_encrypted: bool | None = None

    def head(self, name: str, version: str = "") -> SourceFile:
        """Return an object as it is now, or the version that is pinned."""
        with self._errors(name, _READ):
            found = self._client.head_object(Bucket=self.name, Key=name, **_pin(version))
            encrypted = str(found.get("ServerSideEncryption", "")).startswith("aws:")
            return self._entry(name, found["ContentLength"], found, encrypted=encrypted)

    def page(self, prefix: str, after: str = "") -> tuple[list[SourceFile], str]:
        """List one page of objects whose names start with a prefix."""
        place = {"Bucket": self.name, "Prefix": prefix, "MaxKeys": _PAGE}
        if self._versioned:
            more = json.loads(after) if after else {}
            with self._errors(prefix, "s3:ListBucketVersions"):
                found = self._client.list_object_versions(**place, **more)
                rows = [row for row in found.get("Versions", ()) if row["IsLatest"]]
                marks = {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"}
                marks = {mark: found[name] for mark, name in marks.items() if found.get(name)}
                following = json.dumps(marks) if found["IsTruncated"] else ""
        else:
            more = {"ContinuationToken": after} if after else {}
            with self._errors(prefix, _LIST):
                found = self._client.list_objects_v2(**place, **more)
            rows, following = found.get("Contents", []), found.get("NextContinuationToken", "")
        with self._errors(prefix, _LIST):
            encrypted = bool(rows) and self._encrypted(rows)
            return [self._entry(row["Key"], row["Size"], row, encrypted=encrypted) for row in rows], following

    def pull(self, name: str, version: str, start: int, stop: int, sink: Sink) -> None:
        """Send bytes ``[start, stop)`` of the pinned version into the sink."""
        wanted = {"Bucket": self.name, "Key": name, "Range": f"bytes={start}-{stop - 1}", **_pin(version)}
        action = "s3:GetObjectVersion" if "VersionId" in wanted else _READ
        with (
            self._errors(name, action, DOWNLOAD),
            closing(self._client.get_object(**wanted)["Body"]) as body,
        ):
            for piece in body.iter_chunks(_PIECE):
                sink(piece)

    def push(self, name: str, content: BinaryIO, size: int, md5: bytes) -> SourceFile:
        """Write an object that must not exist yet; the store compares what it got with its MD5."""
        if size > PART:
            self._push_parts(name, content, size)
            return self.head(name)
        with self._errors(name, _WRITE):
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

    def _push_parts(self, name: str, content: BinaryIO, size: int) -> None:
        """Send all parts, each retried on its own, then create the object if its name is free.

        boto3's ``upload_file`` cannot do it: s3transfer has no ``IfNoneMatch``.
        """
        client, place = self._client, {"Bucket": self.name, "Key": name}
        with self._errors(name, _WRITE):
            upload = {**place, "UploadId": client.create_multipart_upload(**place)["UploadId"]}
        lock = threading.Lock()

        def send(number: int) -> dict[str, Any]:
            with lock:  # parts are read as they are sent: memory holds only those
                content.seek((number - 1) * PART)
                piece = content.read(PART)
            digest = hashlib.md5(piece, usedforsecurity=False).digest()
            checked = {"Body": piece, "ContentMD5": base64.b64encode(digest).decode()}

            def once() -> str:
                with self._errors(name, _WRITE):
                    return str(client.upload_part(**upload, PartNumber=number, **checked)["ETag"])

            where = f"{self._uri(name)} part {number}"
            return {"ETag": with_retries(once, "writing", where, self.access.retry_s), "PartNumber": number}

        try:
            with ThreadPoolExecutor(_PARALLEL_PARTS) as pool:
                parts = {"Parts": list(pool.map(send, range(1, -(-size // PART) + 1)))}
            with self._errors(name, _WRITE):
                client.complete_multipart_upload(**upload, MultipartUpload=parts, IfNoneMatch="*")
        except BaseException:
            with suppress(Exception):  # a lifecycle rule of the bucket removes what stays
                client.abort_multipart_upload(**upload)
            raise

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
    def _errors(self, name: str, action: str, limits: HttpLimits = ANSWER) -> Iterator[None]:
        """Translate the library's errors into those of a store; every answer has limits."""
        where = self._uri(name)
        try:
            with limited(limits):
                yield
        except boto_errors.ClientError as error:
            raise self._answer(error, where, action) from None
        except _NO_CREDENTIALS as error:
            raise self._refused(f"there are no credentials: {error}", where, action) from None
        except _BROKEN as error:
            answered = not isinstance(error, _UNANSWERED)
            raise RetryableError(f"{type(error).__name__}: {error}", answered=answered) from None
        except KeyError as error:
            raise RetryableError(f"the answer has no {error}") from None
        except (boto_errors.BotoCoreError, ValueError) as error:
            raise InputError(
                f"the request cannot be made: {redacted(str(error))}",
                where=where,
                hint="Look at AWS_ENDPOINT_URL_S3, which is written with its scheme (http://HOST:PORT), and "
                "at AWS_DEFAULT_REGION, which is a name or not set.",
            ) from None

    def _answer(self, error: boto_errors.ClientError, where: str, action: str) -> Exception:
        answer, said = error.response.get("ResponseMetadata", {}), redacted(str(error))[:300]
        status, code = int(answer.get("HTTPStatusCode", 0)), error.response.get("Error", {}).get("Code", "")
        if status == HTTPStatus.FORBIDDEN or code in _REFUSED_CODES:
            return self._refused(said, where, action)
        retry_after = answer.get("HTTPHeaders", {}).get("retry-after")
        if failure := failure_of(status, f"{status} {code}", retry_after):
            return failure
        if status == HTTPStatus.CONFLICT or code in _RETRYABLE_CODES:
            return RetryableError(f"{status} {code}")
        if status in {HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}:
            return UnsupportedRequest(f"the store does not know this request: {said}", where=where)
        elsewhere = status == HTTPStatus.MOVED_PERMANENTLY
        hint = "The bucket lies in another region: set it where the SDK looks." if elsewhere else ""
        return InputError(f"the store refused the request: {said}", where=where, hint=hint)

    def _refused(self, said: str, where: str, action: str) -> PermissionRefused:
        credentials = boto3.session.Session().get_credentials()
        key, names = credentials.access_key if credentials else "", "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
        if self._scheme == "minio":
            key, names = _pipelines_keys()[0] or key, "MINIO_ACCESS_KEY, MINIO_SECRET_KEY and MINIO_ENDPOINT"
        hint = (
            f"Allow {action} on it to the identity whose access key ends in {key[-4:]}."
            if key
            else f"Set {names} (docs/storage.md); a pod gets them from a Secret, or a role by its account. "
            f"Allow {action} on this object."
        )
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
    # botocore reads the answer to "Expect: 100-continue" itself: without a limit, and forever where it ends.
    session.events.unregister("before-call.s3", add_expect_header)
    if scheme == "s3":
        return session.client("s3", config=settings)
    endpoint = os.environ.get("MINIO_ENDPOINT", "")
    key, secret = _pipelines_keys()
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
    if (
        not endpoint and ".amazonaws.com" in client.meta.endpoint_url
    ):  # boto3's own default: none is configured
        client = session.client("s3", config=settings, endpoint_url=PIPELINES_STORE)
    return client


def _pipelines_keys() -> tuple[str, str]:
    """Return the keys of ``minio://`` alone, which may be another store; empty unless both are set."""
    key, secret = (os.environ.get(name, "") for name in ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY"))
    return (key, secret) if key and secret else ("", "")
