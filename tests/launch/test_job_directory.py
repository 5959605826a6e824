"""Job directories: one process at a time, one number per attempt, and folders that appear whole."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.errors import DependencyError, Diverged, InternalError
from trainwright.launch.job_directory import (
    Completion,
    attempts,
    copy_attempt,
    create_attempt,
    job_directory_of,
    locked_attempt,
    newest_attempt,
    publish,
    read_inputs,
    remove_checkpoints,
    remove_job_directory,
    sibling_directories,
)


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def fail(home: Path) -> Path:
    """Begin an attempt that fails."""
    with pytest.raises(Diverged), locked_attempt(home) as attempt:
        raise Diverged("the loss ran away")
    return attempt


def test_attempts_are_numbered_on_until_one_succeeds_and_then_all_is_removed(tmp_path: Path) -> None:
    home, other, before = tmp_path / "jobs" / "model-a", tmp_path / "jobs" / "model-b", open_files()
    assert [fail(home).name for _ in range(2)] == ["0001", "0002"]
    fail(other)
    (tmp_path / "jobs" / "model-c").write_text("no folder")
    (tmp_path / "jobs" / "models-a").mkdir()
    assert sibling_directories(home) == [other]
    with locked_attempt(home) as attempt:
        assert attempt == home / "attempts" / "0003"
        (attempt / "made").write_text("x")
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["model-c", "models-a"]
    assert open_files() == before


def test_a_job_has_one_process_at_a_time_and_its_siblings_are_left_while_they_run(tmp_path: Path) -> None:
    home, other = tmp_path / "model-a", tmp_path / "model-b"
    before = open_files()
    with locked_attempt(other) as theirs, locked_attempt(home):
        for busy in (home, other):
            with pytest.raises(DependencyError, match="another process is at this very job") as caught:
                fail(busy)
            assert caught.value.where == str(busy)
        assert [path.name for path in attempts(home)] == ["0001"]
        (theirs / "made").write_text("x")
    assert open_files() == before
    with locked_attempt(other), locked_attempt(home):
        pass


def test_a_sibling_that_runs_is_not_removed(tmp_path: Path) -> None:
    with locked_attempt(tmp_path / "model-b") as theirs:
        with locked_attempt(tmp_path / "model-a"):
            pass
        assert theirs.is_dir()
    assert list(tmp_path.iterdir()) == []


SUCCEEDING = """
import sys
from pathlib import Path
from trainwright.launch.job_directory import locked_attempt
from trainwright.errors import DependencyError
for _ in range(150):
    try:
        with locked_attempt(Path(sys.argv[1])) as attempt:
            (attempt / "made").write_text("x")
            assert attempt.name == "0001", attempt
    except DependencyError:
        pass
"""


def test_a_directory_that_is_removed_while_another_process_waits_is_made_anew(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUCCEEDING, str(tmp_path / "model-a")]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_directory_made_anew_by_another_process_is_a_job_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between mkdir's two looks the directory was away."""
    (tmp_path / "model-a").mkdir()
    looks = iter([False])
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: next(looks, None) is None and is_dir(path))
    with locked_attempt(tmp_path / "model-a") as folder:
        assert folder.exists()
    assert next(looks, None) is None


def test_a_file_in_the_place_of_a_job_directory_is_no_job_directory(tmp_path: Path) -> None:
    (tmp_path / "model-a").write_text("x")
    with pytest.raises(FileExistsError), locked_attempt(tmp_path / "model-a"):
        pass


