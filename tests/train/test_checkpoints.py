"""Checkpoints of one process: what counts, what is refused, what stays, and when they are made."""

import json
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from trainwright.documents import digest_file
from trainwright.errors import DependencyError, Diverged, InputError, InternalError, PermissionRefused
from trainwright.experiment.training import Checkpointing
from trainwright.train.checkpoint import Checkpointer, CheckpointName, Manifest, committed
from trainwright.train.checkpoint.checkpointer import SaveSchedule
from trainwright.train.checkpoint.state import TrainState
from trainwright.train.checkpoint.store import Retention
from trainwright.train.fit import no_checkpoint_warning
from trainwright.train.process_group import Ranks

TOLD = {"data_version": "d", "training": {"seed": 3}, "order": {"streams": 8}}


def fresh(width: int = 4, seed: int = 0) -> TrainState:
    """A state that took no step yet."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    return TrainState(module, torch.optim.AdamW(module.parameters(), lr=0.01), facts={"sums": []})


def step(state: TrainState) -> float:
    """Take a step that depends on its number alone."""
    torch.manual_seed(state.step)
    x = torch.randn(16, 3)
    loss = (state.module(x).squeeze(1) - x.sum(1)).square().mean()
    state.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    state.optimizer.step()
    state.step += 1
    state.facts["sums"].append(float(loss.detach()))
    return float(loss.detach())


def keeper(home: Path, group: Ranks, told: dict[str, Any] = TOLD, **settings: Any) -> Checkpointer:
    return Checkpointer(Checkpointing(**{"every_steps": 2, **settings}), home, "0001", told, group)


def train(kept: Checkpointer, state: TrainState, steps: int) -> TrainState:
    """Take steps, the last of which is saved."""
    for number in range(steps):
        kept.after_step(state, step(state), last=number == steps - 1)
    return state


def resumed(home: Path, group: Ranks, state: TrainState | None = None, **settings: Any) -> TrainState:
    found = state or fresh(seed=9)
    keeper(home, group, **settings).resume(found)
    return found


def begun(home: Path, group: Ranks, steps: int = 6, width: int = 4, **settings: Any) -> TrainState:
    kept, state = keeper(home, group, **settings), fresh(width)
    kept.resume(state)
    return train(kept, state, steps)


def tensors(state: TrainState) -> list[torch.Tensor]:
    moments = [value for fields in state.optimizer.state.values() for value in fields.values()]
    return [*state.module.state_dict().values(), *moments]


def steps_in(home: Path) -> list[int]:
    return [name.step for name in committed(home / "checkpoints")]


def folder_of(home: Path, step: int) -> Path:
    return next((home / "checkpoints").glob(f"step-{step:08}.*"))


def resealed(folder: Path) -> None:
    """Write a manifest whose digests hold again, as somebody who may write there can."""
    manifest = Manifest.read(folder)
    files = tuple(
        replace(entry, size=path.stat().st_size, sha256=digest_file(path))
        for entry in manifest.files
        for path in [folder / entry.path]
    )
    replace(manifest, files=files).write(folder)


def test_resumed_state_continues_bit_for_bit(tmp_path: Path, alone: Ranks) -> None:
    whole = begun(tmp_path / "whole", alone, 8)
    begun(tmp_path / "home", alone, 5)
    again = resumed(tmp_path / "home", alone)
    assert again.step == 5
    assert again.facts["sums"] == whole.facts["sums"][:5]
    while again.step < 8:
        step(again)
    assert len(tensors(again)) == len(tensors(whole)) == 9 + 18
    for mine, expected in zip(tensors(again), tensors(whole), strict=True):
        assert torch.equal(mine, expected)


def test_committed_is_the_step_of_the_newest_checkpoint(tmp_path: Path, alone: Ranks) -> None:
    kept, state, seen = keeper(tmp_path, alone), fresh(), []
    kept.resume(state)
    for number in range(6):
        kept.after_step(state, step(state), last=number == 5)
        seen.append(kept.committed)
    assert seen[0] == 0
    assert seen[3] >= 2, "the save of step 2 was waited for"
    assert (seen[5], steps_in(tmp_path)[0]) == (6, 6)
    again = keeper(tmp_path, alone)
    again.resume(fresh())
    assert again.committed == 6


def test_resume_without_checkpoint_leaves_the_state_unchanged(tmp_path: Path, alone: Ranks) -> None:
    state, same = fresh(), fresh()
    keeper(tmp_path / "home", alone).resume(state)
    assert state.step == 0
    assert all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(same), strict=True))


def test_manifest_lists_every_file_with_its_digest(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone)
    folder = folder_of(tmp_path, 6)
    manifest = Manifest.read(folder)
    assert {entry.path for entry in manifest.files} == {path.name for path in folder.iterdir()} - {
        Manifest.FILE
    }
    assert all(digest_file(folder / entry.path) == entry.sha256 for entry in manifest.files)
    assert (manifest.step, manifest.processes, manifest.told) == (6, 1, TOLD)
    assert manifest.torch == torch.__version__
    assert str(manifest.name) == folder.name == "step-00000006.0001"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES: list[tuple[str, Callable[[Path], None], str]] = [
    ("rank-0.bin", flip, "its SHA-256 differs"),
    ("rank-0.bin", cut, "bytes, not"),
    ("rank-0.bin", Path.unlink, "is missing"),
    ("index.json", flip, "its SHA-256 differs"),
    ("manifest.json", cut, "not JSON"),
]


@pytest.mark.covers("F13", "F14")
@pytest.mark.parametrize(("file", "damage", "said"), DAMAGES)
def test_damaged_checkpoint_is_skipped_and_the_previous_one_resumed(
    file: str,
    damage: Callable[[Path], None],
    said: str,
    tmp_path: Path,
    alone: Ranks,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun(tmp_path, alone)
    damage(folder_of(tmp_path, 6) / file)
    assert resumed(tmp_path, alone).step == 4
    (warning,) = [text for text in caplog.messages if "is skipped" in text]
    assert "step-00000006.0001" in warning
    assert said in warning


def test_without_verified_checkpoint_training_starts_over_with_a_warning(
    tmp_path: Path, alone: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path, alone)
    for name in committed(tmp_path / "checkpoints"):
        flip(tmp_path / "checkpoints" / str(name) / "rank-0.bin")
    assert resumed(tmp_path, alone).step == 0
    assert "none of 3 checkpoints verifies: training starts from step 0" in caplog.messages


def test_copy_that_cannot_be_fetched_now_raises_dependency_error(tmp_path: Path, alone: Ranks) -> None:
    store = {"store": str(tmp_path / "store"), "wait_s": 120}
    begun(tmp_path / "lost-1", alone, width=64, **store)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(DependencyError, match="there is no room to write"):
            resumed(tmp_path / "new-1", alone, fresh(64), **store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert resumed(tmp_path / "new-1", alone, fresh(64), **store).step == 6


@pytest.mark.covers("F15")
def test_checkpoint_without_manifest_is_ignored(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone)
    (folder_of(tmp_path, 6) / Manifest.FILE).unlink()
    assert resumed(tmp_path, alone).step == 4


@pytest.mark.covers("B55")
def test_checkpoint_of_another_architecture_is_rejected_with_differing_tensors(
    tmp_path: Path, alone: Ranks
) -> None:
    begun(tmp_path, alone)
    with pytest.raises(InputError) as caught:
        resumed(tmp_path, alone, fresh(width=5))
    assert "another architecture: 7 different: 0.bias (float32 [4] saved, float32 [5] expected)" in (
        caught.value.what
    )
    assert caught.value.what.endswith(", ...")
    renamed = nn.ModuleDict({"only": nn.Linear(3, 4)})
    other = TrainState(renamed, torch.optim.AdamW(renamed.parameters()))
    with pytest.raises(
        InputError, match=r"2 missing: only.bias, only.weight; 9 unexpected: 0.bias, 0.weight"
    ):
        resumed(tmp_path, alone, other)


def test_checkpoint_of_another_training_is_rejected_with_differing_settings(
    tmp_path: Path, alone: Ranks
) -> None:
    begun(tmp_path, alone)
    told = {**TOLD, "training": {"seed": 4}, "order": {"streams": 24}}
    expected = r"order.streams was 8 and is 24; training.seed was 3 and is 4"
    with pytest.raises(InputError, match=expected):
        resumed(tmp_path, alone, told=told)


@pytest.mark.covers("A1")
def test_checkpoint_files_hold_raw_bytes_and_json_and_no_pickle(tmp_path: Path, alone: Ranks) -> None:
    """Read without this library and without torch's: the index as JSON, the tensors as bytes."""
    state = begun(tmp_path, alone)
    folder = folder_of(tmp_path, 6)
    index = json.loads((folder / "index.json").read_text())["tensors"]
    content = (folder / "rank-0.bin").read_bytes()
    total = 0
    for name, value in state.module.state_dict().items():
        saved = index[f"state.model/{name}"]
        (chunk,) = saved["chunks"]
        raw = numpy.frombuffer(content, saved["dtype"], value.numel(), chunk["start"])
        assert chunk["offsets"] == [0] * value.ndim
        assert numpy.array_equal(raw.reshape(saved["shape"]), value.numpy())
    for saved in index.values():
        total += int(numpy.prod(saved["shape"])) * numpy.dtype(saved["dtype"]).itemsize
    assert total == len(content), "and nothing else"


