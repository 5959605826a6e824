"""A few tests that failed run once more alone; what failed twice has failed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "run.py"

ONCE = """
from pathlib import Path
def test_fails_the_first_time():
    seen = Path(__file__).with_name("seen")
    assert seen.exists() or seen.touch()
def test_holds(): pass
"""
ALWAYS = "def test_fails_{number}(): assert False\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree with nothing but the runner of the tests."""
    (tmp_path / "tests" / "folder").mkdir(parents=True)
    shutil.copy(RUN, tmp_path / "tests")
    return tmp_path


def ended(checkout: Path, *options: str, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (checkout / "tests" / "folder" / f"test_{name}.py").write_text(text)
    command = [sys.executable, "tests/run.py", *options]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout


def test_what_passes_alone_counts_and_is_named(checkout: Path) -> None:
    code, said = ended(checkout, once=ONCE)
    assert code == 0
    assert "FAILED tests/folder/test_once.py::test_fails_the_first_time" in said
    assert "PASSED tests/folder/test_once.py::test_fails_the_first_time" in said
    assert said.splitlines()[-1] == "2 passed (1 only alone: UNSTABLE, named above), 0 failed, 0 skipped"


def test_what_fails_twice_has_failed_and_so_has_what_failed_beside_it(checkout: Path) -> None:
    code, said = ended(checkout, once=ONCE, always=ALWAYS.format(number=1))
    assert code == 1
    assert said.splitlines()[-1] == "1 passed, 2 failed, 0 skipped"


def test_many_failures_are_no_chance(checkout: Path) -> None:
    code, said = ended(checkout, always="".join(ALWAYS.format(number=number) for number in range(4)))
    assert code == 1
    assert "once more" not in said


def test_a_file_that_does_not_load_has_failed_whatever_passes_beside_it(checkout: Path) -> None:
    code, said = ended(checkout, once=ONCE, broken="import nothing_of_this_name\n")
    assert code == 1
    assert said.splitlines()[-1] == "1 passed, 2 failed, 0 skipped"


HANGS = """
import time
from pathlib import Path
def test_hangs_the_first_time():
    if not Path("there").exists():
        Path("there").touch()
        time.sleep(600)
"""


def test_expression_with_blanks_and_a_path_behind_an_option_reach_pytest_whole(checkout: Path) -> None:
    three = "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n"
    chosen = ("-k", "a or b", "--deselect", "tests/folder/test_three.py::test_b")
    assert ended(checkout, *chosen, three=three)[1].endswith("\n1 passed, 0 failed, 0 skipped\n")


def test_one_that_hangs_is_ended_named_and_run_once_more(checkout: Path) -> None:
    code, said = ended(checkout, "-o", "faulthandler_timeout=2", hangs=HANGS)
    assert code == 0
    assert re.search(
        r"pytest ended with 1\n  File .*/test_hangs\.py\", line \d+ in test_hangs_the_first_time\n", said
    )
    assert said.endswith("\n1 passed (1 only alone: UNSTABLE, named above), 0 failed, 0 skipped\n")
