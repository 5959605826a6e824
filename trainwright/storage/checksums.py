"""Checksums of local files, computed in parallel and cached between runs.

A file is unchanged if its path, size, times of writing and of change, inode and device are. As in git's
index, a file that was written too shortly before it was read is not cached: it could be written again within
the same tick of its clock. A cache that is broken, or was replaced by another process, only means reading
again.
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.storage.local import md5_of, naming_path
from trainwright.storage.uris import local_path

FILE = "checksums.v1"
TICK_NS = 2_000_000_000
"""The coarsest clock of a file system in use, that of FAT."""

State = tuple[int, int, int, int, int]


class ChecksumCache:
    """Cache of checksums in a folder; without one it is empty."""

    def __init__(self, path: Path | None, known: dict[str, tuple[State, str]]) -> None:
        self._path, self._known, self._fresh = path, known, dict[str, tuple[State, str]]()
        self._started_ns = time.time_ns()

    @classmethod
    def open(cls, folder: str | None) -> "ChecksumCache":
        """Read the cache of a folder; a broken one counts as empty.

        Raises:
            InputError: The folder is not a local one.
        """
        if folder is None:
            return cls(None, {})
        place = local_path(folder)
        if place is None:
            raise InputError(
                f"checksums are remembered on a disk, not at {folder!r}",
                where="data.remember",
                hint="Name a folder of this machine, or leave it out.",
            )
        return cls(place / FILE, _read(place / FILE))

    def get(self, entry: SourceFile) -> str | None:
        """Return the MD5 of a file if it is the one that was read before."""
        state, digits = self._known.get(entry.uri, (None, ""))
        return digits if state is not None and state == _state(entry.uri) else None

    def add(self, entry: SourceFile, digits: str) -> str:
        """Cache the MD5 of a file just read, unless it was written only just before; return it."""
        if self._path is not None:
            state = _state(entry.uri)
            if state is not None and max(state[1:3]) + TICK_NS < self._started_ns:
                self._fresh[entry.uri] = (state, digits)
        return digits

    def save(self) -> None:
        """Write the new checksums, together with those that other processes wrote meanwhile.

        Raises:
            InputError: The path is not a folder.
            PermissionRefused: The folder may not be written to.
        """
        if self._path is None or not self._fresh:
            return
        rows = json.dumps(_read(self._path) | self._fresh, separators=(",", ":"), sort_keys=True)
        part = self._path.with_name(f".{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
        with naming_path(part):
            try:
                part.parent.mkdir(parents=True, exist_ok=True)
                part.write_text(f"{_seal(rows)}\n{rows}")
                part.replace(self._path)
            finally:
                part.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, tuple[State, str]]:
    try:
        seal, _, rows = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    if seal != _seal(rows):
        return {}
    return {uri: ((*state,), digits) for uri, (state, digits) in json.loads(rows).items()}


def _seal(rows: str) -> str:
    return hashlib.sha256(rows.encode()).hexdigest()


def _state(path: str) -> State | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)


class RunningChecksum:
    """A checksum over bytes as they come; empty for a kind that only its store can compute."""

    def __init__(self, kind: str) -> None:
        self._kind, self._total = kind, _start(kind)

    def update(self, piece: bytes) -> None:
        """Add the next bytes."""
        if self._total is not None:
            self._total.update(piece)

    @property
    def checksum(self) -> str:
        """The checksum so far, as ``kind:digits``; empty for a kind that only its store can make."""
        return f"{self._kind}:{self._total.digest().hex()}" if self._total is not None else ""


def checksum_like(like: str) -> RunningChecksum:
    """Start a checksum of the same kind as one that is written ``kind:digits``."""
    return RunningChecksum(like.partition(":")[0])


def _start(kind: str) -> Any:
    if kind in {"md5", "sha256"}:
        return hashlib.new(kind, usedforsecurity=False)
    if kind == "crc32c":
        import google_crc32c

        return google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    return None


_READERS = min(8, 2 * (os.cpu_count() or 1))


def digest_files(entries: Sequence[SourceFile], remember: str | None = None) -> tuple[SourceFile, ...]:
    """Fill in the MD5 of local files.

    Args:
        entries: Local files as listed.
        remember: Folder of the checksum cache, so that an unchanged file is not read again.

    Raises:
        ObjectChanged: A file was written while it was read.
        PermissionRefused: A file may not be read.
    """
    cache = ChecksumCache.open(remember)
    with ThreadPoolExecutor(_READERS) as pool:  # hashing lets other threads run
        sums = list(pool.map(lambda entry: cache.get(entry) or cache.add(entry, md5_of(entry)), entries))
    cache.save()
    return tuple(
        replace(entry, checksum=f"md5:{digits}") for entry, digits in zip(entries, sums, strict=True)
    )
