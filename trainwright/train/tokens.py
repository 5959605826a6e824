"""A split of texts as token ids: the rows of a file one after another, cut into sequences of equal length.

A row is a list of token ids. The rows of a file are laid end to end, with a separator between them if one is
given, and cut into sequences of ``context + 1`` tokens of which each begins with the last token of the one
before: inputs, and next-token targets. What is left at the end of a file is dropped and counted. How many
tokens a file has is in its footer mostly, so a split is counted without reading it, and encoded in one pass.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import distributed

import trainwright
from trainwright import tables
from trainwright.artifacts import RUN_AGAIN, Snapshot, SnapshotFile
from trainwright.documents import canonical, digest_text
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import LanguageModel
from trainwright.experiment.feeding import Feeding
from trainwright.tables.pinned import open_pinned
from trainwright.train import shards
from trainwright.train.cache import Cache, Shard
from trainwright.train.group import Group, wait_for_all
from trainwright.train.samples import Batch
from trainwright.train.shelf import Shelf

_SMALL = 1 << 16


@dataclass(frozen=True)
class Counted:
    """What a file, or a split, holds.

    Attributes:
        rows: Rows that have tokens.
        tokens: Tokens, those between the rows included.
        sequences: Sequences that they are cut into.
        dropped: Tokens at the end of files that are in none.
    """

    rows: int
    tokens: int
    sequences: int
    dropped: int


@dataclass(frozen=True)
class TokenSource:
    """A split of a snapshot, of which the column of tokens is read."""

    folder: Path
    snapshot: Snapshot
    split: str
    network: LanguageModel

    @cached_property
    def files(self) -> list[SnapshotFile]:
        """The files of the split that have rows."""
        return [entry for entry in self.snapshot.files if entry.split == self.split and entry.rows]

    def read(self, file: int) -> Iterator[NDArray[np.int64]]:
        """Give the tokens of a file in their order, with what is between the rows, in arrays.

        Raises:
            InputError: A token is missing or outside the vocabulary.
        """
        entry, row, begun = self.files[file], 0, False
        piece = tables.Piece(entry, 0, 1 << 31, entry.rows, self.snapshot.columns)
        for batch in tables.read_piece(self.folder, piece, [self.network.tokens]):
            lists = batch.column(0)
            lengths = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
            tokens = self._checked(lists.flatten(), lengths, entry, row)
            yield self._separated(tokens, lengths[lengths > 0], begun=begun)
            row, begun = row + len(lists), begun or bool(len(tokens))

    def _checked(
        self, values: pa.Array, lengths: NDArray[np.int64], entry: SnapshotFile, first: int
    ) -> NDArray[np.int64]:
        """Return the tokens of some rows; ``first`` is the number of the first of these."""
        numbers = pc.cast(values, pa.int64(), safe=False)
        tokens: NDArray[np.int64] = numbers.fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((tokens < 0) | (tokens >= self.network.vocabulary))
        if not len(wrong):
            return tokens
        row = first + int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        there = values.drop_null().to_numpy()
        if values.null_count:
            what = f"{values.null_count:,} tokens are missing within rows"
        else:
            what = (
                f"tokens lie in [{there.min()}, {there.max()}]; "
                f"a vocabulary of {self.network.vocabulary:,} has 0 to {self.network.vocabulary - 1:,}"
            )
        raise InputError(
            f"column {self.network.tokens!r}: {what}",
            where=f"{entry.uri}, row {row:,}",
            hint="Set network.vocabulary to that of the tokenizer that made these tokens.",
        )

    def _separated(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], *, begun: bool
    ) -> NDArray[np.int64]:
        """Put the separator before each row but the first of the file."""
        if self.network.separator is None or not len(lengths):
            return tokens
        starts = np.cumsum(lengths) - lengths
        return np.insert(tokens, starts if begun else starts[1:], self.network.separator)


def count(source: TokenSource, group: Group) -> list[Counted]:
    """Count the tokens of each file: from its footer where that says it, else by reading it.

    Args:
        source: The split.
        group: The processes; all of them call this together, and share the files.

    Raises:
        InputError: A token is missing or outside the vocabulary.
        DataRefused: There is not even one sequence.
    """
    mine = {file: _count(source, file) for file in range(group.rank, len(source.files), group.size)}
    gathered: list[dict[int, Counted]] = [{} for _ in range(group.size)]
    wait_for_all(group)
    distributed.all_gather_object(gathered, mine)
    parts = {file: part for share in gathered for file, part in share.items()}
    counts = [parts[file] for file in range(len(source.files))]
    if not sum(part.sequences for part in counts):
        context = source.network.context
        raise DataRefused(
            f"no file has the {context + 1:,} tokens of one sequence; they have "
            f"{', '.join(f'{part.tokens:,}' for part in counts[:5])}{', …' if len(counts) > 5 else ''}",  # noqa: PLR2004
            where=f"split {source.split!r} of the training set",
            hint="Lower network.context, or write the split into fewer and larger files.",
        )
    return counts


def added(parts: Iterable[Counted]) -> Counted:
    """Return the counts of all files together."""
    rows = [(part.rows, part.tokens, part.sequences, part.dropped) for part in parts]
    return Counted(*(sum(column) for column in zip(*rows, strict=True)))


def _count(source: TokenSource, file: int) -> Counted:
    rows_and_tokens = _by_footer(source, file) or _by_reading(source, file)
    rows, tokens = rows_and_tokens
    if source.network.separator is not None:
        tokens += max(rows - 1, 0)
    sequences = max(tokens - 1, 0) // source.network.context
    used = sequences * source.network.context + 1 if sequences else 0
    return Counted(rows, tokens, sequences, tokens - used)


def _by_footer(source: TokenSource, file: int) -> tuple[int, int] | None:
    """Return rows and tokens if the footer tells them: it does where no row is empty, and has statistics."""
    entry, tokens = source.files[file], 0
    with open_pinned(source.folder, entry, footer_only=True) as opened:
        for group in range(opened.num_row_groups):
            column = _column(opened.metadata.row_group(group), source.network.tokens)
            if column is None or column.statistics is None or not column.statistics.has_null_count:
                return None
            if column.statistics.null_count:
                return None
            tokens += column.num_values
    return entry.rows, tokens


def _column(group: pq.RowGroupMetaData, name: str) -> pq.ColumnChunkMetaData | None:
    columns = (group.column(index) for index in range(group.num_columns))
    return next((each for each in columns if re.match(rf"{re.escape(name)}\.", each.path_in_schema)), None)


def _by_reading(source: TokenSource, file: int) -> tuple[int, int]:
    entry, rows, tokens = source.files[file], 0, 0
    piece = tables.Piece(entry, 0, 1 << 31, entry.rows, source.snapshot.columns)
    for batch in tables.read_piece(source.folder, piece, [source.network.tokens]):
        lengths = batch.column(0).value_lengths().fill_null(0).to_numpy()
        rows, tokens = rows + int((lengths > 0).sum()), tokens + int(lengths.sum())
    return rows, tokens


class Sequences:
    """Sequences of tokens by number, from the shards of a node.

    Args:
        shelf: The shards: the tokens of one file each, shape (sequences * context + 1,).
        context: Tokens a sequence.
    """

    def __init__(self, shelf: Shelf, context: int) -> None:
        self.shelf, self._context = shelf, context

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.shelf)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Return some sequences, in the order of ``index``: tokens, and the token after each."""
        found = np.empty((len(index), self._context + 1), np.int64)

        def pick(where: slice, array: NDArray[Any], places: NDArray[np.int64]) -> None:
            found[where] = self._cut(array)[places]

        back = torch.from_numpy(self.shelf.visit(index, pick))
        tokens = torch.from_numpy(found).index_select(0, back)
        inputs, target = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return Batch((inputs,), target, torch.ones(len(index)), torch.from_numpy(index))

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take note that sequences of these ranges [first, last) are about to be taken."""
        self.shelf.expect(ranges)

    def _cut(self, array: NDArray[Any]) -> NDArray[Any]:
        """View a shard as its sequences, which overlap by one token."""
        step, count = array.strides[0], (len(array) - 1) // self._context
        return np.lib.stride_tricks.as_strided(
            array, (count, self._context + 1), (self._context * step, step), writeable=False
        )


def encode(
    source: TokenSource, counts: list[Counted], folder: Path, group: Group, feeding: Feeding
) -> Sequences:
    """Encode the split; the processes of each node share the work and the result.

    Args:
        source: The split.
        counts: What :func:`count` found in each file.
        folder: Where the shards lie, unless ``feeding`` names another place.
        group: The processes.
        feeding: Place and size of the cache.

    Raises:
        InputError: A token is missing or outside the vocabulary, or a shard is too large for the cache.
        DependencyError: The disk is full.
    """
    full = [file for file, part in enumerate(counts) if part.sequences]
    samples = [counts[file].sequences for file in full]
    pieces = [_shard(source, file, counts[file]) for file in full]
    shelf = Shelf(Cache.of(feeding, folder), pieces, samples)
    if group.local_rank == 0:
        shelf.told_of(feeding.block, max(samples))
    shelf.fill(group.local_rank, group.local_size)
    return Sequences(shelf, source.network.context)


def _shard(source: TokenSource, file: int, counted: Counted) -> Shard:
    """Describe the shard of a file: its key names all that its bytes depend on."""
    network, entry = source.network, source.files[file]
    kind = "<u2" if network.vocabulary <= _SMALL else "<u4"
    size = counted.sequences * network.context + 1
    content = [shards.FORMAT, trainwright.__version__, "tokens", network.tokens, network.separator]
    content += [network.vocabulary, entry.checksum, entry.size, size]
    key = digest_text(canonical(content))[:32]
    return Shard(key, kind, (size,), lambda: _encoded(source, file, kind, size, counted))


def _encoded(
    source: TokenSource, file: int, kind: str, size: int, counted: Counted
) -> Iterator[NDArray[Any]]:
    left, found = size, 0
    for tokens in source.read(file):
        found += len(tokens)
        part = tokens[:left].astype(kind)
        left -= len(part)
        yield part
    if found != counted.tokens:
        raise InputError(
            f"cached input changed: {found:,} tokens were read, the footer says {counted.tokens:,}",
            where=source.files[file].uri,
            hint=RUN_AGAIN,
        )
