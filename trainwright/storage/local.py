"""Local files: list, open, write under a new name, lock, digest; and translate errors of the disk."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from trainwright.artifacts import SourceFile
from trainwright.documents import read_json
from trainwright.errors import DependencyError, InputError, PermissionRefused, in_our_words
from trainwright.storage.store import AlreadyExists, ObjectChanged
from trainwright.storage.uris import HIDDEN, WILDCARD, is_visible, local_path, matcher, reject_system_path

_WRONG_PATH = {
    errno.ENOENT: "no such file",
    errno.EISDIR: "this is a folder, not a file",
    errno.ENOTDIR: "a file lies where a folder should be",
    errno.EEXIST: "a file lies where a folder should be",
    errno.ENAMETOOLONG: "this name is longer than the disk takes",
    errno.ELOOP: "a link that leads back to itself",
    errno.EINVAL: "the disk takes no such name",
    errno.EILSEQ: "the disk takes no such name",
}
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})

PIECE = 1 << 20
"""Bytes that are read at a time."""


@contextmanager
def naming_path(path: Path) -> Iterator[None]:
    """Translate the system's errors about a path into errors that name it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        if error.errno in _WRONG_PATH:
            raise InputError(_WRONG_PATH[error.errno], where=str(error.filename)) from None
        known = in_our_words(error)
        if known is not error:
            raise known from None
        raise DependencyError(f"the disk fails: {error}", where=str(error.filename)) from None


