import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.sources import deletes
from tests.sources.reading import opened, read, section
from tests.storage.stores import Bucket
from trainwright.artifacts import Listing
from trainwright.errors import InputError, PermissionRefused
from trainwright.sources import column_names, list_source
from trainwright.storage import Access

ICEBERG = {"format": "iceberg"}


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": list(range(first, last)), "word": [f"w{n}" for n in range(first, last)]})


def listed(place: object, **changes: object) -> Listing:
    return list_source(str(place), section(**ICEBERG | changes), Access())


def ids(place: object, **changes: object) -> list[int]:
    return sorted(read(place, **ICEBERG | changes)["id"].to_pylist())


class Made:
    """A real table in a catalog of its own, and its folder."""

    def __init__(self, folder: Path, **properties: str) -> None:
        folder.mkdir(parents=True)
        self._catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/w")
        self._catalog.create_namespace("n")
        self.table: Table = self._catalog.create_table("n.t", schema=rows(0, 1).schema, properties=properties)
        self.place = Path(self.table.location().removeprefix("file://"))
        self.table.append(rows(0, 10))
        self.table.append(rows(10, 15))

    @property
    def snapshot(self) -> int:
        found = self.table.current_snapshot()
        assert found is not None
        return found.snapshot_id

    def close(self) -> None:
        self._catalog.engine.dispose()


@pytest.fixture
def made(tmp_path: Path) -> Any:
    found = Made(tmp_path / "home")
    yield found
    found.close()


def test_columns_are_those_of_the_listed_snapshot(tmp_path: Path) -> None:
    listing = listed(Made(tmp_path / "c").place)
    assert column_names(listing, section(**ICEBERG), Access(), ()) == ["id", "word"]


def test_table_that_moves_on_is_read_as_it_was_resolved(made: Made) -> None:
    before = listed(made.place)
    assert before.source.endswith(f".metadata.json#snapshot={made.snapshot}")
    assert len(before.files) == 2
    made.table.append(rows(100, 110))
    made.table.delete("id < 5")
    assert listed(before.source) == before
    assert ids(before.source) == list(range(15))
    assert ids(made.place) == [*range(5, 15), *range(100, 110)]
    assert listed(made.place).content_digest != before.content_digest


def test_snapshot_is_chosen_and_one_that_is_not_there_is_named(made: Made) -> None:
    first = made.table.snapshots()[0].snapshot_id
    assert ids(made.place, version=str(first)) == list(range(10))
    assert ids(made.table.metadata_location.removeprefix("file://")) == list(range(15))
    with pytest.raises(InputError, match="the Iceberg table has no snapshot 7") as caught:
        listed(made.place, version="7")
    assert str(first) in caught.value.hint
    with pytest.raises(InputError, match="'latest' is no snapshot id"):
        listed(made.place, version="latest")
    with pytest.raises(InputError, match="no Iceberg table"):
        listed(made.place.parent)


def test_column_that_was_renamed_is_the_same_and_a_new_one_has_no_value_before(made: Made) -> None:
    from pyiceberg.types import DoubleType

    with made.table.update_schema() as update:
        update.rename_column("word", "name")
        update.add_column("more", DoubleType())
    made.table.append(pa.table({"id": [20], "name": ["x"], "more": [1.5]}))
    found = read(made.place, **ICEBERG).sort_by("id")
    assert found["name"].to_pylist() == [*(f"w{n}" for n in range(15)), "x"]
    assert found["more"].to_pylist() == [None] * 15 + [1.5]


def test_parts_can_be_sent_elsewhere(made: Made) -> None:
    source = pickle.loads(pickle.dumps(opened(made.place, **ICEBERG)))  # noqa: S301 - our own
    parts = source.parts()
    assert sorted(part.rows for part in parts) == [5, 10]
    for part in parts:
        assert sum(table.num_rows for _, _, table in source.batches(part)) == part.rows


def test_rows_that_were_deleted_by_their_place_are_left_out(made: Made) -> None:
    first, second = sorted(
        (made.place / "data").glob("*.parquet"), key=lambda path: -pq.read_metadata(path).num_rows
    )
    metadata = deletes.commit(made.table, {first: [0, 3, 9], second: [4]})
    assert ids(metadata) == [1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13]
    assert len(listed(metadata).files) == 3
    source = opened(metadata, shard_rows=1, **ICEBERG)
    assert {part.rows for part in source.parts()} == {None}
    assert ids(f"{made.place}", version=str(made.snapshot)) == list(range(15))


def test_deletes_that_cannot_be_applied_are_rejected(made: Made) -> None:
    first = next((made.place / "data").glob("*.parquet"))
    with pytest.raises(InputError, match=r"cannot be read: .*equality deletes"):
        listed(deletes.commit(made.table, {first: [1]}, equality=True))


def test_files_outside_of_the_table_are_not_read(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.place, tmp_path / "stolen")
    with pytest.raises(PermissionRefused, match="outside of its folder"):
        listed(tmp_path / "stolen")


def test_what_a_table_says_about_how_it_is_to_be_read_is_not_obeyed(tmp_path: Path) -> None:
    made = Made(tmp_path / "home")
    path = Path(made.table.metadata_location.removeprefix("file://"))
    content = json.loads(path.read_text())
    content["properties"] |= {"py-io-impl": "antigravity.Evil", "s3.endpoint": "https://evil.example"}
    path.write_text(json.dumps(content))
    assert ids(made.place) == list(range(15))
    made.close()


def test_two_newest_metadata_files_are_not_guessed_between(made: Made) -> None:
    newest = max((made.place / "metadata").glob("*.metadata.json"))
    number = newest.name.partition("-")[0]
    shutil.copy(newest, newest.with_name(f"{number}-00000000-0000-0000-0000-000000000000.metadata.json"))
    with pytest.raises(InputError, match="the newest metadata file of the table is ambiguous"):
        listed(made.place)
    assert ids(newest) == list(range(15))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format-version": 9}', "\x00"])
def test_broken_metadata_is_a_typed_error(made: Made, content: str) -> None:
    newest = max((made.place / "metadata").glob("*.metadata.json"))
    newest.write_text(content)
    with pytest.raises(InputError) as caught:
        listed(made.place)
    assert str(made.place) in caught.value.where


def test_file_that_is_gone_and_a_manifest_that_is_broken_are_named(made: Made) -> None:
    next((made.place / "data").glob("*.parquet")).unlink()
    with pytest.raises(InputError, match="1 of 2 files of this version of the table are gone"):
        listed(made.place)
    for path in (made.place / "metadata").glob("*-m0.avro"):
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError):
        listed(made.place)


def test_table_in_an_object_store_is_read_through_our_own_storage(s3: Bucket, tmp_path: Path) -> None:
    """Written by pyiceberg's own driver; moved on after it was resolved."""
    endpoint = {"s3.endpoint": f"http://{s3.proxy.upstream}", "s3.region": "us-east-1"}
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=s3.uri, **endpoint)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=rows(0, 1).schema)
    table.append(rows(0, 10))
    before = listed(table.location())
    table.append(rows(10, 15))
    table.delete("id < 5")
    assert ids(before.source) == list(range(10))
    assert ids(table.location()) == list(range(5, 15))
    assert {entry.checksum.partition(":")[0] for entry in before.files} <= {"md5", "etag"}
    catalog.engine.dispose()
