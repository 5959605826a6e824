"""Checksums of local files, remembered between runs so that an unchanged file is read once.

A file is the same if its path, size, times of writing and of change, inode and device are. As in git's index,
a file that was written too shortly before it was read is not remembered: it could be written again within the
same tick of its clock. Nothing is believed that does not verify: a memory that is broken, or was replaced by
another process, only means that files are read again.
"""

import hashlib
import json
import os
import secrets
import time
from pathlib import Path

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.storage.disk import told
from trainwright.storage.uris import local_path

FILE = "checksums.v1"
TICK_NS = 2_000_000_000
"""The coarsest clock of a file system in use, that of FAT."""

State = tuple[int, int, int, int, int]


class Memory:
    """Remembered checksums; with no folder, one that remembers nothing."""

    def __init__(self, path: Path | None, known: dict[str, tuple[State, str]]) -> None:
        self._path, self._known, self._fresh = path, known, dict[str, tuple[State, str]]()
        self._started_ns = time.time_ns()

    @classmethod
    def open(cls, folder: str | None) -> "Memory":
        """Read what is remembered in a folder; what cannot be believed is left out.

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

    def recall(self, entry: SourceFile) -> str | None:
        """Return the MD5 of a file if it is the one that was read before."""
        state, digits = self._known.get(entry.uri, (None, ""))
        return digits if state is not None and state == _state(entry.uri) else None

    def keep(self, entry: SourceFile, digits: str) -> str:
        """Remember the MD5 of a file just read, unless it was written only just before; return it."""
        if self._path is not None:
            state = _state(entry.uri)
            if state is not None and max(state[1:3]) + TICK_NS < self._started_ns:
                self._fresh[entry.uri] = (state, digits)
        return digits

    def save(self) -> None:
        """Write what was learned, together with what other processes have written meanwhile.

        Raises:
            InputError: What is named is no folder.
            PermissionRefused: The folder may not be written to.
        """
        if self._path is None or not self._fresh:
            return
        rows = json.dumps(_read(self._path) | self._fresh, separators=(",", ":"), sort_keys=True)
        part = self._path.with_name(f".{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
        with told(part):
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
