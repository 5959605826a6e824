import datetime as dt
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.tables.kills import kill_everywhere
from trainwright import tables
from trainwright.artifacts import Listing, Record, Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Data
from trainwright.ingest.snapshot import ingest
from trainwright.resolve.source import resolve

START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
WINDOWS = {
    "train": {"start": "2013-01-01", "end": "2013-01-08"},
    "evaluate": {"start": "2013-01-10", "end": "2013-01-12"},
}


def flights(count: int = 400, **columns: object) -> pa.Table:
    """One row an hour from 2013 on; label and figures repeat, some are missing."""
    base: dict[str, object] = {
        "id": [f"f{n}" for n in range(count)],
        "at": [START + dt.timedelta(hours=n) for n in range(count)],
        "late": [None if n % 10 == 0 else n % 3 == 0 for n in range(count)],
        "delay": [None if n % 10 == 0 else float(n) for n in range(count)],
        "carrier": ["UA" if n % 2 else "NA" for n in range(count)],
    }
    return pa.table(base | columns)


def data(**changes: object) -> Data:
    section = {"source": "x", "key": "id", "time": "at", "label": "late", "splits": WINDOWS}
    return Data.check(section | changes, "test")


def take(source: Path, folder: Path, section: Data | None = None) -> Snapshot:
    version = resolve(str(source), folder / "listing").content_digest
    return ingest(str(source), version, section or data(), folder / "snapshot", folder / "summary.md")


def put(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


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


def test_the_order_of_splits_in_the_file_changes_nothing(tmp_path: Path) -> None:
    source, turned = put(tmp_path / "in.parquet", flights()), dict(reversed(WINDOWS.items()))
    first, second = take(source, tmp_path / "1"), take(source, tmp_path / "2", data(splits=turned))
    assert list(first.splits) == ["train", "evaluate", "unassigned"]
    assert first.digest == second.digest


def test_a_source_that_changed_since_it_was_resolved_is_refused(tmp_path: Path) -> None:
    source = put(tmp_path / "in.parquet", flights())
    version = resolve(str(source), tmp_path / "listing").content_digest
    put(source, flights(401))
    with pytest.raises(InputError, match="the source changed since it was resolved") as caught:
        ingest(str(source), version, data(), tmp_path / "snapshot", tmp_path / "summary.md")
    assert "Run the pipeline again" in caught.value.hint
    assert not (tmp_path / "snapshot").exists()


def test_a_source_that_is_written_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is appended to at the moment the first rows of it are handed on."""
    source = put(tmp_path / "in.parquet", flights())
    version = resolve(str(source), tmp_path / "listing").content_digest
    append = tables.SnapshotWriter.append

    def append_and_touch(self: tables.SnapshotWriter, split: str, rows: pa.Table) -> None:
        append(self, split, rows)
        with source.open("ab") as stream:
            stream.write(b"more")

    monkeypatch.setattr(tables.SnapshotWriter, "append", append_and_touch)
    with pytest.raises(InputError, match="a file was written while it was read"):
        ingest(str(source), version, data(), tmp_path / "snapshot", tmp_path / "summary.md")
    assert list((tmp_path / "snapshot").iterdir()) == []


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
    assert "| delay | double | 40 (10.0%) |" in summary


@pytest.mark.parametrize("role", ["key", "time", "label"])
def test_a_missing_column_is_named_with_what_comes_close(tmp_path: Path, role: str) -> None:
    wrong = {"key": "idd", "time": "att", "label": "latee"}[role]
    with pytest.raises(InputError, match=f"no column '{wrong}' \\(close: {wrong[:-1]}"):
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(**{role: wrong}))
    assert not list((tmp_path / "out").glob("snapshot/*"))


def test_a_key_that_is_there_twice_is_refused_with_the_keys(tmp_path: Path) -> None:
    ids = [f"f{n % 398}" for n in range(400)]
    with pytest.raises(InputError, match=r"2 keys are there more than once: 'f0' in 2 rows, 'f1' in 2 rows"):
        take(put(tmp_path / "in.parquet", flights(id=ids)), tmp_path / "out")


def test_an_integer_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 keys are there more than once: 7 in 2 rows"):
        take(put(tmp_path / "in.parquet", flights(id=[*range(399), 7])), tmp_path / "out")


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
    with pytest.raises(InputError, match="3 times outside the years 1 to 9999"):
        take(put(tmp_path / "in.parquet", table), tmp_path / "out")


def test_a_time_column_that_holds_no_times_is_refused_with_examples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="time column 'carrier' holds string, not times: 'NA', 'UA'"):
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(time="carrier"))


def test_a_label_of_other_values_is_refused_with_examples(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"label column 'delay' holds values other than 0 and 1: 2\.0, 3\.0, 4\.0"
    ):
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(label="delay"))
    with pytest.raises(InputError, match="label column 'carrier' holds string, not 0 and 1: 'NA', 'UA'"):
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(label="carrier"))


def test_a_label_of_floats_with_nan_is_zeros_ones_and_nothing(tmp_path: Path) -> None:
    values = [float("nan") if n % 10 == 0 else float(n % 3 == 0) for n in range(400)]
    floats = take(put(tmp_path / "a.parquet", flights(late=values)), tmp_path / "1")
    truths = take(put(tmp_path / "b.parquet", flights()), tmp_path / "2")
    assert [entry.checksum for entry in floats.files] == [entry.checksum for entry in truths.files]


def test_a_label_of_lists_is_refused_with_examples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"label column 'late' holds list<.*>, not 0 and 1: \[1\]"):
        take(put(tmp_path / "in.parquet", flights(3, late=[[1], [1], [0]])), tmp_path / "out")


def test_a_label_of_16_bit_floats_is_zeros_and_ones(tmp_path: Path) -> None:
    table = flights(late=pa.array([n % 2 for n in range(400)], pa.float16()))
    snapshot = take(put(tmp_path / "in.parquet", table), tmp_path / "out")
    assert snapshot.quality["positives.train"] == 7 * 12


def test_keys_of_one_fingerprint_are_told_apart(tmp_path: Path) -> None:
    """Python's hash of -1.0 is that of -2.0."""
    assert hash(-1.0) == hash(-2.0)
    snapshot = take(put(tmp_path / "in.parquet", flights(id=[-2.0, -1.0, *range(398)])), tmp_path / "out")
    assert snapshot.rows == 400


def test_keys_that_became_floats_are_refused_where_digits_are_lost(tmp_path: Path) -> None:
    """A CSV file does not say that 20 digits are a name; they differ here, but not in every digit."""
    rows = "".join(f"1{n}345678901234567891,2013-01-01 00:00:00,1\n" for n in range(10, 20))
    (tmp_path / "in.csv").write_text(f"id,at,late\n{rows}")
    with pytest.raises(InputError, match="key column 'id' holds floats too large to keep every digit"):
        take(tmp_path / "in.csv", tmp_path / "out")
    whole = flights(id=[float(n) for n in range(400)])
    assert take(put(tmp_path / "in.parquet", whole), tmp_path / "whole").rows == 400


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match=r"0 rows in .*in\.parquet"):
        take(put(tmp_path / "in.parquet", flights().slice(0, 0)), tmp_path / "out")
    header = tmp_path / "in.csv"
    header.write_text("id,at,late\n")
    with pytest.raises(DataRefused, match=r"0 rows in .*in\.csv"):
        take(header, tmp_path / "out2")


