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
from trainwright.documents import read_json
from trainwright.errors import InputError
from trainwright.storage.local import md5_of, naming_path
from trainwright.storage.uris import local_path

FILE = "checksums.v1"
TICK_NS = 2_000_000_000
"""The coarsest clock of a file system in use, that of FAT."""

State = tuple[int, ...]
Known = dict[str, tuple[State, str]]
"""State of each file when it was read, and its MD5."""

_READERS = min(8, 2 * (os.cpu_count() or 1))


def digest_files(entries: Sequence[SourceFile], remember: str | None = None) -> tuple[SourceFile, ...]:
    """Fill in the MD5 of local files, of unchanged ones from the cache in the folder ``remember``."""
    cache, started_ns, fresh = _cache_file(remember), time.time_ns(), Known()
    known = _read(cache) if cache else {}

    def md5(entry: SourceFile) -> str:
        before, digits = known.get(entry.uri, ((), ""))
        if not digits or before != _state(entry.uri):
            digits = md5_of(entry)
            state = _state(entry.uri)
            if state and max(state[1:3]) + TICK_NS < started_ns:
                fresh[entry.uri] = (state, digits)
        return digits

    with ThreadPoolExecutor(_READERS) as pool:  # hashing lets other threads run
        sums = list(pool.map(md5, entries))
    if cache and fresh:
        _save(cache, _read(cache) | fresh)  # other processes may have written meanwhile
    return tuple(
        replace(entry, checksum=f"md5:{digits}") for entry, digits in zip(entries, sums, strict=True)
    )


def _cache_file(folder: str | None) -> Path | None:
    if folder is None:
        return None
    place = local_path(folder)
    if place is None:
        raise InputError(
            f"checksums are remembered on a disk, not at {folder!r}",
            where="data.remember",
            hint="Name a folder of this machine, or leave it out.",
        )
    return place / FILE


def _read(path: Path) -> Known:
    """Read the cache; a broken one is empty: its first line is the SHA-256 of the second."""
    try:
        seal, _, rows = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    if seal != hashlib.sha256(rows.encode()).hexdigest():
        return {}
    return {uri: (tuple(state), digits) for uri, (state, digits) in read_json(rows).items()}


def _save(path: Path, known: Known) -> None:
    rows = json.dumps(known, separators=(",", ":"), sort_keys=True)
    part = path.with_name(f".{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    with naming_path(part):
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(f"{hashlib.sha256(rows.encode()).hexdigest()}\n{rows}")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _state(path: str) -> State:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)


def checksum_like(checksum: str) -> Any:
    """Start a hash of the kind of a checksum ``kind:digits``; None if only its store can compute it."""
    kind = checksum.partition(":")[0]
    if kind == "crc32c":
        import google_crc32c

        return google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    return hashlib.new(kind, usedforsecurity=False) if kind in {"md5", "sha256"} else None
