import datetime as dt
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ingest.taking import START, WINDOWS, data, flights, put, take, whole
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError
from trainwright.ingest.shards import SourceShard, cut
from trainwright.ingest.splits import division
from trainwright.sources import SourcePart
from trainwright.tables import fingerprints

SHARES = {"train": {"fraction": 0.8}, "evaluate": {"fraction": 0.15}}


def ids_of(folder: Path, split: str) -> list[str]:
    snapshot = take_read(folder)
    return tables.read_split(folder / "snapshot", snapshot, split)["id"].to_pylist()


def take_read(folder: Path):
    from trainwright.artifacts import Snapshot

    return Snapshot.read(folder / "snapshot")


def test_the_order_of_splits_in_the_file_changes_nothing(tmp_path: Path) -> None:
    source, turned = put(tmp_path / "in.parquet", flights()), dict(reversed(WINDOWS.items()))
    first, second = take(source, tmp_path / "1"), take(source, tmp_path / "2", data(splits=turned))
    assert list(first.splits) == ["train", "evaluate", "unassigned"]
    shares = dict(reversed(SHARES.items()))
    third = take(source, tmp_path / "3", data(splits=SHARES))
    fourth = take(source, tmp_path / "4", data(splits=shares))
    assert [entry.checksum for entry in first.files] == [entry.checksum for entry in second.files]
    assert [entry.checksum for entry in third.files] == [entry.checksum for entry in fourth.files]
    assert first.digest == second.digest != third.digest == fourth.digest


def test_a_window_holds_its_start_and_not_its_end() -> None:
    moments = [
        dt.datetime(2012, 12, 31, 23, 59, 59, 999999, dt.UTC),
        START,
        dt.datetime(2013, 1, 7, 23, 59, 59, 999999, dt.UTC),
        dt.datetime(2013, 1, 8, tzinfo=dt.UTC),
        dt.datetime(2013, 1, 10, tzinfo=dt.UTC),
        dt.datetime(2013, 1, 12, tzinfo=dt.UTC),
    ]
    divided = division(data())
    places = divided.places(pa.table({"at": pa.array(moments, pa.timestamp("us", tz="UTC"))}))
    assert [divided.names[place] for place in places] == [
        "unassigned", "train", "train", "unassigned", "evaluate", "unassigned",
    ]  # fmt: skip


def test_shares_follow_the_documented_rule_exactly() -> None:
    """By another method: whole numbers of Python, one row at a time."""
    divided = division(data(splits={"b": {"fraction": 0.1}, "a": {"fraction": 0.2}, "c": {"fraction": 0.3}}))
    ids = [f"f{n}" for n in range(3000)]
    names = [divided.names[place] for place in divided.places(pa.table({"id": ids}))]
    ends = [int(Fraction(tenths, 10) * 2**64) for tenths in (2, 3, 6)]
    for name, print_ in zip(names, fingerprints(pa.array(ids)).tolist(), strict=True):
        expected = next((split for split, end in zip("abc", ends, strict=True) if print_ < end), "unassigned")
        assert name == expected


@pytest.mark.parametrize("tenths", [(0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3), (1.0,)])
def test_shares_of_one_leave_no_row_out(tenths: tuple[float, ...]) -> None:
    """Thirds, as floats, sum to a little less than 1."""
    divided = division(data(splits={f"s{n}": {"fraction": part} for n, part in enumerate(tenths)}))
    places = divided.places(pa.table({"id": np.arange(100_000)}))
    counts = np.bincount(places, minlength=len(tenths) + 1)
    assert counts[-1] == 0
    assert np.abs(counts[:-1] / 100_000 - tenths).max() < 0.01


def test_rows_of_a_group_fall_together_and_each_share_is_about_its_size(tmp_path: Path) -> None:
    groups = [f"g{n % 97}" for n in range(4000)]
    source = put(tmp_path / "in.parquet", flights(4000, group=groups), row_group_size=500)
    section = data(splits=SHARES, split_by="group", disjoint=["group"], shard_rows=500, runner={"workers": 1})
    snapshot = take(source, tmp_path / "out", section)
    folder = tmp_path / "out" / "snapshot"
    found = {
        split: set(tables.read_split(folder, snapshot, split)["group"].to_pylist())
        for split in snapshot.splits
    }
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 97
    assert abs(len(found["train"]) / 97 - 0.8) < 0.1


def test_another_seed_is_another_division_and_the_same_seed_the_same(tmp_path: Path) -> None:
    source = put(tmp_path / "in.parquet", flights())
    trains = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        take(source, tmp_path / name, data(splits=SHARES, split_seed=seed))
        trains.append(ids_of(tmp_path / name, "train"))
    assert trains[0] == trains[1] != trains[2]
    assert 280 < len(trains[2]) < 360