def test_the_newest_attempt_is_the_one_of_the_highest_number(tmp_path: Path) -> None:
    assert (attempts(tmp_path), newest_attempt(tmp_path)) == ([], None)
    for name in ("0002", "10000", "9999", "notes"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    assert [path.name for path in attempts(tmp_path)] == ["0002", "9999", "10000"]
    assert newest_attempt(tmp_path) == tmp_path / "attempts" / "10000"
    assert create_attempt(tmp_path).name == "10001"
    assert job_directory_of(tmp_path / "attempts" / "0002") == tmp_path
    assert job_directory_of(tmp_path / "elsewhere" / "0002") is None


def test_a_copied_attempt_names_itself_and_nothing_else_of_its_inputs_changes(tmp_path: Path) -> None:
    first = create_attempt(tmp_path)
    texts = {
        "config.json": '{"attempt": "0001", "name": "Zürich", "step": 1}',
        "other.json": '{"attempt": "0007"}',
        "list.json": '["0001"]',
        "notes.txt": "attempt 0001",
    }
    for name, text in texts.items():
        (first / name).write_text(text)
    (first / "made").mkdir()
    assert read_inputs(first) == texts
    again = copy_attempt(first, read_inputs(first))
    assert again.name == "0002"
    found = read_inputs(again)
    assert json.loads(found.pop("config.json")) == {"attempt": "0002", "name": "Zürich", "step": 1}
    assert "Zürich" in (again / "config.json").read_text()
    assert found == {name: text for name, text in texts.items() if name != "config.json"}
    with pytest.raises(InternalError, match="lies in no home"):
        copy_attempt(tmp_path / "elsewhere", {})


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A job directory with a completed attempt between others, checkpoints, and one of them pinned."""
    home = tmp_path / "model-a"
    for number in range(3):
        attempt = create_attempt(home)
        (attempt / "made").write_text(str(number))
        if number < 2:
            Completion(attempt=attempt.name, outputs={}).write(attempt)
    for step in (1, 2):
        (home / "checkpoints" / f"step-{step}" / "deep").mkdir(parents=True)
        (home / "checkpoints" / f"step-{step}" / "rank-0.bin").write_text("w")
    (home / "checkpoints" / "notes.txt").write_text("x")
    (home / "checkpoints" / "linked").symlink_to(tmp_path)
    return home


PINNED = "checkpoints/step-2/pinned-by-ada.json"


def test_a_job_directory_is_removed_but_for_what_is_pinned(finished: Path, tmp_path: Path) -> None:
    (finished / PINNED).write_text("{}")
    remove_job_directory(finished)
    assert content(finished) == {PINNED: "{}", "checkpoints/step-2/rank-0.bin": "w"}
    assert [path.name for path in (finished / "checkpoints").iterdir()] == ["step-2"]
    assert sorted(path.name for path in (finished / "checkpoints" / "step-2").iterdir()) == [
        "deep", "pinned-by-ada.json", "rank-0.bin",
    ]  # fmt: skip
    (finished / PINNED).unlink()
    remove_job_directory(finished)
    assert list(tmp_path.iterdir()) == []
    remove_job_directory(finished)


@pytest.mark.parametrize("pinned", [False, True])
def test_what_could_be_resumed_is_removed_and_the_last_completed_attempt_stays(
    finished: Path, pinned: bool
) -> None:
    if pinned:
        (finished / PINNED).write_text("{}")
    remove_checkpoints(finished)
    kept = {PINNED, "checkpoints/step-2/rank-0.bin"} if pinned else set()
    assert content(finished).keys() == kept | {"attempts/0002/made", "attempts/0002/result.json"}


def made(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "rows").write_text(text)
    return folder


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"keep": True}])
def test_a_published_folder_is_moved_or_copied_to_a_place_whose_parents_are_made(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    source, target = made(tmp_path / "made", "new"), tmp_path / "out" / "deep" / "model"
    publish(source, target, **options)
    assert content(tmp_path / "out") == {"deep/model/rows": "new"}
    assert source.exists() == bool(options)


@pytest.mark.parametrize("copy", [False, True])
def test_a_published_folder_replaces_an_earlier_one(tmp_path: Path, copy: bool) -> None:
    target = made(tmp_path / "out" / "model", "old")
    (target / "more").write_text("of the old one")
    publish(made(tmp_path / "made", "new"), target, copy=copy)
    assert content(tmp_path / "out") == {"model/rows": "new"}


def test_a_place_named_after_its_content_keeps_what_is_there(tmp_path: Path) -> None:
    target = made(tmp_path / "out" / "model", "first")
    publish(made(tmp_path / "made", "second"), target, keep=True)
    assert content(tmp_path / "out") == {"model/rows": "first"}
    (target / "rows").unlink()
    publish(tmp_path / "made", target, keep=True)
    assert content(tmp_path / "out") == {"model/rows": "second"}


def test_a_folder_on_another_disk_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, source = Path.rename, made(tmp_path / "made", "new")

    def across(self: Path, target: Path) -> Path:
        if self == source:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", across)
    publish(source, tmp_path / "out" / "model")
    assert content(tmp_path / "out") == {"model/rows": "new"}


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"keep": True}])
def test_a_folder_that_cannot_be_published_leaves_nothing(tmp_path: Path, options: dict[str, bool]) -> None:
    source = tmp_path / "made"
    with pytest.raises(FileNotFoundError):
        publish(source, tmp_path / "out" / "model", **options)
    made(source, "new")
    (tmp_path / "out" / "model").write_text("a file in the way")
    with pytest.raises(NotADirectoryError):
        publish(source, tmp_path / "out" / "model", **options)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]
