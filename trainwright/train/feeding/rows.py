"""A split of rows: read once to fit the transforms, once to encode shards, then served from the shards only.

The split is divided into pieces at row groups, which the processes share. Fitted parts are merged in the
order of the pieces, so the result does not depend on the number of processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

import trainwright
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.documents import Document, canonical, digest_text
from trainwright.errors import InputError
from trainwright.experiment import Tabular
from trainwright.experiment.training import Feeding
from trainwright.serving.columns import numeric_labels, to_values
from trainwright.train.feeding.cache import FORMAT, ShardedSplit, ShardSpec
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.target import (
    HoldOut,
    LabelStats,
    merge_labels,
    require_learnable,
    target_values,
)
from trainwright.train.process_group import Coordinator, Ranks, barrier, gather_to_leader
from trainwright.transforms import Fit, Kind, Transforms

_PIECE_ROWS = 2 * tables.ROW_GROUP
"""Rows of a shard, unless one row group alone has more."""

_WORD = "<i4"
"""A row is encoded as words of 4 bytes: float32 features, int32 codes, and the label."""


@dataclass(frozen=True)
class RowSource:
    """A split of a snapshot, or some of its rows, and its input columns."""

    folder: Path
    snapshot: Snapshot
    split: str
    kinds: Mapping[str, Kind]
    hold_out: HoldOut | None = None

    @property
    def label(self) -> str:
        """Name of the label column."""
        return self.snapshot.roles["label"]

    @property
    def classes(self) -> bool:
        """True if the labels are classes, not numbers to predict."""
        return self.snapshot.target.kind != "regression"

    @cached_property
    def pieces(self) -> list[tables.Piece]:
        """The pieces of the split, from the footers of the files."""
        return tables.pieces(self.folder, self.snapshot, [self.split], _PIECE_ROWS)

    def read(self, piece: int) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the rows of one piece with their labels, in batches."""
        key = [self.snapshot.roles["key"]] if self.hold_out else []
        for batch in tables.read_piece(self.folder, self.pieces[piece], [*self.kinds, self.label, *key]):
            rows = batch.filter(self.hold_out.mask(batch.column(key[0]))) if self.hold_out else batch
            yield rows, rows.column(self.label)


@dataclass(frozen=True, kw_only=True)
class FittedSplit(Document):
    """Fitted transforms and label statistics, cached so that a restart does not read the split again."""

    FILE: ClassVar[str] = "fitted.json"
    key: str
    transforms: dict[str, Any]
    labels: tuple[LabelStats, ...]

    @classmethod
    def cached(cls, path: Path, key: str) -> tuple[Transforms, list[LabelStats]] | None:
        """Return the cached fit with a key; None if there is no readable one."""
        try:
            found = cls.read(path)
        except InputError:
            return None
        return (Transforms.from_json(found.transforms), list(found.labels)) if found.key == key else None


def fit(
    source: RowSource, network: Tabular, ranks: Ranks, folder: Path | None = None
) -> tuple[Transforms, list[LabelStats]]:
    """Fit transforms on the rows that have a label, and count the labels of each piece.

    All processes call this together; ``folder`` caches earlier results.
    """
    content = [
        trainwright.__version__,
        [[*each.content, each.rows] for each in source.snapshot.files if each.split == source.split],
        [[column.name, column.type] for column in source.snapshot.columns],
        source.snapshot.roles,
        [source.kinds, network.scaling, network.max_categories, network.min_category_rows, _PIECE_ROWS],
        asdict(source.snapshot.target),
        asdict(source.hold_out) if source.hold_out else None,
    ]
    key = digest_text(canonical(content))[:32]
    path = folder / f"{key}.{FittedSplit.FILE}" if folder else None
    cached = [FittedSplit.cached(path, key) if ranks.leads and path and path.exists() else None]
    distributed.broadcast_object_list(cached)
    transforms, labels = cached[0] or _fit(source, network, ranks)
    require_learnable(merge_labels(labels), source.snapshot.target, source.label, source.split)
    if not transforms.inputs:
        raise InputError(
            f"no input column is informative: {transforms.unused}", where=f"split {source.split!r}"
        )
    if ranks.leads and path and not cached[0]:
        FittedSplit(key=key, transforms=transforms.to_json(), labels=tuple(labels)).write(path)
    return transforms, labels


