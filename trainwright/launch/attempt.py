"""Folders of attempts: always fresh, removed at the end, and never left behind for good."""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainwright.errors import DependencyError


@contextlib.contextmanager
def fresh_folder(beside: Path) -> Iterator[Path]:
    """Give a fresh folder for one attempt, beside the output it is made for, and remove it afterwards.

    A launcher that was killed cannot remove its folder; the next attempt at the same output does. A lock on
    the folder, which the system releases when its holder is gone, tells it from that of a living launcher.

    Args:
        beside: The output, whose folder is on the same disk.
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    for path in beside.parent.glob(f".{beside.name}.attempt-*"):
        _remove_if_abandoned(path)
    folder, lock = _made_and_locked(beside)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made_and_locked(beside: Path) -> tuple[Path, int]:
    """Make a folder and lock it; try again if another launcher took it for abandoned in between."""
    while True:
        folder = beside.with_name(f".{beside.name}.attempt-{secrets.token_hex(4)}").absolute()
        folder.mkdir()
        with contextlib.suppress(FileNotFoundError):
            lock = _locked(folder)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _locked(folder: Path, *, wait: bool = True) -> int:
    """Lock a folder for as long as the file descriptor that is returned is open."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = _locked(folder, wait=False)
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


@contextlib.contextmanager
def numbered_folder(home: Path) -> Iterator[Path]:
    """Give a fresh folder for the next attempt at a job, below the folder that all its attempts share.

    The numbers rise, so the newest attempt is the one that counts. What is saved between attempts stays
    until one has succeeded; then the whole home is removed.

    Args:
        home: The job's folder, the same at every attempt.

    Raises:
        DependencyError: Another living process of this machine is at the same job.
    """
    home.mkdir(parents=True, exist_ok=True)
    try:
        lock = _locked(home, wait=False)
    except BlockingIOError:
        raise DependencyError(
            "another process is at this very job",
            where=str(home),
            hint="Wait for it, or stop it: it would be done twice.",
        ) from None
    try:
        yield next_attempt(home)
        shutil.rmtree(home, ignore_errors=True)
    finally:
        os.close(lock)


def next_attempt(home: Path) -> Path:
    """Make the folder of the next attempt at a job: two processes never get the same one."""
    attempts = home / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    while True:
        number = max((int(path.name) for path in attempts.iterdir()), default=0) + 1
        folder = attempts / f"{number:04}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder


def shared_folder(mount: Path) -> Path:
    """Give a fresh folder for one attempt on a volume that a job's pods mount too.

    It outlives this process, because the job does: a launcher that is started again finds it by the job.
    """
    folder = mount / "trainwright" / "attempts" / secrets.token_hex(8)
    folder.mkdir(parents=True)
    return folder


def publish(source: Path, target: Path, *, keep: bool = False) -> None:
    """Bring a finished folder to its place: it appears there whole, or not at all.

    What an earlier attempt left at that place, which ended before it was told of, is replaced.

    Args:
        source: The finished folder.
        target: Its place; may lie on another disk.
        keep: Copy instead of moving.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    waiting = target.with_name(f".{target.name}.new-{secrets.token_hex(4)}")
    try:
        if keep or not _moved(source, waiting):
            shutil.copytree(source, waiting)
        if target.exists():
            shutil.rmtree(target)
        waiting.replace(target)
    except BaseException:
        shutil.rmtree(waiting, ignore_errors=True)
        raise


def _moved(source: Path, target: Path) -> bool:
    """Move a folder, unless it would have to cross from one disk to another."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True
