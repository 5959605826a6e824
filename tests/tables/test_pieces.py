import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tables.manifests import entry, manifest
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import InputError


def written(folder: Path, groups_of_files: list[list[int]]) -> Snapshot:
    """Write files with row groups of these sizes; the ids count through all of them."""
    files, start = [], 0
    for index, groups in enumerate(groups_of_files):
        path = folder / f"{index}.parquet"
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        with pq.ParquetWriter(path, schema) as writer:
            for size in groups:
                ids = range(start, start + size)
                writer.write_table(pa.table([list(ids), [f"n{n}" for n in ids]], schema=schema))
                start += size
        files.append(entry(path, sum(groups), split="odd" if index % 2 else "even"))
    return manifest({"id": "int64", "name": "string"}, *files)


def numbers(folder: Path, piece: tables.Piece, batch_rows: int = 100) -> list[int]:
    batches = tables.read_piece(folder, piece, ["id"], batch_rows)
    return [value for batch in batches for value in batch.column(0).to_pylist()]


GROUPS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=2, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=GROUPS, rows=st.integers(1, 12), batch_rows=st.integers(1, 7))
def test_every_row_is_in_exactly_one_piece_and_they_are_in_order(
    tmp_path: Path, groups: list[list[int]], rows: int, batch_rows: int
) -> None:
    snapshot = written(tmp_path, groups)
    for splits in (["even"], ["odd"], ["odd", "even"]):
        expected = [
            value
            for batch in tables.iter_batches(tmp_path, snapshot, splits, ["id"])
            for value in batch.column(0).to_pylist()
        ]
        cut = tables.pieces(tmp_path, snapshot, splits, rows)
        assert [value for piece in cut for value in numbers(tmp_path, piece, batch_rows)] == expected
        assert [len(numbers(tmp_path, piece)) for piece in cut] == [piece.rows for piece in cut]
        assert all(0 < piece.rows <= max(rows, *map(max, groups)) for piece in cut)


def test_a_piece_is_small_and_the_same_after_a_journey(tmp_path: Path) -> None:
    snapshot = written(tmp_path, [[5, 5, 5], [2]])
    for piece in tables.pieces(tmp_path, snapshot, ["even", "odd"], rows=5):
        sent = pickle.dumps(piece)
        assert len(sent) < 1000
        arrived = pickle.loads(sent)  # noqa: S301 - written a line ago
        assert arrived == piece
        assert hash(arrived) == hash(piece)
        assert numbers(tmp_path, arrived) == numbers(tmp_path, piece)


def test_a_file_of_few_rows_is_not_even_opened(tmp_path: Path) -> None:
    snapshot = written(tmp_path, [[5, 5], [3]])
    for file in snapshot.files:
        Path(file.uri).unlink()
    assert [piece.rows for piece in tables.pieces(tmp_path, snapshot, ["even", "odd"], rows=10)] == [10, 3]
    with pytest.raises(InputError, match="cached input is gone"):
        tables.pieces(tmp_path, snapshot, ["even", "odd"], rows=9)


def test_a_piece_of_an_unknown_column_names_those_that_are_close(tmp_path: Path) -> None:
    (piece,) = tables.pieces(tmp_path, written(tmp_path, [[5]]), ["even"])
    with pytest.raises(InputError, match=r"no column 'nam' \(close: name\)"):
        list(tables.read_piece(tmp_path, piece, ["nam"]))


def test_a_missing_split_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no split 'train'"):
        tables.pieces(tmp_path, written(tmp_path, [[5], [1]]), ["train"])


def test_forked_processes_read_pieces_of_a_snapshot_that_their_parent_was_reading(tmp_path: Path) -> None:
    """Nothing that a piece needs is open or locked at the fork, even in the middle of a file."""
    snapshot = written(tmp_path, [[500] * 40, [1]])
    reading = tables.iter_batches(tmp_path, snapshot, ["even"], batch_rows=10)
    next(reading)
    tables.read_split(tmp_path, snapshot, "even")
    cut = tables.pieces(tmp_path, snapshot, ["even"], rows=1000)
    expected = [sum(range(1000 * index, 1000 * index + 1000)) for index in range(20)]
    children = []
    for share in range(4):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:  # whatever happens, a child must not go on as a second pytest
                found = {index: sum(numbers(tmp_path, cut[index])) for index in range(share, 20, 4)}
                os.write(writer, pickle.dumps(found))
                os._exit(0)
            finally:
                os._exit(2)
        os.close(writer)
        children.append((child, reader))
    sums: dict[int, int] = {}
    for child, reader in children:
        with os.fdopen(reader, "rb") as stream:
            sums |= pickle.load(stream)  # noqa: S301 - our own child wrote it
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [sums[index] for index in range(20)] == expected
    reading.close()