def test_a_row_does_not_change_sides_when_others_come_and_go(tmp_path: Path) -> None:
    take(put(tmp_path / "a.parquet", flights(400)), tmp_path / "a", data(splits=SHARES))
    take(put(tmp_path / "b.parquet", flights(900).slice(100)), tmp_path / "b", data(splits=SHARES))
    before, after = ({*ids_of(tmp_path / name, "train")} for name in ("a", "b"))
    shared = {f"f{n}" for n in range(100, 400)}
    assert before & shared == after & shared


def test_a_missing_group_is_refused_by_its_row(tmp_path: Path) -> None:
    groups = [None if n == 122 else "g" for n in range(400)]
    with pytest.raises(InputError, match=r"split_by column 'group' has no value in 1 of .* first is row 123"):
        take(
            put(tmp_path / "in.parquet", flights(group=groups)),
            tmp_path / "out",
            data(splits=SHARES, split_by="group"),
        )


def part(index: int, rows: int | None, uri: str = "a") -> SourcePart:
    return SourcePart(index=index, uri=uri, rows=rows)


def test_shards_are_cut_before_they_are_too_large() -> None:
    parts = [part(n, rows) for n, rows in enumerate([400, 400, 400, 1500, 100, 900, 1])]
    shards = cut(parts, {}, 1000)
    assert [[one.index for one in shard.parts] for shard in shards] == [[0, 1], [2], [3], [4, 5], [6]]
    assert [shard.index for shard in shards] == [0, 1, 2, 3, 4]


def test_text_files_are_put_together_by_their_size() -> None:
    parts = [part(n, None, uri) for n, uri in enumerate("abcd")]
    shards = cut(parts, {"a": 40_000, "b": 40_000, "c": 900_000, "d": 10_000}, 1000)
    assert [[one.uri for one in shard.parts] for shard in shards] == [["a", "b"], ["c"], ["d"]]


