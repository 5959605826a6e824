import dataclasses
import datetime as dt
import hashlib
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(("kind", "digest"), [("md5", hashlib.md5), ("sha256", hashlib.sha256)])
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


def written(folder: Path, groups_of_files: list[list[int]]) -> Snapshot:
    """Write files with row groups of these sizes; the ids count through all of them."""
    files, start = [], 0
    for index, groups in enumerate(groups_of_files):
        path = folder / f"{index}.parquet"
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        with pq.ParquetWriter(path, schema) as writer:
            for size in groups:
                ids = range(start, start + size)
                writer.write_table(pa.table([list(ids), [f"n{n}" for n in ids]], schema=schema))
                start += size
        files.append(entry(path, sum(groups), split="odd" if index % 2 else "even"))
    return manifest({"id": "int64", "name": "string"}, *files)


def numbered(folder: Path, piece: tables.Piece, batch_rows: int = 100) -> list[int]:
    batches = tables.read_piece(folder, piece, ["id"], batch_rows)
    return [value for batch in batches for value in batch.column(0).to_pylist()]


GROUPS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=2, max_size=4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=GROUPS, rows=st.integers(1, 12), batch_rows=st.integers(1, 7))
def test_every_row_is_in_exactly_one_piece_and_they_are_in_order(
    tmp_path: Path, groups: list[list[int]], rows: int, batch_rows: int
) -> None:
    snapshot = written(tmp_path, groups)
    for splits in (["even"], ["odd"], ["odd", "even"]):
        expected = [
            value
            for batch in tables.iter_batches(tmp_path, snapshot, splits, ["id"])
            for value in batch.column(0).to_pylist()
        ]
        cut = tables.pieces(tmp_path, snapshot, splits, rows)
        assert [value for piece in cut for value in numbered(tmp_path, piece, batch_rows)] == expected
        assert [len(numbered(tmp_path, piece)) for piece in cut] == [piece.rows for piece in cut]
        assert all(0 < piece.rows <= max(rows, *map(max, groups)) for piece in cut)


def test_a_piece_is_small_and_the_same_after_a_journey(tmp_path: Path) -> None:
    snapshot = written(tmp_path, [[5, 5, 5], [2]])
    for piece in tables.pieces(tmp_path, snapshot, ["even", "odd"], rows=5):
        sent = pickle.dumps(piece)
        assert len(sent) < 1000
        arrived = pickle.loads(sent)  # noqa: S301 - written a line ago
        assert arrived == piece
        assert hash(arrived) == hash(piece)
        assert numbered(tmp_path, arrived) == numbered(tmp_path, piece)


def test_a_file_of_few_rows_is_not_even_opened(tmp_path: Path) -> None:
    snapshot = written(tmp_path, [[5, 5], [3]])
    for file in snapshot.files:
        Path(file.uri).unlink()
    assert [piece.rows for piece in tables.pieces(tmp_path, snapshot, ["even", "odd"], rows=10)] == [10, 3]
    with pytest.raises(InputError, match="cached input is gone"):
        tables.pieces(tmp_path, snapshot, ["even", "odd"], rows=9)


def test_a_piece_of_an_unknown_column_names_those_that_are_close(tmp_path: Path) -> None:
    (piece,) = tables.pieces(tmp_path, written(tmp_path, [[5]]), ["even"])
    with pytest.raises(InputError, match=r"no column 'nam' \(close: name\)"):
        list(tables.read_piece(tmp_path, piece, ["nam"]))


def test_a_missing_split_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no split 'train'"):
        tables.pieces(tmp_path, written(tmp_path, [[5], [1]]), ["train"])


def test_forked_processes_read_pieces_of_a_snapshot_that_their_parent_was_reading(tmp_path: Path) -> None:
    """Nothing that a piece needs is open or locked at the fork, even in the middle of a file."""
    snapshot = written(tmp_path, [[500] * 40, [1]])
    reading = tables.iter_batches(tmp_path, snapshot, ["even"], batch_rows=10)
    next(reading)
    tables.read_split(tmp_path, snapshot, "even")
    cut = tables.pieces(tmp_path, snapshot, ["even"], rows=1000)
    expected = [sum(range(1000 * index, 1000 * index + 1000)) for index in range(20)]
    children = []
    for share in range(4):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:  # whatever happens, a child must not go on as a second pytest
                found = {index: sum(numbered(tmp_path, cut[index])) for index in range(share, 20, 4)}
                os.write(writer, pickle.dumps(found))
                os._exit(0)
            finally:
                os._exit(2)
        os.close(writer)
        children.append((child, reader))
    sums: dict[int, int] = {}
    for child, reader in children:
        with os.fdopen(reader, "rb") as stream:
            sums |= pickle.load(stream)  # noqa: S301 - our own child wrote it
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [sums[index] for index in range(20)] == expected
    reading.close()
