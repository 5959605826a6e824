import datetime as dt
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tables.kills import kill_everywhere
from tests.tables.manifests import MODERN
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError

ROLES = {"key": "id"}


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if n % 7 == 0 else f"row {n % 13}" for n in numbers], pa.string()),
            "at": pa.array([1_000_000_000 * n for n in numbers], pa.timestamp("ns")),
        }
    )


def write(folder: Path, **splits: list[pa.Table]) -> Snapshot:
    return tables.write_snapshot(folder, splits, parents={"source": "s"}, roles=ROLES)


def test_the_same_rows_in_other_batches_give_the_same_digest(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", train=[rows(0, 300_000)])
    cut = write(tmp_path / "cut", train=[rows(0, 11), rows(11, 140_000), rows(140_000, 300_000)])
    assert whole.digest == cut.digest
    assert Snapshot.read(tmp_path / "cut").digest == cut.digest


def test_one_changed_value_gives_another_digest(tmp_path: Path) -> None:
    first = write(tmp_path / "a", train=[rows(0, 10)])
    second = write(tmp_path / "b", train=[rows(1, 11)])
    assert first.digest != second.digest


def test_rows_come_back_in_order_over_files_and_batches(tmp_path: Path) -> None:
    snapshot = tables.write_snapshot(
        tmp_path, {"train": [rows(0, 25)], "late": [rows(25, 30)]}, parents={}, roles=ROLES, rows_per_file=10
    )
    assert [entry.rows for entry in snapshot.files] == [10, 10, 5, 5]
    assert snapshot.splits == {"train": 25, "late": 5}
    whole = tables.read_split(tmp_path, snapshot, "train", ["name", "id"])
    assert whole.column_names == ["name", "id"]
    assert whole["id"].to_pylist() == list(range(25))
    batches = list(tables.iter_batches(tmp_path, snapshot, ["train", "late"], ["id"], batch_rows=4))
    assert max(batch.num_rows for batch in batches) <= 4
    assert [n for batch in batches for n in batch.column(0).to_pylist()] == list(range(30))


def test_types_are_stored_in_their_one_plain_form(tmp_path: Path) -> None:
    zone = pa.array([0, 1], pa.timestamp("s", tz="America/New_York"))
    table = pa.table(
        {
            "id": pa.array([1, 2]),
            "word": pa.array(["a", None]).dictionary_encode(),
            "long": pa.array(["a", "b"], pa.large_string()),
            "at": zone,
        }
    ).replace_schema_metadata({"pandas": "noise"})
    snapshot = write(tmp_path, train=[table])
    types = {column.name: column.type for column in snapshot.columns}
    assert types == {"id": "int64", "word": "string", "long": "string", "at": "timestamp[us, tz=UTC]"}
    back = tables.read_split(tmp_path, snapshot, "train")
    assert back.schema.metadata is None
    assert back["at"].to_pylist() == zone.to_pylist()
    assert snapshot.quality == {"nulls.id": 0, "nulls.word": 1, "nulls.long": 0, "nulls.at": 0}


@pytest.mark.skipif(not MODERN, reason="an older pyarrow does not write half floats, either")
def test_types_that_an_older_pyarrow_does_not_read_become_the_next_wider_one() -> None:
    table = pa.table(
        {
            "half": pa.array([0.5, None], pa.float32()).cast("halffloat"),
            "texts": pa.array([["a"], None], pa.large_list(pa.large_string())),
            "times": pa.array([[1_000_001], []], pa.list_(pa.timestamp("ns"))),
            "same": pa.array([{"x": 1}, None]),
        }
    )
    plain = tables.plain(table)
    kinds = [pa.float32(), pa.large_list(pa.string()), pa.list_(pa.timestamp("us")), table.schema.types[3]]
    assert plain.schema.types == kinds
    assert plain["half"].to_pylist() == [0.5, None]
    assert plain["texts"].to_pylist() == [["a"], None]
    assert plain["times"].cast(pa.list_(pa.int64())).to_pylist() == [[1_000], []]


def test_a_time_that_microseconds_do_not_reach_is_refused_with_its_column_and_place() -> None:
    table = pa.table({"at": pa.array([2**60], pa.timestamp("ms"))})
    with pytest.raises(InputError, match=r"column 'at' is timestamp\[ms\], and cannot be stored") as caught:
        tables.plain(table, "here")
    assert caught.value.where == "here"


def test_rows_of_another_schema_are_refused_and_nothing_is_published(tmp_path: Path) -> None:
    other = pa.table(
        {"id": pa.array(["x"]), "name": pa.array(["y"]), "at": pa.array([0], pa.timestamp("us"))}
    )
    with pytest.raises(InputError, match="'id' is string, was int64"):
        write(tmp_path, train=[rows(0, 3)], test=[other])
    assert list(tmp_path.iterdir()) == []


def test_a_split_of_no_rows_keeps_its_columns(tmp_path: Path) -> None:
    snapshot = write(tmp_path, train=[rows(0, 3)], empty=[rows(0, 0)])
    assert snapshot.splits == {"train": 3, "empty": 0}
    assert (
        tables.read_split(tmp_path, snapshot, "empty").schema
        == tables.read_split(tmp_path, snapshot, "train").schema
    )


@pytest.mark.parametrize("split", ["../train", "a/b", "", ".hidden"])
def test_a_split_that_is_no_folder_name_is_refused(tmp_path: Path, split: str) -> None:
    with pytest.raises(InputError, match="cannot be a folder's name"):
        tables.write_snapshot(tmp_path, {split: [rows(0, 3)]}, parents={}, roles=ROLES)


def test_a_missing_split_names_those_that_exist(tmp_path: Path) -> None:
    snapshot = write(tmp_path, train=[rows(0, 3)])
    with pytest.raises(InputError, match=r"no split 'trian'; this snapshot has train \(3 rows\)"):
        tables.read_split(tmp_path, snapshot, "trian")


def test_missing_columns_are_named_with_their_close_matches() -> None:
    with pytest.raises(InputError) as caught:
        tables.require_columns(rows(0, 1), ["nane", "id", "zzz"], "the table")
    assert caught.value.what == "no column 'nane' (close: name); no column 'zzz'"
    assert caught.value.where == "the table"


@pytest.mark.covers("F40")
def test_a_flipped_bit_is_found_before_its_rows_are_believed(tmp_path: Path) -> None:
    snapshot = write(tmp_path, train=[rows(0, 1000)])
    path = tmp_path / snapshot.files[0].uri
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cached input changed: .*part-00000\.parquet has sha256:"):
        tables.read_split(tmp_path, snapshot, "train")


def test_a_truncated_and_a_missing_file_are_named(tmp_path: Path) -> None:
    snapshot = write(tmp_path, train=[rows(0, 1000)])
    path = tmp_path / snapshot.files[0].uri
    os.truncate(path, 100)
    with pytest.raises(InputError, match="has 100 bytes, the manifest says"):
        list(tables.iter_batches(tmp_path, snapshot, ["train"]))
    path.unlink()
    with pytest.raises(InputError, match="cached input is gone"):
        list(tables.iter_batches(tmp_path, snapshot, ["train"]))


@pytest.mark.covers("A3")
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    snapshot = write(tmp_path / "a", train=[rows(0, 3)])
    text = (tmp_path / "a" / "manifest.json").read_text().replace("data/train/", "../a/data/train/")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="outside its folder"):
        tables.read_split(tmp_path / "b", Snapshot.read(tmp_path / "b"), "train")
    assert snapshot.rows == 3


