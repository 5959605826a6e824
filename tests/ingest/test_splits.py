import datetime as dt
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.ingest.taking import START, WINDOWS, data, flights, put, take
from trainwright import tables
from trainwright.errors import InputError
from trainwright.ingest.splits import division
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
    """By another road: whole numbers of Python, one row at a time."""
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
