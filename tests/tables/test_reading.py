import dataclasses
import datetime as dt
import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables.manifests import MODERN, entry, manifest
from trainwright import tables
from trainwright.artifacts import RUN_AGAIN, Snapshot, SnapshotFile
from trainwright.errors import InputError, PermissionRefused

NUMBERS = {"id": "int64"}


def numbers(path: Path, count: int = 10, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(range(count), pa.int64())}), path, **options)
    return path


def ids(folder: Path, snapshot: Snapshot) -> list[int]:
    (column,) = tables.read_split(folder, snapshot, "train", ["id"]).columns
    batches = [batch.column(0) for batch in tables.iter_batches(folder, snapshot, ["train"], ["id"], 3)]
    cut = tables.pieces(folder, snapshot, ["train"], rows=1)
    pieced = [batch.column(0) for piece in cut for batch in tables.read_piece(folder, piece, ["id"])]
    read = [[value for part in parts for value in part.to_pylist()] for parts in (batches, pieced)]
    assert read == [column.to_pylist()] * 2
    return read[0]


# --- whoever wrote it -------------------------------------------------------------------------------------


def test_files_of_any_writer_come_out_in_the_declared_columns_order_and_types(tmp_path: Path) -> None:
    """Dictionaries, large strings, an old form of times, row groups of many sizes, pandas' metadata."""
    count = 1_000
    words = pa.array([None if n % 7 == 0 else f"w{n % 5}" for n in range(count)])
    moments = pa.array([1_000_000_000 * n + 123_456_000 for n in range(count)], pa.timestamp("ns"))
    first = pa.table(
        {
            "extra": pa.array([b"x"] * count),
            "word": words.dictionary_encode(),
            "id": pa.array(range(count), pa.int64()),
            "at": moments,
        }
    ).replace_schema_metadata({"pandas": '{"index_columns": ["id"]}'})
    second = pa.table(
        {
            "id": pa.array(range(count, 2 * count), pa.int64()),
            "at": moments,
            "word": words.cast("large_string"),
        }
    )
    pq.write_table(first, tmp_path / "a.parquet", row_group_size=17, use_deprecated_int96_timestamps=True)
    pq.write_table(second, tmp_path / "b.parquet", compression="snappy", row_group_size=999)
    types = {"id": "int64", "word": "string", "at": "timestamp[us]"}
    files = (entry(tmp_path / name, count) for name in ("a.parquet", "b.parquet"))
    snapshot = manifest(types, *files)
    whole = tables.read_split(tmp_path, snapshot, "train")
    assert {field.name: str(field.type) for field in whole.schema} == types
    assert whole.schema.metadata is None
    assert whole["id"].to_pylist() == list(range(2 * count))
    assert whole["word"].to_pylist() == words.to_pylist() * 2
    assert whole["at"].cast(pa.int64()).to_pylist() == [1_000_000 * n + 123_456 for n in range(count)] * 2
    batches = list(tables.iter_batches(tmp_path, snapshot, ["train"], batch_rows=400))
    assert pa.Table.from_batches(batches).combine_chunks() == whole
    cut = tables.pieces(tmp_path, snapshot, ["train"], rows=100)
    assert max(piece.rows for piece in cut) == 999
    pieced = [batch for piece in cut for batch in tables.read_piece(tmp_path, piece)]
    assert pa.Table.from_batches(pieced).combine_chunks() == whole


def test_folders_named_like_partitions_are_folders_and_no_columns(tmp_path: Path) -> None:
    path = numbers(tmp_path / "id=7" / "day=2024-01-01" / "a.parquet")
    assert ids(tmp_path, manifest(NUMBERS, entry(path, 10))) == list(range(10))


def test_a_column_without_values_or_of_fewer_bits_takes_the_declared_type(tmp_path: Path) -> None:
    narrow = pa.table(
        {"a": pa.array([1, None], pa.int8()), "b": pa.array([0.5, 2], pa.float32()), "c": pa.nulls(2)}
    )
    wide = pa.table({"c": ["x", "y"], "b": pa.array([0.25, None]), "a": pa.array([2**40, 5])})
    for name, table in (("n", narrow), ("w", wide)):
        pq.write_table(table, tmp_path / name)
    types = {"a": "int64", "b": "double", "c": "string"}
    snapshot = manifest(types, entry(tmp_path / "n", 2), entry(tmp_path / "w", 2))
    found = tables.read_split(tmp_path, snapshot, "train")
    assert found.to_pydict() == {
        "a": [1, None, 2**40, 5],
        "b": [0.5, 2.0, 0.25, None],
        "c": [None, None, "x", "y"],
    }
    assert [str(kind) for kind in found.schema.types] == list(types.values())


