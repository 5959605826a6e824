"""A split of rows: read once to fit the transforms, once to encode them into shards, then only from these.

The split is cut into pieces at row groups, and every process takes some. What is fitted is merged in the
order of the pieces, so the result does not depend on the number of processes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

import trainwright
from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.documents import canonical, digest_text
from trainwright.errors import InputError
from trainwright.experiment import Tabular
from trainwright.experiment.feeding import Feeding
from trainwright.serving.columns import numeric_labels, to_values
from trainwright.train import shards
from trainwright.train.cache import Cache, Shard
from trainwright.train.checkpoint.agreement import Circle
from trainwright.train.fitted import FittedSplit, keep, key_of, recalled
from trainwright.train.group import Group, brought, wait_for_all
from trainwright.train.labels import Asked, Labels, as_target, settled, total, whole
from trainwright.train.samples import Batch
from trainwright.train.shelf import Shelf
from trainwright.transforms import Fit, Kind, Transforms

_PIECE = 2 * tables.ROW_GROUP
"""Rows of a shard, unless one row group alone has more."""

_WORD = "<i4"
"""A row is encoded as words of 4 bytes: float32 features, int32 codes, and the label."""


@dataclass(frozen=True)
class Source:
    """A split of a snapshot, and what is read of it."""

    folder: Path
    snapshot: Snapshot
    split: str
    kinds: Mapping[str, Kind]

    @property
    def label(self) -> str:
        """Name of the label column."""
        return self.snapshot.roles["label"]

    @property
    def label_type(self) -> str:
        """Type of the label column, as Arrow writes it."""
        return next(column.type for column in self.snapshot.columns if column.name == self.label)

    @cached_property
    def pieces(self) -> list[tables.Piece]:
        """The split in pieces, which are cut from the footers of the files alone."""
        return tables.pieces(self.folder, self.snapshot, [self.split], _PIECE)

    def read(self, piece: int) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Give the rows of one piece, with their labels, in batches."""
        for batch in tables.read_piece(self.folder, self.pieces[piece], [*self.kinds, self.label]):
            yield batch, batch.column(self.label)


@dataclass(frozen=True)
class _Part:
    """What one process found in one piece."""

    fit: dict[str, Any]
    labels: Labels


def fit(
    source: Source, network: Tabular, group: Group, asked: Asked = "binary", folder: Path | None = None
) -> tuple[Transforms, list[Labels]]:
    """Fit transforms on the rows that have a label, and count the labels of each piece.

    Args:
        source: The split.
        network: How its columns are encoded.
        group: The processes; all of them call this together.
        asked: What the labels are to be.
        folder: Where the result is kept, to be found again by who asks for the same; nowhere if absent.

    Raises:
        InputError: A label is not what it is to be, or no input column tells anything.
        DataRefused: Fewer than two classes are there.
    """
    how = [source.kinds, network.scaling, network.max_categories, network.min_category_rows, asked, _PIECE]
    key = key_of(source.snapshot, source.split, how)
    kept = [recalled(folder, key) if group.leads else None]
    distributed.broadcast_object_list(kept)
    found = kept[0].result() if kept[0] else _fit(source, network, group, asked)
    settled(total(found[1]), asked, source.label, source.split)
    if not found[0].inputs:
        raise InputError(
            f"no input column tells anything: {found[0].unused}", where=f"split {source.split!r}"
        )
    if group.leads and not kept[0]:
        keep(folder, FittedSplit.of(key, *found))
    return found


