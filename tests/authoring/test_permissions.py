"""Commands that may not write end with 50, and name the path and the next step."""

import ctypes
import errno
import os
import subprocess
from pathlib import Path

import pytest

from trainwright.errors import DependencyError, PermissionRefused, TrainwrightError, as_ours, in_our_words

ROOT = Path(__file__).resolve().parents[2]
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
ROWS = ROOT / "examples" / "quickstart" / "rows.csv"


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


@pytest.mark.covers("B12")
@pytest.mark.parametrize("forbid", [forbid_writing, mount_read_only])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "promote_model", "--param", 'registry={"uri": "sqlite:///m.db", "audit": "a"}', "--runs"],
        ["compile", "--output"],
        ["init", str(ROWS), "--label", "late", "--output"],
    ],
    ids=lambda words: words[0],
)
def test_command_that_may_not_write_ends_with_50(command: list[str], forbid: object, tmp_path: Path) -> None:
    folder = tmp_path / "forbidden"
    folder.mkdir()
    before = forbid(folder)  # type: ignore[operator]
    done = subprocess.run(
        [*before, ROOT / ".venv" / "bin" / "trainwright", *command, folder / "new"],
        cwd=tmp_path, preexec_fn=obey_permissions, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 50, done.stderr
    assert "PermissionRefused: user" in done.stderr
    assert f"at    {folder}" in done.stderr
    assert ("--runs" if "--runs" in command else "another path") in done.stderr.partition("next  ")[2]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_forbidden_by_the_system_is_a_permission_error_everywhere(number: int) -> None:
    problem = OSError(number, os.strerror(number), "/there")
    for error in (in_our_words(problem), as_ours(problem)):
        assert isinstance(error, PermissionRefused)
        assert error.where == "/there"


def test_full_disk_is_a_dependency_error_for_commands_and_steps() -> None:
    problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/there")
    found: list[TrainwrightError | BaseException | None] = [in_our_words(problem), as_ours(problem)]
    assert [type(error) for error in found] == [DependencyError, DependencyError]
