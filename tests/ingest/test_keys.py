import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ingest.taking import START, data, flights, put, take, version_of
from trainwright.errors import DataRefused, InputError
from trainwright.ingest.keys import EXAMINED, OpenRun, SpillWriter, repeated
from trainwright.tables import fingerprints


@pytest.mark.covers("B43")
def test_a_key_that_is_there_twice_is_refused_with_the_keys(tmp_path: Path) -> None:
    ids = [f"f{n % 398}" for n in range(400)]
    with pytest.raises(
        DataRefused, match=r"2 keys are there more than once: 'f0' in 2 rows, 'f1' in 2 rows"
    ) as caught:
        take(put(tmp_path / "in.parquet", flights(id=ids)), tmp_path / "out")
    assert caught.value.code == 11
    assert not list((tmp_path / "out" / "snapshot").glob("*"))


def test_an_integer_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match="1 keys are there more than once: 7 in 2 rows"):
        take(put(tmp_path / "in.parquet", flights(id=[*range(399), 7])), tmp_path / "out")


def test_a_key_that_two_shards_share_is_found(tmp_path: Path) -> None:
    source = put(tmp_path / "in.parquet", flights(id=[*range(399), 7]), row_group_size=50)
    with pytest.raises(DataRefused, match="of 400 rows, 1 keys are there more than once: 7 in 2 rows"):
        take(source, tmp_path / "out", data(shard_rows=50, runner={"workers": 1}))


@pytest.mark.covers("B34")
def test_keys_of_floats_are_refused_where_digits_are_lost(tmp_path: Path) -> None:
    """From 2^53 on not every integer is a float: two keys may have become one."""
    large = flights(id=[float(2**53 + 2 * n) for n in range(400)])
    with pytest.raises(InputError, match="key column 'id' holds floats too large to keep every digit"):
        take(put(tmp_path / "large.parquet", large), tmp_path / "out")
    whole = flights(id=[float(n) for n in range(400)])
    assert take(put(tmp_path / "in.parquet", whole), tmp_path / "whole").rows == 400


def test_a_key_of_no_number_is_a_missing_one(tmp_path: Path) -> None:
    ids = [math.nan if n == 122 else float(n) for n in range(400)]
    with pytest.raises(InputError, match=r"key column 'id' has no value in 1 of 400 rows read; .* row 123"):
        take(put(tmp_path / "in.parquet", flights(id=ids)), tmp_path / "out")


def colliding() -> tuple[bytes, bytes]:
    """Two keys of 16 bytes with one fingerprint: it adds up its mixed words, so these change places."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(number: int) -> int:
        number &= mask
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
        number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
        return number ^ number >> 31

    key = mix(mix(7))  # domain of bytes, seed 0
    first, second = (mix(key + place * golden) for place in (1, 2))
    one = struct.pack("<QQ", 1 ^ first, 2 ^ second)
    other = struct.pack("<QQ", 2 ^ first, 1 ^ second)
    return one, other


def test_keys_of_one_fingerprint_are_told_apart(tmp_path: Path) -> None:
    one, other = colliding()
    assert one != other
    prints = fingerprints(pa.array([one, other]))
    assert prints[0] == prints[1]
    ids = pa.array([one, other, *(struct.pack("<QQ", n, n) for n in range(398))])
    assert take(put(tmp_path / "in.parquet", flights(id=ids)), tmp_path / "out").rows == 400


def test_beyond_what_is_examined_equal_fingerprints_are_counted(tmp_path: Path) -> None:
    count = 4 * EXAMINED
    table = pa.table({"id": np.arange(count) % (count // 2), "at": [START] * count, "late": [0] * count})
    with pytest.raises(DataRefused, match=f"of {count:,} rows, {count // 2:,} keys are there more than once"):
        take(put(tmp_path / "in.parquet", table), tmp_path / "out", data(splits={"all": {"fraction": 1}}))


def test_fingerprints_are_compared_range_by_range_as_all_at_once(tmp_path: Path) -> None:
    """Against NumPy's own count over the whole, with and without splits, however few are held at a time."""
    random = np.random.default_rng(0)
    values = random.integers(0, 1 << 64, 5_000, dtype=np.uint64)
    drawn = [random.choice(values, 2_000) for _ in range(3)]
    for splits in (["", "", ""], ["a", "b", "a"]):
        runs = []
        for shard, (split, found) in enumerate(zip(splits, drawn, strict=True)):
            path = tmp_path / f"{split}{shard}"
            with path.open("wb") as stream:
                writer = SpillWriter(stream)
                writer.add("c", split, found)
                runs += [OpenRun(shard, path, run) for run in writer.finish()]
        parts = [np.union1d(drawn[0], drawn[2]), np.unique(drawn[1])] if splits[0] else drawn
        different, counts = np.unique(np.concatenate(parts), return_counts=True)
        for at_a_time in (100, 1_000_000):
            suspects = repeated(runs, at_a_time)
            assert suspects.count == (counts > 1).sum()
            assert suspects.examined.tolist() == different[counts > 1].tolist()