@pytest.mark.parametrize(
    ("values", "declared", "said"),
    [
        (pa.array(["1"]), "int64", "column 'id' is string, the manifest says int64"),
        (pa.array([1]), "string", "column 'id' is int64, the manifest says string"),
        (pa.array([1]), "timestamp[us]", "column 'id' is int64, the manifest says timestamp"),
        (pa.array([0], pa.timestamp("us")), "timestamp[us, tz=UTC]", "is timestamp.us., the manifest"),
        (pa.array([300]), "int8", "column 'id' does not fit int8"),
        (pa.array([2**60 + 1]), "double", "column 'id' does not fit double"),
        (pa.array([[1]]), "list<item: int8>", "column 'id' is list<.*>, the manifest says list<item: int8>"),
    ],
)
def test_a_column_of_another_type_than_declared_is_refused(
    tmp_path: Path, values: pa.Array, declared: str, said: str
) -> None:
    pq.write_table(pa.table({"id": values}), tmp_path / "a.parquet")
    snapshot = manifest({"id": declared}, entry(tmp_path / "a.parquet", 1))
    for read in (tables.read_split, lambda *asked: list(tables.iter_batches(*asked[:2], [asked[2]]))):
        with pytest.raises(InputError, match=f"cached input changed: .*{said}") as caught:
            read(tmp_path, snapshot, "train")
        assert caught.value.where.endswith("a.parquet")
        assert caught.value.hint == RUN_AGAIN


def test_a_declared_column_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.parquet")
    snapshot = manifest({"id": "int64", "nme": "string"}, entry(path, 10))
    with pytest.raises(InputError, match=r"a\.parquet has no column 'nme'"):
        tables.read_split(tmp_path, snapshot, "train")
    assert tables.read_split(tmp_path, snapshot, "train", ["id"]).num_rows == 10


def test_columns_with_dots_in_their_names_are_themselves(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": 1}], "a.b": [2], "c.d": [3], "c": [4]})
    snapshot = tables.write_snapshot(tmp_path, {"train": [table]}, parents={}, roles={})
    for names in (["a.b", "a"], ["c", "a.b"], ["c.d"], None):
        expected = table.select(names or table.column_names)
        assert tables.read_split(tmp_path, snapshot, "train", names).to_pylist() == expected.to_pylist()
        (batch,) = tables.iter_batches(tmp_path, snapshot, ["train"], names)
        assert batch.to_pylist() == expected.to_pylist()


# --- is it the one that is named ----------------------------------------------------------------------------


def crc32c(content: bytes) -> object:
    google_crc32c = pytest.importorskip("google_crc32c")

    class Digest:
        @staticmethod
        def hexdigest() -> str:
            return f"{google_crc32c.value(content):08x}"

    return Digest


@pytest.mark.parametrize(
    ("kind", "digest"), [("md5", hashlib.md5), ("sha256", hashlib.sha256), ("crc32c", crc32c)]
)
def test_a_file_anywhere_on_a_disk_is_checked_by_the_checksum_it_has(
    tmp_path: Path, kind: str, digest: object
) -> None:
    path = numbers(tmp_path / "elsewhere" / "a.parquet")
    snapshot = manifest(NUMBERS, entry(path, 10, kind=kind, digest=digest))  # type: ignore[arg-type]
    assert ids(tmp_path / "here", snapshot) == list(range(10))
    content = bytearray(path.read_bytes())
    content[20] ^= 4
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"cached input changed: .* has {kind}:") as caught:
        tables.read_split(tmp_path / "here", snapshot, "train")
    assert caught.value.hint == RUN_AGAIN


def test_a_file_uri_is_a_file(tmp_path: Path) -> None:
    found = entry(numbers(tmp_path / "a b.parquet"), 10)
    uri = (tmp_path / "a b.parquet").as_uri()
    assert ids(tmp_path, manifest(NUMBERS, dataclasses.replace(found, uri=uri))) == list(range(10))


def test_a_checksum_that_a_disk_cannot_be_held_against_is_no_pass(tmp_path: Path) -> None:
    found = dataclasses.replace(entry(numbers(tmp_path / "a.parquet"), 10), checksum="etag:abc-2")
    with pytest.raises(InputError, match="checksum of kind 'etag'"):
        tables.read_split(tmp_path, manifest(NUMBERS, found), "train")


def test_a_file_of_other_rows_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    snapshot = manifest(NUMBERS, entry(numbers(tmp_path / "a.parquet"), 11))
    with pytest.raises(InputError, match=r"cached input changed: .* has 10 rows, the manifest says 11"):
        tables.read_split(tmp_path, snapshot, "train")
    with pytest.raises(InputError, match="has 10 rows"):
        tables.pieces(tmp_path, snapshot, ["train"], rows=5)


