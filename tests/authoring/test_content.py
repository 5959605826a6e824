"""What counts as the content of an artifact: all that a later step reads, and nothing of where it lies."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainwright.artifacts import Column, Listing, Snapshot, SnapshotFile, SourceFile
from trainwright.artifacts.metadata import describe
from trainwright.local.cache import Broken, Cache, Digests
from trainwright.local.invocation import _own_metadata

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


def test_a_snapshot_made_again_elsewhere_is_the_same_content(one: Path, tmp_path: Path) -> None:
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
def test_a_registration_of_another_format_leaves_an_artifacts_metadata_as_it_is(
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
def test_a_kept_manifest_whose_files_lie_elsewhere_is_no_result_without_them(
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
