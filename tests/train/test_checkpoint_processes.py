"""Checkpoints of several processes: another number of them, two attempts at once, a full disk, a store."""

import json
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.storage.stores import Bucket
from tests.train import clean
from tests.train.checkpointed import Options, begin, error, live, notes
from trainwright.train.checkpoint import Checkpointer, Manifest, committed
from trainwright.train.checkpoint.store import RemoteCopies
from trainwright.train.checkpoint.tensor_files import damage


def asked(folder: Path, steps: int = 40, **changes: Any) -> Options:
    return Options(str(folder / "home-ab12"), str(folder / "notes"), steps, **changes)


def checkpoints(options: Options) -> Path:
    return Path(options.home) / "checkpoints"


def steps_in(folder: Path) -> list[int]:
    return [name.step for name in committed(folder)]


def resumed(options: Options) -> list[int]:
    return [note.step for note in notes(Path(options.notes)) if note.what == "resumed"]


def losses(options: Options) -> dict[int, float]:
    return {note.step: note.loss for note in notes(Path(options.notes)) if note.what == "reached"}


def await_that(true: Callable[[], object], within_s: float = 300) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.covers("F18")
def test_resume_with_another_world_size_gives_the_same_losses(tmp_path: Path) -> None:
    whole = asked(tmp_path / "whole", dropout=0.0)
    changed = asked(tmp_path / "changed", dropout=0.0, settled=True)
    assert live(whole, 4) == [0] * 4
    live(replace(changed, kills=[[29, 3]]), 4, grace_s=0.2)
    expected = losses(whole)
    for others in (2, 1):
        copy = copied(changed, tmp_path / f"changed-{others}")
        assert live(copy, others) == [0] * others
        assert resumed(copy) == [0, 20]
        found = losses(copy)
        assert found.keys() == expected.keys() == {10, 20, 30, 40}
        assert found == pytest.approx(expected, rel=1e-6)
        assert found[20] == expected[20], "before, not even the rounding differed"


def copied(options: Options, folder: Path) -> Options:
    """Copy the job directory and the notes of a training that has ended."""
    copy = asked(folder)
    shutil.copytree(options.home, copy.home)
    shutil.copytree(options.notes, copy.notes)
    return replace(options, home=copy.home, notes=copy.notes)


def test_resume_between_sharded_and_unsharded_gives_the_same_losses(tmp_path: Path) -> None:
    sharded: dict[str, Any] = {"dropout": 0.0, "parallel": {"shard": 2}}
    whole = asked(tmp_path / "whole", **sharded)
    assert live(whole) == [0, 0]
    changed = asked(tmp_path / "changed", dropout=0.0, settled=True)
    live(replace(changed, parallel={"shard": 2}, kills=[[19, 0]]), grace_s=0.2)
    for processes in (1, 2):
        copy = copied(changed, tmp_path / f"changed-{processes}")
        live(replace(copy, kills=[[19, 0], [9, 0]]), processes, grace_s=0.2)
        assert live(replace(copy, parallel={"shard": 2})) == [0, 0]
        assert resumed(copy) == [0, 10, 10]
        assert losses(copy) == pytest.approx(losses(whole), rel=1e-6)


@pytest.mark.covers("F20")
def test_older_of_two_running_attempts_ends_without_mixing_checkpoints(tmp_path: Path) -> None:
    # The newer may take seconds to begin on a busy machine; the older must be far from step 200 then.
    older = asked(tmp_path, 2000, pause_s=0.1, settings={"keep": 50})
    newer = replace(older, steps=200, pause_s=0, attempt="0002", notes=str(tmp_path / "newer"))
    first = begin(older)
    await_that(lambda: committed(checkpoints(older)))
    second = begin(newer)
    assert clean.all_ended(first) == [41, 41]
    assert clean.all_ended(second) == [0, 0]
    assert "was replaced by a newer one" in error(Path(older.notes))["what"]
    begun = next(note.time for note in notes(Path(newer.notes)) if note.what == "resumed")
    late = [note.step for note in notes(Path(older.notes)) if note.time > begun + 0.1]
    assert len(late) <= 2, "within an interval"
    for name in committed(checkpoints(older)):
        folder = checkpoints(older) / str(name)
        manifest = Manifest.read(folder)
        assert manifest.attempt == f"{name.start:04}"
        assert damage(folder, manifest.files) == ""
    assert committed(checkpoints(older))[0].start == 2
    assert resumed(newer)[0] >= 10


def test_older_attempt_that_starts_late_ends_at_once(tmp_path: Path) -> None:
    newer = asked(tmp_path, 20, attempt="0003")
    assert live(newer) == [0, 0]
    before = sorted(checkpoints(newer).rglob("*"))
    assert live(replace(newer, attempt="0002", steps=60)) == [41, 41]
    assert "attempt 0002 of this training was replaced by attempt 0003" in error(Path(newer.notes), 1)["what"]
    assert sorted(checkpoints(newer).rglob("*")) == before


def _full_from(step: int, until: int, _rank: int) -> None:
    """Let no file grow beyond 6,000 bytes while certain steps are saved, as on a disk that is full."""
    begin_save = Checkpointer._begin

    def limited(self: Checkpointer, state: Any, loss: float) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        full = step <= state.step < until
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000 if full else hard, hard))
        begin_save(self, state, loss)

    Checkpointer._begin = limited  # type: ignore[method-assign]


