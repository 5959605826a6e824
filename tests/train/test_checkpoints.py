"""Checkpoints of one process: what counts, what is refused, what stays, and when they are made."""

import json
import os
import pickle
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
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from trainwright.documents import digest_file
from trainwright.errors import DependencyError, Diverged, InputError, InternalError, PermissionRefused
from trainwright.experiment.training import Checkpointing
from trainwright.train.checkpoint import Checkpointer, CheckpointName, Manifest, committed
from trainwright.train.checkpoint.checkpointer import SaveSchedule
from trainwright.train.checkpoint.retention import Retention
from trainwright.train.checkpoint.state import TrainState
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


def test_what_is_resumed_is_what_was_saved_and_goes_on_in_the_same_way(tmp_path: Path, alone: Ranks) -> None:
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


def test_figures_name_the_checkpoint_that_would_be_resumed(tmp_path: Path, alone: Ranks) -> None:
    kept, state, seen = keeper(tmp_path, alone), fresh(), []
    kept.resume(state)
    for number in range(6):
        kept.after_step(state, step(state), last=number == 5)
        seen.append(kept.costs.committed)
    assert seen[0] == 0
    assert seen[3] >= 2, "the save of step 2 was waited for"
    assert (seen[5], steps_in(tmp_path)[0]) == (6, 6)
    again = keeper(tmp_path, alone)
    again.resume(fresh())
    assert again.costs.committed == 6


def test_an_empty_home_leaves_the_state_as_it_is(tmp_path: Path, alone: Ranks) -> None:
    state, same = fresh(), fresh()
    keeper(tmp_path / "home", alone).resume(state)
    assert state.step == 0
    assert all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(same), strict=True))


def test_a_manifest_names_every_file_with_its_digest_and_is_no_pickle(tmp_path: Path, alone: Ranks) -> None:
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


@pytest.mark.parametrize(("file", "damage", "said"), DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_by_name_and_the_one_before_it_taken(
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


def test_when_nothing_verifies_it_is_said_that_training_begins_anew(
    tmp_path: Path, alone: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path, alone)
    for name in committed(tmp_path / "checkpoints"):
        flip(tmp_path / "checkpoints" / str(name) / "rank-0.bin")
    assert resumed(tmp_path, alone).step == 0
    assert "none of 3 checkpoints verifies: training starts from step 0" in caplog.messages


def test_a_copy_that_cannot_be_had_now_is_no_reason_to_begin_anew(tmp_path: Path, alone: Ranks) -> None:
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


def test_a_checkpoint_without_its_manifest_is_none(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone)
    (folder_of(tmp_path, 6) / Manifest.FILE).unlink()
    assert resumed(tmp_path, alone).step == 4


def test_another_architecture_is_refused_with_the_keys_that_differ(tmp_path: Path, alone: Ranks) -> None:
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


def test_another_training_is_refused_with_what_differs(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone)
    told = {**TOLD, "training": {"seed": 4}, "order": {"streams": 24}}
    expected = r"order.streams was 8 and is 24; training.seed was 3 and is 4"
    with pytest.raises(InputError, match=expected):
        resumed(tmp_path, alone, told=told)


class Evil:
    """What runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._trace}",)


OLD = Path(__file__).parent / "data" / "step-00000002.0001"
"""A checkpoint of two steps in the older form, with pickles. Python 3.11.2 wrote it, which pickles an enum as
``builtins.getattr``."""


def old(home: Path) -> Path:
    """Put a checkpoint of the old form into a home."""
    return Path(shutil.copytree(OLD, home / "checkpoints" / OLD.name))


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


def test_checkpoint_with_pickles_of_python_3_11_2_is_resumed(tmp_path: Path, alone: Ranks) -> None:
    """torch's own converter, which trusts the pickle, reads the same values."""
    old(tmp_path / "home")
    dcp_to_torch_save(OLD, tmp_path / "plain.pt")
    expected = torch.load(tmp_path / "plain.pt")["state"]
    kept, state = keeper(tmp_path / "home", alone), fresh(seed=9)
    kept.resume(state)
    assert state.step == 2
    for name, value in state.module.state_dict().items():
        assert torch.equal(value, expected[f"model/{name}"])
    for name, parameter in state.module.named_parameters():
        for field, value in state.optimizer.state[parameter].items():
            assert torch.equal(value, expected[f"optimizer/{name}/{field}"])
    train(kept, state, 2)
    assert (folder_of(tmp_path / "home", 4) / "index.json").exists(), "the next one has no pickle"


def test_a_pickle_that_names_anything_else_is_refused_and_never_run(tmp_path: Path, alone: Ranks) -> None:
    folder = old(tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "trace")))
    resealed(folder)
    with pytest.raises(PermissionRefused, match=r"a pickle in the checkpoint names posix\.system"):
        resumed(tmp_path, alone)
    assert not (tmp_path / "trace").exists()


