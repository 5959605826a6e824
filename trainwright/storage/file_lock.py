"""A lock on a file for one process or thread of a node, released by the kernel when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.storage.local import naming_path


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
