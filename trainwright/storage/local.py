"""Files of a disk or a mounted volume: listed within the source's folder, written whole or not at all."""

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from trainwright.artifacts import SourceFile
from trainwright.errors import InputError, PermissionRefused
from trainwright.storage.disk import text_of, told
from trainwright.storage.globs import HIDDEN, counts, matcher, wild
from trainwright.storage.store import AlreadyThere, Moved
from trainwright.storage.uris import refuse_system

PIECE = 1 << 20
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})


def list_local(path: Path, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """List a file, the files below a folder, or those that match a glob; none if nothing is there.

    Raises:
        InputError: A link leads nowhere, or back to a folder that it lies in; or folders lie too deep.
        PermissionRefused: A folder may not be listed, or a link leads out of the source's folder.
        DependencyError: The disk fails.
    """
    with told(path):
        try:
            if path.is_file():
                return [_entry(path)]
            found = _below(path, suffixes) if path.is_dir() else _matching(path, suffixes)
            return [_entry(file) for file in found]
        except RecursionError:
            raise InputError(
                "hundreds of folders lie in one another",
                where=str(path),
                hint="Name a folder further down, or a glob.",
            ) from None


def open_local(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe, which could keep a reader waiting for ever, is none.

    Raises:
        InputError: There is no such file.
        PermissionRefused: It may not be read.
        DependencyError: The disk fails.
    """
    with told(path):
        _entry(path)
        return path.open("rb")


def md5_of(entry: SourceFile) -> str:
    """Read a listed file once and return its MD5; memory stays flat.

    Raises:
        Moved: It is not as it was listed, or was written meanwhile.
    """
    total, path = hashlib.md5(usedforsecurity=False), Path(entry.uri)
    with open_local(path) as stream:
        before = os.fstat(stream.fileno())
        while piece := stream.read(PIECE):
            total.update(piece)
        after = os.fstat(stream.fileno())
    states = {(state.st_size, _moment(state.st_mtime_ns)) for state in (before, after)}
    if states != {(entry.size, entry.written)}:
        raise Moved("the file was written while it was read", where=entry.uri, hint="List the source again.")
    return total.hexdigest()


@contextmanager
def placed(path: Path) -> Iterator[BinaryIO]:
    """Give a file to fill, which gets a name that must be free once it is whole and on the disk, or never.

    Raises:
        AlreadyThere: Something lies there.
        InputError: There can be no file of that name.
        PermissionRefused: The folder may not be written to.
    """
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
        try:
            with part.open("x+b") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            _claim(part, path)
        finally:
            part.unlink(missing_ok=True)
        _settle(path.parent)


def remove_local(path: Path) -> None:
    """Remove a file; one that is not there is no error.

    Raises:
        PermissionRefused: It may not be removed.
    """
    with told(path):
        path.unlink(missing_ok=True)


def entry_of(path: Path) -> SourceFile:
    """Describe a file as it is now; its checksum is empty.

    Raises:
        InputError: It is not there.
    """
    with told(path):
        return _entry(path)


def _claim(part: Path, path: Path) -> None:
    """Give a finished file its name, if that is free. A link does it in one step, and never replaces."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise AlreadyThere("a file lies there already", where=str(path)) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without links, such as a mounted bucket: the name is claimed empty, then filled.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            raise AlreadyThere("a file lies there already", where=str(path)) from None
        part.replace(path)


def _settle(folder: Path) -> None:
    """Make a new name survive a power cut, where the file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Give the files below a folder that count. What cannot be looked into is an error, never left out."""
    root = folder.resolve()
    yield from _walk(folder, root, (root,), lambda name: counts(name, suffixes))


def _walk(folder: Path, root: Path, above: tuple[Path, ...], wanted: Callable[[str], bool]) -> Iterator[Path]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink():
            _require_inside(path, root)
        if entry.is_dir():
            if counts(entry.name, ()):
                real = path.resolve()
                if real in above:
                    raise InputError(
                        f"a link leads back to {real}, which holds it",
                        where=str(path),
                        hint="Remove the link, or name a folder below it.",
                    )
                yield from _walk(path, root, (*above, real), wanted)
        elif wanted(entry.name):
            yield path


def _matching(pattern: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Give the files that match a glob, looking only into folders that can lead to one."""
    fixed_parts = len([*takewhile(lambda part: not wild(part), pattern.parts)])
    if fixed_parts == len(pattern.parts):
        return
    folder, wanted = Path(*pattern.parts[:fixed_parts]), pattern.parts[fixed_parts:]
    if folder.is_dir():
        matches = matcher("/".join(wanted), suffixes)
        found = _descend(folder, wanted, folder.resolve(), ())
        yield from (path for path in found if matches(path.relative_to(folder).as_posix()))


def _descend(folder: Path, wanted: tuple[str, ...], root: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Give the files that could match: every level is one part of the pattern, but from ``**`` on, all do."""
    real = folder.resolve()
    if real in above:
        raise InputError(
            f"a link leads back to {real}, which holds it",
            where=str(folder),
            hint="Remove the link, or name a folder below it.",
        )
    first, deep = matcher(wanted[0]), wanted[0] == "**"
    for path in sorted(folder.iterdir()):
        if not deep and not first(path.name):
            continue
        if path.is_symlink():
            _require_inside(path, root)
        if not path.is_dir():
            yield from [path] if deep or len(wanted) == 1 else []
        elif deep or len(wanted) > 1:
            if deep and path.name.startswith(HIDDEN):
                continue
            yield from _descend(path, wanted if deep else wanted[1:], root, (*above, real))


def _require_inside(path: Path, root: Path) -> None:
    real = Path(os.path.realpath(path))  # a link that leads to itself stays where it is
    if not real.is_relative_to(root):
        raise PermissionRefused(
            f"a link leads out of the source's folder, to {real}",
            where=str(path),
            hint="Name the folder that it leads to as the source, or copy what is meant into this one.",
        )
    refuse_system(real)


def _entry(path: Path) -> SourceFile:
    try:
        state = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise InputError(
                "a link to a file that is not there",
                where=str(path),
                hint="Remove the link, or put the file back.",
            ) from None
        raise
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(state.st_mode):
        raise InputError("this is no file: a pipe, a socket or a device", where=str(path))
    return SourceFile(uri=text_of(path), size=state.st_size, checksum="", written=_moment(state.st_mtime_ns))


def _moment(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