def _fit(source: Source, network: Tabular, group: Group, asked: Asked) -> tuple[Transforms, list[Labels]]:
    count = len(source.pieces)
    mine = range(group.rank * count // group.size, (group.rank + 1) * count // group.size)
    # Counts of values come to the same in any order: each process adds up its own, so that neither its memory
    # nor what is exchanged holds them once a piece.
    counted, found = Fit(source.kinds, network.scaling), {}
    for piece in mine:
        part = _fit_piece(source, piece, network, asked)
        found[piece] = _Part(counted.count(part.fit), part.labels)
    wait_for_all(group)
    arriving = brought((counted.counts, found), group)
    if not group.leads:
        list(arriving)  # sends it
    # The first process alone adds them up: with many processes, all of them would not fit into each.
    circle = Circle(group, group.patient)
    return circle.first(lambda: _together(arriving, Fit(source.kinds, network.scaling), network))


def _together(
    arriving: Iterator[tuple[dict[str, Any], dict[int, _Part]]], together: Fit, network: Tabular
) -> tuple[Transforms, list[Labels]]:
    """Add up what the processes found; the moments in the order of the pieces, as their sums are rounded."""
    parts: dict[int, _Part] = {}
    try:
        for counts, share in arriving:
            together.merge(counts)
            parts |= share
    finally:
        for _ in arriving:
            pass  # nobody is to wait with what it sends, whatever is wrong with the others'
    order = sorted(parts)
    for piece in order:
        together.merge(parts[piece].fit)
    labels = [parts[piece].labels for piece in order]
    return together.finish(max_categories=network.max_categories, min_rows=network.min_category_rows), labels


def _fit_piece(source: Source, piece: int, network: Tabular, asked: Asked) -> _Part:
    part, labels = Fit(source.kinds, network.scaling), Labels()
    classes = _classes(source, asked)
    for batch, column in source.read(piece):
        labels = labels.merged(Labels.of(column, classes=classes))
        part.add(to_values(_labelled(batch, column, classes=classes), source.kinds))
    return _Part(part.state, labels)


def _classes(source: Source, asked: Asked) -> bool:
    return whole(source.label_type) if asked == "auto" else asked != "regression"


def _labelled(batch: pa.RecordBatch, column: pa.Array, *, classes: bool) -> pa.RecordBatch:
    there = numeric_labels(column, classes=classes)
    return batch.filter(there.is_valid()) if there.null_count else batch


class Rows:
    """Encoded rows by number, from the shards of a node.

    Args:
        shelf: The shards: words of 4 bytes, shape (rows, features + columns + 1).
        width: Number of features.
        kind: What the labels are: ``binary``, ``multiclass`` or ``regression``.
        weights: Weight of each class in the loss; 1 if absent.
    """

    def __init__(
        self, shelf: Shelf, width: int, words: int, kind: str, weights: Sequence[float] | None = None
    ) -> None:
        self.shelf, self._width, self._words, self._kind = shelf, width, words, kind
        self._weights = None if weights is None else torch.tensor(weights, dtype=torch.float32)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.shelf)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Return some rows, in the order of ``index``."""
        found = np.empty((len(index), self._words), np.dtype(_WORD))

        def pick(where: slice, array: NDArray[Any], places: NDArray[np.int64]) -> None:
            # In this mode numpy writes to where it is to; the places are right by construction.
            np.take(array, places, axis=0, out=found[where], mode="clip")

        back = torch.from_numpy(self.shelf.visit(index, pick))
        words = torch.from_numpy(found)
        numeric = words.view(torch.float32)[:, : self._width].index_select(0, back)
        categories = words[:, self._width : -1].index_select(0, back)
        target = self._target(words[:, -1].index_select(0, back))
        weight = torch.ones(len(index)) if self._weights is None else self._weights[target.long()]
        return Batch((numeric, categories), target, weight, torch.from_numpy(index))

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take note that rows of these ranges [first, last) are about to be taken."""
        self.shelf.expect(ranges)

    def labels(self) -> NDArray[Any]:
        """Return the labels of all rows, shape (rows,): float32, or int64 for more than two classes."""
        found: list[NDArray[Any]] = []
        self.shelf.each(lambda array: found.append(array[:, -1].copy()))
        target: NDArray[Any] = self._target(torch.from_numpy(np.concatenate(found))).numpy()
        return target

    def _target(self, words: Tensor) -> Tensor:
        return words.long() if self._kind == "multiclass" else words.view(torch.float32)


def encode(
    source: Source,
    transforms: Transforms,
    labels: list[Labels],
    folder: Path,
    group: Group,
    feeding: Feeding | None = None,
    asked: Asked = "binary",
    weights: Sequence[float] | None = None,
) -> Rows:
    """Encode the rows that have a label; the processes of each node share the work and the result.

    Args:
        source: The split.
        transforms: What was fitted on it.
        labels: What :func:`fit` found in each piece.
        folder: Where the shards lie, unless ``feeding`` names another place.
        group: The processes.
        feeding: Place and size of the cache.
        asked: What the labels are to be, as :func:`fit` was told.
        weights: Weight of each class in the loss; 1 if absent.

    Raises:
        InputError: A shard is larger than the whole cache may be.
        DependencyError: The disk is full.
    """
    feeding = feeding or Feeding()
    kind = settled(total(labels), asked, source.label, source.split).kind
    words = transforms.width + len(transforms.categories) + 1
    pieces = [
        _shard(source, piece, transforms, kind, (part.rows, words)) for piece, part in enumerate(labels)
    ]
    cache = Cache.of(feeding, folder)
    shelf = Shelf(cache, pieces, [part.rows for part in labels])
    if group.local_rank == 0:
        shelf.told_of(feeding.block, max(part.rows for part in labels))
    shelf.fill(group.local_rank, group.local_size)
    return Rows(shelf, transforms.width, words, kind, weights)


def _shard(source: Source, piece: int, transforms: Transforms, kind: str, shape: tuple[int, int]) -> Shard:
    """Describe the shard of a piece: its key names all that its bytes depend on."""
    cut = source.pieces[piece]
    content = [shards.FORMAT, trainwright.__version__, transforms.digest, source.label, kind, *shape]
    place = [cut.entry.checksum, cut.entry.size, cut.first, cut.last]
    types = {column.name: column.type for column in cut.columns}
    read = [[name, types[name]] for name in (*transforms.inputs, source.label)]
    key = digest_text(canonical([content, place, read]))[:32]
    return Shard(key, _WORD, shape, lambda: _encoded(source, piece, transforms, kind, shape[1]))


def _encoded(
    source: Source, piece: int, transforms: Transforms, kind: str, words: int
) -> Iterator[NDArray[Any]]:
    classes = kind != "regression"
    for batch, column in source.read(piece):
        rows = _labelled(batch, column, classes=classes)
        encoded = transforms.encode(to_values(rows, transforms.inputs))
        packed = np.empty((rows.num_rows, words), np.dtype(_WORD))
        packed[:, : transforms.width] = encoded.numeric.view(np.int32)
        packed[:, transforms.width : -1] = encoded.categories
        packed[:, -1] = as_target(column, kind).view(np.int32)
        yield packed
