"""The job directory, shared by all attempts of a job, with a numbered folder for each attempt."""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainwright.errors import DependencyError, InternalError
from trainwright.launch.job import completed

FAILED_ATTEMPT_FILE = "attempt.json"
"""File in the folder of an attempt that its launcher has ended: what became of it."""

_ATTEMPTS = "attempts"
_PINNED = "pinned-by-*.json"
_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY})


@contextlib.contextmanager
def locked_attempt(home: Path) -> Iterator[Path]:
    """Give a fresh folder for the next attempt at a job of this machine, below its home.

    What lies in the home stays until an attempt has succeeded: it is what the next one goes on from. Then it
    is removed, and with it the homes of other jobs for the same output that nobody is at any more. Homes of
    one output are called the same up to the last ``-``.

    Args:
        home: The job's folder, the same at every attempt.

    Raises:
        DependencyError: Another living process of this machine is at the same job.
    """
    lock = _create_and_lock(home)
    try:
        yield create_attempt(home)
        remove_job_directory(home)
        for other in sibling_directories(home):
            _remove_if_unlocked(other)
    finally:
        os.close(lock)


def create_attempt(home: Path) -> Path:
    """Make the folder of the next attempt at a job: two processes never get the same one.

    The numbers rise, so the newest attempt is the one that counts.
    """
    attempts = home / _ATTEMPTS
    attempts.mkdir(parents=True, exist_ok=True)
    while True:
        taken = [int(path.name) for path in attempts.iterdir() if path.name.isdigit()]
        folder = attempts / f"{max(taken, default=0) + 1:04}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder


def newest_attempt(home: Path) -> Path | None:
    """Return the folder of the newest attempt at a job, if there was any."""
    return next(reversed(attempts(home)), None)


def job_directory_of(folder: Path) -> Path | None:
    """Return the home that an attempt's folder lies in; nothing if it lies elsewhere."""
    return folder.parent.parent if folder.parent.name == _ATTEMPTS else None


def attempts(home: Path) -> list[Path]:
    """Return the folders of all attempts at a job, the oldest first."""
    found = [path for path in (home / _ATTEMPTS).glob("*") if path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def read_inputs(folder: Path) -> dict[str, str]:
    """Read what was prepared for an attempt: the files of its folder, as texts by their names."""
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def copy_attempt(folder: Path, prepared: Mapping[str, str]) -> Path:
    """Make the folder of the next attempt, with what was prepared for another one.

    A JSON document that names its attempt (``attempt``) names the new one.

    Args:
        folder: Folder of the attempt that was prepared.
        prepared: Its documents, as :func:`documents` reads them before the attempt began.

    Raises:
        InternalError: The folder does not lie in a home.
    """
    home = job_directory_of(folder)
    if home is None:
        raise InternalError(f"attempt {folder} lies in no home: there is no other one")
    fresh = create_attempt(home)
    for name, text in prepared.items():
        (fresh / name).write_text(_with_attempt(text, folder.name, fresh.name))
    return fresh


def _with_attempt(text: str, before: str, after: str) -> str:
    try:
        body = json.loads(text)
    except ValueError:
        return text
    if not isinstance(body, dict) or body.get("attempt") != before:
        return text
    return json.dumps(body | {"attempt": after}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def sibling_directories(home: Path) -> list[Path]:
    """Name the homes of other jobs for the same output."""
    found = home.parent.glob(f"{home.name.rpartition('-')[0]}-*")
    return sorted(path for path in found if path != home and path.is_dir())


def remove_job_directory(home: Path) -> None:
    """Remove a home that is of no more use, but for folders that hold a file ``pinned-by-*.json``."""
    pinned = {path.parent for path in home.rglob(_PINNED)}
    keep = pinned | {parent for path in pinned for parent in path.parents}
    _remove_except(home, keep, pinned)


def remove_checkpoints(home: Path) -> None:
    """Remove what a training could resume from, and keep its completed attempt.

    Whoever asked for it may be lost before its copies are safe, and asks again; then that is all there is.
    """
    done = next((path for path in reversed(attempts(home)) if completed(path, path.name)), None)
    pinned = {path.parent for path in home.rglob(_PINNED)} | ({done} if done else set())
    _remove_except(home, pinned | {parent for path in pinned for parent in path.parents}, pinned)


def _remove_except(folder: Path, keep: set[Path], whole: set[Path]) -> None:
    if folder not in keep:
        shutil.rmtree(folder, ignore_errors=True)
    elif folder not in whole:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                _remove_except(path, keep, whole)
            else:
                path.unlink(missing_ok=True)


def _create_and_lock(home: Path) -> int:
    """Make a home and lock it; try again if one who was done removed it in between."""
    while True:
        home.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            try:
                lock = _lock(home)
            except BlockingIOError:
                raise DependencyError(
                    "another process is at this very job",
                    where=str(home),
                    hint="Wait for it, or stop it: it would be done twice.",
                ) from None
            if home.exists() and os.path.samestat(os.fstat(lock), home.stat()):
                return lock
            os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a folder for as long as the descriptor that is returned is open: the system lets go of it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_if_unlocked(home: Path) -> None:
    try:
        lock = _lock(home)
    except OSError:
        return
    remove_job_directory(home)
    os.close(lock)


def publish(source: Path, target: Path, *, keep: bool = False, copy: bool = False) -> None:
    """Bring a finished folder to its place: it appears there whole, or not at all.

    A file that an earlier attempt left there before it was reported is replaced.

    Args:
        source: The finished folder.
        target: Its place; may lie on another disk.
        keep: Copy instead of moving, to a place named after its content: if another process is faster, its
            copy stays, since others may already be reading it.
        copy: Copy instead of moving.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    waiting = target.with_name(f".{target.name}.new-{secrets.token_hex(4)}")
    try:
        if keep or copy or not _move(source, waiting):
            shutil.copytree(source, waiting)
        if target.exists() and not keep:
            shutil.rmtree(target)
        waiting.replace(target)
    except BaseException as error:
        shutil.rmtree(waiting, ignore_errors=True)
        if not (keep and isinstance(error, OSError) and error.errno in _EXISTS):
            raise


def _move(source: Path, target: Path) -> bool:
    """Move a folder, unless it would have to cross from one disk to another."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True
