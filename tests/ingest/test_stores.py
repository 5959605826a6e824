"""Sources and stores in buckets: emulators of both kinds over real HTTP."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ingest.taking import data, flights, take, whole
from tests.storage.stores import Bucket
from trainwright import storage
from trainwright.artifacts import Record
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest
from trainwright.sources import list_source
from trainwright.storage import Access

SPLITS = {"train": {"fraction": 0.7}, "evaluate": {"fraction": 0.3}}
DAYS = {"train": {"start": "2013-01-01", "end": "2013-01-08"}}


def parquet(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=100)
    return stream.getvalue()


def section(bucket: Bucket, **changes: object) -> Data:
    base = {"store": f"{bucket.uri}/store", "shard_rows": 100, "splits": SPLITS}
    return data(**(base | changes))


def names(bucket: Bucket) -> list[str]:
    """Name what lies in the store, without requests, attempts and tries."""
    found = [
        file.uri.removeprefix(f"{bucket.uri}/store/") for file in storage.list_files(f"{bucket.uri}/store")
    ]
    parts = [name.split("/")[1:] for name in found]
    return sorted("/".join(part for part in name if not part.startswith("attempt-")) for name in parts)


def test_a_source_in_a_bucket_becomes_shards_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("in/a.parquet", parquet(flights()))
    asked = section(bucket, runner={"workers": 1})
    snapshot = take(f"{bucket.uri}/in", tmp_path / "1", asked)
    assert whole(tmp_path / "1" / "snapshot") == snapshot
    assert all(entry.uri.startswith(f"{bucket.uri}/store/") and entry.version for entry in snapshot.files)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(parquet(flights()))
    local = take(tmp_path / "in", tmp_path / "2", asked.model_copy(update={"store": None}))
    assert local.digest == snapshot.digest
    assert take(tmp_path / "in", tmp_path / "3", asked) == snapshot, "the same bytes elsewhere hit"
    kinds = {name.split("-")[0] for name in names(bucket)}
    assert kinds == {
        "evaluate/part",
        "train/part",
        "manifest.json",
        *(f"shards/{n:05d}.json" for n in range(4)),
    }


def test_record_names_the_version_of_each_object_of_the_source(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("in/a.parquet", parquet(flights()))
    take(f"{bucket.uri}/in", tmp_path, section(bucket, runner={"workers": 1}))
    [entry] = storage.list_files(f"{bucket.uri}/in")
    assert entry.version
    assert Record.read(tmp_path / "snapshot").config["pinned"] == {entry.uri: entry.version}


def test_workers_and_beam_write_into_a_bucket(gs: Bucket, tmp_path: Path) -> None:
    gs.put("in/a.parquet", parquet(flights()))
    one = take(f"{gs.uri}/in", tmp_path / "1", section(gs, runner={"workers": 2}))
    asked = section(gs, runner={"engine": "beam"}, store=f"{gs.uri}/store/beam")
    assert take(f"{gs.uri}/in", tmp_path / "2", asked).digest == one.digest


@pytest.mark.covers("F43")
def test_a_committed_object_that_is_gone_is_made_anew(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("in/a.parquet", parquet(flights()))
    asked = section(bucket, runner={"workers": 1})
    first = take(f"{bucket.uri}/in", tmp_path / "1", asked)
    storage.remove([first.files[0].uri])
    second = take(f"{bucket.uri}/in", tmp_path / "2", asked)
    assert second.digest == first.digest == whole(tmp_path / "2" / "snapshot").digest


def test_keys_of_shards_in_a_bucket_are_compared_and_a_refusal_leaves_nothing(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.put("in/a.parquet", parquet(flights(id=[*range(399), 7])))
    with pytest.raises(DataRefused, match="1 keys are there more than once: 7 in 2 rows"):
        take(f"{bucket.uri}/in", tmp_path / "1", section(bucket, runner={"workers": 1}))
    with pytest.raises(InputError, match="no"):
        names(bucket)


def days(bucket: Bucket) -> str:
    """A file a day for nine days."""
    table = flights(9 * 24)
    table = table.set_column(2, "late", table["late"].cast("int8"))
    for day in range(9):
        bucket.put(f"days/{day}.parquet", parquet(table.slice(24 * day, 24)))
    return f"{bucket.uri}/days"


def test_objects_are_pinned_where_they_lie(bucket: Bucket, tmp_path: Path) -> None:
    source = days(bucket)
    asked = data(mode="reference", splits=DAYS)
    snapshot = take(source, tmp_path / "1", asked)
    assert snapshot.splits == {"train": 7 * 24, "unassigned": 2 * 24}
    listed = list_source(source, asked, Access())
    pins = {entry.uri: (entry.version, entry.size, entry.checksum) for entry in listed.files}
    assert {entry.uri: (entry.version, entry.size, entry.checksum) for entry in snapshot.files} == pins
    assert snapshot.protection == listed.protection != ""
    assert whole(tmp_path / "1" / "snapshot") == snapshot


@pytest.mark.covers("F41")
def test_an_object_that_is_replaced_after_it_was_listed_is_never_read_as_the_old_one(
    bucket: Bucket, tmp_path: Path
) -> None:
    source = days(bucket)
    asked = data(mode="reference", splits=DAYS, runner={"workers": 1})
    version = list_source(source, asked, Access()).content_digest
    bucket.put("days/3.parquet", parquet(flights(24)))
    with pytest.raises(InputError, match="the source changed since it was resolved"):
        ingest(source, version, asked, tmp_path / "out", tmp_path / "summary.md")
