"""A training that is killed: at random, and at every point of a save."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.train.checkpointed import Options, live, notes
from tests.train.kills import EVERY, compare, kill_often
from tests.train.problems import Outcome, request, run
from trainwright.train.checkpoint import committed

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.covers("F1")
def test_state_after_each_of_ten_kills_equals_an_undisturbed_training(tmp_path: Path) -> None:
    report = kill_often(tmp_path, 10, seed=5, forked=True)
    assert report.wrong == []
    assert len(report.lost) == 10
    assert max(report.lost) < 2 * EVERY, "the last interval, and what was taken while it was being saved"


@pytest.mark.covers("F1")
def test_state_after_kills_of_a_whole_job_equals_an_undisturbed_training(tmp_path: Path) -> None:
    report = kill_often(tmp_path, 2, seed=6, whole=2)
    assert report.wrong == []
    assert len(report.lost) == 2
    assert max(report.lost) < 2 * EVERY


@pytest.mark.covers("F1")
def test_training_resumes_from_the_last_commit_before_a_kill(tmp_path: Path) -> None:
    asked = Options(str(tmp_path / "home"), str(tmp_path), 40, kills=[[18, 1], [9, 0]], settled=True)
    assert [bool(any(live(asked, grace_s=0.2))) for _ in range(3)] == [True, True, False]
    resumed = [note.step for note in notes(tmp_path) if note.what == "resumed"]
    assert resumed == [0, 10, 10]


def _forgetting(what: str, _rank: int) -> None:
    """Let a process take up its random numbers, or its samples, as if it had just begun."""
    from trainwright.train import loop
    from trainwright.train.feeding.loader import Loader

    if what == "random numbers":
        loop.seed_step = lambda *_: None
        return
    begin = Loader.begin

    def from_the_beginning(self: Loader, step: int, skip: frozenset[int] | None = None) -> None:
        begin(self, 0, skip)

    Loader.begin = from_the_beginning  # type: ignore[method-assign]


@pytest.mark.covers("F17")
@pytest.mark.parametrize("what", ["random numbers", "samples"])
def test_comparison_detects_a_training_that_does_not_resume(tmp_path: Path, what: str) -> None:
    """Else it would say nothing that all others end as if they had been left alone."""
    forgetting = partial(_forgetting, what)
    alone = Options(str(tmp_path / "alone"), str(tmp_path / "alone-notes"), 30)
    assert live(alone, prepare=forgetting) == [0, 0]
    killed = replace(alone, home=str(tmp_path / "home"), notes=str(tmp_path / "notes"), kills=[[13, 0]])
    killed = replace(killed, settled=True)
    live(killed, prepare=forgetting, grace_s=0.2)
    assert live(killed, prepare=forgetting) == [0, 0]
    wrong = compare(Path(alone.notes), Path(killed.notes), 2).wrong
    assert "rank 0 reached step 20 with another state" in wrong
    assert not [line for line in wrong if "step 10 " in line], "what was saved was right"


class CrashPoint:
    """Kills a process before its n-th operation on files of a home, once it is armed.

    Opening, making, linking, renaming and removing are seen by the interpreter's audit events; each flush to
    the disk, and the second write of a tensor, for all of a file's, by a wrapper around the function.
    """

    EVENTS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link"})

    def __init__(self, home: Path, limit: int) -> None:
        self._home, self._limit = str(home), limit
        self._count, self._armed = 0, False

    def arm(self, *, armed: bool) -> None:
        self._armed = armed

    def install(self) -> None:
        from trainwright.train.checkpoint import tensor_files

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event in self.EVENTS or (event == "open" and str(arguments[0]).startswith(self._home)):
                self.passed()

        sys.addaudithook(audit)
        os.fsync = self._counted(os.fsync)
        tensor_files._bytes = self._counted(tensor_files._bytes, only=2)

    def passed(self) -> None:
        if self._armed:
            self._count += 1
            if self._count == self._limit:
                self._armed = False
                os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, function: Callable[..., Any], only: int | None = None) -> Callable[..., Any]:
        calls = itertools.count(1)

        def wrapper(*arguments: Any, **named: Any) -> Any:
            if self._armed and only in {None, next(calls)}:
                self.passed()
            return function(*arguments, **named)

        return wrapper


@pytest.mark.covers("F11")
@pytest.mark.parametrize("rank", [0, 1])
def test_kill_at_any_point_of_a_save_leaves_a_checkpoint_to_resume(tmp_path: Path, rank: int) -> None:
    alone = Options(str(tmp_path / "alone"), str(tmp_path / "alone-notes"), 30)
    assert live(alone) == [0, 0]
    begun = Options(str(tmp_path / "begun"), str(tmp_path / "begun-notes"), 30, kills=[[19, 0]], settled=True)
    live(begun, grace_s=0.2)
    assert [name.step for name in committed(tmp_path / "begun" / "checkpoints")] == [10]
    resumed, points = [], 0
    for limit in range(1, 200):
        folder = tmp_path / f"{limit:03}"
        shutil.copytree(begun.home, folder / "home")
        asked = replace(begun, home=str(folder / "home"), notes=str(folder / "notes"), kills=[])
        codes = live(asked, prepare=partial(_prepare, rank, folder, limit), grace_s=0.2)
        if codes == [0, 0]:
            break
        assert codes[rank] == -signal.SIGKILL
        points += 1
        assert live(asked) == [0, 0]
        assert compare(Path(alone.notes), folder / "notes", 2).wrong == []
        resumed.append([note.step for note in notes(folder / "notes") if note.what == "resumed"][-1])
    assert points >= (12 if rank == 0 else 4)
    assert set(resumed) == ({10, 20} if rank == 0 else {10})
    assert resumed == sorted(resumed), "once the new state is there, it stays"


def _prepare(rank: int, folder: Path, limit: int, mine: int) -> None:
    """Arm a crash point in one process from the beginning of the save of step 20 to that of the next."""
    if mine != rank:
        return
    from trainwright.train.checkpoint.checkpointer import Checkpointer

    point = CrashPoint(folder / "home", limit)
    point.install()
    begin = Checkpointer._begin

    def begin_armed(self: Checkpointer, state: Any, loss: float) -> None:
        point.arm(armed=state.step == 20)
        begin(self, state, loss)

    Checkpointer._begin = begin_armed  # type: ignore[method-assign]


STEP = """
import json, os, signal, sys, threading, time
from pathlib import Path
from trainwright.train.submit import TrainRequest, submit

