"""Making environments, from tiny locks over wheels that these tests write themselves."""

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.authoring.wheels import write_wheel
from trainwright.authoring import environments
from trainwright.authoring.environments import LIBRARY, ToolchainEnvironment
from trainwright.errors import DependencyError, InputError


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that uv and pip are told, as a person would tell them, to take packages from."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for variable in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def locks(tmp_path: Path, wheels: Path) -> Path:
    """The locks of one toolchain, ``tiny``."""
    folder = tmp_path / "images"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "requirements.lock").write_text(write_wheel(wheels, "pebble", "1.0"))
    (folder / "kfp.lock").write_text(write_wheel(wheels, "kfp", "2.0"))
    return folder


def make(locks: Path, variant: str = "") -> environments.Made:
    (made,) = environments.make(["tiny"], folder=locks.parent / "made", images=locks, variant=variant)
    return made


def ask(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_holds_its_lock_and_kfp_and_the_library(locks: Path) -> None:
    made = make(locks)
    assert made.changed
    python = made.path / "bin" / "python"
    assert ask(python, "import pebble, kfp; print(pebble.VERSION, kfp.VERSION)") == "1.0 2.0"
    assert Path(ask(python, "import trainwright; print(trainwright.__file__)")).resolve().parent == LIBRARY
    assert list((made.path / "lib").rglob("__pycache__/pebble.*.pyc")), "bytecode is compiled when it is made"
    assert not list((made.path / "bin").glob("pip*"))


def test_a_step_run_in_it_records_the_lock_that_it_was_made_from(locks: Path) -> None:
    made = make(locks)
    code = "from trainwright.tracking import environment as e; print(e().name, e().lock_sha256)"
    expected = hashlib.sha256()
    for name in ("tiny/requirements.lock", "kfp.lock"):
        expected.update(f"{Path(name).name}\0".encode() + (locks / name).read_bytes() + b"\0")
    assert ask(made.path / "bin" / "python", code) == f"tiny {expected.hexdigest()}"


def test_it_is_made_again_only_when_its_lock_changed(locks: Path, wheels: Path) -> None:
    stamp = make(locks).path / "trainwright-environment.json"
    before = stamp.stat().st_mtime_ns
    assert not make(locks).changed
    assert stamp.stat().st_mtime_ns == before
    (locks / "tiny" / "requirements.lock").write_text(write_wheel(wheels, "boulder", "3.0"))
    made = make(locks)
    assert made.changed
    assert ask(made.path / "bin" / "python", "import boulder; print(boulder.VERSION)") == "3.0"
    assert not list(made.path.rglob("pebble*")), "what the new lock does not name is gone"


def test_one_that_was_not_finished_is_made_again(locks: Path) -> None:
    made = make(locks)
    (made.path / "bin/python").unlink()
    assert ToolchainEnvironment("tiny", locks.parent / "made", locks).problem() == "is not complete"
    assert make(locks).changed
    assert ask(made.path / "bin" / "python", "import pebble; print(pebble.VERSION)") == "1.0"


@pytest.mark.parametrize("stamp", ["", "{", "[]", "{}"])
def test_one_whose_stamp_cannot_be_read_counts_as_not_complete(locks: Path, stamp: str) -> None:
    place = ToolchainEnvironment("tiny", locks.parent / "made", locks)
    for path, text in ((place.python, ""), (place.stamp, stamp)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert place.problem() == "is not complete"


def test_a_folder_of_somebody_else_is_not_touched(locks: Path) -> None:
    theirs = locks.parent / "made" / "tiny" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    with pytest.raises(InputError, match="is not an environment"):
        make(locks)
    assert theirs.read_text() == "mine"


def test_a_link_to_another_copy_of_the_library_is_put_right(locks: Path, tmp_path: Path) -> None:
    place = ToolchainEnvironment("tiny", make(locks).path.parent, locks)
    place.link.unlink()
    place.link.symlink_to(tmp_path)
    assert not make(locks).changed
    assert place.link.resolve() == LIBRARY


def test_without_the_build_of_the_lock_an_environment_is_made_from_the_lock_for_gpus(
    locks: Path, wheels: Path
) -> None:
    tiny = locks / "tiny"
    missing = write_wheel(locks.parent / "elsewhere", "flame", "2.13.0+cpu")
    (tiny / "torch.lock").write_text(missing)
    (tiny / "requirements-gpu.lock").write_text(
        (tiny / "requirements.lock").read_text() + write_wheel(wheels, "flame", "2.13.0")
    )
    made = make(locks)
    assert ask(made.path / "bin" / "python", "import flame; print(flame.VERSION)") == "2.13.0"
    assert "no index has the CPU build" in str(made)
    place = ToolchainEnvironment("tiny", locks.parent / "made", locks)
    gpu = dataclasses.replace(place, variant="gpu")
    assert place.made_from == gpu.digest != place.digest
    assert not make(locks).changed, "what was made from either lock is kept"
    shutil.copy(next((locks.parent / "elsewhere").glob("*.whl")), wheels)
    shutil.rmtree(made.path)
    assert "CUDA" not in str(make(locks))
    assert place.made_from == place.digest
    assert gpu.problem() == "is older than its lock"
    next(wheels.glob("flame-2.13.0+cpu-*.whl")).unlink()  # it satisfies ==2.13.0, too
    assert make(locks, variant="gpu").changed, "a variant that is asked for replaces another"
    assert gpu.problem() == ""


@pytest.mark.covers("A12")
def test_a_file_that_is_not_what_the_lock_says_is_refused_with_what_the_tool_said(locks: Path) -> None:
    lock = locks / "tiny" / "requirements.lock"
    lock.write_text(re.sub(r"sha256:.*", f"sha256:{'0' * 64}", lock.read_text()))
    with pytest.raises(DependencyError) as caught:
        make(locks)
    assert "environment of tiny could not be made: uv ended with" in caught.value.what
    assert "0" * 64 in caught.value.what
    assert "Run it again" in caught.value.hint
    assert ToolchainEnvironment("tiny", locks.parent / "made", locks).problem() == "is not complete"


@pytest.mark.covers("F60")
@pytest.mark.parametrize("offline", ["1", "0"], ids=["no network is allowed", "nobody listens"])
def test_an_index_that_does_not_answer_is_an_error_that_says_so(
    locks: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    monkeypatch.setenv("UV_OFFLINE", offline)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    next(wheels.glob("pebble*")).unlink()
    with pytest.raises(DependencyError, match="pebble") as caught:
        make(locks)
    assert "No package index answered" in caught.value.hint
    assert caught.value.code == 21


def test_a_package_that_has_to_be_compiled_and_cannot_be_is_an_error_that_says_what_is_missing(
    locks: Path, wheels: Path, tmp_path: Path
) -> None:
    source = tmp_path / "gravel-1.0"
    source.mkdir()
    (source / "backend.py").write_text("def build_wheel(*_):\n    raise SystemExit('g++: not found')\n")
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(project + '[project]\nname = "gravel"\nversion = "1.0"\n')
    with tarfile.open(wheels / "gravel-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, arcname=source.name)
    digest = hashlib.sha256((wheels / "gravel-1.0.tar.gz").read_bytes()).hexdigest()
    (locks / "tiny" / "requirements.lock").write_text(f"gravel==1.0 \\\n    --hash=sha256:{digest}\n")
    with pytest.raises(DependencyError, match="g\\+\\+: not found") as caught:
        make(locks)
    assert "C++ compiler" in caught.value.hint


def test_a_lock_without_a_hash_is_refused(locks: Path) -> None:
    (locks / "tiny" / "requirements.lock").write_text("pebble==1.0\n")
    with pytest.raises(DependencyError) as caught:
        make(locks)
    assert "make lock" in caught.value.hint


def test_uv_missing_is_an_error_that_says_how_to_get_it(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DependencyError, match="uv") as caught:
        make(locks)
    assert caught.value.hint == "Run: /nowhere/python -m pip install uv"


def test_a_toolchain_that_does_not_exist_is_refused_before_anything_is_made(locks: Path) -> None:
    with pytest.raises(InputError, match="'tinny'") as caught:
        environments.make(["tiny", "tinny"], folder=locks.parent / "made", images=locks)
    assert caught.value.hint == "Did you mean tiny?"
    assert not (locks.parent / "made").exists()


def test_one_that_fails_takes_none_of_the_others_with_it(locks: Path, wheels: Path) -> None:
    (locks / "broken").mkdir()
    (locks / "broken" / "requirements.lock").write_text(
        "nowhere==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"
    )
    lines: list[str] = []
    with pytest.raises(DependencyError, match="environment of broken"):
        environments.make(
            ["broken", "tiny"], folder=locks.parent / "made", images=locks, progress=lines.append
        )
    assert [line.split()[0] for line in lines] == ["tiny"]
    assert not ToolchainEnvironment("tiny", locks.parent / "made", locks).problem()


MAKE = """
import sys
from pathlib import Path
from tests.authoring.wheels import write_wheel
from trainwright.authoring import environments
print(environments.make(["tiny"], folder=Path(sys.argv[1]), images=Path(sys.argv[2]))[0].changed)
"""


def start(locks: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKE, str(locks.parent / "made"), str(locks)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_of_two_processes_at_once_one_makes_it_and_the_other_waits(locks: Path) -> None:
    both = [start(locks), start(locks)]
    assert sorted(process.communicate(timeout=600)[0].strip() for process in both) == ["False", "True"]
    python = locks.parent / "made" / "tiny" / "bin" / "python"
    assert ask(python, "import pebble, kfp; print(pebble.VERSION, kfp.VERSION)") == "1.0 2.0"


@pytest.mark.parametrize("reached", ["", "bin/python", "lib/python3.11/site-packages/pebble.py"])
def test_one_that_was_killed_half_way_is_made_whole_by_the_next(locks: Path, reached: str) -> None:
    made = locks.parent / "made" / "tiny"
    for _ in range(20):  # it may be done before it is seen to be half way
        process = start(locks)
        while not (made / reached).exists() and process.poll() is None:
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not (made / "trainwright-environment.json").exists():
            break
        shutil.rmtree(made)
    assert (made / reached).exists()
    assert not (made / "trainwright-environment.json").exists()
    assert make(locks).changed
    assert ask(made / "bin" / "python", "import pebble, kfp; print(pebble.VERSION, kfp.VERSION)") == "1.0 2.0"


def test_the_interpreter_of_one_that_is_not_there_names_the_command_that_makes_it(locks: Path) -> None:
    with pytest.raises(DependencyError, match="the environment of tiny has not been made") as caught:
        environments.python("tiny", folder=locks.parent / "made", images=locks)
    assert caught.value.where == str(locks.parent / "made" / "tiny")
    assert caught.value.hint.startswith("Run: ")


def test_from_the_command_line_a_wrong_name_ends_with_the_code_for_bad_input() -> None:
    command = [sys.executable, "-c", "from trainwright.cli.app import main; main()", "setup", "tabula"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == InputError.code
    assert "Did you mean tabular?" in done.stderr