def _fit(source: RowSource, network: Tabular, ranks: Ranks) -> tuple[Transforms, list[LabelStats]]:
    count = len(source.pieces)
    own = range(ranks.rank * count // ranks.size, (ranks.rank + 1) * count // ranks.size)
    # Sums of counts do not depend on the order: each process sums its own, so that neither its memory nor the
    # exchange holds them once per piece.
    counted, found = Fit(source.kinds, network.scaling), dict[int, tuple[dict[str, Any], LabelStats]]()
    for piece in own:
        state, labels = _fit_piece(source, piece, network)
        found[piece] = counted.count(state), labels
    barrier(ranks)
    arriving = gather_to_leader((counted.counts, found), ranks)
    if not ranks.leads:
        list(arriving)  # sends it

    def merge() -> tuple[Transforms, list[LabelStats]]:
        merged, parts = Fit(source.kinds, network.scaling), dict[int, tuple[dict[str, Any], LabelStats]]()
        try:
            for counts, share in arriving:
                merged.merge(counts)
                parts |= share
        finally:
            for _ in arriving:
                pass  # receive the rest even after an error, so that no process blocks in its send
        for piece in sorted(parts):  # in the order of the pieces, as sums of moments are rounded
            merged.merge(parts[piece][0])
        labels = [parts[piece][1] for piece in sorted(parts)]
        return merged.finish(
            max_categories=network.max_categories, min_rows=network.min_category_rows
        ), labels

    # Rank 0 alone merges them: with many processes, all of them would not fit into the memory of each.
    return Coordinator(ranks, ranks.patient).on_leader(merge)


def _fit_piece(source: RowSource, piece: int, network: Tabular) -> tuple[dict[str, Any], LabelStats]:
    part, labels = Fit(source.kinds, network.scaling), LabelStats()
    for batch, column in source.read(piece):
        labels = labels.merged(LabelStats.of(column, classes=source.classes))
        part.add(to_values(_with_label(batch, column, classes=source.classes), source.kinds))
    return part.state, labels


def count_labels(source: RowSource, ranks: Ranks) -> list[LabelStats]:
    """Count the labels of each piece; all processes call this together, and share the reading."""
    pieces = range(len(source.pieces))
    alone = replace(source, kinds={})

    def count(piece: int) -> LabelStats:
        batches = (LabelStats.of(column, classes=source.classes) for _, column in alone.read(piece))
        return merge_labels(batches)

    shares = Coordinator(ranks, ranks.patient).on_all(
        lambda: {piece: count(piece) for piece in pieces[ranks.rank :: ranks.size]}
    )
    return [shares[piece % ranks.size][piece] for piece in pieces]


def _with_label(batch: pa.RecordBatch, column: pa.Array, *, classes: bool) -> pa.RecordBatch:
    labels = numeric_labels(column, classes=classes)
    return batch.filter(labels.is_valid()) if labels.null_count else batch


class EncodedRows:
    """Encoded rows by number, from shards of words of 4 bytes, shape (rows, words).

    ``width`` is the number of features, ``weights`` the weight of each class in the loss (1 if absent).
    """

    def __init__(
        self, shards: ShardedSplit, width: int, words: int, kind: str, weights: Sequence[float] | None = None
    ) -> None:
        self.shards, self._width, self._words, self._kind = shards, width, words, kind
        self._weights = None if weights is None else torch.tensor(weights, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.shards)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Return some rows, in the order of ``index``."""
        found = np.empty((len(index), self._words), np.dtype(_WORD))

        def pick(where: slice, array: NDArray[Any], rows: NDArray[np.int64]) -> None:
            # Without "clip" numpy would write through a buffer; the rows are in range.
            np.take(array, rows, axis=0, out=found[where], mode="clip")

        back = torch.from_numpy(self.shards.visit(index, pick))
        words = torch.from_numpy(found)
        numeric = words.view(torch.float32)[:, : self._width].index_select(0, back)
        categories = words[:, self._width : -1].index_select(0, back)
        target = self._target(words[:, -1].index_select(0, back))
        weight = torch.ones(len(index)) if self._weights is None else self._weights[target.long()]
        return Batch((numeric, categories), target, weight, torch.from_numpy(index))

    def labels(self) -> NDArray[Any]:
        """Return the labels of all rows, shape (rows,): float32, or int64 for more than two classes."""
        found: list[NDArray[Any]] = []
        self.shards.each(lambda array: found.append(array[:, -1].copy()))
        target: NDArray[Any] = self._target(torch.from_numpy(np.concatenate(found))).numpy()
        return target

    def _target(self, words: Tensor) -> Tensor:
        return words.long() if self._kind == "multiclass" else words.view(torch.float32)


def encode(
    source: RowSource,
    transforms: Transforms,
    labels: list[LabelStats],
    folder: Path,
    ranks: Ranks,
    feeding: Feeding | None = None,
    weights: Sequence[float] | None = None,
) -> EncodedRows:
    """Encode the rows that have a label; the processes of each node share the work and the result."""
    kind = source.snapshot.target.kind
    words = transforms.width + len(transforms.categories) + 1
    rows = [part.rows for part in labels]
    specs = [_shard(source, piece, transforms, kind, (count, words)) for piece, count in enumerate(rows)]
    shards = ShardedSplit.open(feeding or Feeding(), folder, specs, rows, ranks)
    return EncodedRows(shards, transforms.width, words, kind, weights)


def _shard(
    source: RowSource, piece: int, transforms: Transforms, kind: str, shape: tuple[int, int]
) -> ShardSpec:
    """Return the shard of a piece, with a key from all that its bytes depend on."""
    cut = source.pieces[piece]
    content = [FORMAT, trainwright.__version__, transforms.digest, source.label, kind, *shape]
    rows = [*cut.entry.content, cut.first, cut.last]
    types = {column.name: column.type for column in cut.columns}
    read = [[name, types[name]] for name in (*transforms.inputs, source.label)]
    held_out = asdict(source.hold_out) if source.hold_out else None
    key = digest_text(canonical([content, rows, read, held_out]))[:32]

    def encoded() -> Iterator[NDArray[Any]]:
        for batch, column in source.read(piece):
            labelled = _with_label(batch, column, classes=kind != "regression")
            values = transforms.encode(to_values(labelled, transforms.inputs))
            packed = np.empty((labelled.num_rows, shape[1]), np.dtype(_WORD))
            packed[:, : transforms.width] = values.numeric.view(np.int32)
            packed[:, transforms.width : -1] = values.categories
            packed[:, -1] = target_values(column, kind).view(np.int32)
            yield packed

    return ShardSpec(key, _WORD, shape, encoded)
