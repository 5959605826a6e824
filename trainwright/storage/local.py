"""Local files: list, open, write under a new name; and translate errors of the disk."""

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
from trainwright.errors import DependencyError, InputError, PermissionRefused, in_our_words
from trainwright.storage.store import AlreadyExists, ObjectChanged
from trainwright.storage.uris import HIDDEN, has_wildcard, is_visible, matcher, reject_system_path

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
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def naming_path(path: Path) -> Iterator[None]:
    """Translate the system's errors about a path into errors that name it.

    Raises:
        InputError: Nothing is there, or nothing can be.
        PermissionRefused: The user may not do it.
        DependencyError: The disk is full, or fails.
    """
    try:
        yield
    except OSError as error:
        raise _translated(error, str(error.filename or path)) from None


def _translated(error: OSError, where: str) -> BaseException:
    if error.errno in _WRONG_PATH:
        return InputError(_WRONG_PATH[error.errno], where=where)
    if error.errno in _FORBIDDEN:
        return PermissionRefused(f"user {os.geteuid()} may not do that here: {error.strerror}", where=where)
    known = in_our_words(error)
    return known if known is not error else DependencyError(f"the disk fails: {error}", where=where)


def text_of(path: Path) -> str:
    """Return a path as text.

    Raises:
        InputError: Its name is not UTF-8, so no listing and no manifest could have it.
    """
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise InputError("the name of this file is no UTF-8", where=shown, hint="Rename it.") from None


PIECE = 1 << 20
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})


def list_local(path: Path, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """List a file, the files below a folder, or those that match a glob; none if nothing is there.

    Raises:
        InputError: A link leads nowhere, or back to a folder that it lies in; or folders lie too deep.
        PermissionRefused: A folder may not be listed, or a link leads out of the source's folder.
        DependencyError: The disk fails.
    """
    with naming_path(path):
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
    """Open a file for reading; not a pipe, on which a reader could block.

    Raises:
        InputError: There is no such file.
        PermissionRefused: It may not be read.
        DependencyError: The disk fails.
    """
    with naming_path(path):
        _entry(path)
        return path.open("rb")


def md5_of(entry: SourceFile) -> str:
    """Read a listed file once, in pieces, and return its MD5.

    Raises:
        ObjectChanged: It is not as it was listed, or was written meanwhile.
    """
    total, path = hashlib.md5(usedforsecurity=False), Path(entry.uri)
    with open_local(path) as stream:
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
    """Yield a temporary file that is linked to the path, which must be free, once it is complete and synced.

    Raises:
        AlreadyExists: The path exists.
        InputError: No file can have that name.
        PermissionRefused: The folder may not be written to.
    """
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
        _sync_folder(path.parent)


def remove_local(path: Path) -> None:
    """Remove a file; one that is not there is no error.

    Raises:
        PermissionRefused: It may not be removed.
    """
    with naming_path(path):
        path.unlink(missing_ok=True)


def entry_of(path: Path) -> SourceFile:
    """Describe a file as it is now; its checksum is empty.

    Raises:
        InputError: It is not there.
    """
    with naming_path(path):
        return _entry(path)


def _link(part: Path, path: Path) -> None:
    """Link a complete file to its name, if that is free: one step that never replaces."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise AlreadyExists("a file lies there already", where=str(path)) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without links, such as a mounted bucket: the name is claimed empty, then filled.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            raise AlreadyExists("a file lies there already", where=str(path)) from None
        part.replace(path)


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where the file system supports it."""
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
    """Yield the files below a folder. A folder that cannot be listed is an error, never left out."""
    root = folder.resolve()
    yield from _walk(folder, root, (root,), lambda name: is_visible(name, suffixes))


def _walk(folder: Path, root: Path, above: tuple[Path, ...], wanted: Callable[[str], bool]) -> Iterator[Path]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = Path(entry.path)
        if entry.is_symlink():
            _require_inside(path, root)
        if entry.is_dir():
            if is_visible(entry.name, ()):
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
    """Yield the files that match a glob; only folders that can have one are listed."""
    fixed_parts = len([*takewhile(lambda part: not has_wildcard(part), pattern.parts)])
    if fixed_parts == len(pattern.parts):
        return
    folder, wanted = Path(*pattern.parts[:fixed_parts]), pattern.parts[fixed_parts:]
    if folder.is_dir():
        matches = matcher("/".join(wanted), suffixes)
        found = _descend(folder, wanted, folder.resolve(), ())
        yield from (path for path in found if matches(path.relative_to(folder).as_posix()))


def _descend(folder: Path, wanted: tuple[str, ...], root: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files that could match: each level is one part of the pattern, from ``**`` on all are."""
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
    reject_system_path(real)


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
        raise InputError("expected a file, found a pipe, a socket or a device", where=str(path))
    return SourceFile(uri=text_of(path), size=state.st_size, checksum="", written=_moment(state.st_mtime_ns))


def _moment(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
