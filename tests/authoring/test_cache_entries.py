"""Entries of the local cache: content as identity, whole or not there, safe to share."""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainwright.artifacts import Column, Environment, Listing, Record, Snapshot, SnapshotFile, SourceFile
from trainwright.artifacts.metadata import describe
from trainwright.local.cache import HERE, Broken, Cache, Digests, Entry, key_of, moved
from trainwright.local.invocation import _own_metadata


@pytest.fixture
def step(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one" / "step"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rows").write_text("original")
    return folder


@pytest.mark.parametrize("link", [True, False])
def test_reader_cannot_change_what_is_kept(tmp_path: Path, step: Path, link: bool) -> None:
    cache = Cache(tmp_path / "cache", Digests(), link=link)
    run = step.parent
    cache.store("k" * 64, step, run, {"path": str(run / "x")})
    target = tmp_path / "runs" / "two" / "step"
    assert cache.restore("k" * 64, target, target.parent) == {"path": str(target.parent / "x")}
    kept = tmp_path / "cache" / "kk" / ("k" * 64) / "files" / "data" / "rows"
    given = target / "data" / "rows"
    assert os.path.samefile(kept, given) == link
    if link:
        assert not given.stat().st_mode & 0o222, "shared files are read-only, whoever holds the link"
    else:
        given.write_text("changed")
    assert kept.read_text() == "original"


@pytest.mark.parametrize(("user", "linked"), [(0, False), (1, True), (1000, True)])
def test_files_are_shared_by_link_but_for_the_superuser_who_could_change_them(
    tmp_path: Path, step: Path, user: int, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    Cache(tmp_path / "cache", Digests()).store("k" * 64, step, step.parent, {})
    kept = tmp_path / "cache" / "kk" / ("k" * 64) / "files" / "data" / "rows"
    assert os.path.samefile(kept, step / "data" / "rows") == linked
    assert kept.stat().st_mode & 0o777 == 0o444


@pytest.mark.covers("A17")
def test_shared_file_that_the_superuser_changes_all_the_same_is_noticed(tmp_path: Path, step: Path) -> None:
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
    "the manifest says something else": lambda entry: replace_text(
        entry / "entry.json", '"count": 3', '"count": 4'
    ),
    "the manifest is nonsense": lambda entry: (entry / "entry.json").write_text("{"),
    "the manifest is gone": lambda entry: (entry / "entry.json").unlink(),
}