@pytest.mark.covers("B56")
def test_checkpoint_with_a_pickled_index_of_early_releases_is_rejected_unread(
    tmp_path: Path, alone: Ranks
) -> None:
    begun(tmp_path, alone)
    folder = folder_of(tmp_path, 6)
    (folder / "index.json").rename(folder / ".metadata")
    manifest = Manifest.read(folder)
    files = tuple(
        replace(entry, path=".metadata") if entry.path == "index.json" else entry for entry in manifest.files
    )
    replace(manifest, files=files).write(folder)
    with pytest.raises(PermissionRefused, match=r"index\.json is not in the manifest"):
        resumed(tmp_path, alone)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"file": "../../secret"}, PermissionRefused, "which is not in the manifest"),
        ({"start": 10_000}, InputError, "of rank-0.bin, which has"),
        ({"start": -1}, InputError, "in bytes -1 to"),
        ({"shape": [-1]}, InputError, "state.model/0.bias in bytes"),
        ({"dtype": "load"}, InputError, "of the type 'load'"),
        ({"more": 1}, InputError, "more: unknown field"),
    ],
)
def test_index_with_an_invalid_entry_is_rejected(
    change: dict[str, Any], error: type[Exception], said: str, tmp_path: Path, alone: Ranks
) -> None:
    begun(tmp_path, alone)
    folder = folder_of(tmp_path, 6)
    body = json.loads((folder / "index.json").read_text())
    entry = body["tensors"]["state.model/0.bias"]
    (entry if "dtype" in change else entry["chunks"][0]).update(change)
    (folder / "index.json").write_text(json.dumps(body))
    resealed(folder)
    with pytest.raises(error, match=said):
        resumed(tmp_path, alone)


