import datetime as dt
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sources.reading import opened, read, text
from trainwright.errors import InputError, TrainwrightError


def put(path: Path, row_group_size: int | None = None, **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def test_rows_are_counted_by_file(tmp_path: Path) -> None:
    text(tmp_path / "a.csv", "n,m\n1,x\n2,y\n"), text(tmp_path / "b.csv", "n,m\n3,z\n")
    source = opened(tmp_path)
    seen = [
        (uri, start, rows.num_rows) for part in source.parts() for uri, start, rows in source.batches(part)
    ]
    assert seen == [(f"{tmp_path}/a.csv", 0, 2), (f"{tmp_path}/b.csv", 0, 1)]


def test_parquet_is_cut_at_row_groups_into_parts_of_about_a_shard(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", 100, n=list(range(1000)))
    put(tmp_path / "b.parquet", 100, n=list(range(1000, 1150)))
    put(tmp_path / "c.parquet", n=pa.array([], pa.int64()))
    source = pickle.loads(pickle.dumps(opened(tmp_path, shard_rows=250)))  # noqa: S301 - our own
    parts = source.parts()
    assert [(part.index, part.start, part.rows) for part in parts] == [
        (0, 0, 300),
        (1, 300, 300),
        (2, 600, 300),
        (3, 900, 100),
        (4, 0, 150),
        (5, 0, 0),
    ]
    read_rows = {}
    for part in reversed(parts):
        for _, start, rows in source.batches(pickle.loads(pickle.dumps(part))):  # noqa: S301 - our own
            read_rows[part.index, start] = rows["n"].to_pylist()
    assert [n for key in sorted(read_rows) for n in read_rows[key]] == list(range(1150))


@pytest.mark.covers("B22")
def test_files_that_differ_name_the_column_and_both_files(tmp_path: Path) -> None:
    first = put(tmp_path / "a.parquet", n=[1], m=["a"])
    with pytest.raises(InputError, match="'n' is double, was int64") as caught:
        read(first, put(tmp_path / "b.parquet", n=[1.5], m=["a"]))
    assert caught.value.where == f"{tmp_path}/b.parquet, against {tmp_path}/a.parquet"
    with pytest.raises(InputError, match="no column 'm'; new column 'mm'"):
        read(first, put(tmp_path / "c.parquet", n=[1], mm=["a"]))
    with pytest.raises(InputError, match="Parquet files say their own"):
        read(first, types={"n": "int32"})


@pytest.mark.covers("F39")
def test_parquet_file_that_is_still_written_is_named(tmp_path: Path) -> None:
    path = put(tmp_path / "a.parquet", n=list(range(1000)))
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(
        InputError, match="Parquet footer missing: the file is incomplete; it may still"
    ) as caught:
        read(path)
    assert caught.value.where == str(path)


@pytest.mark.covers("B21")
def test_empty_file_is_named_whatever_it_should_be(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", n=[1])
    for name in ("b.parquet", "c.csv", "d.jsonl", "e.csv.gz"):
        path = text(tmp_path / name, b"")
        with pytest.raises(InputError, match="the file is empty: 0 bytes") as caught:
            read(path)
        assert caught.value.where == str(path)


@pytest.mark.covers("B20")
def test_what_is_named_parquet_and_is_not_says_its_first_bytes(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"is not Parquet; its first bytes b'id,n\\n1,2' say no kind of file"
    ):
        read(text(tmp_path / "a.parquet", "id,n\n1,2\n3,4\n"))
    with pytest.raises(InputError, match=r"its first bytes b'PK.*' say a zip archive"):
        read(text(tmp_path / "b.parquet", b"PK\x03\x04" + bytes(100)))


def test_file_of_another_kind_is_rejected_by_its_name_unless_its_format_is_said(tmp_path: Path) -> None:
    path = text(tmp_path / "a.dat", "n,m\n1,2\n")
    with pytest.raises(InputError, match="neither a Parquet nor a CSV nor a JSONL file"):
        read(path)
    assert read(path, format="csv")["n"].to_pylist() == [1]


@pytest.mark.covers("F40")
def test_flipped_bit_in_a_page_with_a_checksum_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"the Parquet file cannot be read: .*CRC") as caught:
        read(path)
    assert caught.value.where == str(path)


def test_time_that_microseconds_do_not_reach_is_rejected_and_not_another_one(tmp_path: Path) -> None:
    path = put(tmp_path / "a.parquet", never=pa.array([2**60], pa.timestamp("ms")))
    with pytest.raises(
        InputError, match=r"column 'never' is timestamp\[ms\], and cannot be stored"
    ) as caught:
        read(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (("2013-01-01", "2013-01-02"), "date32[day]", [dt.date(2013, 1, 1), dt.date(2013, 1, 2)]),
        (("1", "12"), "int64", [1, 12]),
        (("01", "12"), "string", ["01", "12"]),
        (("UA", "5"), "string", ["UA", "5"]),
        (("a%2Fb", "__HIVE_DEFAULT_PARTITION__"), "string", ["a/b", None]),
        (("3", "__HIVE_DEFAULT_PARTITION__"), "int64", [3, None]),
    ],
)
def test_folders_are_columns_of_the_type_that_takes_all_their_values(
    tmp_path: Path, texts: tuple[str, str], kind: str, values: list[object]
) -> None:
    for place, name in enumerate(texts):
        put(tmp_path / "in" / f"p={name}" / "a.parquet", n=[place, place])
    for source in (
        tmp_path / "in",
        f"{tmp_path}/in/",
        f"{tmp_path}/in/p=*/a.parquet",
        f"{tmp_path}/in/**/*.parquet",
    ):
        table = read(source).sort_by("n")
        assert str(table.schema.field("p").type) == kind
        assert table["p"].to_pylist() == [value for value in values for _ in range(2)]


def test_single_partition_that_is_the_source_has_no_column_of_its_own(tmp_path: Path) -> None:
    put(tmp_path / "day=2013-01-01" / "carrier=UA" / "a.parquet", n=[1])
    assert read(tmp_path / "day=2013-01-01").column_names == ["n", "carrier"]
    assert read(tmp_path / "day=2013-01-01" / "carrier=UA" / "a.parquet").column_names == ["n"]


def test_folders_of_csv_files_are_columns_too(tmp_path: Path) -> None:
    text(tmp_path / "day=2013-01-01" / "a.csv", "n,m\n1,2\n")
    assert read(tmp_path).to_pylist() == [{"n": 1, "m": 2, "day": dt.date(2013, 1, 1)}]


def test_column_that_is_in_the_file_and_in_the_folder_is_rejected(tmp_path: Path) -> None:
    put(tmp_path / "day=1" / "a.parquet", n=[1], day=[2])
    with pytest.raises(InputError, match=r"columns \['day'\] are named by the folders, and are in the files"):
        read(tmp_path)


def test_files_that_are_partitioned_differently_are_rejected(tmp_path: Path) -> None:
    put(tmp_path / "day=1" / "a.parquet", n=[1]), put(tmp_path / "b.parquet", n=[1])
    with pytest.raises(InputError, match=r"name different columns: \['day'\], not \[\]"):
        read(tmp_path)
    put(tmp_path / "x" / "k=1" / "k=2" / "a.parquet", n=[1])
    with pytest.raises(InputError, match="two folders of its path name the column 'k'"):
        read(tmp_path / "x")


def test_cache_stays_that_of_a_row_group(tmp_path: Path) -> None:
    """80 MB of rows in groups of 2 MB; Arrow's own count of its memory."""
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema([("n", pa.float64())])) as writer:
        for seed in range(40):
            writer.write_table(pa.table({"n": np.random.default_rng(seed).random(262_144)}))
    source = opened(path)
    before = pa.total_allocated_bytes()
    largest = 0
    for part in source.parts():
        for _, _, rows in source.batches(part):
            largest = max(largest, pa.total_allocated_bytes() - before)
            del rows
    assert largest < 30 << 20


@settings(max_examples=40, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_damaged_parquet_file_is_rows_or_a_typed_error(
    tmp_path: Path, place: int, value: int, cut: int
) -> None:
    path = put(tmp_path / "a.parquet", 50, n=list(range(200)), word=[str(n) for n in range(200)])
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content[: len(content) - cut] if cut < 20 else content)
    try:
        read(path)
    except TrainwrightError as error:
        said = error.where
        assert said.startswith(str(path))


@pytest.mark.parametrize(
    "source", ["{}/y", "y", "./y/", "file://{}/y", "y/day=*/*.csv", "{}/y/*/a.csv", "*/day=2/a.csv"]
)
def test_folders_count_from_the_source_on_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The folders above, of which one has the source's name within its own, are none of its columns."""
    here = tmp_path / "year=7"
    text(here / "y" / "day=2" / "a.csv", "id\n1\n")
    monkeypatch.chdir(here)
    assert read(source.format(here)).to_pylist() == [{"id": 1, "day": 2}]
