"""Commands that may not write end with 50, and name the path and the next step."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forbidden import FORBID, forbid_writing, obey_permissions
from trainwright.errors import DependencyError, PermissionRefused, TrainwrightError, as_ours, in_our_words

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "examples" / "quickstart" / "rows.csv"
RUN = ["run", "promote_model", "--param", 'registry={"uri": "sqlite:///m.db", "audit": "a"}', "--runs"]


@pytest.mark.covers("B12")
@pytest.mark.parametrize(
    ("command", "forbid"),
    [
        *((RUN, forbid) for forbid in FORBID),
        (["compile", "--output"], forbid_writing),
        (["init", str(ROWS), "--label", "late", "--output"], forbid_writing),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value.__name__,
)
def test_command_that_may_not_write_ends_with_50(
    command: list[str], forbid: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "forbidden"
    folder.mkdir()
    before = forbid(folder)
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
