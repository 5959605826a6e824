"""A split of tokens: the rows of a file concatenated, and cut into sequences of equal length.

Tokens are a column of lists of ids, or the bytes of a column of text.

The rows of a file are concatenated, with a separator between them if configured, and cut into sequences of
``context + 1`` tokens (inputs and next-token targets); each starts with the last token of the one before. The
rest at the end of a file is dropped and counted. Most footers tell the number of tokens, so a split is
counted without reading it, and encoded in one pass.
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
import torch
from numpy.typing import NDArray

import trainwright
from trainwright import tables
from trainwright.artifacts import RUN_AGAIN, Snapshot, SnapshotFile
from trainwright.documents import canonical, digest_text
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import LanguageModel
from trainwright.experiment.training import Feeding
from trainwright.serving.columns import to_tokens
from trainwright.tables.reading import open_pinned
from trainwright.train.feeding.cache import FORMAT, ShardedSplit, ShardSpec
from trainwright.train.feeding.loader import Batch
from trainwright.train.process_group import Coordinator, Ranks

_SMALL = 1 << 16


@dataclass(frozen=True)
class TokenCounts:
    """Rows that have tokens, their tokens with separators, their sequences, and the tokens in no sequence."""

    rows: int
    tokens: int
    sequences: int
    dropped: int


@dataclass(frozen=True)
class TokenSource:
    """The token column of a split of a snapshot."""

    folder: Path
    snapshot: Snapshot
    split: str
    network: LanguageModel

    @cached_property
    def files(self) -> list[SnapshotFile]:
        """The non-empty files of the split."""
        return [entry for entry in self.snapshot.files if entry.split == self.split and entry.rows]

    def batches(self, file: int) -> Iterator[pa.Array]:
        """Yield the tokens of a file in order, as lists."""
        entry = self.files[file]
        piece = tables.Piece(entry, 0, 1 << 31, entry.rows, self.snapshot.columns)
        for batch in tables.read_piece(self.folder, piece, [self.network.column]):
            yield to_tokens(batch.column(0))

    def read(self, file: int) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of a file in order, with separators, in arrays."""
        entry, row, begun = self.files[file], 0, False
        for lists in self.batches(file):
            lengths = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
            tokens = self._checked(lists.flatten(), lengths, entry, row)
            full, begins_at = lengths[lengths > 0], 0 if begun else 1
            row, begun = row + len(lists), begun or bool(len(tokens))
            if self.network.row_separator is not None:  # before each row but the first of the file
                starts = (np.cumsum(full) - full)[begins_at:]
                tokens = np.insert(tokens, starts, self.network.row_separator)
            yield tokens

    def _checked(
        self, values: pa.Array, lengths: NDArray[np.int64], entry: SnapshotFile, first: int
    ) -> NDArray[np.int64]:
        """Return the tokens of some rows; ``first`` is the number of the first row."""
        numbers = pc.cast(values, pa.int64(), safe=False)
        tokens: NDArray[np.int64] = numbers.fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((tokens < 0) | (tokens >= self.network.token_ids))
        if not len(wrong):
            return tokens
        row = first + int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        there = values.drop_null().to_numpy()
        if values.null_count:
            what = f"{values.null_count:,} tokens are missing within rows"
        else:
            what = (
                f"tokens lie in [{there.min()}, {there.max()}]; "
                f"a vocabulary of {self.network.token_ids:,} has 0 to {self.network.token_ids - 1:,}"
            )
        raise InputError(
            f"column {self.network.column!r}: {what}",
            where=f"{entry.uri}, row {row:,}",
            hint="Set network.vocabulary to the size of the tokenizer that made these tokens.",
        )


def count_tokens(source: TokenSource, ranks: Ranks) -> list[TokenCounts]:
    """Count the tokens of each file, from its footer if possible; all processes call this together."""
    files = range(len(source.files))
    shares = Coordinator(ranks, ranks.patient).on_all(
        lambda: {file: _count(source, file) for file in files[ranks.rank :: ranks.size]}
    )
    counts = [shares[file % ranks.size][file] for file in files]
    if not sum(part.sequences for part in counts):
        context = source.network.context
        raise DataRefused(
            f"no file has the {context + 1:,} tokens of one sequence; they have "
            f"{', '.join(f'{part.tokens:,}' for part in counts[:5])}{', …' if len(counts) > 5 else ''}",  # noqa: PLR2004
            where=f"split {source.split!r} of the training set",
            hint="Lower network.context, or write the split into fewer and larger files.",
        )
    return counts


