from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.ingest.taking import WINDOWS, data, flights, put, take
from trainwright.errors import DataRefused, InputError


@pytest.mark.covers("F48")
def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match=r"0 rows in .*in\.parquet"):
        take(put(tmp_path / "in.parquet", flights().slice(0, 0)), tmp_path / "out")
    header = tmp_path / "in.csv"
    header.write_text("id,at,late\n")
    with pytest.raises(DataRefused, match=r"0 rows in .*in\.csv"):
        take(header, tmp_path / "out2")


@pytest.mark.covers("B36")
def test_every_split_with_too_few_rows_is_named_at_once(tmp_path: Path) -> None:
    windows = WINDOWS | {"holdout": {"start": "2014-01-01", "end": "2014-02-01"}}
    with pytest.raises(DataRefused) as caught:
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", data(splits=windows, min_rows=100))
    assert "48 rows in split 'evaluate' of" in caught.value.what
    assert "0 rows in split 'holdout' of" in caught.value.what
    assert caught.value.hint.startswith("The rows go from 2013-01-01 00:00:00Z to 2013-01-17 15:00:00Z")
    assert caught.value.code == 11
    assert not list((tmp_path / "out").glob("snapshot/*"))
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "**Refused**: 2 of 4 limits do not hold." in summary
    assert "| rows in split holdout | 0 | at least 100 | no |" in summary


def test_all_limits_that_do_not_hold_are_in_one_refusal_and_on_the_page(tmp_path: Path) -> None:
    previous = take(put(tmp_path / "old.parquet", flights(1000)), tmp_path / "old")
    ids = [f"f{n % 399}" for n in range(400)]
    section = data(
        min_rows=100,
        disjoint=["carrier"],
        quality={
            "max_missing": {"delay": 0.05, "late": 0.2},
            "previous": str(tmp_path / "old" / "snapshot"),
            "min_volume": 0.5,
            "max_volume": 2,
        },
    )
    with pytest.raises(DataRefused) as caught:
        take(put(tmp_path / "in.parquet", flights(id=ids)), tmp_path / "out", section)
    assert previous.rows == 1000
    said = caught.value.what.splitlines()
    assert [line.split(":")[0][:60] for line in said] == [
        said[0][:60],
        "column 'delay' has no value in 40 of 400 rows, 10.00%; max_m",
        "400 rows against 1,000 in the previous snapshot, 0.4 times a",
        "key column 'id' does not identify a row",
        "column 'carrier' must have no value in two splits, and 2 of ",
    ]
    assert said[0].startswith("48 rows in split 'evaluate' of")
    summary = (tmp_path / "out" / "summary.md").read_text()
    for line in (
        "**Refused**: 5 of 8 limits do not hold.",
        "| missing in delay | 10.00% | at most 5.00% | no |",
        "| missing in late | 10.00% | at most 20.00% | yes |",
        "| rows, as a multiple of the previous | 0.4 | at least 0.5 | no |",
        "| key id | more than once | each once | no |",
    ):
        assert line in summary
    assert "Data version" not in summary


def test_a_float_that_is_no_number_counts_as_missing_for_the_limit(tmp_path: Path) -> None:
    delay = [float("nan") if n % 4 == 0 else None if n % 4 == 1 else 1.0 for n in range(400)]
    source = put(tmp_path / "in.parquet", flights(delay=delay))
    with pytest.raises(
        DataRefused, match=r"'delay' has no value in 200 of 400 rows, 50.00%; max_missing is 49"
    ):
        take(source, tmp_path / "out", data(quality={"max_missing": {"delay": 0.49}}))
    snapshot = take(source, tmp_path / "again", data(quality={"max_missing": {"delay": 0.5}}))
    assert snapshot.quality["nulls.delay"] == snapshot.quality["nans.delay"] == 100


@pytest.mark.covers("B36")
def test_a_source_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    broken = tmp_path / "in.parquet"
    broken.write_bytes(b"x" * 1000)
    with pytest.raises(DataRefused, match="the source has 1,000 bytes in 1 files; max_bytes is 999"):
        take(broken, tmp_path / "out", data(quality={"max_bytes": 999}))
    assert (
        "| bytes of the source | 1,000 | at most 999 | no |" in (tmp_path / "out" / "summary.md").read_text()
    )


def test_a_previous_snapshot_that_is_not_there_is_an_error_not_a_pass(tmp_path: Path) -> None:
    section = data(quality={"previous": str(tmp_path / "gone"), "min_volume": 0.5})
    with pytest.raises(InputError, match="the previous snapshot cannot be read"):
        take(put(tmp_path / "in.parquet", flights()), tmp_path / "out", section)


def test_a_limit_for_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'dela' \(close: delay"):
        take(
            put(tmp_path / "in.parquet", flights()),
            tmp_path / "out",
            data(quality={"max_missing": {"dela": 0.5}}),
        )


def test_figures_of_many_shards_are_those_of_the_whole_column(tmp_path: Path) -> None:
    """Against Arrow's own functions over all rows at once; the shards are of very different sizes."""
    table = flights(4000, delay=[None if n % 10 == 0 else 1e6 + n % 77 for n in range(4000)])
    source = put(tmp_path / "in.parquet", table, row_group_size=150)
    one = take(source, tmp_path / "one")
    many = take(source, tmp_path / "many", data(shard_rows=450, runner={"workers": 1}))
    delay = table["delay"]
    ends = pc.min_max(delay).as_py()
    for snapshot in (one, many):
        quality = snapshot.quality
        assert quality["mean.delay"] == pytest.approx(pc.mean(delay).as_py(), rel=1e-12)
        assert quality["std.delay"] == pytest.approx(pc.stddev(delay).as_py(), rel=1e-9)
        assert (quality["min.delay"], quality["max.delay"]) == (ends["min"], ends["max"])
        assert quality["nulls.delay"] == 400
        assert quality["time.oldest"] == pc.min(table["at"]).as_py().timestamp()
        assert quality["time.newest"] == pc.max(table["at"]).as_py().timestamp()
        assert quality["bytes"] == sum(entry.size for entry in snapshot.files)
        assert snapshot.splits == {split: quality[f"rows.{split}"] for split in snapshot.splits}


def test_numbers_at_the_ends_of_what_floats_hold_are_measured_without_an_error(tmp_path: Path) -> None:
    values = [float("inf"), -float("inf"), 1.7e308, -1.7e308, *[1.7e308] * 396]
    columns = {"delay": values, "big": pa.array([2**63 - 1] * 400)}
    snapshot = take(put(tmp_path / "in.parquet", flights(**columns)), tmp_path / "out")
    assert snapshot.quality["max.delay"] == 1.7e308
    assert snapshot.quality["mean.big"] == pytest.approx(2.0**63)
