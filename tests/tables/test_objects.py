"""Snapshots whose files lie in gs:// and s3://, over real HTTP."""

import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.faults import Answer, Reset
from tests.storage.stores import Bucket
from tests.tables.manifests import MODERN, manifest
from trainwright import storage, tables
from trainwright.artifacts import RUN_AGAIN, Snapshot, SnapshotFile
from trainwright.errors import InputError

ROWS = 50_000
TYPES = {"id": "int64", "x": "double", "word": "string"}


def content(**options: object) -> bytes:
    stream, rng = io.BytesIO(), np.random.default_rng(0)
    words = pa.array([f"w{n % 50}" for n in range(ROWS)]).dictionary_encode()
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "x": rng.normal(size=ROWS), "word": words})
    pq.write_table(table, stream, **options)
    return stream.getvalue()


def pinned(bucket: Bucket, body: bytes, name: str = "day=1/a.parquet") -> tuple[Snapshot, SnapshotFile]:
    bucket.put(name, body)
    (found,) = storage.take_listing(f"{bucket.uri}/{name}").files
    file = SnapshotFile(
        uri=found.uri,
        size=found.size,
        checksum=found.checksum,
        rows=ROWS,
        split="train",
        version=found.version,
    )
    bucket.proxy.clear()
    return manifest(TYPES, file), file


def test_rows_of_a_pinned_object_are_those_of_the_file(bucket: Bucket, tmp_path: Path) -> None:
    snapshot, _ = pinned(bucket, content(row_group_size=7_000))
    expected = list(range(ROWS))
    whole = tables.read_split(tmp_path, snapshot, "train")
    assert {field.name: str(field.type) for field in whole.schema} == TYPES
    assert whole["id"].to_pylist() == expected
    batches = tables.iter_batches(tmp_path, snapshot, ["train"], ["id"], 3_000)
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == expected
    cut = tables.pieces(tmp_path, snapshot, ["train"], 20_000)
    assert [piece.rows for piece in cut] == [14_000, 14_000, 14_000, 8_000]
    ids = [
        batch.column(0).to_pylist() for piece in cut for batch in tables.read_piece(tmp_path, piece, ["id"])
    ]
    assert [value for part in ids for value in part] == expected


def test_a_row_group_of_usual_size_is_fetched_in_few_requests(bucket: Bucket, tmp_path: Path) -> None:
    snapshot, _ = pinned(bucket, content(row_group_size=25_000))
    list(tables.iter_batches(tmp_path, snapshot, ["train"]))
    assert len(bucket.proxy.seen) <= 10
    bucket.proxy.clear()
    reading = tables.iter_batches(tmp_path, snapshot, ["train"])
    next(reading)
    reading.close()
    assert len(bucket.proxy.seen) <= 6


def test_an_object_that_is_gone_says_so_with_what_to_do(bucket: Bucket, tmp_path: Path) -> None:
    snapshot, file = pinned(bucket, content())
    storage.remove([file.uri])
    for rows in (1, ROWS):
        with pytest.raises(InputError, match="cached input is gone: no ") as caught:
            read_pieces(tmp_path, snapshot, rows)
        assert caught.value.where == file.uri
        assert caught.value.hint == RUN_AGAIN


def read_pieces(folder: Path, snapshot: Snapshot, rows: int) -> int:
    cut = tables.pieces(folder, snapshot, ["train"], rows)
    return sum(batch.num_rows for piece in cut for batch in tables.read_piece(folder, piece))


def test_an_object_that_was_replaced_is_never_read(bucket: Bucket, tmp_path: Path) -> None:
    snapshot, file = pinned(bucket, content())
    bucket.put("day=1/a.parquet", content(compression="none"))
    with pytest.raises(
        InputError, match=r"cached input changed: .*has version .*the manifest says"
    ) as caught:
        tables.read_split(tmp_path, snapshot, "train")
    assert caught.value.where == file.uri
    assert caught.value.hint == RUN_AGAIN


def test_an_object_that_is_replaced_while_it_is_read_is_found_out(bucket: Bucket, tmp_path: Path) -> None:
    snapshot, _ = pinned(bucket, content(row_group_size=5_000, use_dictionary=False, compression="none"))
    reading = tables.iter_batches(tmp_path, snapshot, ["train"])
    next(reading)
    bucket.put("day=1/a.parquet", content(compression="none"))
    with pytest.raises(InputError, match="cached input changed"):
        list(reading)


def test_a_size_that_is_not_the_listed_one_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    _, file = pinned(bucket, content())
    with pytest.raises(InputError, match=r"cached input changed: .* bytes, the manifest says 17"):
        tables.read_split(tmp_path, manifest(TYPES, replace(file, size=17)), "train")


@pytest.mark.skipif(not MODERN, reason="this pyarrow does not know the checksums of pages")
def test_a_flipped_bit_in_a_page_with_a_checksum_is_found(bucket: Bucket, tmp_path: Path) -> None:
    body = bytearray(content(write_page_checksum=True, compression="none", use_dictionary=False))
    body[len(body) // 2] ^= 1
    snapshot, file = pinned(bucket, bytes(body))
    with pytest.raises(InputError, match=r"cannot be read: .*CRC") as caught:
        tables.read_split(tmp_path, snapshot, "train")
    assert caught.value.where == file.uri


def test_a_store_that_fails_in_passing_is_asked_again(bucket: Bucket, tmp_path: Path) -> None:
    snapshot, _ = pinned(bucket, content())
    bucket.proxy.plan(Answer(503), method="GET", times=2)
    bucket.proxy.plan(Reset(100), method="GET", times=1)
    assert tables.read_split(tmp_path, snapshot, "train")["id"].to_pylist() == list(range(ROWS))
    assert not bucket.proxy.unused()


def test_a_snapshot_that_was_copied_into_a_store_has_the_same_data_version(
    bucket: Bucket, tmp_path: Path
) -> None:
    table = pa.table({"id": range(100)})
    here = tables.write_snapshot(tmp_path, {"train": [table]}, parents={}, roles={"key": "id"})
    (file,) = here.files
    sent = storage.publish(tmp_path / file.uri, f"{bucket.uri}/data/part-00000.parquet")
    there = replace(here, files=(replace(file, uri=sent.uri, version=sent.version),))
    assert there.digest == here.digest
    assert tables.read_split(tmp_path / "elsewhere", there, "train") == table


def test_forked_processes_read_the_objects_that_their_parent_was_reading(
    bucket: Bucket, tmp_path: Path
) -> None:
    snapshot, _ = pinned(bucket, content(row_group_size=5_000))
    cut = tables.pieces(tmp_path, snapshot, ["train"], 5_000)
    reading = tables.iter_batches(tmp_path, snapshot, ["train"])
    next(reading)
    children = []
    for share in range(2):
        if (child := os.fork()) == 0:
            try:  # whatever happens, a child must not go on as a second pytest
                mine = cut[share::2]
                counted = [sum(b.num_rows for b in tables.read_piece(tmp_path, piece)) for piece in mine]
                os._exit(0 if counted == [5_000] * 5 else 1)
            finally:
                os._exit(2)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert sum(batch.num_rows for batch in reading) == ROWS - 5_000
