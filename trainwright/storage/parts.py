"""A large object into S3: in parts, several at a time, and under its name only once all have arrived."""

import base64
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

from trainwright.storage.retries import retrying

PART = 32 << 20
"""Bytes a part, and the largest object that is written in one piece; 10,000 parts make 312 GiB."""

_AT_A_TIME = 4
_ACTION = "s3:PutObject"


@dataclass(frozen=True)
class Parts:
    """One upload in parts.

    Attributes:
        client: boto3's client.
        bucket: Name of the bucket.
        name: Name of the object.
        uri: The object, for messages.
        told: Turns what boto3 raises into what every store raises.
        patience_s: For how long each part is tried again.
    """

    client: Any
    bucket: str
    name: str
    uri: str
    told: Callable[[str, str], AbstractContextManager[None]]
    patience_s: float

    def push(self, content: BinaryIO, size: int) -> None:
        """Send all parts, then give the object its name, if that is free; else leave nothing behind."""
        with self.told(self.name, _ACTION):
            upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=self.name)["UploadId"]
        lock, count = threading.Lock(), -(-size // PART)

        def send(number: int) -> dict[str, Any]:
            with lock:  # parts are read as they are sent: memory holds those under way, and no more
                content.seek(number * PART)
                piece = content.read(PART)
            return self._send(upload, number + 1, piece)

        try:
            with ThreadPoolExecutor(_AT_A_TIME) as pool:
                sent = list(pool.map(send, range(count)))
            with self.told(self.name, _ACTION):
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
            with self.told(self.name, _ACTION):
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
        return {"ETag": retrying(once, "writing", where, self.patience_s), "PartNumber": number}

    def _abort(self, upload: str) -> None:
        """Give the parts up, as far as that goes: a bucket's lifecycle rule removes what stays."""
        import contextlib

        with contextlib.suppress(Exception):
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=self.name, UploadId=upload)