asked, folder, kill_at = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])


def kill_when_saved():
    while not list(folder.glob(f".model.job-*/checkpoints/step-{kill_at:08}.*/manifest.json")):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


threading.Thread(target=kill_when_saved, daemon=True).start()
request = TrainRequest(training_set=Path(asked.pop("training_set")), **asked)
submit(request, *(folder / name for name in ("model", "predictions", "summary.md", "report.html")))
"""


def _await_the_end_of_all_in(home: Path) -> None:
    """Wait for the end of a job whose launcher is gone: its processes may write until then."""
    end = time.monotonic() + 300
    while any(str(home) in _command(path) for path in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < end, "they do not end"
        time.sleep(0.2)


def _command(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.covers("F3")
def test_killed_step_resumes_when_run_again(
    training_set: Path, trained: Outcome, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As ``trainwright run --run X`` does after ``kill -9``: the same outputs, so the same home."""
    every = {"checkpoints": {"every_steps": 20}}
    asked = vars(request(training_set, training=every)) | {"training_set": str(training_set)}
    command = [sys.executable, "-c", STEP, json.dumps(asked), str(tmp_path), "40"]
    killed = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    (home,) = tmp_path.glob(".model.job-*")
    newest = committed(home / "checkpoints")[0].step
    assert newest >= 40
    _await_the_end_of_all_in(home)
    again = run(training_set, tmp_path, training=every)
    assert "resumed from step-000000" in capfd.readouterr().err
    weights = "weights.safetensors"
    assert (again.model / weights).read_bytes() == (trained.model / weights).read_bytes()
    assert not home.exists()
