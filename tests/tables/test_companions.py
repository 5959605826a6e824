"""Files whose further columns lie in a companion file, whatever the row groups of both."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables.manifests import entry, manifest
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError

ROWS = 30_000
TYPES = {"id": "int64", "word": "string", "name": "string", "x": "double"}


@pytest.fixture
def beside(tmp_path: Path) -> Snapshot:
    """A file in row groups of 7,000 rows, and its companion in groups of 4,000."""
    ids = range(ROWS)
    own = {"id": ids, "x": [n / 2 for n in ids], "unused": ["?"] * ROWS}
    added = {"word": [f"w{n}" for n in ids], "name": [f"n{n}" for n in ids]}
    pq.write_table(pa.table(own), tmp_path / "own.parquet", row_group_size=7_000)
    pq.write_table(pa.table(added), tmp_path / "added.parquet", row_group_size=4_000)
    companion = replace(entry(tmp_path / "added.parquet", ROWS), uri="added.parquet")
    file = replace(entry(tmp_path / "own.parquet", ROWS), companion=companion)
    snapshot = manifest(TYPES, file)
    return Snapshot.read(snapshot.write(tmp_path))


@pytest.mark.parametrize(
    "columns", [["id", "word"], ["word", "x", "name", "id"], ["name", "word"], ["x", "id"]]
)
@pytest.mark.parametrize("batch_rows", [999, 5_000, 1 << 20])
def test_every_reader_gives_each_row_its_own_columns(
    beside: Snapshot, tmp_path: Path, columns: list[str], batch_rows: int
) -> None:
    values = {"id": int, "x": lambda n: n / 2, "word": "w{}".format, "name": "n{}".format}
    expected = {name: [values[name](n) for n in range(ROWS)] for name in columns}
    assert tables.read_split(tmp_path, beside, "train", columns).to_pydict() == expected
    batches = tables.iter_batches(tmp_path, beside, ["train"], columns, batch_rows)
    assert pa.Table.from_batches(list(batches)).to_pydict() == expected
    cut = tables.pieces(tmp_path, beside, ["train"], 10_000)
    assert [piece.rows for piece in cut] == [7_000, 7_000, 7_000, 9_000]
    read = [list(tables.read_piece(tmp_path, piece, columns, batch_rows)) for piece in cut]
    assert [sum(len(batch) for batch in part) for part in read] == [piece.rows for piece in cut]
    assert pa.Table.from_batches([batch for part in read for batch in part]).to_pydict() == expected


def test_a_companion_is_opened_only_for_its_columns(beside: Snapshot, tmp_path: Path) -> None:
    (tmp_path / "added.parquet").unlink()
    assert tables.read_split(tmp_path, beside, "train", ["id"]).num_rows == ROWS
    with pytest.raises(InputError, match=r"gone: no added\.parquet"):
        tables.read_split(tmp_path, beside, "train", ["id", "word"])


def test_a_companion_of_other_bytes_is_rejected(beside: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "added.parquet"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"changed: added\.parquet has md5:"):
        list(tables.iter_batches(tmp_path, beside, ["train"], ["word"]))


def test_a_column_that_neither_file_has_is_rejected(beside: Snapshot, tmp_path: Path) -> None:
    lacking = manifest(TYPES | {"y": "double"}, *beside.files)
    with pytest.raises(InputError, match=r"own\.parquet has no column 'y'"):
        tables.read_split(tmp_path, lacking, "train")


def test_a_manifest_without_companions_has_the_data_version_of_before() -> None:
    text = (
        '{"schema_version":1,"columns":[{"name":"id","type":"int64"}],"files":[{"uri":"data/a.parquet",'
        '"size":7,"checksum":"md5:00","rows":1,"split":"train"}]}'
    )
    expected = "c6c6646a051effd963ae75cc5506c1d111676e95171e3255f1b71c294f15db1b"
    assert Snapshot.parse(text).digest == expected
