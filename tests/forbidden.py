"""Folders that nobody may write into, and commands for which that holds, whoever runs the tests."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def obey_permissions() -> None:
    """Make permissions hold for root, too: the next program starts without the capability to ignore them."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def forbid_writing(folder: Path) -> list[str]:
    """Return the words before a command for which a folder belongs to somebody who lets nobody write."""
    folder.chmod(0o555)
    return []


def mount_read_only(folder: Path) -> list[str]:
    """Return the words before a command for which a folder is on a read-only file system."""
    words = [
        "unshare",
        "--mount",
        "--",
        "bash",
        "-c",
        'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && "$@"',
    ]
    if subprocess.run([*words, str(folder), "true"], capture_output=True, check=False).returncode:
        pytest.skip("only a user who may mount can make a read-only file system")
    return [*words, str(folder)]


FORBID: tuple[Callable[[Path], list[str]], ...] = (forbid_writing, mount_read_only)
