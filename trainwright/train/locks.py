"""Locks on files: seen by all processes of a node, and gone with the one that holds them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.storage.local import naming_path


@contextmanager
def only_one(path: Path) -> Iterator[bool]:
    """Hold a lock while no other process or thread does; gives False if one does. Never waits.

    Args:
        path: The file that stands for it; it is there only while somebody holds the lock.
    """
    with naming_path(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        mine = _locked(descriptor) and is_still(path, descriptor)
        try:
            yield mine
        finally:
            if mine:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def is_still(path: Path, descriptor: int) -> bool:
    """Tell whether the file that was opened is still the one of that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def removed(path: Path, *, force: bool) -> bool:
    """Remove a file that nobody has locked; with ``force``, any. False if it stays."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if not (_locked(descriptor) or force):
            return False
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another; or NFS, which locks nothing for a reader
        return False
    return True