@pytest.mark.parametrize("path", ["../../secret", "/etc/passwd", "", "."])
def test_manifest_with_a_path_outside_its_folder_is_rejected(path: str, tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone)
    place = folder_of(tmp_path, 6) / Manifest.FILE
    body = json.loads(place.read_text())
    body["files"][0]["path"] = path
    place.write_text(json.dumps(body))
    with pytest.raises(PermissionRefused, match="outside its folder"):
        resumed(tmp_path, alone)


def test_checkpoint_behind_a_symbolic_link_is_rejected(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path / "other", alone)
    there = folder_of(tmp_path / "other", 6)
    (tmp_path / "home" / "checkpoints").mkdir(parents=True)
    (tmp_path / "home" / "checkpoints" / there.name).symlink_to(there)
    with pytest.raises(PermissionRefused, match="not read through a symbolic link"):
        resumed(tmp_path / "home", alone)


@pytest.mark.covers("F6")
def test_non_finite_weights_are_never_committed(tmp_path: Path, alone: Ranks) -> None:
    kept, state = keeper(tmp_path, alone), fresh()
    kept.resume(state)
    train(kept, state, 2)
    loss = step(state)
    with torch.no_grad():
        state.module.get_parameter("0.weight")[1, 2] = torch.nan
    with pytest.raises(Diverged, match=r"1 tensors are not finite, such as model/0\.weight"):
        kept.after_step(state, loss, last=True)
    assert steps_in(tmp_path) == [2]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "starts",
        "step-00000002.0001",
    ]


def test_facts_that_are_no_json_raise_internal_error(tmp_path: Path, alone: Ranks) -> None:
    kept, state = keeper(tmp_path, alone), fresh()
    kept.resume(state)
    state.facts["guard"] = float("nan")
    with pytest.raises(InternalError, match="not plain JSON data"):
        train(kept, state, 2)


@pytest.mark.covers("F12")
def test_checkpoints_after_a_rollback_are_newer_than_all_before(tmp_path: Path, alone: Ranks) -> None:
    kept, state = keeper(tmp_path, alone), fresh()
    kept.resume(state)
    with pytest.raises(Diverged, match="nothing was saved"):
        kept.roll_back(state)
    train(kept, state, 7)
    flip(folder_of(tmp_path, 7) / "rank-0.bin")
    kept.roll_back(state)
    assert (state.step, len(state.facts["sums"])) == (6, 6)
    flip(folder_of(tmp_path, 6) / "rank-0.bin")
    kept.roll_back(state)
    train(kept, state, 2)
    assert state.step == 6
    names = committed(tmp_path / "checkpoints")
    assert (names[0].step, names[0].start) == (6, 4)
    assert resumed(tmp_path, alone).step == 6


@pytest.mark.parametrize("keep", [2, 4])
def test_retention_keeps_the_newest(keep: int, tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone, 13, keep=keep)
    assert steps_in(tmp_path) == [13, 12, 10, 8][:keep]


