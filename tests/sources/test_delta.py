import datetime as dt
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.sources.reading import opened, read, section
from tests.storage.stores import Bucket
from trainwright.artifacts import Listing
from trainwright.errors import InputError, PermissionRefused
from trainwright.sources import column_names, list_source
from trainwright.storage import Access

DELTA = {"format": "delta"}


def rows(first: int, last: int, **more: object) -> pa.Table:
    return pa.table({"id": list(range(first, last)), "word": [f"w{n}" for n in range(first, last)]} | more)


def listed(place: object, **changes: object) -> Listing:
    return list_source(str(place), section(**DELTA | changes), Access())


def ids(place: object, **changes: object) -> list[int]:
    return sorted(read(place, **DELTA | changes)["id"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    place = tmp_path / "table"
    write_deltalake(place, rows(0, 10))
    write_deltalake(place, rows(10, 15), mode="append")
    return place


def test_table_that_moves_on_is_read_as_it_was_resolved(table: Path) -> None:
    before = listed(table)
    assert before.source == f"{table}#version=1"
    assert len(before.files) == 2
    write_deltalake(table, rows(100, 110), mode="append")
    DeltaTable(table).delete("id < 5")
    assert listed(before.source) == before
    assert ids(before.source) == list(range(15))
    assert ids(table) == [*range(5, 15), *range(100, 110)]
    assert listed(table).content_digest != before.content_digest


def test_columns_are_those_of_the_listed_version(table: Path) -> None:
    assert column_names(listed(table), section(**DELTA), Access(), ()) == ["id", "word"]


def test_version_is_chosen_and_one_that_is_not_there_is_named(table: Path) -> None:
    assert ids(table, version="0") == list(range(10))
    with pytest.raises(InputError, match="this Delta table has no version 7: its versions go up to 1"):
        listed(table, version="7")
    with pytest.raises(InputError, match="'latest' is no version"):
        listed(table, version="latest")
    with pytest.raises(InputError, match="expected a Delta table, found no _delta_log folder"):
        listed(table.parent)


def test_files_that_were_removed_are_no_part_of_the_version_and_deleted_rows_are_gone(table: Path) -> None:
    (table / "stray.parquet").write_bytes(b"no part of the table")
    DeltaTable(table).delete("id >= 3 and id < 12")
    assert ids(table) == [0, 1, 2, 12, 13, 14]


def test_checkpoint_stands_for_the_commits_before_it(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    write_deltalake(table, rows(20, 22), mode="append")
    for commit in (0, 1):
        (table / "_delta_log" / f"{commit:020}.json").unlink()
    assert ids(table) == [*range(15), 20, 21]


def test_copied_table_has_the_same_digest(table: Path, tmp_path: Path) -> None:
    shutil.copytree(table, tmp_path / "copy" / "deeper")
    assert listed(tmp_path / "copy" / "deeper").content_digest == listed(table).content_digest


def test_partition_columns_come_from_the_log(tmp_path: Path) -> None:
    place = tmp_path / "table"
    days = [dt.date(2013, 1, 1), dt.date(2013, 1, 2), None]
    write_deltalake(place, rows(0, 3, day=days, name=["a b", "ü/x", "c"]), partition_by=["day", "name"])
    found = read(place, **DELTA).sort_by("id")
    assert found.schema.field("day").type == pa.date32()
    assert found["day"].to_pylist() == days
    assert found["name"].to_pylist() == ["a b", "ü/x", "c"]


def test_column_that_was_added_later_has_no_value_before(table: Path) -> None:
    write_deltalake(table, rows(20, 22, more=[1.5, 2.5]), mode="append", schema_mode="merge")
    found = read(table, **DELTA).sort_by("id")
    assert found["more"].to_pylist() == [None] * 15 + [1.5, 2.5]


def test_parts_are_cut_and_can_be_sent_elsewhere(table: Path) -> None:
    source = pickle.loads(pickle.dumps(opened(table, **DELTA)))  # noqa: S301 - our own
    parts = source.parts()
    assert sorted(part.rows for part in parts) == [5, 10]
    for part in parts:
        assert sum(table.num_rows for _, _, table in source.batches(part)) == part.rows


def test_file_that_was_vacuumed_is_named(table: Path) -> None:
    next(table.glob("*.parquet")).unlink()
    with pytest.raises(InputError, match="1 of 2 files of this version of the table are gone") as caught:
        listed(table)
    assert "vacuumed" in caught.value.hint


def commit(table: Path, version: int, *actions: object) -> None:
    path = table / "_delta_log" / f"{version:020}.json"
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def added(path: str, **more: object) -> dict[str, object]:
    add = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    return {"add": add | more}


@pytest.mark.parametrize(
    "path", ["../other/x.parquet", "/etc/passwd", "file:///etc/hostname", "gs://b/x.parquet"]
)
def test_log_that_names_files_elsewhere_is_rejected(table: Path, path: str) -> None:
    commit(table, 2, added(path))
    with pytest.raises(PermissionRefused):
        listed(table)


def test_what_would_give_other_rows_is_rejected_by_name(tmp_path: Path) -> None:
    place = tmp_path / "table"
    write_deltalake(place, rows(0, 5), configuration={"delta.enableDeletionVectors": "true"})
    assert ids(place) == list(range(5))
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 2,
    }
    name = next(place.glob("*.parquet")).name
    commit(place, 1, added(name, deletionVector=vector, size=(place / name).stat().st_size))
    with pytest.raises(InputError, match="uses deletion vectors, which are not read"):
        listed(place)


@pytest.mark.parametrize("content", ["", "{", "[]\n", '{"add": 5}\n', "\x00\x01"])
def test_broken_log_is_a_typed_error(table: Path, content: str) -> None:
    (table / "_delta_log" / f"{0:020}.json").write_text(content)
    with pytest.raises(InputError) as caught:
        listed(table)
    assert str(table) in caught.value.where


@pytest.mark.covers("B33")
@pytest.mark.parametrize(
    ("package", "source", "settings"),
    [
        ("deltalake", "/table#version=0", DELTA),
        ("pyiceberg", "/table#snapshot=1", {"format": "iceberg"}),
        ("sqlalchemy", "postgresql://db/flights", {"format": "sql", "sql": {"select": "S", "tables": ["t"]}}),
    ],
)
def test_missing_package_is_named_with_its_extra(
    package: str, source: str, settings: dict[str, object]
) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
from tests.sources.reading import section
from trainwright.artifacts import Listing
from trainwright.sources import open_source
from trainwright.storage import Access
open_source(Listing(source={source!r}, files=()), section(**{settings!r}), Access())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    error = done.stderr.splitlines()[-4:]
    assert any("DependencyError" in line and package in line for line in error), done.stderr
    assert f"trainwright[{settings['format']}]" in "".join(error)


@pytest.mark.filterwarnings("ignore:Please install grpcio-status")
def test_table_in_an_object_store_is_read_through_our_own_storage(table: Path, bucket: Bucket) -> None:
    """A copy of the same bytes: it has the same digest, and nothing but the log is read to say so."""

    there: set[Path] = set()

    def upload() -> None:
        for path in table.rglob("*"):
            if path.is_file() and path not in there:
                there.add(path)
                bucket.put(f"in/table/{path.relative_to(table)}", path.read_bytes())

    upload()
    before = listed(f"{bucket.uri}/in/table")
    assert before.content_digest == listed(table).content_digest
    write_deltalake(table, rows(100, 110), mode="append")
    upload()
    assert listed(before.source).files == before.files
    assert ids(before.source) == list(range(15))
    assert ids(f"{bucket.uri}/in/table/") == [*range(15), *range(100, 110)]
