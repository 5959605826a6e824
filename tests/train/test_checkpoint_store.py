"""Fencing tokens, copies elsewhere and retention, of checkpoints that nobody trained."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trainwright.documents import canonical, digest_file
from trainwright.errors import DependencyError, InputError, PreemptedUnsaved
from trainwright.experiment.training import Checkpointing
from trainwright.storage import Access, AlreadyExists
from trainwright.train.checkpoint import CheckpointName, Manifest, committed
from trainwright.train.checkpoint import store as checkpoint_store
from trainwright.train.checkpoint.manifest import CheckpointFile, uncommitted
from trainwright.train.checkpoint.store import CheckpointStore, RemoteCopies, Retention, StartTokens

KEY = "ab12"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / f"training-{KEY}"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "store" / KEY


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_store, "_RETRY_S", 0.05)


def store(home: Path, attempt: str = "0001", keep: int = 2, **settings: object) -> CheckpointStore:
    return CheckpointStore(home, attempt, Checkpointing.model_validate({"keep": keep, **settings}))


def files(folder: Path, text: str = "weights") -> tuple[CheckpointFile, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rank-0.bin"
    path.write_text(text)
    return (CheckpointFile(path=path.name, size=path.stat().st_size, sha256=digest_file(path)),)


def manifest(step: int, start: int, entries: tuple[CheckpointFile, ...], loss: float = 1.0) -> Manifest:
    return Manifest(
        step=step,
        start=start,
        attempt="0001",
        files=entries,
        processes=1,
        torch="2",
        told={},
        facts={"watched": {"step": step, "loss": loss}},
        loss=loss,
        time="2026-11-24T00:00:00Z",
    )


def saved(folder: Path, step: int, start: int = 1, loss: float = 1.0) -> CheckpointName:
    """Write a committed checkpoint into a folder of checkpoints."""
    name = CheckpointName(start=start, step=step)
    made = manifest(step, start, files(folder / str(name)), loss)
    (folder / str(name) / Manifest.FILE).write_text(canonical(made.to_json()) + "\n")
    return name


def steps(folder: Path) -> list[int]:
    return [name.step for name in committed(folder)]


def await_that(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_fencing_token_is_taken_once_and_the_highest_counts(tmp_path: Path) -> None:
    tokens, others = StartTokens(str(tmp_path), Access()), StartTokens(str(tmp_path), Access())
    assert tokens.newest() == 0
    assert (tokens.take(2, "0001"), others.take(2, "0002"), others.take(10, "0002")) == (True, False, True)
    (tmp_path / "starts" / "notes.json").write_text("{}")
    assert tokens.newest() == others.newest() == 10
    assert (tmp_path / "starts" / "0002.json").read_text() == '{"attempt":"0001"}'


@pytest.mark.parametrize(
    ("place", "newest"),
    [
        ("training-ab12/checkpoints/starts/0006.json", 6),
        ("training-ab12/checkpoints/step-00000070.0006/rank-0.bin", 6),
        ("training-ab12/checkpoints/step-00000070.0006/manifest.json", 6),
        ("store/ab12/starts/0006.json", 6),
        ("store/ab12/step-00000070.0006/manifest.json", 6),
        ("store/other/starts/0006.json", 0),
    ],
)
def test_a_start_takes_a_token_above_all_that_were_used_anywhere(
    tmp_path: Path, home: Path, remote: Path, place: str, newest: int
) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("{}")
    opened = store(home, store=str(remote.parent))
    assert opened.open() == opened.token == newest + 1
    assert (home / "checkpoints" / "starts" / f"{newest + 1:04}.json").exists()
    assert (remote / "starts" / f"{newest + 1:04}.json").exists()
    assert store(home, store=str(remote.parent)).open() == newest + 2


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ('{"attempt": "0003"}', True),
        ('{"attempt": "0002"}', False),
        ('{"attempt": "0001"}', False),
        ('{"attempt": "local"}', False),
        ("{}", False),
        ("[]", False),
        ("{", False),
    ],
)
def test_an_attempt_ends_at_once_where_a_later_one_has_started(home: Path, text: str, replaced: bool) -> None:
    starts = home / "checkpoints" / "starts"
    starts.mkdir(parents=True)
    (starts / "0001.json").write_text(text)
    if replaced:
        with pytest.raises(PreemptedUnsaved, match="attempt 0002 of this training was replaced by"):
            store(home, "0002").open()
        assert len(list(starts.iterdir())) == 1
    else:
        assert store(home, "0002").open() == 2
    assert store(home, "local").open() >= 2, "an attempt without a number is no older one"


def test_a_replaced_start_commits_nothing_more(home: Path) -> None:
    first, second = store(home), store(home)
    first.open()
    name = CheckpointName(start=1, step=2)
    entries = files(first.folder / str(name))
    assert not first.superseded()
    first.commit(manifest(2, 1, entries))
    with pytest.raises(AlreadyExists):
        first.commit(manifest(2, 1, entries))
    second.open()
    assert (first.superseded(), second.superseded()) == (True, False)
    with pytest.raises(PreemptedUnsaved, match="start 1 of this training was replaced"):
        first.commit(manifest(4, 1, files(first.folder / "step-00000004.0001")))
    assert steps(first.folder) == [2]


def test_candidates_are_the_newest_first_and_local_before_its_copy(home: Path, remote: Path) -> None:
    for folder, step, start in (
        (home / "checkpoints", 4, 1), (home / "checkpoints", 2, 2), (remote, 4, 1), (remote, 6, 1),
    ):  # fmt: skip
        saved(folder, step, start)
    (home / "checkpoints" / "step-00000009.0003").mkdir()
    found = store(home, store=str(remote.parent)).candidates()
    assert [(str(name), far) for name, far in found] == [
        ("step-00000002.0002", False),
        ("step-00000006.0001", True),
        ("step-00000004.0001", False),
        ("step-00000004.0001", True),
    ]


def test_a_fetched_copy_replaces_the_damaged_checkpoint_and_keeps_it_aside(home: Path, remote: Path) -> None:
    name = saved(remote, 4)
    opened = store(home, store=str(remote.parent))
    opened.open()
    files(opened.folder / str(name), "broken")
    (opened.folder / f"{name}.fetched").mkdir()
    (opened.folder / f"{name}.fetched" / "half").write_text("of an earlier try")
    assert opened.fetch(name, remote=True).name == name
    folder = opened.folder / str(name)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "rank-0.bin"]
    assert (folder / "rank-0.bin").read_text() == "weights"
    assert (opened.folder / f"{name}.damaged-0002" / "rank-0.bin").read_text() == "broken"
    shutil.copytree(folder, opened.folder / "step-00000005.0001")
    with pytest.raises(InputError, match=r"the manifest is that of step-00000004\.0001"):
        opened.fetch(CheckpointName(start=1, step=5), remote=False)


def test_a_committed_checkpoint_is_copied_and_the_oldest_copies_go(home: Path, remote: Path) -> None:
    opened = store(home, store=str(remote.parent), wait_s=20)
    token = opened.open()
    saved(remote, 1)
    (remote / "step-00000001.0001" / "pinned-by-ada.json").write_text("{}")
    for step in (2, 4, 6):
        name = saved(opened.folder, step, token, loss=1 / step)
        opened.after_commit(name)
        opened.finish()
        assert (remote / str(name) / "rank-0.bin").read_text() == "weights"
    assert steps(remote) == [6, 4, 1]
    assert not (remote / f"step-00000002.{token:04}").exists()
    assert steps(opened.folder) == [6, 4]


def test_copying_goes_on_from_what_an_interrupted_try_left(
    home: Path, remote: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = store(home, store=str(remote.parent), wait_s=20)
    name = saved(opened.folder, 2, opened.open())
    files(remote / str(name))
    opened.after_commit(name)
    opened.finish()
    assert (steps(remote), caplog.messages) == ([2], [])
    other = saved(opened.folder, 4, opened.token)
    files(remote / str(other), "bytes of another size")
    copies = RemoteCopies(str(remote), 2)
    copies.claim(3, "0001")
    copies.offer(other, opened.folder)
    await_that(lambda: caplog.messages)
    assert copies.in_use == [other]
    copies.finish(0.01)
    assert "waits for its store: a file lies there already" in caplog.text
    assert "was not copied to" in caplog.text
    assert steps(remote) == [2]


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket behind an address where nothing listens, tried for a moment only."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(RemoteCopies.__init__, "__defaults__", (0.1,))
    return "s3://bucket/checkpoints"


def test_a_store_that_does_not_answer_stops_only_a_training_without_a_checkpoint(
    home: Path, unreachable: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened = store(home, store=unreachable)
    with pytest.raises(DependencyError, match="which may hold a checkpoint to resume from, does not answer"):
        opened.open()
    name = saved(home / "checkpoints", 4, 3)
    assert opened.open() == 4
    assert opened.candidates() == [(name, False)]
    assert "the store does not answer; training continues without it" in caplog.text
    assert "the checkpoints of the store cannot be listed" in caplog.text


def test_a_store_that_was_away_at_the_start_is_claimed_before_the_first_copy(
    home: Path, remote: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote.parent.write_text("in the way")
    opened = store(home, store=str(remote.parent), wait_s=20)
    assert opened.open() == 1
    assert "the store does not answer; training continues without it" in caplog.text
    remote.parent.unlink()
    opened.after_commit(saved(opened.folder, 2))
    opened.finish()
    assert steps(remote) == [2]
    assert (remote / "starts" / "0001.json").read_text() == '{"attempt":"0001"}'


@pytest.mark.parametrize("left", ["manifest.json", "notes.txt"])
def test_an_old_copy_that_cannot_be_removed_stops_no_copying(
    home: Path, remote: Path, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened = store(home, keep=2, store=str(remote.parent), wait_s=20)
    old = saved(remote, 1)
    (remote / str(old) / left).write_text("{")
    opened.open()
    for step in (2, 4):
        opened.after_commit(saved(opened.folder, step, opened.token))
        opened.finish()
    assert steps(remote)[:2] == [4, 2]
    assert "old copies in the store could not be removed" in caplog.text


def test_a_checkpoint_that_cannot_be_read_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (2, 4, 6):
        saved(tmp_path, step)
    (tmp_path / "step-00000006.0001" / "rank-0.bin").unlink()
    (tmp_path / "step-00000006.0001" / "rank-0.bin").mkdir()
    Retention(tmp_path, 1, keep_best=False).apply(1, in_use=[])
    assert steps(tmp_path) == [6, 4]
    assert "checkpoint step-00000006.0001 does not count" in caplog.text


@pytest.mark.parametrize("when", ["before the first copy", "later"])
def test_a_replaced_start_copies_nothing_more(home: Path, remote: Path, when: str) -> None:
    folder = home / "checkpoints"
    lost, new = RemoteCopies(str(remote), 2), StartTokens(str(remote), Access())
    if when == "later":
        assert lost.claim(1, "0001")
        assert new.take(2, "0002")
    else:
        assert new.take(1, "0002")
        assert not lost.claim(1, "0001")
    lost.offer(saved(folder, 2), folder)
    await_that(lambda: lost.superseded)
    lost.offer(saved(folder, 4), folder)
    lost.finish(20)
    assert (steps(remote), lost.in_use) == ([], [])


@pytest.mark.parametrize("missing", [0, 1])
def test_a_checkpoint_may_take_the_free_space_and_that_of_earlier_ones(
    home: Path, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(home).require_space(1)
    name = saved(home / "checkpoints", 2)
    used = sum(path.stat().st_size for path in (home / "checkpoints" / str(name)).iterdir())
    usage = shutil.disk_usage(home)._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    opened = store(home)
    opened.require_space((5 << 20) + used)
    with pytest.raises(DependencyError, match=r"takes about 5\.0 MiB, and there are 5\.0 MiB free"):
        opened.require_space((5 << 20) + used + 1)


def test_retention_keeps_what_is_in_use_best_or_newest(tmp_path: Path) -> None:
    losses = {2: 0.5, 4: 0.1, 6: 0.1, 8: 0.9, 10: 0.3, 12: 0.4}
    names = {step: saved(tmp_path, step, 2, loss) for step, loss in losses.items()}
    for start in (1, 2):
        (tmp_path / str(CheckpointName(start=start, step=99))).mkdir()
    Retention(tmp_path, 2, keep_best=True).apply(2, in_use=[names[8]])
    assert steps(tmp_path) == [12, 10, 8, 4]
    assert [str(name) for name in uncommitted(tmp_path)] == ["step-00000099.0002"]
    Retention(tmp_path, 2, keep_best=False).apply(2, in_use=[])
    assert steps(tmp_path) == [12, 10]


def test_the_best_checkpoint_is_that_of_its_own_step(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        saved(tmp_path, step, loss=step / 10)
    place = tmp_path / "step-00000002.0001" / Manifest.FILE
    earlier = Manifest.read(place)
    place.write_text(canonical(replace(earlier, facts={"watched": {"step": 1, "loss": 0.0}}).to_json()))
    Retention(tmp_path, 1, keep_best=True).apply(1, in_use=[])
    assert steps(tmp_path) == [6, 4]