@pytest.mark.covers("B43")
def test_a_value_of_a_disjoint_column_in_two_splits_is_refused_with_examples(tmp_path: Path) -> None:
    users = [f"u{n // 2}" for n in range(400)]
    users[220] = "u3"  # 10 January: evaluate
    users[221] = "u5"
    users[180] = "u7"  # in no split: no harm
    section = data(disjoint=["carrier", "user"])
    with pytest.raises(DataRefused) as caught:
        take(put(tmp_path / "in.parquet", flights(user=users)), tmp_path / "out", section)
    assert caught.value.code == 11
    assert "column 'carrier' must have no value in two splits, and 2 of its values are" in caught.value.what
    assert "and 2 of its values are: 'u3' in evaluate and train, 'u5' in evaluate and train" in (
        caught.value.what
    )
    users[220] = users[221] = None
    section = data(disjoint=["user"])
    assert take(put(tmp_path / "in.parquet", flights(user=users)), tmp_path / "again", section).rows == 400


def test_a_disjoint_column_of_lists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"disjoint columns \['delay'\] hold lists or structures"):
        take(put(tmp_path / "in.parquet", flights(3, delay=[[1]] * 3)), tmp_path, data(disjoint=["delay"]))


MEASURED = r"""
import re, sys
from pathlib import Path
from trainwright.experiment import Data
from trainwright.ingest.ingest import ingest

source, version, section, folder = sys.argv[1:]
ingest(source, version, Data.parse(section, "test"), Path(folder) / "snapshot", Path(folder) / "summary.md")
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) >> 10)
"""


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Peak of the process, in MiB, for 100,000 rows and for ten times as many, which take 126 more."""
    peaks = []
    section = data(
        splits={"train": {"fraction": 0.8}, "evaluate": {"fraction": 0.2}},
        disjoint=["id", "group"],
        runner={"workers": 1},
        shard_rows=100_000,
    )
    for count in (100_000, 1_000_000):
        source = tmp_path / f"{count}.parquet"
        moments = pa.array(np.arange(count) * 1_000_000 + 1_357_000_000_000_000, pa.timestamp("us", tz="UTC"))
        columns = {f"c{n}": np.random.default_rng(n).normal(size=count) for n in range(14)}
        roles = {"id": np.arange(count), "at": moments, "late": np.arange(count) % 2}
        table = pa.table(roles | {"group": pa.array(np.arange(count)).cast(pa.string())} | columns)
        pq.write_table(table, source, row_group_size=50_000, use_dictionary=False, compression="none")
        command = [sys.executable, "-c", MEASURED, source, version_of(source), section.to_json()]
        done = subprocess.run([*command, tmp_path / str(count)], check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 80, peaks