class Attribute:
    """Takes an attribute of anything when it is unpickled, as Python 3.11.2 does with a member of an enum."""

    def __init__(self, of: Any, name: str) -> None:
        self._of, self._name = of, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._of, self._name)


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (_MEM_FORMAT_ENCODING, "__init_subclass__"),
        (_MEM_FORMAT_ENCODING, "mro"),
        (torch.Size, "__subclasses__"),
    ],
)
def test_getattr_in_a_pickle_reads_members_of_torchs_enum_and_nothing_else(
    of: Any, name: str, tmp_path: Path, alone: Ranks
) -> None:
    folder = old(tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(Attribute(of, name)))
    resealed(folder)
    with pytest.raises(PermissionRefused, match=r"names builtins\.getattr"):
        resumed(tmp_path, alone)


def test_what_python_3_13_wrote_is_read_by_others(tmp_path: Path, alone: Ranks) -> None:
    """There, and nowhere else, paths come from ``pathlib._local``."""
    folder = old(tmp_path)
    index = folder / ".metadata"
    plain = pickle.dumps(pickle.loads(index.read_bytes()), protocol=3)  # noqa: S301 - it is our own
    theirs = plain.replace(b"cpathlib\n", b"cpathlib._local\n")
    assert b"cpathlib._local\nPosixPath\n" in theirs
    index.write_bytes(theirs)
    resealed(folder)
    assert resumed(tmp_path, alone).step == 2


