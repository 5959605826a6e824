"""Checksums of local files: read in parallel, and remembered where that is asked for."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from trainwright.artifacts import SourceFile
from trainwright.storage.local import md5_of
from trainwright.storage.remembered import Memory


class Sum:
    """A checksum that grows: of a kind that can be computed from the bytes, or none."""

    def __init__(self, kind: str) -> None:
        self._kind, self._total = kind, _start(kind)

    def update(self, piece: bytes) -> None:
        """Take the next bytes."""
        if self._total is not None:
            self._total.update(piece)

    @property
    def checksum(self) -> str:
        """The checksum so far, as ``kind:digits``; empty for a kind that only its store can make."""
        return f"{self._kind}:{self._total.digest().hex()}" if self._total is not None else ""


def summing(like: str) -> Sum:
    """Start a checksum of the same kind as one that is written ``kind:digits``."""
    return Sum(like.partition(":")[0])


def _start(kind: str) -> Any:
    if kind in {"md5", "sha256"}:
        return hashlib.new(kind, usedforsecurity=False)
    if kind == "crc32c":
        import google_crc32c

        return google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    return None


_READERS = min(8, 2 * (os.cpu_count() or 1))


def digested(entries: Sequence[SourceFile], remember: str | None = None) -> tuple[SourceFile, ...]:
    """Fill in the MD5 of local files.

    Args:
        entries: Local files as listed.
        remember: Folder that remembers checksums, so that an unchanged file is not read again.

    Raises:
        Moved: A file was written while it was read.
        PermissionRefused: A file may not be read.
    """
    memory = Memory.open(remember)
    with ThreadPoolExecutor(_READERS) as pool:  # hashing lets other threads run
        sums = list(
            pool.map(lambda entry: memory.recall(entry) or memory.keep(entry, md5_of(entry)), entries)
        )
    memory.save()
    return tuple(
        replace(entry, checksum=f"md5:{digits}") for entry, digits in zip(entries, sums, strict=True)
    )