@pytest.mark.covers("F16")
def test_temporarily_full_disk_costs_one_checkpoint(tmp_path: Path) -> None:
    options = asked(tmp_path, hidden=512)
    assert live(options, prepare=partial(_full_from, 20, 21)) == [0, 0]
    assert steps_in(checkpoints(options)) == [40, 30, 10]
    assert not list(checkpoints(options).glob("step-00000020.*"))


@pytest.mark.covers("F16")
def test_permanently_full_disk_ends_with_21_and_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    options = asked(tmp_path, 80, hidden=512)
    assert live(options, prepare=partial(_full_from, 20, 90)) == [21, 21]
    said = error(Path(options.notes), 1)
    assert "could not be saved 2 times in a row" in said["what"]
    assert "File too large" in said["what"]
    assert "MiB are free there" in said["what"], "torch alone may say nothing of a full disk"
    assert max(losses(options)) == 30, "one more interval was trained"
    assert live(options) == [0, 0]
    assert resumed(options) == [0, 10]


def stored(options: Options, store: str) -> Options:
    return replace(options, settings={**options.settings, "store": store, "wait_s": 120})


def test_fresh_machine_resumes_from_the_store(tmp_path: Path) -> None:
    options = stored(asked(tmp_path, 20, pause_s=0.01), str(tmp_path / "store"))
    assert live(options) == [0, 0]
    place = tmp_path / "store" / "ab12"
    assert steps_in(place)[0] == 20
    shutil.rmtree(options.home)
    assert live(replace(options, steps=40)) == [0, 0]
    assert resumed(options) == [0, 20]
    assert committed(place)[0].start == 2, "numbers go on, too"
    names = [str(name) for name in committed(place)]
    assert len(names) <= 3
    assert {path.name for path in place.iterdir()} == {*names, "starts"}


def test_damaged_checkpoint_is_fetched_from_the_store(tmp_path: Path) -> None:
    options = stored(asked(tmp_path, 20), str(tmp_path / "store"))
    assert live(options) == [0, 0]
    name = str(committed(checkpoints(options))[0])
    (checkpoints(options) / name / "rank-1.bin").write_bytes(b"broken")
    assert live(replace(options, steps=30)) == [0, 0]
    assert resumed(options) == [0, 20]
    assert (checkpoints(options) / f"{name}.damaged-0002").is_dir()


def test_unreadable_copy_ends_neither_copying_nor_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = stored(asked(tmp_path, 40, pause_s=0.01), str(tmp_path / "store"))
    broken = tmp_path / "store" / "ab12" / "step-00000001.0001"
    broken.mkdir(parents=True)
    (broken / Manifest.FILE).write_text("{")
    assert live(options) == [0, 0]
    assert steps_in(tmp_path / "store" / "ab12")[0] == 40
    said = capfd.readouterr().err
    assert "old copies in the store could not be removed" in said
    assert "was not copied" not in said
    shutil.rmtree(options.home)
    for name in committed(tmp_path / "store" / "ab12")[:-1]:
        shutil.rmtree(tmp_path / "store" / "ab12" / str(name))
    assert live(options) == [0, 0], "the copy is passed over"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket behind an address where nothing listens."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return "s3://bucket/checkpoints"


def _impatient(_rank: int) -> None:
    """Try a call to the store again for half a second only."""
    RemoteCopies.__init__.__defaults__ = (0.5,)  # type: ignore[misc]


def test_unreachable_store_does_not_stop_the_training(
    tmp_path: Path, unreachable: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = asked(tmp_path, 20)
    assert live(options) == [0, 0]
    settings = {"store": unreachable, "wait_s": 6}
    assert live(replace(options, steps=40, settings=settings), prepare=_impatient) == [0, 0]
    assert steps_in(checkpoints(options))[0] == 40
    said = capfd.readouterr().err
    assert "the store does not answer; training continues without it" in said
    assert "waits for its store" in said
    assert "the last checkpoint was not copied to s3://bucket/checkpoints/ab12 within 6 s" in said


def test_unreachable_store_without_local_checkpoint_ends_with_21(tmp_path: Path, unreachable: str) -> None:
    options = stored(asked(tmp_path, 20), unreachable)
    assert live(options, prepare=_impatient) == [21, 21]
    assert "which may hold a checkpoint to resume from, does not answer" in error(Path(options.notes))["what"]


def test_older_of_two_job_directories_with_one_store_ends(tmp_path: Path) -> None:
    """A machine that was thought lost and comes back has its own disk, but not its own training."""
    lost = stored(asked(tmp_path / "lost", 2000, pause_s=0.1), str(tmp_path / "store"))
    new = stored(asked(tmp_path / "new", 200), str(tmp_path / "store"))
    first = begin(lost)
    await_that(lambda: committed(tmp_path / "store" / "ab12"))
    assert live(new) == [0, 0]
    assert clean.all_ended(first) == [41, 41]
    assert resumed(new)[0] >= 10
    starts = [name.start for name in committed(tmp_path / "store" / "ab12")]
    assert starts == sorted(starts, reverse=True)
    assert starts[0] == 2


def test_bucket_stores_checkpoints(tmp_path: Path, gs: Bucket) -> None:
    options = stored(asked(tmp_path, 20), f"{gs.uri}/checkpoints")
    assert live(options) == [0, 0]
    shutil.rmtree(options.home)
    assert live(replace(options, steps=30)) == [0, 0]
    assert resumed(options) == [0, 20]
    starts = json.loads((checkpoints(options) / "starts" / "0002.json").read_text())
    assert starts == {"attempt": "0001"}