def total_counts(parts: Iterable[TokenCounts]) -> TokenCounts:
    """Return the counts of all files together."""
    rows = [(part.rows, part.tokens, part.sequences, part.dropped) for part in parts]
    return TokenCounts(*(sum(column) for column in zip(*rows, strict=True)))


def _count(source: TokenSource, file: int) -> TokenCounts:
    rows, tokens = _count_by_footer(source, file) or (0, 0)
    if not rows:
        for lists in source.batches(file):
            lengths = lists.value_lengths().fill_null(0).to_numpy()
            rows, tokens = rows + int((lengths > 0).sum()), tokens + int(lengths.sum())
    if source.network.row_separator is not None:
        tokens += max(rows - 1, 0)
    sequences = max(tokens - 1, 0) // source.network.context
    used = sequences * source.network.context + 1 if sequences else 0
    return TokenCounts(rows, tokens, sequences, tokens - used)


def _count_by_footer(source: TokenSource, file: int) -> tuple[int, int] | None:
    """Return rows and tokens if the footer has statistics and no row is empty."""
    entry, tokens, name = source.files[file], 0, re.compile(rf"{re.escape(source.network.column)}\.")
    with open_pinned(source.folder, entry, footer_only=True) as opened:
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            columns = [group.column(each) for each in range(group.num_columns)]
            column = next((each for each in columns if name.match(each.path_in_schema)), None)
            if column is None or (statistics := column.statistics) is None:
                return None
            if not statistics.has_null_count or statistics.null_count:
                return None
            tokens += column.num_values
    return entry.rows, tokens


class TokenSequences:
    """Sequences of tokens by number, from shards of one file each, shape (sequences * context + 1,)."""

    def __init__(self, shards: ShardedSplit, context: int) -> None:
        self.shards, self._context = shards, context

    def __len__(self) -> int:
        return len(self.shards)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Return some sequences, in the order of ``index``: tokens, and their next tokens."""
        found = np.empty((len(index), self._context + 1), np.int64)

        def pick(where: slice, array: NDArray[Any], rows: NDArray[np.int64]) -> None:
            found[where] = self._cut(array)[rows]

        back = torch.from_numpy(self.shards.visit(index, pick))
        tokens = torch.from_numpy(found).index_select(0, back)
        inputs, target = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return Batch((inputs,), target, torch.ones(len(index)), torch.from_numpy(index))

    def _cut(self, array: NDArray[Any]) -> NDArray[Any]:
        """View a shard as its sequences, which overlap by one token."""
        step, count = array.strides[0], (len(array) - 1) // self._context
        return np.lib.stride_tricks.as_strided(
            array, (count, self._context + 1), (self._context * step, step), writeable=False
        )


def encode_tokens(
    source: TokenSource, counts: list[TokenCounts], folder: Path, ranks: Ranks, feeding: Feeding
) -> TokenSequences:
    """Encode the split; the processes of each node share the work and the result."""
    full = [file for file, part in enumerate(counts) if part.sequences]
    samples = [counts[file].sequences for file in full]
    shards = [_shard(source, file, counts[file]) for file in full]
    return TokenSequences(ShardedSplit.open(feeding, folder, shards, samples, ranks), source.network.context)


def _shard(source: TokenSource, file: int, counted: TokenCounts) -> ShardSpec:
    """Return the shard of a file, with a key from all that its bytes depend on."""
    network, entry = source.network, source.files[file]
    kind = "<u2" if network.token_ids <= _SMALL else "<u4"
    size = counted.sequences * network.context + 1
    content = [FORMAT, trainwright.__version__, "tokens", network.column, network.row_separator]
    content += [network.token_ids, *entry.content, size]

    def encoded() -> Iterator[NDArray[Any]]:
        left, found = size, 0
        for tokens in source.read(file):
            found += len(tokens)
            part = tokens[:left].astype(kind)
            left -= len(part)
            yield part
        if found != counted.tokens:
            raise InputError(
                f"cached input changed: {found:,} tokens were read, the footer says {counted.tokens:,}",
                where=entry.uri,
                hint=RUN_AGAIN,
            )

    return ShardSpec(digest_text(canonical(content))[:32], kind, (size,), encoded)