def replace_text(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.covers("F43", "A17")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_counts_as_not_there_and_is_removed(tmp_path: Path, step: Path, damage: str) -> None:
    cache, key = Cache(tmp_path / "cache", Digests(), link=False), "k" * 64
    cache.store(key, step, step.parent, {"count": 3})
    entry = tmp_path / "cache" / "kk" / key
    (entry / "files" / "data" / "rows").chmod(0o644)
    DAMAGES[damage](entry)
    with pytest.raises(Broken):
        cache.restore(key, step.parent / "again", step.parent)
    assert not entry.exists()
    assert sorted(path.name for path in step.parent.iterdir()) == ["step"]


def forge(entry: Path, **changes: Any) -> None:
    """Change the manifest of an entry, and its digest with it."""
    path = entry / Entry.FILE
    body = json.loads(path.read_text())["entry"] | changes
    digest = Entry.from_json(body).digest
    path.write_text(json.dumps({"sha256": digest, "entry": body}))


def listed(path: str, text: str = "original") -> list[dict[str, Any]]:
    return [{"path": path, "size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}]


def replace_by_link(path: Path, target: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(target)


FORGERIES: dict[str, Callable[[Path], object]] = {
    "a file above it": lambda entry: forge(entry, files=listed("../../../../stolen")),
    "a file above it and back": lambda entry: forge(entry, files=listed("data/../../files/data/rows")),
    "a file of the machine": lambda entry: forge(entry, files=listed(str(entry.parents[2] / "stolen"))),
    "a folder above it": lambda entry: forge(entry, folders=["../../made"]),
    "a folder of the machine": lambda entry: forge(entry, folders=[str(entry.parents[2] / "made")]),
    "a name with NUL": lambda entry: forge(entry, files=listed("data/\0rows")),
    "a link to a file": lambda entry: replace_by_link(
        entry / "files" / "data" / "rows", entry.parents[2] / "stolen"
    ),
    "a link to a folder": lambda entry: replace_by_link(entry / "files" / "data", entry.parents[2] / "other"),
    "a link to another entry": lambda entry: replace_by_link(entry, entry.parents[2] / "whole"),
    "a link as manifest": lambda entry: replace_by_link(entry / Entry.FILE, entry.parents[2] / "entry.json"),
    "a pipe": lambda entry: (
        (entry / "files" / "data" / "rows").unlink(),
        os.mkfifo(entry / "files" / "data" / "rows"),
    ),
    "the entry of another key": lambda entry: forge(entry, key="j" * 64),
    "the entry of a later key": lambda entry: forge(entry, key="l" * 64),
    "an entry without a key": lambda entry: (entry / Entry.FILE).write_text(
        json.dumps({"sha256": "", "entry": {"schema_version": 1, "step": "step", "made": "one"}})
    ),
    "a list": lambda entry: (entry / Entry.FILE).write_text("[1]"),
    "no digest": lambda entry: (entry / Entry.FILE).write_text('{"entry": {}}'),
    "no entry": lambda entry: (entry / Entry.FILE).write_text('{"sha256": ""}'),
    "deep nesting": lambda entry: (entry / Entry.FILE).write_text("[" * 100_000),
    "a pipe in its place": lambda entry: (shutil.rmtree(entry), os.mkfifo(entry)),
    "a file in its place": lambda entry: (shutil.rmtree(entry), entry.write_text("x")),
}


@pytest.mark.covers("A17")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_entry_is_a_miss_that_writes_and_reads_nothing_elsewhere(
    tmp_path: Path, step: Path, forgery: str
) -> None:
    cache, key = Cache(tmp_path / "cache", Digests(), link=False), "k" * 64
    cache.store(key, step, step.parent, {"count": 3})
    entry = tmp_path / "cache" / "kk" / key
    (tmp_path / "stolen").write_text("original")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rows").write_text("original")
    shutil.copytree(entry, tmp_path / "whole")
    shutil.copy(entry / Entry.FILE, tmp_path / "entry.json")
    FORGERIES[forgery](entry)
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "cache")}
    with pytest.raises(Broken, match="was removed"):
        cache.restore(key, step.parent / "again", step.parent)
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "cache")} == before
    assert not os.path.lexists(entry)
    assert list((tmp_path / "cache").rglob("*")) == [entry.parent]
    assert cache.restore(key, step.parent / "again", step.parent) is None


def test_folders_of_a_run_that_was_killed_are_removed_a_day_later(tmp_path: Path) -> None:
    root, now = tmp_path / "cache", time.time()
    for name, age_s in (
        ("attempt-old", 86_500),
        ("gone-old", 86_500),
        ("attempt-new", 86_300),
        ("ab", 86_500),
    ):
        (root / name / "files").mkdir(parents=True)
        os.utime(root / name, (now - age_s, now - age_s))
    Cache(root, Digests())
    assert sorted(path.name for path in root.iterdir()) == ["ab", "attempt-new"]


def test_a_result_is_given_back_with_its_empty_folders_and_none_else(tmp_path: Path, step: Path) -> None:
    (step / "logs" / "empty").mkdir(parents=True)
    (step / "linked").symlink_to(step / "data" / "rows")
    cache, again = Cache(tmp_path / "cache", Digests(), link=True), tmp_path / "runs" / "two" / "step"
    cache.store("k" * 64, step, step.parent, {})
    (step / "data" / "rows").unlink()
    assert cache.restore("k" * 64, again, again.parent) == {}
    found = {str(path.relative_to(again)): path.is_dir() for path in again.rglob("*")}
    assert found == {"data": True, "data/rows": False, "linked": False, "logs": True, "logs/empty": True}
    assert (again / "linked").read_text() == "original"
    assert not (again / "linked").is_symlink()