def test_a_source_without_rows_is_one_shard() -> None:
    assert cut([part(0, 0)], {}, 1000) == [SourceShard(index=0, parts=(part(0, 0),))]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three files of several row groups, of different sizes."""
    table = flights(3000)
    for name, first, count in (("a", 0, 700), ("b", 700, 1500), ("c", 2200, 800)):
        put(tmp_path / "in" / f"{name}.parquet", table.slice(first, count), row_group_size=130)
    return tmp_path / "in"


def test_rows_keep_their_order_and_every_file_is_of_one_shard(tmp_path: Path, source: Path) -> None:
    snapshot = take(source, tmp_path / "out", data(shard_rows=500, splits={"all": {"fraction": 1}}))
    folder = tmp_path / "out" / "snapshot"
    read = tables.read_split(folder, snapshot, "all")
    assert read["id"].to_pylist() == [f"f{n}" for n in range(3000)]
    # 700 rows in groups of 130 are parts of 520 and 180; 1500 of 520, 520 and 460; 800 of 520 and 280
    assert [entry.rows for entry in snapshot.files] == [520, 180, 520, 520, 460, 520, 280]
    assert [entry.uri for entry in snapshot.files] == [f"data/all/part-{n:05d}.parquet" for n in range(7)]


def test_files_have_page_checksums_and_zstd(tmp_path: Path, source: Path) -> None:
    snapshot = take(source, tmp_path / "out")
    path = tmp_path / "out" / "snapshot" / snapshot.files[0].uri
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    flipped = tmp_path / "flipped.parquet"
    flipped.write_bytes(content)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(flipped, page_checksum_verification=True).read()


def test_one_long_stream_becomes_many_files(tmp_path: Path) -> None:
    """A CSV file is one part, whose rows nobody knows before it is read; its blocks are of 8 MB."""
    lines = [f"f{n},{START:%Y-%m-%d %H:%M:%S},{n % 2},{'x' * 90}\n" for n in range(180_000)]
    (tmp_path / "in.csv").write_text("id,at,late,text\n" + "".join(lines))
    section = data(shard_rows=70_000, splits={"all": {"fraction": 1}})
    snapshot = take(tmp_path / "in.csv", tmp_path / "out", section)
    whole(tmp_path / "out" / "snapshot")
    assert snapshot.rows == 180_000
    assert len(snapshot.files) > 1
    assert all(entry.rows < 150_000 for entry in snapshot.files)
    assert [entry.uri for entry in snapshot.files][:2] == [
        "data/all/part-00000.parquet",
        "data/all/part-00000.1.parquet",
    ]


REFERENCE = {
    "mode": "reference",
    "splits": {
        "train": {"start": "2013-01-01", "end": "2013-01-08"},
        "evaluate": {"start": "2013-01-08", "end": "2013-01-11"},
    },
}


def days(folder: Path, label: str = "int8", unit: str = "ms") -> Path:
    """A file a day for twelve days; the last two are in no window."""
    table = flights(12 * 24)
    late = table["late"].cast(label)
    at = table["at"].cast(pa.timestamp(unit, tz="UTC"))
    table = table.set_column(2, "late", late).set_column(1, "at", at)
    for day in range(12):
        put(folder / f"{day:02d}.parquet", table.slice(24 * day, 24), row_group_size=10)
    return folder


def test_a_reference_pins_the_files_where_they_lie_and_readers_read_them(tmp_path: Path) -> None:
    source = days(tmp_path / "in")
    snapshot = take(source, tmp_path / "out", data(**REFERENCE))
    folder = tmp_path / "out" / "snapshot"
    assert snapshot.splits == {"train": 7 * 24, "evaluate": 3 * 24, "unassigned": 2 * 24}
    assert [entry.uri for entry in snapshot.files] == [
        str(source / f"{day:02d}.parquet") for day in range(12)
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["listing.json", "manifest.json", "record.json"]
    read = tables.read_split(folder, snapshot, "evaluate")
    copied = take(source, tmp_path / "copy", data(splits=REFERENCE["splits"]))
    assert read.equals(tables.read_split(tmp_path / "copy" / "snapshot", copied, "evaluate"))
    figures = {name: copied.quality[name] for name in snapshot.quality if name != "bytes"}
    assert {name: value for name, value in snapshot.quality.items() if name != "bytes"} == figures
    assert "nulls.delay" not in snapshot.quality  # a column that is not read


def test_a_reference_has_the_same_data_version_wherever_the_files_lie(tmp_path: Path) -> None:
    one, other = days(tmp_path / "here" / "in"), days(tmp_path / "there" / "deep" / "in")
    section = data(**REFERENCE, shard_rows=30)
    first, second = take(one, tmp_path / "1", section), take(other, tmp_path / "2", section)
    assert first.digest == second.digest
    assert first.files[0].uri != second.files[0].uri


def test_a_file_in_two_windows_cannot_be_pinned(tmp_path: Path) -> None:
    splits = {"train": {"start": "2013-01-01", "end": "2013-01-08T06:00"}}
    with pytest.raises(InputError) as caught:
        take(days(tmp_path / "in"), tmp_path / "out", data(mode="reference", splits=splits))
    assert caught.value.what == (
        "the rows of this file are in more than one split: 6 in train, 18 in unassigned; "
        "they go from 2013-01-08 00:00:00Z to 2013-01-08 23:00:00Z"
    )
    assert caught.value.where.endswith("07.parquet")


def test_what_readers_could_not_read_as_it_is_stored_is_not_pinned(tmp_path: Path) -> None:
    section = data(**REFERENCE)
    with pytest.raises(InputError, match="label column 'late' is bool; mode reference takes integers"):
        take(days(tmp_path / "bool", "bool"), tmp_path / "out", section)
    naive = flights(24)
    naive = naive.set_column(1, "at", naive["at"].cast(pa.timestamp("us")))
    naive = naive.set_column(2, "late", naive["late"].cast(pa.int64()))
    with pytest.raises(InputError, match="mode reference takes timestamps with a zone"):
        take(put(tmp_path / "naive.parquet", naive), tmp_path / "out", section)
    fine = naive.set_column(1, "at", pa.array([1_357_000_000_000_000_001] * 24, pa.timestamp("ns", tz="UTC")))
    with pytest.raises(InputError, match="'at' has times finer than a microsecond"):
        take(put(tmp_path / "fine.parquet", fine), tmp_path / "out", section)
    (tmp_path / "in.csv").write_text("id,at,late\n1,2013-01-01 00:00:00Z,1\n")
    with pytest.raises(InputError, match="mode reference pins Parquet files"):
        take(tmp_path / "in.csv", tmp_path / "out", section)


def test_a_key_that_two_pinned_files_share_is_found(tmp_path: Path) -> None:
    source = days(tmp_path / "in")
    table = pq.read_table(source / "09.parquet")
    put(source / "09.parquet", table.set_column(0, "id", pa.array(["f3", *table["id"].to_pylist()[1:]])))
    with pytest.raises(Exception, match="of 288 rows, 1 keys are there more than once: 'f3' in 2 rows"):
        take(source, tmp_path / "out", data(**REFERENCE))


def test_reading_a_reference_leaves_the_columns_without_a_role_alone(tmp_path: Path) -> None:
    """The bytes of the other columns are damaged: nobody reads them."""
    source = days(tmp_path / "in")
    for path in source.iterdir():
        metadata = pq.ParquetFile(path).metadata
        content = bytearray(path.read_bytes())
        for group in range(metadata.num_row_groups):
            column = metadata.row_group(group).column(4)
            assert column.path_in_schema == "carrier"
            start = column.dictionary_page_offset or column.data_page_offset
            content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
        path.write_bytes(content)
    snapshot = take(source, tmp_path / "out", data(**REFERENCE))
    assert isinstance(snapshot, Snapshot)
    assert snapshot.rows == 288
