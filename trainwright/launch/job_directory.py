"""The job directory, shared by all attempts of a job, with a folder and a completion marker for each.

The agent imports this module, and no sections of the experiment file.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.artifacts import Progress
from trainwright.documents import Document, read_json
from trainwright.errors import DependencyError, InputError, InternalError

FAILED_ATTEMPT_FILE = "attempt.json"
"""File in the folder of an attempt that its launcher has ended: what became of it."""

_ATTEMPTS = "attempts"
_PINNED = "pinned-by-*.json"
_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY})


@dataclass(frozen=True, kw_only=True)
class Completion(Document):
    """The completion marker of an attempt: digests of its outputs by name, written by rank 0 at the very end.

    Exit code 0 and a condition of Kubernetes are no proof of success: an evicted worker that exits 0 makes a
    job Succeeded.
    """

    FILE: ClassVar[str] = "result.json"
    attempt: str
    outputs: dict[str, str]


def completed(folder: Path, attempt: str) -> Completion | None:
    """Return the completion marker of an attempt, or None if it has not completed."""
    if not (folder / Completion.FILE).exists():
        return None
    completion = Completion.read(folder)
    return completion if completion.attempt == attempt else None


@contextlib.contextmanager
def locked_attempt(home: Path) -> Iterator[Path]:
    """Yield a fresh folder for the next attempt at a job of this machine, in its job directory ``home``.

    The directory's content stays until an attempt has succeeded: the next one resumes from it. Then it is
    removed, with the unlocked directories of other jobs for the same output, whose names are equal up to the
    last ``-``.

    Raises:
        DependencyError: Another living process of this machine runs the same job.
    """
    lock = None
    while lock is None:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if os.path.lexists(home) and not home.is_dir():
                raise
            continue  # another process removed it between mkdir's two looks, and may have made it anew
        with contextlib.suppress(FileNotFoundError):  # who was done removed it in between
            try:
                lock = _lock(home)
            except BlockingIOError:
                raise DependencyError(
                    "another process is at this very job",
                    where=str(home),
                    hint="Wait for it, or stop it: it would be done twice.",
                ) from None
            if not (home.exists() and os.path.samestat(os.fstat(lock), home.stat())):
                os.close(lock)
                lock = None
    try:
        yield create_attempt(home)
        remove_job_directory(home)
        for other in sibling_directories(home):
            with contextlib.suppress(OSError):
                theirs = _lock(other)
                remove_job_directory(other)
                os.close(theirs)
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a folder for as long as the returned descriptor is open."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def create_attempt(home: Path) -> Path:
    """Create the folder of the next attempt: two processes never get the same one, and the numbers rise."""
    folder = home / _ATTEMPTS
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        taken = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
        fresh = folder / f"{max(taken, default=0) + 1:04}"
        with contextlib.suppress(FileExistsError):
            fresh.mkdir()
            return fresh


def newest_attempt(home: Path) -> Path | None:
    """Return the folder of the newest attempt at a job, if there was any."""
    return next(reversed(attempts(home)), None)


def job_directory_of(folder: Path) -> Path | None:
    """Return the job directory that an attempt's folder lies in; None if it lies elsewhere."""
    return folder.parent.parent if folder.parent.name == _ATTEMPTS else None


def attempts(home: Path) -> list[Path]:
    """Return the folders of all attempts at a job, the oldest first."""
    found = [path for path in (home / _ATTEMPTS).glob("*") if path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def read_inputs(folder: Path) -> dict[str, str]:
    """Read what was prepared for an attempt: the files of its folder, as texts by their names."""
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def copy_attempt(folder: Path, inputs: Mapping[str, str]) -> Path:
    """Create the folder of the next attempt with the inputs of another one, from :func:`read_inputs`.

    A JSON document that names its attempt (``attempt``) names the new one.

    Raises:
        InternalError: The folder does not lie in a job directory.
    """
    home = job_directory_of(folder)
    if home is None:
        raise InternalError(f"attempt {folder} lies in no home: there is no other one")
    fresh = create_attempt(home)
    for name, text in inputs.items():
        with contextlib.suppress(ValueError):
            body = read_json(text)
            if isinstance(body, dict) and body.get("attempt") == folder.name:
                body["attempt"] = fresh.name
                text = json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n"  # noqa: PLW2901
        (fresh / name).write_text(text)
    return fresh


def sibling_directories(home: Path) -> list[Path]:
    """Return the job directories of other jobs for the same output."""
    found = home.parent.glob(f"{home.name.rpartition('-')[0]}-*")
    return sorted(path for path in found if path != home and path.is_dir())


def remove_job_directory(home: Path) -> None:
    """Remove a job directory, but for folders that hold a file ``pinned-by-*.json``."""
    _remove_except(home, {path.parent for path in home.rglob(_PINNED)})


def remove_checkpoints(home: Path) -> None:
    """Remove what a training could resume from, and keep its completed attempt.

    Whoever asked for it may be lost before its copies are safe, and asks again; then that is all there is.
    """
    done = [path for path in reversed(attempts(home)) if completed(path, path.name)][:1]
    _remove_except(home, {path.parent for path in home.rglob(_PINNED)} | set(done))


def _remove_except(folder: Path, kept: set[Path]) -> None:
    """Remove a folder but for some folders below it."""
    if folder in kept:
        return
    if not any(path.is_relative_to(folder) for path in kept):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _remove_except(path, kept)
        else:
            path.unlink(missing_ok=True)


def publish(source: Path, target: Path, *, keep: bool = False, copy: bool = False) -> None:
    """Move a finished folder to its place, also on another disk: it appears there whole, or not at all.

    A folder that an earlier attempt left there before it was reported is replaced.

    Args:
        source: The finished folder.
        target: Its place.
        keep: Copy instead of moving, to a place named after its content: if another process is faster, its
            copy stays, since others may already be reading it.
        copy: Copy instead of moving.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    waiting = target.with_name(f".{target.name}.new-{secrets.token_hex(4)}")
    try:
        if keep or copy:
            shutil.copytree(source, waiting)
        else:
            try:
                source.rename(waiting)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copytree(source, waiting)
        if target.exists() and not keep:
            shutil.rmtree(target)
        waiting.replace(target)
    except BaseException as error:
        shutil.rmtree(waiting, ignore_errors=True)
        if not (keep and isinstance(error, OSError) and error.errno in _EXISTS):
            raise


def describe_progress(folder: Path) -> str:
    """Return the progress of an attempt in a line; empty if its file does not exist or cannot be read now."""
    try:
        return str(Progress.read(folder))
    except (InputError, OSError):
        return ""
