"""Rows of token ids as sequences."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tables.manifests import entry, manifest
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import LanguageModel
from trainwright.experiment.training import Feeding
from trainwright.train.feeding.tokens import (
    TokenCounts,
    TokenSequences,
    TokenSource,
    count_tokens,
    encode_tokens,
    total_counts,
)
from trainwright.train.process_group import Ranks
from trainwright.train.submit.checks import check_snapshot

CONTEXT = 8
TYPE = pa.list_(pa.int32())


def made(
    folder: Path, files: Sequence[list[object]], kind: pa.DataType = TYPE, **options: object
) -> Snapshot:
    """Write files of rows of tokens, and the manifest that names them."""
    found = []
    for number, rows in enumerate(files):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"tokens": pa.array(rows, kind)}), path, **options)
        found.append(entry(path, len(rows)))
    return manifest({"tokens": str(kind)}, *found)


def texts(count: int, seed: int, vocabulary: int = 100) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, vocabulary, random.integers(1, 40)).tolist() for _ in range(count)]


def cut(rows: Sequence[Sequence[int] | None], separator: int | None) -> tuple[list[list[int]], int]:
    """Lay rows end to end and cut them, one token after the other; also says how many are left."""
    stream: list[int] = []
    for row in rows:
        if row and stream and separator is not None:
            stream.append(separator)
        stream += row or []
    found = []
    while len(stream) > CONTEXT:
        found.append(stream[: CONTEXT + 1])
        stream = stream[CONTEXT:]
    return found, len(stream) - bool(found)


def network(**options: object) -> LanguageModel:
    return LanguageModel(**{"vocabulary": 100, "context": CONTEXT, "width": 16, "heads": 2} | options)


def read(
    snapshot: Snapshot, folder: Path, group: Ranks, **options: object
) -> tuple[TokenSequences, list[TokenCounts]]:
    source = TokenSource(folder, snapshot, "train", network(**options))
    counts = count_tokens(source, group)
    return encode_tokens(source, counts, folder / "encoded", group, Feeding()), counts


@pytest.mark.parametrize("separator", [None, 99])
@pytest.mark.parametrize("row_group", [7, 1000])
def test_sequences_are_those_of_the_rows_end_to_end(
    separator: int | None, row_group: int, tmp_path: Path, alone: Ranks
) -> None:
    files = [texts(60, 0), texts(3, 1), texts(25, 2)]
    files[1] = [[5], [6, 7]]  # too short for one sequence
    snapshot = made(tmp_path, files, row_group_size=row_group)
    sequences, counts = read(snapshot, tmp_path, alone, separator=separator)
    expected, left = zip(*(cut(rows, separator) for rows in files), strict=True)
    batch = sequences.take(np.arange(len(sequences)))
    found = np.column_stack([batch.inputs[0].numpy(), batch.target.numpy()[:, -1:]])
    assert found.tolist() == [each for file in expected for each in file]
    assert batch.inputs[0][:, 1:].equal(batch.target[:, :-1])
    assert [part.dropped for part in counts] == list(left)
    assert total_counts(counts).sequences == len(sequences)
    between = 0 if separator is None else sum(len(rows) - 1 for rows in files)
    assert total_counts(counts).tokens == sum(len(row) for rows in files for row in rows) + between


def test_rows_without_tokens_are_skipped(tmp_path: Path, alone: Ranks) -> None:
    rows = [None, [1, 2, 3], [], None, [4] * 20, [], [5, 6]]
    sequences, counts = read(made(tmp_path, [rows]), tmp_path, alone, separator=0)
    batch = sequences.take(np.arange(len(sequences)))
    assert batch.inputs[0].flatten().tolist() == ([1, 2, 3, 0] + [4] * 20)[: CONTEXT * len(sequences)]
    assert counts == [TokenCounts(rows=3, tokens=27, sequences=3, dropped=2)]


def test_a_split_is_counted_from_its_footers_alone(tmp_path: Path, alone: Ranks) -> None:
    snapshot = made(tmp_path, [texts(50, 0), texts(20, 1)], row_group_size=9)
    source = TokenSource(tmp_path, snapshot, "train", network())
    by_footer = count_tokens(source, alone)
    (tmp_path / "plain").mkdir()
    plain = made(tmp_path / "plain", [texts(50, 0), texts(20, 1)], write_statistics=False)
    assert count_tokens(TokenSource(tmp_path, plain, "train", network()), alone) == by_footer
    for path in tmp_path.glob("*.parquet"):  # only the end of it is what it was
        content = path.read_bytes()
        path.write_bytes(b"PAR1" + bytes(len(content) // 4) + content[len(content) // 4 + 4 :])
    assert count_tokens(source, alone) == by_footer


@pytest.mark.parametrize(("vocabulary", "size"), [(65_536, 2), (65_537, 4)])
def test_token_shards_take_two_bytes_up_to_65536_tokens(
    vocabulary: int, size: int, tmp_path: Path, alone: Ranks
) -> None:
    rows = texts(100, 0, vocabulary)
    rows[0] = [vocabulary - 1] * 9
    sequences, _ = read(made(tmp_path, [rows]), tmp_path, alone, vocabulary=vocabulary)
    (shard,) = (tmp_path / "encoded").iterdir()
    assert shard.stat().st_size == 4096 + size * (len(sequences) * CONTEXT + 1)
    assert sequences.take(np.array([0])).target.tolist() == [[vocabulary - 1] * 8]


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64())])
def test_lists_of_any_whole_numbers_are_read(kind: pa.DataType, tmp_path: Path, alone: Ranks) -> None:
    rows = texts(30, 0)
    sequences, _ = read(made(tmp_path, [rows], kind), tmp_path, alone)
    assert sequences.take(np.arange(len(sequences))).inputs[0].tolist() == [
        each[:-1] for each in cut(rows, None)[0]
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([3, 100, 2], r"tokens lie in \[0, 100\]; a vocabulary of 100 has 0 to 99"),
        ([100], r"tokens lie in \[0, 100\]; a vocabulary of 100 has 0 to 99"),
        ([3, -1], r"tokens lie in \[-1, 99\]; a vocabulary of 100 has 0 to 99"),
        ([3, None], "1 tokens are missing within rows"),
    ],
)
def test_token_outside_the_vocabulary_is_rejected_with_file_and_row(
    row: list[int], said: str, tmp_path: Path, alone: Ranks
) -> None:
    files = [texts(300, 0), texts(300, 1)]
    files[1][217] = row
    files[1][216] = []
    with pytest.raises(InputError, match=said) as caught:
        read(made(tmp_path, files), tmp_path, alone)
    assert caught.value.where == f"{tmp_path / '1.parquet'}, row 217"


def test_split_without_a_whole_sequence_is_rejected_with_its_counts(tmp_path: Path, alone: Ranks) -> None:
    with pytest.raises(DataRefused, match="no file has the 9 tokens of one sequence; they have 8, 3"):
        read(made(tmp_path, [[[1] * 8], [[1], [2, 3]]]), tmp_path, alone)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (
            pa.list_(pa.float32()),
            {},
            "'tokens' is of type list<item: float>; tokens are a list of whole numbers",
        ),
        (TYPE, {"tokens": "token"}, "no column 'token' of tokens; there are tokens"),
        (TYPE, {"separator": 100}, "separator 100 is outside the vocabulary of 100"),
    ],
)
def test_column_that_holds_no_tokens_is_rejected_before_reading(
    kind: pa.DataType, options: dict[str, object], said: str, tmp_path: Path
) -> None:
    snapshot = made(tmp_path, [[[1]]], kind)
    check_snapshot(made(tmp_path, [[[1]]]), ["train"], network())
    with pytest.raises(InputError, match=said):
        check_snapshot(snapshot, ["train"], network(**options))


def test_neighbouring_sequences_share_one_token(tmp_path: Path, alone: Ranks) -> None:
    sequences, _ = read(made(tmp_path, [texts(100, 0)]), tmp_path, alone)
    batch = sequences.take(np.arange(len(sequences)))
    for (_, last), (first, _) in pairwise(zip(batch.inputs[0].tolist(), batch.target.tolist(), strict=True)):
        assert first[0] == last[-1]