def test_every_split_with_too_few_rows_is_named_at_once(tmp_path: Path) -> None:
    windows = WINDOWS | {"holdout": {"start": "2014-01-01", "end": "2014-02-01"}}
    with pytest.raises(DataRefused) as caught:
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(splits=windows, min_rows=100))
    assert "48 rows in split 'evaluate' of" in caught.value.what
    assert "0 rows in split 'holdout' of" in caught.value.what
    assert caught.value.hint.startswith("The rows go from 2013-01-01 00:00:00Z to 2013-01-17 15:00:00Z")
    assert caught.value.code == 11
    assert not list((tmp_path / "out").glob("snapshot/*"))


KILLED = """
from trainwright.experiment import Data
from trainwright.ingest.snapshot import ingest

def before(folder):
    pass

def act(folder):
    source, version, section = ARGUMENTS
    ingest(source, version, Data.parse(section, "test"), folder / "snapshot", folder / "summary.md")
"""


def test_a_kill_anywhere_leaves_no_snapshot_or_a_whole_one_and_the_next_run_completes_it(
    tmp_path: Path,
) -> None:
    source = put(tmp_path / "in.parquet", flights())
    version = resolve(str(source), tmp_path / "listing").content_digest
    whole = ingest(str(source), version, data(), tmp_path / "whole", tmp_path / "summary.md")
    states = set()
    for folder in kill_everywhere(KILLED, tmp_path / "runs", str(source), version, data().to_json()):
        there = (folder / "snapshot" / "manifest.json").exists()
        states.add(there)
        if there:
            found = Snapshot.open(folder / "snapshot", whole.digest)
            batches = tables.iter_batches(folder / "snapshot", found, list(found.splits))
            assert sum(batch.num_rows for batch in batches) == 400
        again = ingest(str(source), version, data(), folder / "snapshot", folder / "summary.md")
        assert again.digest == whole.digest
        assert not (folder / "snapshot" / ".attempt").exists()
    assert states == {True, False}


MEASURED = """
import sys
from pathlib import Path
import pyarrow as pa
from trainwright.experiment import Data
from trainwright.ingest.snapshot import ingest

source, version, section, folder = sys.argv[1:]
ingest(source, version, Data.parse(section, "test"), Path(folder) / "snapshot", Path(folder) / "summary.md")
print(pa.default_memory_pool().max_memory() >> 20)
"""


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Peak of what Arrow holds, in MiB, for 18 MB of rows and for 180 MB."""
    peaks = []
    section = data(splits={"train": {"start": "2000-01-01", "end": "2100-01-01"}}).to_json()
    for count in (200_000, 2_000_000):
        source = tmp_path / f"{count}.parquet"
        moments = pa.array(np.arange(count) * 1_000_000 + 1_357_000_000_000_000, pa.timestamp("us", tz="UTC"))
        columns = {f"c{n}": np.random.default_rng(n).normal(size=count) for n in range(8)}
        table = pa.table({"id": np.arange(count), "at": moments, "late": np.arange(count) % 2} | columns)
        pq.write_table(table, source, row_group_size=100_000)
        version = resolve(str(source), tmp_path / "listing").content_digest
        command = [sys.executable, "-c", MEASURED, source, version, section, tmp_path / str(count)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert peaks[1] - peaks[0] < 40, peaks
