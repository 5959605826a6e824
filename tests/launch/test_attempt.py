"""Homes of jobs, and the attempts below them."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright.errors import DependencyError, Diverged
from trainwright.launch.job_directory import (
    create_attempt,
    locked_attempt,
    newest_attempt,
    publish,
    remove_job_directory,
    sibling_directories,
)


def test_what_a_failed_attempt_left_is_there_for_the_next_one_and_gone_after_success(tmp_path: Path) -> None:
    home = tmp_path / ".model.job-1"

    def fail() -> None:
        with locked_attempt(home) as folder:
            (folder.parent.parent / "checkpoint").write_text("step 100")
            raise Diverged("the loss is not finite")

    with pytest.raises(Diverged):
        fail()
    with locked_attempt(home) as folder:
        assert folder == home / "attempts" / "0002"
        assert list(folder.iterdir()) == []
        assert (home / "checkpoint").read_text() == "step 100"
    assert list(tmp_path.iterdir()) == []


def test_two_launchers_are_never_at_the_same_job(tmp_path: Path) -> None:
    home = tmp_path / ".model.job-1"
    with (
        locked_attempt(home),
        pytest.raises(DependencyError, match="another process is at this very job"),
        locked_attempt(home),
    ):
        pass
    with locked_attempt(home) as folder:
        assert folder.name == "0001"


KILLED = """
import os, signal, sys
from pathlib import Path
from trainwright.launch.job_directory import locked_attempt
with locked_attempt(Path(sys.argv[1])) as folder:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_launcher_leaves_its_home_unlocked(tmp_path: Path) -> None:
    home = tmp_path / ".model.job-1"
    done = subprocess.run([sys.executable, "-c", KILLED, str(home)], check=False)
    assert done.returncode == -signal.SIGKILL
    with locked_attempt(home) as folder:
        assert folder.name == "0002"


def test_of_many_at_once_no_two_get_the_same_attempt(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_attempt(tmp_path), range(40)))
    assert sorted(path.name for path in folders) == [f"{number:04}" for number in range(1, 41)]


def test_attempts_are_counted_as_numbers(tmp_path: Path) -> None:
    for name in ("0009", "9999", "10000", ".hidden", "notes"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    newest = newest_attempt(tmp_path)
    assert newest is not None
    assert newest.name == "10000"
    assert create_attempt(tmp_path).name == "10001"
    assert newest_attempt(tmp_path / "nowhere") is None


def test_success_removes_the_homes_of_other_jobs_for_the_output_but_for_that_of_a_living_launcher(
    tmp_path: Path,
) -> None:
    homes = {name: tmp_path / f".model.job-{name}" for name in ("dead", "living", "mine")}
    other_output = tmp_path / ".predictions.job-dead"
    for path in (homes["dead"], other_output):
        path.mkdir()
    with locked_attempt(homes["living"]):
        with locked_attempt(homes["mine"]):
            assert sibling_directories(homes["mine"]) == [homes["dead"], homes["living"]]
        assert sorted(tmp_path.iterdir()) == sorted([homes["living"], other_output])


def test_what_is_pinned_outlives_its_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for step in (1, 2):
        folder = home / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    (home / "checkpoints" / "step-2" / "pinned-by-ada.json").touch()
    (home / "attempts" / "0001").mkdir(parents=True)
    (home / "history.jsonl").touch()
    remove_job_directory(home)
    left = [str(path.relative_to(home)) for path in sorted(home.rglob("*"))]
    kept = "checkpoints/step-2"
    assert left == ["checkpoints", kept, f"{kept}/manifest.json", f"{kept}/pinned-by-ada.json"]
    shutil.rmtree(home)
    remove_job_directory(home)


def test_a_copy_that_others_may_be_reading_is_never_replaced(tmp_path: Path) -> None:
    source, target = tmp_path / "set", tmp_path / "volume" / "digest"
    source.mkdir()
    (source / "rows").write_text("1")
    publish(source, target, keep=True)
    with (target / "rows").open() as reader:
        publish(source, target, keep=True)
        assert os.path.samestat(os.fstat(reader.fileno()), (target / "rows").stat())
    assert [path.name for path in target.parent.iterdir()] == ["digest"]
    assert (source / "rows").exists()