def test_a_result_that_cannot_be_stored_raises_and_leaves_nothing(tmp_path: Path, step: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        Cache(tmp_path / "cache", Digests()).store("k" * 64, step, step.parent, {})
    (tmp_path / "cache").unlink()
    with pytest.raises(OSError, match="too long"):
        Cache(tmp_path / "cache", Digests()).store("k" * 300, step, step.parent, {})
    with pytest.raises(OSError, match="too long"):
        Cache(tmp_path / "cache", Digests()).restore("k" * 300, step.parent / "again", step.parent)
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["kk"]


def test_a_step_without_a_file_has_a_result_too(tmp_path: Path) -> None:
    cache, empty = Cache(tmp_path / "cache", Digests()), tmp_path / "one" / "step"
    empty.mkdir(parents=True)
    cache.store("k" * 64, empty, empty.parent, {"count": 0})
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        assert cache.restore("k" * 64, tmp_path / "two" / str(number), tmp_path / "two") == {"count": 0}
        assert list((tmp_path / "two" / str(number)).iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_artifact_that_is_not_there_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        Digests().artifact(tmp_path / "gone")


def test_a_later_result_replaces_the_one_that_was_stored(tmp_path: Path, step: Path) -> None:
    cache = Cache(tmp_path / "cache", Digests(), link=False)
    cache.store("k" * 64, step, step.parent, {"count": 1})
    (step / "data" / "rows").write_text("replaced")
    cache.store("k" * 64, step, step.parent, {"count": 2})
    assert cache.restore("k" * 64, tmp_path / "two" / "step", tmp_path / "two") == {"count": 2}
    assert (tmp_path / "two" / "step" / "data" / "rows").read_text() == "replaced"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["kk"]


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


def test_key_is_the_same_in_every_run_folder_and_for_no_other_input() -> None:
    def key(folder: str, value: Any) -> str:
        return key_of(moved({"text": f"{folder}/rows", "value": value}, folder, HERE))

    assert key("/runs/one", 1) == key("/runs/two", 1)
    assert len({key("/runs/one", value) for value in (1, "1", True, None, [1], {"1": 1})}) == 6


def record(started: str) -> str:
    place = Environment(name="red", lock_sha256="", library="", library_sha256="", python="", platform="")
    return json.dumps(
        Record(step="bring", headline="", started=started, seconds=1, environment=place).to_json()
    )


def test_digest_of_a_folder_depends_on_names_and_bytes_only(tmp_path: Path) -> None:
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


SHARDS = {"train-0.parquet": b"abc", "evaluate-0.parquet": b"defg"}


def manifest(uris: tuple[str, ...], checksums: tuple[str, ...] = ("md5:1", "md5:2")) -> Snapshot:
    files = tuple(
        SnapshotFile(uri=uri, size=len(bytes_), checksum=checksum, rows=1, split="train")
        for uri, bytes_, checksum in zip(uris, SHARDS.values(), checksums, strict=True)
    )
    return Snapshot(files=files, columns=(Column(name="x", type="int64"),), parents={"source": "here"})


def snapshot(folder: Path, prefix: str = "data") -> Path:
    """Write a snapshot with both shards below its own folder, and the listing of its source."""
    folder.mkdir(parents=True)
    for name, content in SHARDS.items():
        path = folder / prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    manifest(tuple(f"{prefix}/{name}" for name in SHARDS)).write(folder)
    Listing(
        source=prefix, files=(SourceFile(uri=f"/{prefix}/a", size=1, checksum="", written=str(folder)),)
    ).write(folder)
    return folder


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return snapshot(tmp_path / "one")


def test_snapshot_made_again_elsewhere_is_the_same_content(one: Path, tmp_path: Path) -> None:
    other = snapshot(tmp_path / "two", prefix="attempt-2")
    moved = replace(Snapshot.read(other), parents={"source": "there"}, quality={"rows.train": 1.0})
    moved.write(other)
    assert Digests().artifact(one) == Digests().artifact(other)


def test_facts_that_repeat_an_artifacts_documents_are_no_part_of_a_steps_key(
    one: Path, tmp_path: Path
) -> None:
    """They name the parents of a snapshot, so a source that moved would repeat everything after it."""
    other = snapshot(tmp_path / "two" / "one")
    replace(Snapshot.read(other), parents={"source": "there"}).write(other)
    found = []
    for folder in (one, other):
        artifact = SimpleNamespace(path=str(folder), name="one", metadata={"owner": "another team"})
        describe("join", artifact)
        assert artifact.metadata["rows"] == 2
        found.append(_own_metadata({"metadata": artifact.metadata}, folder))
    assert found == [{"owner": "another team"}, {"owner": "another team"}]


@pytest.mark.parametrize("text", ["not json", "[1]", "\udcff", '{"model_version": "3"}'])
def test_registration_of_another_format_leaves_an_artifacts_metadata_as_it_is(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "registration.json").write_bytes(text.encode(errors="surrogateescape"))
    assert _own_metadata({"metadata": {"owner": "us"}}, tmp_path) == {"owner": "us"}


def _swap(folder: Path) -> None:
    first, second = (folder / "data" / name for name in SHARDS)
    first.write_bytes(SHARDS["evaluate-0.parquet"])
    second.write_bytes(SHARDS["train-0.parquet"])


def _rewrite(**change: object) -> Callable[[Path], object]:
    return lambda folder: replace(Snapshot.read(folder), **change).write(folder)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte of a shard": lambda folder: (folder / "data" / "train-0.parquet").write_bytes(b"abd"),
    "a shard is gone": lambda folder: (folder / "data" / "train-0.parquet").unlink(),
    "two shards change places": _swap,
    "a file that no manifest names": lambda folder: (folder / "notes.txt").write_text("more"),
    "another column": _rewrite(columns=(Column(name="y", type="int64"),)),
    "another role": _rewrite(roles={"key": "x"}),
    "another checksum": _rewrite(
        files=manifest(("data/train-0.parquet", "data/evaluate-0.parquet"), ("md5:1", "md5:3")).files
    ),
    "a manifest that cannot be read": lambda folder: (folder / "manifest.json").write_text("{"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_reader_could_see_is_other_content(one: Path, tmp_path: Path, change: str) -> None:
    other = snapshot(tmp_path / "two")
    CHANGES[change](other)
    assert Digests().artifact(one) != Digests().artifact(other)


def test_files_of_other_steps_count_whatever_they_are_called(tmp_path: Path) -> None:
    """Only a snapshot's listing is left out: in another folder it may be all that there is."""
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(f'{{"made by": "{name}"}}')
        digests.append(Digests().artifact(tmp_path / name))
        (tmp_path / name / "manifest.json").write_text("{}")
        (tmp_path / name / "listing.json").write_text(f'{{"files of": "{name}"}}')
        digests.append(Digests().artifact(tmp_path / name))
    assert len(set(digests)) == 4


@pytest.mark.parametrize("damage", ["gone", "shorter"])
def test_kept_manifest_whose_files_lie_elsewhere_is_no_result_without_them(
    tmp_path: Path, damage: str
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name, content in SHARDS.items():
        (store / name).write_bytes(content)
    step = tmp_path / "runs" / "one" / "ingest"
    step.mkdir(parents=True)
    manifest(tuple(str(store / name) for name in SHARDS)).write(step)
    cache = Cache(tmp_path / "cache", Digests())
    cache.store("k" * 64, step, step.parent, {"made": 1})
    assert cache.restore("k" * 64, step.parent / "again", step.parent) == {"made": 1}
    if damage == "gone":
        (store / "train-0.parquet").unlink()
    else:
        (store / "train-0.parquet").write_bytes(b"a")
    with pytest.raises(Broken, match=r"train-0\.parquet, a file of its snapshot, is missing or has changed"):
        cache.restore("k" * 64, step.parent / "more", step.parent)
    assert cache.restore("k" * 64, step.parent / "more", step.parent) is None