def test_a_tensor_that_is_a_pickle_is_refused_and_never_run(tmp_path: Path, alone: Ranks) -> None:
    """The index is honest, and points to a file of torch.save with more than a tensor in it."""
    folder = old(tmp_path)
    with (folder / ".metadata").open("rb") as stream:
        index = pickle.load(stream)  # noqa: S301 - it is our own
    torch.save(Evil(tmp_path / "trace"), folder / "__0_0.distcp")
    size = (folder / "__0_0.distcp").stat().st_size
    for entry in index.storage_data.values():
        entry.offset, entry.length = 0, size
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    resealed(folder)
    with pytest.raises(PermissionRefused, match=r"posix\.system"):
        resumed(tmp_path, alone)
    assert not (tmp_path / "trace").exists()


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
def test_index_that_leads_anywhere_else_is_refused(
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


def test_index_that_the_manifest_does_not_list_is_rejected(tmp_path: Path, alone: Ranks) -> None:
    """No digest covers it: whoever may write there could exchange one tensor for another."""
    begun(tmp_path, alone)
    folder = folder_of(tmp_path, 6)
    manifest = Manifest.read(folder)
    listed = tuple(entry for entry in manifest.files if entry.path != "index.json")
    replace(manifest, files=listed).write(folder)
    with pytest.raises(PermissionRefused, match=r"index\.json is not in the manifest"):
        resumed(tmp_path, alone)


@pytest.mark.parametrize("path", ["../../secret", "/etc/passwd", "", "."])
def test_a_manifest_that_leads_out_of_its_folder_is_refused(path: str, tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone)
    place = folder_of(tmp_path, 6) / Manifest.FILE
    body = json.loads(place.read_text())
    body["files"][0]["path"] = path
    place.write_text(json.dumps(body))
    with pytest.raises(PermissionRefused, match="outside its folder"):
        resumed(tmp_path, alone)


def test_a_checkpoint_that_lies_elsewhere_is_refused(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path / "other", alone)
    there = folder_of(tmp_path / "other", 6)
    (tmp_path / "home" / "checkpoints").mkdir(parents=True)
    (tmp_path / "home" / "checkpoints" / there.name).symlink_to(there)
    with pytest.raises(PermissionRefused, match="not read through a symbolic link"):
        resumed(tmp_path / "home", alone)


def test_weights_that_are_not_finite_are_never_committed(tmp_path: Path, alone: Ranks) -> None:
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


def test_facts_that_json_cannot_hold_are_our_bug(tmp_path: Path, alone: Ranks) -> None:
    kept, state = keeper(tmp_path, alone), fresh()
    kept.resume(state)
    state.facts["guard"] = float("nan")
    with pytest.raises(InternalError, match="not plain JSON data"):
        train(kept, state, 2)


def test_going_back_counts_as_newer_than_what_it_went_back_from(tmp_path: Path, alone: Ranks) -> None:
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
def test_the_newest_stay_and_the_others_go(keep: int, tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone, 13, keep=keep)
    assert steps_in(tmp_path) == [13, 12, 10, 8][:keep]


def test_damaged_ones_do_not_count_among_those_that_stay(tmp_path: Path, alone: Ranks) -> None:
    begun(tmp_path, alone, 12, keep=4)
    for damaged in (12, 8):
        flip(folder_of(tmp_path, damaged) / "rank-0.bin")
    Retention(tmp_path / "checkpoints", 2, keep_best=True).apply(9, in_use=[])
    assert steps_in(tmp_path) == [12, 10, 8, 6], "two verify: 10 and 6; nothing is older"
    flip(folder_of(tmp_path, 10) / "rank-0.bin")
    Retention(tmp_path / "checkpoints", 2, keep_best=True).apply(9, in_use=[])
    assert steps_in(tmp_path) == [12, 10, 8, 6], "only one verifies: nothing is removed"


def test_a_damaged_one_is_read_and_told_once_until_it_changes(
    tmp_path: Path, alone: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    begun(tmp_path, alone, 8, keep=4)
    broken, retention = (
        folder_of(tmp_path, 8) / "rank-0.bin",
        Retention(tmp_path / "checkpoints", 2, keep_best=True),
    )
    flip(broken)
    for _ in range(3):
        retention.apply(9, in_use=[])
    assert len([text for text in caplog.messages if "step-00000008.0001 does not count" in text]) == 1
    assert steps_in(tmp_path) == [8, 6, 4], "two verify, and 2 is older than them"
    flip(broken)
    retention.apply(9, in_use=[])
    assert steps_in(tmp_path) == [8, 6], "it is whole again"


def test_the_best_and_the_pinned_stay(tmp_path: Path, alone: Ranks) -> None:
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


def test_trouble_with_old_checkpoints_never_ends_the_training(
    tmp_path: Path, alone: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    state = begun(tmp_path, alone, 10, keep=2)
    assert state.step == 10
    assert steps_in(tmp_path) == [10, 8]
    assert any("step-00000002.0001 could not be removed" in text for text in caplog.messages)


def test_what_earlier_starts_left_unfinished_is_removed_later(tmp_path: Path, alone: Ranks) -> None:
    left = tmp_path / "checkpoints" / str(CheckpointName(start=3, step=70))
    left.mkdir(parents=True)
    kept, state = keeper(tmp_path, alone), fresh()
    kept.resume(state)
    assert left.exists()
    train(kept, state, 2)
    assert not left.exists()
    assert folder_of(tmp_path, 2).name == "step-00000002.0004"


def test_a_disk_without_room_for_one_checkpoint_is_refused_before_the_first_step(
    tmp_path: Path, alone: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=100))
    with pytest.raises(
        DependencyError, match=r"a checkpoint takes about 0\.0 MiB, and there are 0\.0 MiB free"
    ):
        keeper(tmp_path, alone).resume(fresh())


def test_by_time_the_looks_come_denser_until_it_is_due() -> None:
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


def test_a_training_that_ends_before_its_first_checkpoint_is_told_so() -> None:
    said = no_checkpoint_warning(Checkpointing(every_steps=100), 99)
    assert "every_steps 100 is above the 99 steps" in said
    assert no_checkpoint_warning(Checkpointing(every_steps=100), 100) == ""
    assert no_checkpoint_warning(Checkpointing(), 1) == ""


def test_by_steps_every_look_is_a_save() -> None:
    schedule = SaveSchedule(Checkpointing(every_steps=7))
    assert [number for number in range(1, 30) if schedule.checks(number)] == [7, 14, 21, 28]
    assert schedule.propose(7) == (1, 7)