def test_a_snapshot_with_another_digest_than_asked_for_is_refused(tmp_path: Path) -> None:
    snapshot = write(tmp_path, train=[rows(0, 3)])
    assert Snapshot.open(tmp_path, snapshot.digest) == snapshot
    with pytest.raises(InputError, match="cached input changed"):
        Snapshot.open(tmp_path, "0" * 64)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(InputError, match="cached input is gone"):
        Snapshot.open(tmp_path, snapshot.digest)


@pytest.mark.skipif(not MODERN, reason="this pyarrow does not know the checksums of pages")
def test_pages_carry_checksums_where_this_pyarrow_writes_them(tmp_path: Path) -> None:
    snapshot = write(tmp_path, train=[rows(0, 5000)])
    path = tmp_path / snapshot.files[0].uri
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)


CELLS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
WORDS = st.one_of(st.none(), st.text(max_size=5))
TIMES = st.one_of(
    st.none(), st.datetimes(min_value=dt.datetime(1700, 1, 1), max_value=dt.datetime(2200, 1, 1))
)
FLOATS = st.one_of(st.none(), st.floats(allow_nan=False))
TABLE = st.lists(
    st.tuples(CELLS, WORDS, TIMES, FLOATS, st.one_of(st.none(), st.booleans())), min_size=1, max_size=40
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=TABLE, cut=st.integers(0, 40), rows_per_file=st.integers(1, 50))
def test_any_rows_come_back_as_they_were(tmp_path: Path, content: list, cut: int, rows_per_file: int) -> None:  # type: ignore[type-arg]
    kinds = [pa.int64(), pa.string(), pa.timestamp("us"), pa.float64(), pa.bool_()]
    columns = [
        pa.array(list(column), kind) for column, kind in zip(zip(*content, strict=True), kinds, strict=True)
    ]
    table = pa.table(dict(zip("nwtfb", columns, strict=True)))
    snapshot = tables.write_snapshot(
        tmp_path,
        {"train": [table.slice(0, cut), table.slice(cut)]},
        parents={},
        roles={"key": "n"},
        rows_per_file=rows_per_file,
    )
    assert tables.read_split(tmp_path, snapshot, "train").to_pylist() == table.to_pylist()
    assert all(entry.rows <= rows_per_file for entry in snapshot.files)


KILLED = """
import pyarrow as pa
from trainwright import tables

def before(folder):
    tables.write_snapshot(folder / "it", {"train": [pa.table({"id": [1, 2]})]}, parents={}, roles={})

def act(folder):
    rows = pa.table({"id": pa.array(range(50), pa.int64())})
    options = {"parents": {"source": "new"}, "roles": {}, "rows_per_file": 20}
    tables.write_snapshot(folder / "it", {"train": [rows]}, **options)
"""


def test_a_kill_at_any_file_operation_leaves_the_old_snapshot_or_the_new_or_none(tmp_path: Path) -> None:
    folders = kill_everywhere(KILLED, tmp_path / "runs")
    new = Snapshot.read(folders[-1] / "it")
    assert new.rows == 50
    seen = []
    for folder in folders:
        if not (folder / "it" / "manifest.json").exists():
            seen.append("none")
            continue
        found = Snapshot.read(folder / "it")
        assert tables.read_split(folder / "it", found, "train").num_rows == found.rows
        seen.append("new" if found == new else "old")
    assert set(seen) == {"old", "none", "new"}
    assert seen == sorted(seen, key=["old", "none", "new"].index)
    assert not list((folders[-1] / "it").glob(".*"))
