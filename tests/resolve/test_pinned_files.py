"""The bytes of an earlier run are found again, whatever its source holds now."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.storage.stores import Bucket
from tests.storage.test_buckets import keep_versions
from trainwright import storage
from trainwright.artifacts import PinnedSource
from trainwright.command import run_package
from trainwright.errors import InputError
from trainwright.resolve.resolve import locate, resolve, restore

ONE, TWO = b"id,late\n1,0\n", b"id,late\n2,1\n"


def folder_of(place: Path) -> PinnedSource:
    """Two days of rows in a folder, as ``resolve`` lists them."""
    (place / "day=1").mkdir(parents=True)
    (place / "day=2").mkdir()
    (place / "day=1" / "a.csv").write_bytes(ONE)
    (place / "day=2" / "a.csv").write_bytes(TWO)
    return pinned(str(place))


def pinned(source: str) -> PinnedSource:
    listing = storage.take_listing(source)
    return PinnedSource(source=listing.source, version=listing.content_digest, files=listing.files)


def test_file_added_since_is_not_copied_and_the_copy_has_the_same_version(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "rows")
    (tmp_path / "rows" / "day=3").mkdir()
    (tmp_path / "rows" / "day=3" / "a.csv").write_bytes(ONE)
    copy = restore(source, tmp_path / "copy")
    assert sorted(str(path.relative_to(copy)) for path in Path(copy).rglob("*.csv")) == [
        "day=1/a.csv",
        "day=2/a.csv",
    ]
    assert storage.take_listing(copy).content_digest == source.version


def test_changed_file_is_named_with_the_expected_and_found_checksum(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "rows")
    (tmp_path / "rows" / "day=2" / "a.csv").write_bytes(ONE)
    with pytest.raises(InputError) as caught:
        restore(source, tmp_path / "copy")
    assert caught.value.where == str(tmp_path / "rows" / "day=2" / "a.csv")
    first, second = (entry.checksum for entry in source.files)
    assert f"expected {second}, found {first}" in caught.value.what
    (tmp_path / "rows" / "day=2" / "a.csv").unlink()
    with pytest.raises(InputError, match=f"this file is gone: expected {second}"):
        restore(source, tmp_path / "copy")


def test_moved_files_are_found_below_a_root_by_the_end_of_their_path(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "old" / "checkout" / "rows")
    (tmp_path / "old").rename(tmp_path / "new")
    there = replace(source, roots=(str(tmp_path / "nothing"), str(tmp_path / "new" / "checkout")))
    assert locate(there) == (str(tmp_path / "old" / "checkout"), str(tmp_path / "new" / "checkout"))
    assert storage.take_listing(restore(there, tmp_path / "copy")).content_digest == source.version


def test_folder_that_only_grew_is_cut_at_the_time_of_the_listing(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "rows")
    listed = replace(source, files=(), written_until=max(entry.written for entry in source.files))
    (tmp_path / "rows" / "day=3").mkdir()
    later = tmp_path / "rows" / "day=3" / "a.csv"
    later.write_bytes(ONE)
    tomorrow = later.stat().st_mtime + 86_400
    os.utime(later, (tomorrow, tomorrow))
    assert storage.take_listing(restore(listed, tmp_path / "copy")).content_digest == source.version
    (tmp_path / "rows" / "day=1" / "a.csv").unlink()
    with pytest.raises(InputError, match=f"expected {source.version}"):
        restore(listed, tmp_path / "again")


@pytest.mark.parametrize("listed", [True, False], ids=["its files are listed", "only its versions are known"])
def test_overwritten_object_is_read_at_its_pinned_version(
    bucket: Bucket, tmp_path: Path, *, listed: bool
) -> None:
    keep_versions(bucket)
    bucket.put("in/a.csv", ONE)
    source = pinned(f"{bucket.uri}/in")
    if not listed:
        source = replace(source, files=(), versions={entry.uri: entry.version for entry in source.files})
    bucket.put("in/a.csv", TWO)
    bucket.put("in/b.csv", TWO)
    assert Path(restore(source, tmp_path / "copy")).read_bytes() == ONE


def test_object_whose_version_is_gone_is_named(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("in/a.csv", ONE)
    source = pinned(f"{bucket.uri}/in")
    bucket.put("in/a.csv", TWO)
    with pytest.raises(InputError, match="is gone or was replaced") as caught:
        restore(source, tmp_path / "copy")
    assert caught.value.where == f"{bucket.uri}/in/a.csv"


def test_table_is_read_at_its_version_and_a_changed_one_is_rejected(tmp_path: Path) -> None:
    table, section = (
        tmp_path / "table",
        {"format": "delta", "splits": {"train": {"fraction": 1}}, "key": "id"},
    )
    write_deltalake(table, pa.table({"id": [1, 2], "late": [0, 1]}))
    found = resolve(str(table), tmp_path / "1", json.dumps(section | {"source": str(table), "label": "late"}))
    data = section | {"source": found.source, "label": "late"}
    source = PinnedSource(source=found.source, version=found.version, data=data)
    write_deltalake(table, pa.table({"id": [3], "late": [1]}), mode="append")
    assert restore(source, tmp_path / "copy") == f"{table}#version=0"
    with pytest.raises(InputError, match="are not those of the run"):
        restore(replace(source, source=f"{table}#version=1"), tmp_path / "copy")


def test_command_prints_where_to_read_the_copy(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "rows")
    source.write(tmp_path)
    words = ("resolve", "restore", str(tmp_path / PinnedSource.FILE), str(tmp_path / "copy"))
    assert json.loads(run_package(Path(sys.executable), *words)) == str(tmp_path / "copy")