@pytest.mark.covers("F19")
def test_retention_does_not_count_damaged_checkpoints(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone, 12, keep=4)
    for damaged in (12, 8):
        flip(folder_of(tmp_path, damaged) / "rank-0.bin")
    Retention(tmp_path / "checkpoints", 2, keep_best=True).apply(9, in_use=[])
    assert steps_in(tmp_path) == [12, 10, 8, 6], "two verify: 10 and 6; nothing is older"
    flip(folder_of(tmp_path, 10) / "rank-0.bin")
    Retention(tmp_path / "checkpoints", 2, keep_best=True).apply(9, in_use=[])
    assert steps_in(tmp_path) == [12, 10, 8, 6], "only one verifies: nothing is removed"


def test_damaged_checkpoint_is_verified_and_logged_once(
    tmp_path: Path, alone: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path, alone, 8, keep=4)
    retention = Retention(tmp_path / "checkpoints", 2, keep_best=True)
    flip(folder_of(tmp_path, 8) / "rank-0.bin")
    for _ in range(3):
        retention.apply(9, in_use=[])
    assert len([text for text in caplog.messages if "step-00000008.0001 does not count" in text]) == 1
    assert steps_in(tmp_path) == [8, 6, 4], "two verify, and 2 is older than them"


@pytest.mark.covers("F19")
def test_retention_keeps_best_and_pinned_checkpoints(tmp_path: Path, alone: Ranks) -> None:
    kept, state = keeper(tmp_path, alone, keep=2), fresh()
    kept.resume(state)
    for loss in (0.5, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4):
        step(state)
        best = min(state.facts.get("best_loss", 1.0), loss)
        state.facts["watched"] = {"step": state.step, "loss": loss, "best": loss == best and loss < 0.5}
        state.facts["best_loss"] = best
        kept.after_step(state, loss, last=False)
        step(state)
        kept.after_step(state, loss, last=False)
        if state.step == 4:
            kept._settle()
            (folder_of(tmp_path, 4) / "pinned-by-ada.json").write_text("{}")
    train(kept, state, 2)
    assert steps_in(tmp_path) == [16, 14, 4, 3], "3 was best, though no checkpoint was due there; 4 is pinned"
    assert kept.load_best(replace(state, facts={"watched": {"best_step": 3}}))


def test_failed_removal_does_not_end_the_training(
    tmp_path: Path, alone: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    state = begun(tmp_path, alone, 10, keep=2)
    assert state.step == 10
    assert steps_in(tmp_path) == [10, 8]
    assert any("step-00000002.0001 could not be removed" in text for text in caplog.messages)


@pytest.mark.covers("F12")
def test_uncommitted_checkpoints_of_earlier_starts_are_removed(tmp_path: Path, alone: Ranks) -> None:
    left = tmp_path / "checkpoints" / str(CheckpointName(start=3, step=70))
    left.mkdir(parents=True)
    kept, state = keeper(tmp_path, alone), fresh()
    kept.resume(state)
    assert left.exists()
    train(kept, state, 2)
    assert not left.exists()
    assert folder_of(tmp_path, 2).name == "step-00000002.0004"


@pytest.mark.covers("F16")
def test_disk_too_small_for_a_checkpoint_is_rejected_at_the_start(
    tmp_path: Path, alone: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=100))
    with pytest.raises(
        DependencyError, match=r"a checkpoint takes about 0\.0 MiB, and there are 0\.0 MiB free"
    ):
        keeper(tmp_path, alone).resume(fresh())


def test_schedule_by_time_checks_more_often_until_due() -> None:
    now = 0.0
    schedule = SaveSchedule(Checkpointing(every_s=100), lambda: now)
    schedule.restart(50)
    looks, saves = [], []
    for number in range(51, 2000):
        now += 0.5 if number < 1000 else 2.0
        if schedule.checks(number):
            due, gap = schedule.propose(number)
            looks.append(number)
            saves += [now] if due else []
            schedule.accept(number, gap, saved=bool(due))
    gaps = [later - earlier for earlier, later in zip([0.0, *saves], saves, strict=False)]
    assert max(gaps[:4]) < 102
    assert max(gaps) < 210, "a training that becomes four times slower is noticed half-way"
    assert len(looks) < 12 * len(saves)


@pytest.mark.covers("B57")
def test_interval_above_the_number_of_steps_gives_a_warning() -> None:
    said = no_checkpoint_warning(Checkpointing(every_steps=100), 99)
    assert "every_steps 100 is above the 99 steps" in said
    assert no_checkpoint_warning(Checkpointing(every_steps=100), 100) == ""
    assert no_checkpoint_warning(Checkpointing(), 1) == ""


def test_schedule_by_steps_saves_at_every_check() -> None:
    schedule = SaveSchedule(Checkpointing(every_steps=7))
    assert [number for number in range(1, 30) if schedule.checks(number)] == [7, 14, 21, 28]
    assert schedule.propose(7) == (1, 7)
