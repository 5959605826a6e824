"""A remembered checksum is never a wrong one."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright import storage
from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.storage import checksums

LONG_AGO = time.time() - 3600


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two files that were written long before they are read, as its clock has it."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text(name)
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    monkeypatch.setattr(checksums.time, "time_ns", lambda: int((time.time() + 60) * 1e9))
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are really read."""
    seen: list[str] = []
    real = checksums.md5_of

    def md5_of(entry: SourceFile) -> str:
        seen.append(Path(entry.uri).name)
        return real(entry)

    monkeypatch.setattr(checksums, "md5_of", md5_of)
    return seen


def take(source: Path, tmp_path: Path) -> str:
    return storage.take_listing(str(source), remember=str(tmp_path / "memory")).content_digest


def test_an_unchanged_file_is_read_once(source: Path, tmp_path: Path, reads: list[str]) -> None:
    first = take(source, tmp_path)
    assert sorted(reads) == ["a.csv", "b.csv"]
    assert take(source, tmp_path) == first == storage.take_listing(str(source)).content_digest
    assert len(reads) == 4  # twice with the memory, once each; and once each without


@pytest.mark.parametrize(
    "change", ["content of equal size and time", "replaced by a file of equal size and time"]
)
def test_changed_bytes_are_read_again_though_size_and_time_of_writing_are_the_same(
    source: Path, tmp_path: Path, reads: list[str], change: str
) -> None:
    before = take(source, tmp_path)
    if change == "replaced":
        (tmp_path / "new").write_text("A.csv")
        os.replace(tmp_path / "new", source / "a.csv")
    else:
        (source / "a.csv").write_text("A.csv")
    os.utime(source / "a.csv", (LONG_AGO, LONG_AGO))
    reads.clear()
    assert take(source, tmp_path) != before
    assert reads == ["a.csv"]


def test_a_file_written_just_before_it_was_read_is_not_remembered(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("x")
    for _ in range(2):
        take(tmp_path / "data", tmp_path)
    assert reads == ["a.csv", "a.csv"]


@pytest.mark.parametrize("damage", ["one digit", "cut", "empty", "not text", "other rows"])
def test_a_broken_memory_is_not_believed(source: Path, tmp_path: Path, reads: list[str], damage: str) -> None:
    truth, path = take(source, tmp_path), tmp_path / "memory" / checksums.FILE
    text = path.read_text()
    place = text.rindex('"') - 1
    path.write_bytes(
        {
            "one digit": text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :],
            "cut": text[: len(text) // 2],
            "empty": "",
            "not text": "\udcff",
            "other rows": json.dumps({}),
        }[damage].encode(errors="surrogateescape")
    )
    reads.clear()
    assert take(source, tmp_path) == truth
    assert sorted(reads) == ["a.csv", "b.csv"]


def test_many_processes_may_remember_at_once(source: Path, tmp_path: Path) -> None:
    truth = storage.take_listing(str(source)).content_digest
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: take(source, tmp_path), range(32))) == {truth}
    assert [path.name for path in (tmp_path / "memory").iterdir()] == [checksums.FILE]


def test_a_memory_is_kept_on_a_disk() -> None:
    with pytest.raises(InputError, match="remembered on a disk"):
        checksums.ChecksumCache.open("gs://bucket/memory")
