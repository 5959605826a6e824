"""What ``make test`` ends with: one line of counts that leaves nothing out."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import AUTHORING, TOGETHER, everything, grouped, parts

ROOT = Path(__file__).resolve().parents[2]

PASSES = "def test_one(): pass\n"
FAILS = "def test_two(): assert 0\n"
SKIPS = "import pytest\ndef test_three(): pytest.skip('why')\n"
BREAKS = "import pytest\n@pytest.fixture\ndef broken(): raise RuntimeError\ndef test_four(broken): pass\n"
CANNOT_BE_READ = "import nothing_of_that_name\n"
DIES = "import os\ndef test_five(): os._exit(9)\n"
EMPTY = "X = 1\n"


def run(tmp_path: Path, files: dict[str, str], *arguments: str) -> tuple[int, str]:
    for path, text in files.items():
        file = tmp_path / "tests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = start(tmp_path, *arguments)
    return done.returncode, done.stdout.splitlines()[-1]


def start(tmp_path: Path, *arguments: str, part_s: float = 500.0) -> subprocess.CompletedProcess[str]:
    before, after = (f"SECONDS_OF_A_PART = 1.0, {seconds}\n" for seconds in (500.0, part_s))
    text = (ROOT / "tests" / "run.py").read_text()
    assert before in text
    (tmp_path / "tests" / "run.py").write_text(text.replace(before, after))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, str(tmp_path / "tests" / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("files", "code", "counts"),
    [
        ({"house/test_a.py": PASSES, "pages/test_a.py": PASSES + SKIPS}, 0, "2 passed, 0 failed, 1 skipped"),
        ({"house/test_a.py": PASSES + FAILS}, 1, "1 passed, 1 failed, 0 skipped"),
        ({"house/test_a.py": PASSES, "house/test_b.py": BREAKS}, 1, "1 passed, 1 failed, 0 skipped"),
        ({"house/test_a.py": CANNOT_BE_READ}, 1, "0 passed, 1 failed, 0 skipped"),
        ({"house/test_a.py": PASSES + DIES}, 1, "0 passed, 1 failed, 0 skipped"),
        ({"house/test_a.py": EMPTY}, 1, "0 passed, 1 failed, 0 skipped"),
        ({"house/test_a.py": SKIPS}, 1, "0 passed, 0 failed, 1 skipped"),
    ],
    ids=[
        "all pass",
        "one fails",
        "a fixture breaks",
        "not importable",
        "the process dies",
        "no tests",
        "all skipped",
    ],
)
def test_the_last_line_counts_everything(
    tmp_path: Path, files: dict[str, str], code: int, counts: str
) -> None:
    assert run(tmp_path, files) == (code, counts)


def test_paths_and_options_are_passed_on(tmp_path: Path) -> None:
    files = {"house/test_a.py": PASSES + FAILS, "pages/test_a.py": FAILS}
    assert run(tmp_path, files, "tests/house", "-k", "one") == (0, "1 passed, 0 failed, 0 skipped")
    assert run(tmp_path, files, "tests/house", "-k", "one or two") == (1, "1 passed, 1 failed, 0 skipped")
    assert run(tmp_path, files, "tests/house/test_a.py::test_two") == (1, "0 passed, 1 failed, 0 skipped")


def test_a_long_environment_is_divided_and_every_test_runs_once(tmp_path: Path) -> None:
    """What failed runs once more in the part that it is of, and its cache is not that of another part."""
    many = "".join(f"def test_{number}(): pass\n" for number in range(5))
    unstable = (
        "import pathlib\ndef test_it(tmp_path_factory):\n    seen = pathlib.Path(__file__).parent / 'seen'\n"
    )
    unstable += "    there = seen.exists()\n    seen.touch()\n    assert there\n"
    files = {f"house/test_{name}.py": many for name in "ab"} | {"pages/test_d.py": unstable}
    for path, text in files.items():
        file = tmp_path / "tests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = start(tmp_path, part_s=5.0)
    heads = [line for line in done.stdout.splitlines() if line.startswith("== authoring")]
    assert len(heads) == 3, "two in parts, and one test again"
    assert heads[-1].partition("  ")[2].startswith("tests/house/test_b.py, tests/pages/test_d.py  ")
    assert (
        done.stdout.splitlines()[-1] == "11 passed (1 only alone: UNSTABLE, named above), 0 failed, 0 skipped"
    )


def test_a_file_with_an_environment_of_its_own_runs_there_too_where_it_has_been_made(tmp_path: Path) -> None:
    files = {"join/test_answers.py": PASSES}
    assert run(tmp_path, files) == (0, "1 passed, 0 failed, 0 skipped")
    python = tmp_path / ".environments" / "engines" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert run(tmp_path, files) == (0, "2 passed, 0 failed, 0 skipped")


def test_files_that_look_at_the_same_long_run_are_in_one_part() -> None:
    texts = {path: path.read_text() for path in (ROOT / "tests" / "pipelines").glob("test_*.py")}
    look = {str(path.relative_to(ROOT)) for path, text in texts.items() if "finished: dict" in text}
    assert look == {*TOGETHER}
    made = parts(AUTHORING, grouped(everything())[AUTHORING])
    assert [look <= {*part.paths} for part in made if look & {*part.paths}] == [True]


def test_what_tests_start_may_keep_what_it_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    looks = "import sys\ndef test_it(): assert not sys.dont_write_bytecode\n"
    assert run(tmp_path, {"house/test_a.py": looks}) == (0, "1 passed, 0 failed, 0 skipped")


@pytest.mark.parametrize("images", ["image: feast", "image: launcher\n  job_image: feast"])
def test_a_verb_is_tested_in_the_environment_that_its_metadata_names(tmp_path: Path, images: str) -> None:
    file = tmp_path / "tests" / "impute" / "test_a.py"
    metadata = tmp_path / "components" / "impute" / "metadata.yaml"
    for path, text in ((file, PASSES), (metadata, f"name: impute\ndependencies:\n  {images}\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    done = start(tmp_path)
    assert done.returncode == 1
    assert "no environment for feast" in done.stderr
    assert "make environments" in done.stderr