def read_pieces(folder: Path, snapshot: Snapshot, rows: int) -> None:
    for piece in tables.pieces(folder, snapshot, ["train"], rows):
        list(tables.read_piece(folder, piece))


@pytest.mark.parametrize("rows", [1, 100])
def test_what_is_gone_is_named_with_what_to_do(tmp_path: Path, rows: int) -> None:
    path = numbers(tmp_path / "source" / "a.parquet", row_group_size=2)
    snapshot = manifest(NUMBERS, entry(path, 10))
    shutil.rmtree(path.parent)
    for absent in ("nothing", "a folder", "a file above"):
        if absent == "a folder":
            path.mkdir(parents=True)
        if absent == "a file above":
            shutil.rmtree(path.parent)
            path.parent.write_text("")
        with pytest.raises(InputError, match="cached input is gone: no ") as caught:
            read_pieces(tmp_path, snapshot, rows)
        assert str(path) in caught.value.what
        assert caught.value.hint == RUN_AGAIN


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"no parquet at all, but as it was listed")
    with pytest.raises(InputError, match="the Parquet file cannot be read: ") as caught:
        tables.read_split(tmp_path, manifest(NUMBERS, entry(path, 10)), "train")
    assert caught.value.where == str(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.parquet")
    snapshot = manifest(NUMBERS, entry(path, 10))
    path.chmod(0)
    with pytest.raises(PermissionRefused, match="may not be read"):
        tables.read_split(tmp_path, snapshot, "train")


def test_a_file_is_digested_once_a_process_until_it_is_written_again(tmp_path: Path) -> None:
    path = numbers(tmp_path / "a.parquet", 1000)
    snapshot = manifest(NUMBERS, entry(path, 1000))
    tables.read_split(tmp_path, snapshot, "train")
    state = path.stat()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="cached input changed"):
        tables.read_split(tmp_path, snapshot, "train")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    list(tables.iter_batches(tmp_path, snapshot, ["train"], batch_rows=1))  # as if nobody had written to it


# --- memory, names, times ----------------------------------------------------------------------------------


@pytest.mark.skipif(not MODERN, reason="an older pyarrow never reads ahead")
def test_memory_does_not_grow_with_the_row_groups_of_whoever_wrote_the_file(tmp_path: Path) -> None:
    """A row group of 32 MB is read through small buffers; fetched whole beforehand, it would take 32 more."""
    rng, rows = np.random.default_rng(0), 1 << 20
    table = pa.table({f"c{n}": rng.normal(size=rows) for n in range(4)})
    pq.write_table(
        table, tmp_path / "a.parquet", row_group_size=rows, compression="none", use_dictionary=False
    )
    del table
    snapshot = manifest(
        dict.fromkeys(["c0", "c1", "c2", "c3"], "double"), entry(tmp_path / "a.parquet", rows)
    )
    before, peak = pa.total_allocated_bytes(), 0
    for _ in tables.iter_batches(tmp_path, snapshot, ["train"], batch_rows=8192):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 16 << 20


def test_a_relative_name_belongs_to_the_folder_of_the_manifest(tmp_path: Path) -> None:
    path = numbers(tmp_path / "here" / "data" / "a.parquet")
    found = dataclasses.replace(entry(path, 10), uri="data/a.parquet")
    assert ids(tmp_path / "here", manifest(NUMBERS, found)) == list(range(10))


@pytest.mark.parametrize("uri", ["../a.parquet", "data/../../a.parquet", "link.parquet"])
def test_a_relative_name_does_not_lead_out_of_it(tmp_path: Path, uri: str) -> None:
    path = numbers(tmp_path / "a.parquet")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link.parquet").symlink_to(path)
    found = dataclasses.replace(entry(path, 10), uri=uri)
    with pytest.raises(InputError, match="outside its folder"):
        tables.read_split(tmp_path / "here", manifest(NUMBERS, found), "train")


def test_an_object_without_a_version_is_not_read(tmp_path: Path) -> None:
    found = SnapshotFile(uri="gs://bucket/a.parquet", size=1, checksum="md5:x", rows=1, split="train")
    with pytest.raises(InputError, match="not pinned by a version"):
        tables.read_split(tmp_path, manifest(NUMBERS, found), "train")


def test_times_before_1970_and_after_2262_are_read_as_they_are(tmp_path: Path) -> None:
    moments = [
        dt.datetime(1, 1, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(9999, 12, 31),
    ]
    pq.write_table(pa.table({"at": pa.array(moments, pa.timestamp("us"))}), tmp_path / "a.parquet")
    snapshot = manifest({"at": "timestamp[us]"}, entry(tmp_path / "a.parquet", 3))
    assert tables.read_split(tmp_path, snapshot, "train")["at"].to_pylist() == moments
