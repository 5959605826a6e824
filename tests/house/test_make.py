"""What make says to a person whose machine lacks something."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OTHER = "#!/bin/sh\nexec {python} -c 'import sys; sys.version_info = (3, 12); exec(sys.argv[1])' \"$2\"\n"


@pytest.mark.parametrize("there", [False, True], ids=["no such program", "another version"])
def test_a_python_that_is_not_the_one_needed_is_named_before_anything_is_made(
    tmp_path: Path, there: bool
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    lock = tmp_path / "images" / "authoring" / "requirements.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    other = tmp_path / "python3.12"
    if there:
        other.write_text(OTHER.format(python=sys.executable))
        other.chmod(0o755)
    done = subprocess.run(
        ["make", "lint", f"PYTHON={other}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "is no Python 3.11, which is needed" in done.stderr
    assert not (tmp_path / ".venv").exists()
