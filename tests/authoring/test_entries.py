"""The cache by itself: whole or not there, never changed, safe to share."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.artifacts import Environment, Record
from trainwright.local.cache import HERE, Broken, Cache, Digests, key_of, moved


@pytest.fixture
def step(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one" / "step"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rows").write_text("original")
    return folder


@pytest.mark.parametrize("link", [True, False])
def test_a_reader_cannot_change_what_is_kept(tmp_path: Path, step: Path, link: bool) -> None:
    cache = Cache(tmp_path / "cache", Digests(), link=link)
    run = step.parent
    cache.store("k" * 64, step, run, {"path": str(run / "x")})
    target = tmp_path / "runs" / "two" / "step"
    target.parent.mkdir()
    assert cache.restore("k" * 64, target, target.parent) == {"path": str(target.parent / "x")}
    kept = tmp_path / "cache" / "kk" / ("k" * 64) / "files" / "data" / "rows"
    given = target / "data" / "rows"
    assert os.path.samefile(kept, given) == link
    if link:
        assert not given.stat().st_mode & 0o222, "shared files are read-only, whoever holds the link"
    else:
        given.write_text("changed")
    assert kept.read_text() == "original"


def test_a_shared_file_that_the_superuser_changes_all_the_same_is_noticed(tmp_path: Path, step: Path) -> None:
    cache = Cache(tmp_path / "cache", Digests(), link=True)
    cache.store("k" * 64, step, step.parent, {})
    file = step / "data" / "rows"
    file.chmod(0o644)
    file.write_text("changed!")
    with pytest.raises(Broken, match="data/rows was changed"):
        cache.restore("k" * 64, step.parent / "again", step.parent)
    assert cache.restore("k" * 64, step.parent / "again", step.parent) is None
    assert not (step.parent / "again").exists()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a file is longer": lambda entry: (entry / "files" / "data" / "rows").write_text("original!"),
    "a file is empty": lambda entry: (entry / "files" / "data" / "rows").write_text(""),
    "a file is gone": lambda entry: (entry / "files" / "data" / "rows").unlink(),
    "the manifest says something else": lambda entry: replace(
        entry / "entry.json", '"count": 3', '"count": 4'
    ),
    "the manifest is nonsense": lambda entry: (entry / "entry.json").write_text("{"),
    "the manifest is gone": lambda entry: (entry / "entry.json").unlink(),
}


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_counts_as_not_there_and_is_removed(tmp_path: Path, step: Path, damage: str) -> None:
    cache, key = Cache(tmp_path / "cache", Digests(), link=False), "k" * 64
    cache.store(key, step, step.parent, {"count": 3})
    entry = tmp_path / "cache" / "kk" / key
    (entry / "files" / "data" / "rows").chmod(0o644)
    DAMAGES[damage](entry)
    with pytest.raises(Broken):
        cache.restore(key, step.parent / "again", step.parent)
    assert not entry.exists()
    assert sorted(path.name for path in step.parent.iterdir()) == ["step"]


def test_two_runs_may_keep_and_reuse_the_same_result_at_once(tmp_path: Path, step: Path) -> None:
    problems: list[BaseException] = []

    def work(number: int) -> None:
        cache = Cache(tmp_path / "cache", Digests(), link=False)
        own = tmp_path / "runs" / f"run{number}"
        own.mkdir()
        try:
            for turn in range(150):
                cache.store("k" * 64, step, step.parent, {})
                if cache.restore("k" * 64, own / f"step{turn}", own) is not None:
                    assert (own / f"step{turn}" / "data" / "rows").read_text() == "original"
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert not list((tmp_path / "cache").glob("attempt-*"))


def test_a_key_is_the_same_in_every_run_folder_and_for_no_other_input() -> None:
    def key(folder: str, value: Any) -> str:
        return key_of(moved({"text": f"{folder}/rows", "value": value}, folder, HERE))

    assert key("/runs/one", 1) == key("/runs/two", 1)
    assert len({key("/runs/one", value) for value in (1, "1", True, None, [1], {"1": 1})}) == 6


def record(started: str) -> str:
    place = Environment(name="red", lock_sha256="", library="", library_sha256="", python="", platform="")
    return json.dumps(
        Record(step="bring", headline="", started=started, seconds=1, environment=place).to_json()
    )


def test_the_digest_of_a_folder_depends_on_names_and_bytes_only(tmp_path: Path) -> None:
    def digest(name: str, files: dict[str, str]) -> str:
        for path, text in files.items():
            place = tmp_path / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return Digests().artifact(tmp_path / name)

    one = digest("one", {"a": "1", "b/c": "2", "record.json": record("2026-11-19")})
    assert digest("two", {"b/c": "2", "a": "1", "record.json": record("2026-11-20")}) == one
    assert digest("six", {"a": "1", "b/c": "2", "record.json": "no record of ours"}) != one
    assert digest("three", {"a": "1", "b/d": "2"}) != one
    assert digest("four", {"a": "1", "b/c": "3"}) != one
    assert digest("five", {"a": "1", "b/c": "2", "b/record.json": "inside"}) != one
