import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.ingest.taking import START, data, flights, put, take, version_of
from trainwright import tables
from trainwright.artifacts import Listing, Record
from trainwright.errors import InputError
from trainwright.ingest.ingest import ingest


def test_rows_fall_into_the_windows_and_the_rest_is_kept_apart(tmp_path: Path) -> None:
    table = flights()
    snapshot = take(put(tmp_path / "in.parquet", table), tmp_path / "out")
    folder = tmp_path / "out" / "snapshot"
    hours = np.arange(400)
    expected = {
        "train": hours[hours < 7 * 24],
        "evaluate": hours[(hours >= 9 * 24) & (hours < 11 * 24)],
        "unassigned": hours[((hours >= 7 * 24) & (hours < 9 * 24)) | (hours >= 11 * 24)],
    }
    assert snapshot.splits == {split: len(rows) for split, rows in expected.items()}
    for split, rows in expected.items():
        read = tables.read_split(folder, snapshot, split)
        assert read["id"].to_pylist() == [f"f{n}" for n in rows]
        assert read.drop_columns(["late"]).equals(
            tables.plain(table.take(pa.array(rows)))
            .drop_columns(["late"])
            .cast(read.drop_columns(["late"]).schema)
        )


def test_roles_types_and_figures_are_in_the_manifest(tmp_path: Path) -> None:
    table = flights()
    snapshot = take(put(tmp_path / "in.parquet", table), tmp_path / "out")
    assert snapshot.roles == {"key": "id", "time": "at", "label": "late"}
    types = {column.name: column.type for column in snapshot.columns}
    assert types["at"] == "timestamp[us, tz=UTC]"
    assert types["late"] == "int64"
    assert snapshot.quality["nulls.delay"] == table["delay"].null_count == 40
    train = table.slice(0, 7 * 24)["late"]
    assert snapshot.quality["labels.train"] == 7 * 24 - train.null_count
    assert snapshot.quality["positives.train"] == pc.sum(train).as_py()


def test_the_same_bytes_elsewhere_give_the_same_data_version_and_another_byte_another(tmp_path: Path) -> None:
    first = take(put(tmp_path / "a" / "in.parquet", flights()), tmp_path / "1")
    second = take(put(tmp_path / "b" / "in.parquet", flights()), tmp_path / "2")
    third = take(put(tmp_path / "c" / "in.parquet", flights(401)), tmp_path / "3")
    assert first.digest == second.digest != third.digest


@pytest.mark.covers("F41")
def test_a_source_that_changed_since_it_was_resolved_is_refused(tmp_path: Path) -> None:
    source = put(tmp_path / "in.parquet", flights())
    version = version_of(source)
    put(source, flights(401))
    with pytest.raises(InputError, match="the source changed since it was resolved") as caught:
        ingest(str(source), version, data(), tmp_path / "snapshot", tmp_path / "summary.md")
    assert "Run the pipeline again" in caught.value.hint
    assert not (tmp_path / "snapshot").exists()


def test_record_and_summary_lead_back_to_the_bytes_of_the_source(tmp_path: Path) -> None:
    source = put(tmp_path / "in.parquet", flights())
    snapshot = take(source, tmp_path / "out")
    record = Record.read(tmp_path / "out" / "snapshot")
    assert record.headline == f"400 rows, 5 columns, data {snapshot.digest[:6]}…"
    listing = Listing.read(tmp_path / "out" / "snapshot")
    assert record.inputs == {
        "source": listing.content_digest,
        f"file {source}": listing.files[0].checksum,
    }
    assert record.outputs == {"data": snapshot.digest}
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "| train | 168 | 151 | 33.1% |" in summary
    assert "| delay | double | 40 (10.0%) | 1 | 200 | 399 | 115.5 |" in summary


@pytest.mark.parametrize("role", ["key", "time", "label"])
def test_a_missing_column_is_named_with_what_comes_close(tmp_path: Path, role: str) -> None:
    wrong = {"key": "idd", "time": "att", "label": "latee"}[role]
    with pytest.raises(InputError, match=f"no column '{wrong}' \\(close: {wrong[:-1]}"):
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(**{role: wrong}))
    assert not list((tmp_path / "out").glob("snapshot/*"))


