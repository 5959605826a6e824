"""Outputs of single attempts and their commits: what is written where, what counts, and what is removed."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ingest.taking import flights
from trainwright.artifacts import Listing, Snapshot, SnapshotFile, SourceFile
from trainwright.documents import digest_file
from trainwright.errors import TransientError
from trainwright.ingest.commit import (
    FolderCommit,
    OutputLocations,
    ShardOutput,
    StoreCommit,
    _is_there,
    only_writer,
)
from trainwright.ingest.reports import ShardReport
from trainwright.storage import Access

NOTHING = Listing(source="here", files=())


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def output(folder: Path, *, shared: bool = False, rows: int = 100) -> ShardOutput:
    place = OutputLocations(
        files=str(folder / "data"), named="data", spills=str(folder / "spills"), reports="", shared=shared
    )
    return ShardOutput(place, 7, Path(), Access(), rows)


def test_a_shard_ends_a_file_with_the_batch_that_fills_it(tmp_path: Path) -> None:
    made = output(tmp_path)
    for split, rows in (("train", 99), ("train", 1), ("evaluate", 150), ("train", 10), ("evaluate", 1)):
        made.append(split, flights(150).slice(0, rows))
    found = {entry.uri: (entry.split, entry.rows) for entry in made.finish()}
    assert found == {
        "data/train/part-00007.parquet": ("train", 100),
        "data/train/part-00007.1.parquet": ("train", 10),
        "data/evaluate/part-00007.parquet": ("evaluate", 150),
        "data/evaluate/part-00007.1.parquet": ("evaluate", 1),
    }
    assert names(tmp_path) == sorted(found)
    for entry in made.finish():
        path = tmp_path / entry.uri
        assert (entry.size, entry.checksum) == (path.stat().st_size, f"sha256:{digest_file(path)}")


def test_a_shard_that_several_processes_may_make_has_names_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        made = output(tmp_path, shared=True)
        made.append("train", flights(1))
        made.finish()
    assert len(names(tmp_path)) == 2


def test_a_withdrawn_shard_leaves_no_file_and_none_open(tmp_path: Path) -> None:
    before, made = len(os.listdir("/proc/self/fd")), output(tmp_path)
    for split in ("train", "train", "evaluate"):
        made.append(split, flights(100))
    made.spill.write_text("x")
    made.withdraw()
    assert names(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_has_one_writer_and_is_removed_if_nothing_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "snapshot"
    for kept in (False, True):
        with only_writer(folder):
            with pytest.raises(TransientError, match="another ingest is writing"), only_writer(folder):
                pass
            if kept:
                (folder / "manifest.json").write_text("{}")
        assert folder.exists() == kept
    with only_writer(folder):
        pass


@pytest.mark.parametrize(
    ("there", "name"),
    [
        ([], "data"),
        (["data"], "data-2"),
        (["data-2"], "data"),
        (["data", "data-2"], "data-3"),
        (["data", "data-3"], "data-2"),
    ],
)
def test_a_commit_into_a_folder_takes_a_free_name_and_removes_the_others(
    tmp_path: Path, there: list[str], name: str
) -> None:
    for number in there:
        (tmp_path / number / "train").mkdir(parents=True)
    (tmp_path / "database.txt").write_text("no folder of data")
    (tmp_path / ".attempt" / "spills").mkdir(parents=True)
    (tmp_path / ".manifest.json.5f0c").write_text("{")
    commit = FolderCommit(tmp_path)
    assert names(tmp_path) == ["database.txt"]
    assert not (tmp_path / ".attempt").exists()
    assert (commit.place.files, commit.place.named) == (str(tmp_path / name), name)
    assert not commit.place.shared
    Path(commit.place.files).mkdir()
    commit.clean_up()
    assert {path.name for path in tmp_path.iterdir()} == {"database.txt", name}


def test_an_abandoned_folder_keeps_the_snapshot_that_lies_there(tmp_path: Path) -> None:
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "manifest.json").write_text("{}")
    commit = FolderCommit(tmp_path)
    for place in (commit.place.files, commit.place.spills, commit.place.reports):
        Path(place).mkdir(parents=True)
    commit.abandon(final=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "manifest.json"]


def store(folder: Path, listing: Listing = NOTHING) -> StoreCommit:
    return StoreCommit(f"file://{folder}", "request", listing, Access())


def written(place: str, name: str, text: str = "rows") -> SnapshotFile:
    path = Path(place) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    checksum = f"sha256:{digest_file(path)}"
    return SnapshotFile(uri=str(path), size=len(text), checksum=checksum, rows=1, split="train")


def reported(commit: StoreCommit, shard: int) -> ShardReport:
    """Write a shard of an attempt, and its report."""
    file, spill = (written(commit.place.files, f"{kind}-{shard}") for kind in ("train", "spill"))
    report = ShardReport(
        shard=shard, files=(file,), spans=(), columns={}, runs=(),
        spill=SourceFile(uri=spill.uri, size=spill.size, checksum=spill.checksum),
    )  # fmt: skip
    place = Path(commit.place.reports) / f"{shard:05d}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(report.packed())
    return report


def snapshot(*reports: ShardReport) -> Snapshot:
    return Snapshot(files=tuple(file for report in reports for file in report.files), columns=())


def test_a_request_is_committed_once_and_each_attempt_gets_the_first_snapshot(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    assert (first.committed(), first.valid_reports()) == (None, {})
    assert first.place.reports == second.place.reports == str(tmp_path / "request" / "shards")
    assert first.place.files != second.place.files
    reports = [reported(first, number) for number in (1, 0)]
    assert first.publish(snapshot(*reports)) == snapshot(*reports)
    assert second.publish(snapshot(reports[0])) == snapshot(*reports)
    assert second.committed() == (snapshot(*reports), reports[::-1])


@pytest.mark.parametrize("damage", ["gone", "longer", "other"])
def test_a_commit_whose_file_is_gone_or_changed_is_removed(tmp_path: Path, damage: str) -> None:
    commit = store(tmp_path)
    report = reported(commit, 0)
    commit.publish(snapshot(report))
    file = Path(report.files[0].uri)
    file.unlink() if damage == "gone" else file.write_text("more rows" if damage == "longer" else "swor")
    assert commit.committed() is None
    assert not (tmp_path / "request" / "manifest.json").exists()
    assert (commit.valid_reports(), names(tmp_path / "request" / "shards")) == ({}, [])


def test_files_of_the_source_count_as_they_were_listed(tmp_path: Path) -> None:
    own = written(str(tmp_path / "in"), "a.parquet")
    listing = Listing(source="in", files=(SourceFile(uri=own.uri, size=own.size, checksum=own.checksum),))
    store(tmp_path).publish(Snapshot(files=(own,), columns=()))
    assert store(tmp_path, listing).committed() is not None
    assert store(tmp_path).committed() is None


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '{"shard": "x"}', "\udcff"])
def test_reports_that_cannot_be_read_are_made_anew(tmp_path: Path, text: str) -> None:
    commit = store(tmp_path)
    whole, lost = reported(commit, 0), reported(commit, 2)
    (Path(commit.place.reports) / "00001.json").write_bytes(text.encode(errors="surrogateescape"))
    Path(lost.spill.uri).unlink()
    assert commit.valid_reports() == {0: whole}
    assert names(Path(commit.place.reports)) == ["00000.json"]


def test_clean_up_removes_what_no_manifest_names(tmp_path: Path) -> None:
    killed, commit = store(tmp_path), store(tmp_path)
    left, report = reported(killed, 1), reported(commit, 0)
    commit.clean_up()
    assert Path(left.files[0].uri).exists(), "nothing is committed yet"
    commit.publish(snapshot(report))
    commit.clean_up()
    attempt = Path(commit.place.files).name
    assert names(tmp_path / "request") == sorted(
        ["manifest.json", "shards/00000.json", "shards/00001.json", f"{attempt}/train-0"]
    )


@pytest.mark.parametrize("final", [False, True])
def test_an_abandoned_attempt_removes_its_own_unless_a_later_one_can_use_it(
    tmp_path: Path, final: bool
) -> None:
    other, commit = store(tmp_path), store(tmp_path)
    reported(other, 1)
    kept = names(tmp_path)
    reported(commit, 0)
    everything = names(tmp_path)
    commit.abandon(final=final)
    assert names(tmp_path) == (kept if final else everything)


def test_an_object_is_there_in_the_version_that_was_written(tmp_path: Path) -> None:
    uri, path = "s3://bucket/a", tmp_path / "a"
    path.write_text("rows")
    checksum = f"sha256:{digest_file(path)}"
    there = {
        uri: SourceFile(uri=uri, size=4, checksum="", version="v1"),
        str(path): SourceFile(uri=str(path), size=4, checksum=""),
    }
    assert _is_there(uri, 4, checksum, "v1", there)
    assert not _is_there(uri, 4, checksum, "v2", there)
    assert not _is_there(uri, 5, checksum, "v1", there)
    assert not _is_there("s3://bucket/b", 4, checksum, "v1", there)
    assert _is_there(str(path), 4, checksum, "", there)
    assert not _is_there(str(path), 4, "sha256:ab", "", there)
    assert not _is_there(str(path), 4, checksum, "", {str(path): replace(there[str(path)], size=3)})