def list_local(path: Path, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """List a file, the files below a folder, or those that match a glob; none if nothing is there."""
    with naming_path(path):
        try:
            if path.is_file():
                found = iter([path])
            elif path.is_dir():
                below = _descend(path, ("**",), path.resolve(), ())
                found = (file for file in below if is_visible(file.name, suffixes))
            else:
                found = _matching(path, suffixes)
            return [entry_of(file) for file in found]
        except RecursionError:
            raise InputError(
                "hundreds of folders lie in one another",
                where=str(path),
                hint="Name a folder further down, or a glob.",
            ) from None


def open_local(path: Path) -> BinaryIO:
    """Open a file for reading; not a pipe, on which a reader could block."""
    entry_of(path)
    with naming_path(path):
        return path.open("rb")


def md5_of(entry: SourceFile) -> str:
    """Read a listed file once, and return its MD5; reject one that was written meanwhile."""
    total = hashlib.md5(usedforsecurity=False)
    with open_local(Path(entry.uri)) as stream:
        before = os.fstat(stream.fileno())
        while piece := stream.read(PIECE):
            total.update(piece)
        after = os.fstat(stream.fileno())
    states = {(state.st_size, _moment(state.st_mtime_ns)) for state in (before, after)}
    if states != {(entry.size, entry.written)}:
        raise ObjectChanged(
            "the file was written while it was read", where=entry.uri, hint="List the source again."
        )
    return total.hexdigest()


@contextmanager
def create_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that gets the path, which must be free, once it is complete and synced."""
    with naming_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
        try:
            with part.open("x+b") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            _link(part, path)
        finally:
            part.unlink(missing_ok=True)
        with suppress(OSError):  # the new name survives a power cut, where the file system supports it
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _link(part: Path, path: Path) -> None:
    """Link a complete file to its name, if that is free: one step that never replaces."""
    try:
        try:
            os.link(part, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without links, such as a mounted bucket: the name is claimed empty, then filled.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            part.replace(path)
    except FileExistsError:
        raise AlreadyExists("a file lies there already", where=str(path)) from None


def entry_of(path: Path) -> SourceFile:
    """Describe a file as it is now; its checksum is empty."""
    with naming_path(path):
        try:
            state = path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                hint = "Remove the link, or put the file back."
                raise InputError("a link to a file that is not there", where=str(path), hint=hint) from None
            raise
        if stat.S_ISDIR(state.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(state.st_mode):
        raise InputError("expected a file, found a pipe, a socket or a device", where=str(path))
    try:  # no listing and no manifest could have another name
        uri = str(path).encode().decode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise InputError("the name of this file is no UTF-8", where=shown, hint="Rename it.") from None
    return SourceFile(uri=uri, size=state.st_size, checksum="", written=_moment(state.st_mtime_ns))


def _moment(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _matching(pattern: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that match a glob; only folders that can have one are listed."""
    fixed_parts = len([*takewhile(lambda part: not WILDCARD.search(part), pattern.parts)])
    folder, wanted = Path(*pattern.parts[:fixed_parts]), pattern.parts[fixed_parts:]
    if wanted and folder.is_dir():
        matches = matcher("/".join(wanted), suffixes)
        found = _descend(folder, wanted, folder.resolve(), ())
        yield from (path for path in found if matches(path.relative_to(folder).as_posix()))


def _descend(folder: Path, wanted: tuple[str, ...], root: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files that could match: each level is one part of the pattern, from ``**`` on all are.

    A folder that cannot be listed is an error, never left out.
    """
    real = folder.resolve()
    if real in above:
        raise InputError(
            f"a link leads back to {real}, which holds it",
            where=str(folder),
            hint="Remove the link, or name a folder below it.",
        )
    matches, deep = matcher(wanted[0]), wanted[0] == "**"
    with os.scandir(folder) as found:
        entries = [entry for entry in found if deep or matches(entry.name)]
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink():
            _require_inside(path, root)
        if not entry.is_dir():
            if deep or len(wanted) == 1:
                yield path
        elif (deep and not entry.name.startswith(HIDDEN)) or (not deep and len(wanted) > 1):
            yield from _descend(path, wanted if deep else wanted[1:], root, (*above, real))


def _require_inside(path: Path, root: Path) -> None:
    real = Path(os.path.realpath(path))  # a link that leads to itself stays where it is
    if not real.is_relative_to(root):
        raise PermissionRefused(
            f"a link leads out of the source's folder, to {real}",
            where=str(path),
            hint="Name the folder that it leads to as the source, or copy what is meant into this one.",
        )
    reject_system_path(real)


@contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Try to lock a file for this process; yield False at once if another process or thread holds it.

    The kernel releases the lock when its holder dies. The file exists only while somebody holds the lock.
    """
    with naming_path(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # Another holder may have removed the file between open and flock: that lock would exclude nobody.
        acquired = _flock(descriptor) and is_same_file(path, descriptor)
        try:
            yield acquired
        finally:
            if acquired:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether an open file still has this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def remove_unlocked(path: Path, *, force: bool) -> bool:
    """Remove a file that nobody has locked, or any with ``force``; return False if it stays."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if not (_flock(descriptor) or force):
            return False
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another process; or NFS, which cannot lock a file opened for reading
        return False
    return True


CHECKSUMS_FILE = "checksums.v1"
TICK_NS = 2_000_000_000
"""The coarsest clock of a file system in use, that of FAT."""

_FileState = tuple[int, ...]
_Checksums = dict[str, tuple[_FileState, str]]
"""State of each file when it was read, and its MD5."""

_READERS = min(8, 2 * (os.cpu_count() or 1))


def digest_files(entries: Sequence[SourceFile], remember: str | None = None) -> tuple[SourceFile, ...]:
    """Fill in the MD5 of local files, of unchanged ones from the cache in the folder ``remember``.

    A file is unchanged if its path, size, times of writing and of change, inode and device are. As in git's
    index, a file that was written too shortly before it was read is not cached: it could be written again
    within the same tick of its clock. A cache that is broken, or was replaced by another process, only means
    reading again.
    """
    cache, started_ns, fresh = _cache_file(remember), time.time_ns(), _Checksums()
    known = _read_checksums(cache) if cache else {}

    def md5(entry: SourceFile) -> str:
        before, digits = known.get(entry.uri, ((), ""))
        if not digits or before != _file_state(entry.uri):
            digits = md5_of(entry)
            state = _file_state(entry.uri)
            if state and max(state[1:3]) + TICK_NS < started_ns:
                fresh[entry.uri] = (state, digits)
        return digits

    with ThreadPoolExecutor(_READERS) as pool:  # hashing lets other threads run
        sums = list(pool.map(md5, entries))
    if cache and fresh:
        _save_checksums(cache, _read_checksums(cache) | fresh)  # other processes may have written meanwhile
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
    return place / CHECKSUMS_FILE


def _read_checksums(path: Path) -> _Checksums:
    """Read the cache; a broken one is empty: its first line is the SHA-256 of the second."""
    try:
        seal, _, rows = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    if seal != hashlib.sha256(rows.encode()).hexdigest():
        return {}
    return {uri: (tuple(state), digits) for uri, (state, digits) in read_json(rows).items()}


def _save_checksums(path: Path, known: _Checksums) -> None:
    rows = json.dumps(known, separators=(",", ":"), sort_keys=True)
    part = path.with_name(f".{CHECKSUMS_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    with naming_path(part):
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(f"{hashlib.sha256(rows.encode()).hexdigest()}\n{rows}")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _file_state(path: str) -> _FileState:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