@pytest.mark.parametrize(("column", "role"), [("id", "key"), ("at", "time")])
def test_a_row_without_key_or_time_is_refused_by_its_number(tmp_path: Path, column: str, role: str) -> None:
    values = flights()[column].to_pylist()
    values[122] = values[200] = None
    with pytest.raises(
        InputError, match=rf"{role} column '{column}' has no value in 2 of .* the first is row 123"
    ):
        take(put(tmp_path / "in.parquet", flights(**{column: values})), tmp_path / "out")


def test_a_time_without_a_zone_is_utc_and_a_date_is_its_midnight(tmp_path: Path) -> None:
    naive = [START.replace(tzinfo=None) + dt.timedelta(hours=n) for n in range(400)]
    dates = [(START + dt.timedelta(hours=n)).date() for n in range(400)]
    first = take(put(tmp_path / "a.parquet", flights(at=pa.array(naive, pa.timestamp("ns")))), tmp_path / "1")
    second = take(put(tmp_path / "b.parquet", flights(at=dates)), tmp_path / "2")
    read = tables.read_split(tmp_path / "1" / "snapshot", first, "train")["at"].to_pylist()
    assert read == [START + dt.timedelta(hours=n) for n in range(168)]
    read = tables.read_split(tmp_path / "2" / "snapshot", second, "train")["at"].to_pylist()
    assert read[:25] == [START] * 24 + [START + dt.timedelta(days=1)]


def test_a_time_in_another_zone_is_the_same_moment(tmp_path: Path) -> None:
    zoned = flights()["at"].cast(pa.timestamp("us", tz="America/New_York"))
    plain = take(put(tmp_path / "a.parquet", flights()), tmp_path / "1")
    moved = take(put(tmp_path / "b.parquet", flights(at=zoned)), tmp_path / "2")
    assert [entry.checksum for entry in plain.files] == [entry.checksum for entry in moved.files]


@pytest.mark.covers("B35")
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (2**62, pa.timestamp("us", tz="UTC")),
        (-(2**62), pa.timestamp("us", tz="UTC")),
        (253_402_300_800, pa.timestamp("s")),
        (2**31 - 1, pa.date32()),
    ],
)
def test_a_time_outside_the_years_1_to_9999_is_refused(
    tmp_path: Path, number: int, kind: pa.DataType
) -> None:
    table = flights(3, at=pa.array([number] * 3, f"int{kind.bit_width}").cast(kind))
    with pytest.raises(InputError, match=r"3 times outside the years 1 to 9999.*the first is in row 1"):
        take(put(tmp_path / "in.parquet", table), tmp_path / "out")


def test_a_time_column_that_holds_no_times_is_refused_with_examples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="time column 'carrier' holds string, not times: 'NA', 'UA'"):
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(time="carrier"))


def test_a_label_of_floats_with_nan_is_zeros_ones_and_nothing(tmp_path: Path) -> None:
    values = [float("nan") if n % 10 == 0 else float(n % 3 == 0) for n in range(400)]
    floats = take(put(tmp_path / "a.parquet", flights(late=values)), tmp_path / "1")
    truths = take(put(tmp_path / "b.parquet", flights()), tmp_path / "2")
    assert [entry.checksum for entry in floats.files] == [entry.checksum for entry in truths.files]


@pytest.mark.covers("B28")
def test_a_key_of_lists_is_refused_with_its_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"key column 'id' holds list<.*>, not single values"):
        take(put(tmp_path / "in.parquet", flights(3, id=[["a"], ["b"], ["c"]])), tmp_path / "out")


@pytest.mark.covers("B28")
def test_a_label_of_lists_is_refused_with_examples(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"label column 'late' holds list<.*>, not classes or numbers: \[1\]"
    ):
        take(put(tmp_path / "in.parquet", flights(3, late=[[1], [1], [0]])), tmp_path / "out")


def test_a_label_of_16_bit_floats_is_zeros_and_ones(tmp_path: Path) -> None:
    table = flights(late=pa.array([n % 2 for n in range(400)], pa.float16()))
    snapshot = take(put(tmp_path / "in.parquet", table), tmp_path / "out")
    assert snapshot.quality["positives.train"] == 7 * 12
