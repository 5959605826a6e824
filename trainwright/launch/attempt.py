"""Folders of attempts: always fresh, removed at the end, and never left behind for good."""

import contextlib
import errno
import fcntl
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_LOCK = "launcher.lock"


@contextlib.contextmanager
def fresh_folder(beside: Path) -> Iterator[Path]:
    """Give a fresh folder for one attempt, beside the output it is made for, and remove it afterwards.

    A launcher that was killed cannot remove its folder; the next attempt at the same output does. A lock,
    which the system releases when its holder is gone, tells such a folder from that of a living launcher.

    Args:
        beside: The output, whose folder is on the same disk.
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    for path in beside.parent.glob(f".{beside.name}.attempt-*"):
        _remove_if_abandoned(path)
    folder = beside.with_name(f".{beside.name}.attempt-{secrets.token_hex(4)}").absolute()
    folder.mkdir()
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / _LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


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
    if keep or not _moved(source, waiting):
        shutil.copytree(source, waiting)
    if target.exists():
        shutil.rmtree(target)
    waiting.replace(target)


def _moved(source: Path, target: Path) -> bool:
    """Move a folder, unless it would have to cross from one disk to another."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True
