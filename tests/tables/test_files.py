import gc
import hashlib
import itertools
import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tables.manifests import MODERN
from tests.tables.rows import TABLES
from trainwright import tables
from trainwright.errors import InputError
from trainwright.tables.columns import named_type


def write_file(path: Path, batches: Iterable[pa.Table | pa.RecordBatch]) -> tables.WrittenFile:
    with tables.FileWriter(path) as writer:
        for batch in batches:
            writer.append(batch)
        return writer.finish()


def test_what_is_said_of_a_file_is_what_lies_there(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(300_000), pa.int64()), "x": pa.array([None, 1.5, 2.5] * 100_000)})
    written = write_file(tmp_path / "deep" / "a.parquet", table.to_batches(1000))
    content = written.path.read_bytes()
    assert (written.rows, written.size) == (300_000, len(content))
    assert written.checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert pq.read_table(written.path) == table
    metadata = pq.ParquetFile(written.path).metadata
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert sizes == [tables.ROW_GROUP, tables.ROW_GROUP, 300_000 - 2 * tables.ROW_GROUP]


def test_a_writer_can_be_fed_over_time_and_counts(tmp_path: Path) -> None:
    with tables.FileWriter(tmp_path / "a.parquet") as writer:
        for start in range(0, 200_000, 50_000):
            assert writer.rows == start
            writer.append(pa.table({"id": range(start, start + 50_000)}))
        written = writer.finish()
    assert pq.read_table(written.path)["id"].to_pylist() == list(range(200_000))


def test_only_columns_that_repeat_their_values_get_a_dictionary(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(3), 50_000
    table = pa.table(
        {
            "key": pa.array(range(rows), pa.int64()),
            "price": rng.normal(size=rows),
            "unique": pa.array(range(rows)).cast(pa.string()),
            "hour": rng.integers(0, 24, rows),
            "word": pa.array(["x", "y", None, "z"] * (rows // 4)),
            "flag": pa.array([True, False] * (rows // 2)),
        }
    )
    written = write_file(tmp_path / "a.parquet", [table])
    group = pq.ParquetFile(written.path).metadata.row_group(0)
    found = {group.column(n).path_in_schema: group.column(n).has_dictionary_page for n in range(6)}
    assert found == {"key": False, "price": False, "unique": False, "hour": True, "word": True, "flag": False}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=TABLES, cuts=st.lists(st.integers(0, 40), max_size=4), rows_per_file=st.integers(5, 50))
def test_rows_of_all_types_come_back_and_give_the_same_bytes_however_they_were_cut(
    tmp_path: Path, table: pa.Table, cuts: list[int], rows_per_file: int
) -> None:
    places = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    parts = [table.slice(start, stop - start) for start, stop in itertools.pairwise(places)]
    whole, cut = (
        tables.write_snapshot(
            tmp_path / name, {"train": rows, "empty": [table.slice(0, 0)]}, parents={}, roles={},
            rows_per_file=rows_per_file,
        )
        for name, rows in (("whole", [table]), ("cut", parts))
    )  # fmt: skip
    assert cut == whole
    assert whole.splits == {"train": table.num_rows, "empty": 0}
    assert whole.quality == {f"nulls.{n}": table[n].null_count for n in table.column_names}
    expected = tables.plain(table)
    found = tables.read_split(tmp_path / "cut", cut, "train")
    assert found.schema == expected.schema
    assert same(found, expected)
    assert tables.read_split(tmp_path / "cut", cut, "empty").schema == expected.schema
    batches = list(tables.iter_batches(tmp_path / "cut", cut, ["empty", "train"], batch_rows=7))
    assert same(pa.Table.from_batches(batches, expected.schema), expected)
    pieces = tables.pieces(tmp_path / "cut", cut, ["train"], rows=10)
    rows = [batch for piece in pieces for batch in tables.read_piece(tmp_path / "cut", piece)]
    assert same(pa.Table.from_batches(rows, expected.schema), expected)


def same(first: pa.Table, second: pa.Table) -> bool:
    """Compare values; NaN is NaN."""
    return repr(first.to_pylist()) == repr(second.to_pylist())


def test_a_path_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("another's")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a.parquet", [pa.table({"a": [1]})])
    assert (tmp_path / "a.parquet").read_text() == "another's"


def test_no_batch_at_all_is_no_file_and_an_empty_one_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows and no columns"):
        write_file(tmp_path / "a.parquet", [])
    assert not (tmp_path / "a.parquet").exists()
    empty = pa.table({"a": pa.array([], pa.string()), "b": pa.array([], pa.list_(pa.int8()))})
    written = write_file(tmp_path / "b.parquet", [empty, empty])
    assert written.rows == 0
    assert pq.read_table(written.path) == empty


def test_batches_that_differ_are_refused_and_the_file_is_closed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows differ from those before: 'a' is string, was int64"):
        write_file(tmp_path / "a.parquet", [pa.table({"a": [1]}), pa.table({"a": ["x"]})])
    gc.collect()  # an unclosed file would be a warning, which is an error


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from trainwright import tables
from trainwright.errors import in_our_words

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
noise = np.random.default_rng(0)
try:
    with tables.FileWriter(Path(sys.argv[1])) as writer:
        for _ in range(5):
            writer.append(pa.table({"x": noise.normal(size=200_000)}))
        writer.finish()
except OSError as error:
    print(type(in_our_words(error)).__name__)
"""


def test_a_full_disk_is_said_once_and_as_what_it_is(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3 << 20
    command = [sys.executable, "-W", "error", "-c", FULL_DISK, str(tmp_path / "a.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("DependencyError", "", 0)


def test_a_type_that_parquet_does_not_have_is_named(tmp_path: Path) -> None:
    table = pa.table({"span": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(InputError, match=r"cannot be stored as Parquet: .*interval") as caught:
        write_file(tmp_path / "a.parquet", [table])
    assert caught.value.where == str(tmp_path / "a.parquet")


@pytest.mark.skipif(not MODERN, reason="an older pyarrow does not turn them into lists")
def test_lists_of_a_fixed_size_become_lists_which_parquet_can_hold_nulls_of(tmp_path: Path) -> None:
    table = pa.table({"embedding": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))})
    snapshot = tables.write_snapshot(tmp_path, {"train": [table]}, parents={}, roles={})
    found = tables.read_split(tmp_path, snapshot, "train")
    assert str(found.schema.types[0]) == snapshot.columns[0].type == "list<item: float>"
    assert found.to_pylist() == table.to_pylist()


KINDS = [
    *(pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.null()),
    *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.duration("us"), pa.binary(7)),
    *(pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="Asia/Kolkata")),
    *(pa.decimal128(10, 3), pa.decimal128(9, -2), pa.decimal256(70, 0)),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_flat_type_is_known_by_what_arrow_calls_it(kind: pa.DataType) -> None:
    assert named_type(str(kind)) == kind


def test_a_type_that_holds_others_is_not_known_by_name() -> None:
    assert named_type("list<item: int8>") is None
    assert named_type("struct<a: int8>") is None
