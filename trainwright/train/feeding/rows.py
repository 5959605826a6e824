"""A split of rows: read once to fit the transforms, once to encode shards, then served from the shards only.

The split is divided into pieces at row groups, which the processes share. Fitted parts are merged in the
order of the pieces, so the result does not depend on the number of processes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from trainwright.train.feeding import shard_file
from trainwright.train.feeding.cache import ShardCache, ShardedSplit, ShardSpec
from trainwright.train.feeding.loader import Batch
from trainwright.train.feeding.target import (
    LabelKind,
    LabelStats,
    is_whole_number,
    merge_labels,
    resolve_labels,
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
    """A split of a snapshot, and its input columns."""

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
        """Arrow type of the label column."""
        return next(column.type for column in self.snapshot.columns if column.name == self.label)

    @cached_property
    def pieces(self) -> list[tables.Piece]:
        """The pieces of the split, from the footers of the files."""
        return tables.pieces(self.folder, self.snapshot, [self.split], _PIECE_ROWS)

    def read(self, piece: int) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the rows of one piece with their labels, in batches."""
        for batch in tables.read_piece(self.folder, self.pieces[piece], [*self.kinds, self.label]):
            yield batch, batch.column(self.label)


@dataclass(frozen=True, kw_only=True)
class FittedSplit(Document):
    """Fitted transforms and label statistics, cached so that a restart does not read the split again.

    Attributes:
        key: Digest of all that they depend on.
        transforms: The transforms as JSON.
        labels: Label statistics of each piece as JSON.
    """

    FILE: ClassVar[str] = "fitted.json"
    key: str
    transforms: dict[str, Any]
    labels: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, key: str, transforms: Transforms, labels: list[LabelStats]) -> "FittedSplit":
        """Describe a fit. JSON has neither integer keys nor infinity, which the bounds of no rows are."""
        parts = tuple(
            asdict(part) | {"counts": {str(each): rows for each, rows in part.counts.items()}}
            if part.rows
            else {"kind": part.kind, "missing": part.missing}
            for part in labels
        )
        return cls(key=key, transforms=transforms.to_json(), labels=parts)

    def result(self) -> tuple[Transforms, list[LabelStats]]:
        """Return the fit, equal to the bit."""
        labels = []
        for part in self.labels:
            if "rows" in part:
                counts = {int(each): rows for each, rows in part["counts"].items()}
                part = part | {"counts": counts, "low": tuple(part["low"]), "high": tuple(part["high"])}  # noqa: PLW2901
            labels.append(LabelStats(**part))
        return Transforms.from_json(self.transforms), labels

    @classmethod
    def cached(cls, folder: Path | None, key: str) -> "FittedSplit | None":
        """Return the cached fit with a key; None if there is no readable one."""
        if folder is None or not (path := folder / f"{key}.{cls.FILE}").exists():
            return None
        try:
            found = cls.read(path)
        except InputError:
            return None
        return found if found.key == key else None


@dataclass(frozen=True)
class _PieceFit:
    """The fit of one piece by one process."""

    state: dict[str, Any]
    labels: LabelStats


def fit(
    source: RowSource, network: Tabular, ranks: Ranks, kind: LabelKind = "binary", folder: Path | None = None
) -> tuple[Transforms, list[LabelStats]]:
    """Fit transforms on the rows that have a label, and count the labels of each piece.

    Args:
        source: The split.
        network: Encoding of its columns.
        ranks: The processes; all of them call this together.
        kind: Configured kind of the labels.
        folder: Cache of earlier results; none if absent.

    Raises:
        InputError: A label is outside the range of its kind, or no input column varies.
        DataRefused: There are fewer than two classes.
    """
    how = [
        source.kinds,
        network.scaling,
        network.max_categories,
        network.min_category_rows,
        kind,
        _PIECE_ROWS,
    ]
    files = [
        [entry.checksum, entry.size, entry.rows]
        for entry in source.snapshot.files
        if entry.split == source.split
    ]
    columns = [[column.name, column.type] for column in source.snapshot.columns]
    content = [trainwright.__version__, files, columns, source.snapshot.roles, how]
    key = digest_text(canonical(content))[:32]
    cached = [FittedSplit.cached(folder, key) if ranks.leads else None]
    distributed.broadcast_object_list(cached)
    found = cached[0].result() if cached[0] else _fit(source, network, ranks, kind)
    resolve_labels(merge_labels(found[1]), kind, source.label, source.split)
    if not found[0].inputs:
        raise InputError(
            f"no input column is informative: {found[0].unused}", where=f"split {source.split!r}"
        )
    if ranks.leads and not cached[0] and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        FittedSplit.of(key, *found).write(folder / f"{key}.{FittedSplit.FILE}")
    return found


def _fit(
    source: RowSource, network: Tabular, ranks: Ranks, kind: LabelKind
) -> tuple[Transforms, list[LabelStats]]:
    count = len(source.pieces)
    mine = range(ranks.rank * count // ranks.size, (ranks.rank + 1) * count // ranks.size)
    # Sums of counts do not depend on the order: each process sums its own, so that neither its memory nor the
    # exchange holds them once per piece.
    counted, found = Fit(source.kinds, network.scaling), {}
    for piece in mine:
        part = _fit_piece(source, piece, network, kind)
        found[piece] = _PieceFit(counted.count(part.state), part.labels)
    barrier(ranks)
    arriving = gather_to_leader((counted.counts, found), ranks)
    if not ranks.leads:
        list(arriving)  # sends it
    # Rank 0 alone merges them: with many processes, all of them would not fit into the memory of each.
    coordinator = Coordinator(ranks, ranks.patient)
    return coordinator.on_leader(lambda: _merge(arriving, Fit(source.kinds, network.scaling), network))


def _merge(
    arriving: Iterator[tuple[dict[str, Any], dict[int, _PieceFit]]], merged: Fit, network: Tabular
) -> tuple[Transforms, list[LabelStats]]:
    """Merge the fits of all processes; the moments in the order of the pieces, as their sums are rounded."""
    parts: dict[int, _PieceFit] = {}
    try:
        for counts, share in arriving:
            merged.merge(counts)
            parts |= share
    finally:
        for _ in arriving:
            pass  # receive the rest even after an error, so that no process blocks in its send
    order = sorted(parts)
    for piece in order:
        merged.merge(parts[piece].state)
    labels = [parts[piece].labels for piece in order]
    return merged.finish(max_categories=network.max_categories, min_rows=network.min_category_rows), labels


def _fit_piece(source: RowSource, piece: int, network: Tabular, kind: LabelKind) -> _PieceFit:
    part, labels = Fit(source.kinds, network.scaling), LabelStats()
    classes = is_whole_number(source.label_type) if kind == "auto" else kind != "regression"
    for batch, column in source.read(piece):
        labels = labels.merged(LabelStats.of(column, classes=classes))
        part.add(to_values(_with_label(batch, column, classes=classes), source.kinds))
    return _PieceFit(part.state, labels)


def _with_label(batch: pa.RecordBatch, column: pa.Array, *, classes: bool) -> pa.RecordBatch:
    labels = numeric_labels(column, classes=classes)
    return batch.filter(labels.is_valid()) if labels.null_count else batch


class EncodedRows:
    """Encoded rows by number, from the shards of a node.

    Args:
        shards: The shards: words of 4 bytes, shape (rows, words).
        width: Number of features.
        words: Words of a row.
        kind: ``binary``, ``multiclass`` or ``regression``.
        weights: Weight of each class in the loss; 1 if absent.
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

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce that rows of these ranges [first, last) will be taken soon."""
        self.shards.expect(ranges)

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
    kind: LabelKind = "binary",
    weights: Sequence[float] | None = None,
) -> EncodedRows:
    """Encode the rows that have a label; the processes of each node share the work and the result.

    Args:
        source: The split.
        transforms: Transforms fitted on the training split.
        labels: Label statistics of each piece, from :func:`fit`.
        folder: Folder of the shards, unless ``feeding`` configures another one.
        ranks: The processes.
        feeding: Folder and size of the cache.
        kind: Configured kind of the labels, as for :func:`fit`.
        weights: Weight of each class in the loss; 1 if absent.

    Raises:
        InputError: A shard is larger than the cache.
        DependencyError: The disk is full.
    """
    feeding = feeding or Feeding()
    resolved = resolve_labels(merge_labels(labels), kind, source.label, source.split).kind
    words = transforms.width + len(transforms.categories) + 1
    rows = [part.rows for part in labels]
    specs = [_shard(source, piece, transforms, resolved, (count, words)) for piece, count in enumerate(rows)]
    shards = ShardedSplit(ShardCache.of(feeding, folder), specs, rows)
    if ranks.local_rank == 0:
        shards.warn_if_partial(feeding.block, max(rows))
    shards.encode_all(ranks.local_rank, ranks.local_size)
    return EncodedRows(shards, transforms.width, words, resolved, weights)


def _shard(
    source: RowSource, piece: int, transforms: Transforms, kind: str, shape: tuple[int, int]
) -> ShardSpec:
    """Return the shard of a piece, with a key from all that its bytes depend on."""
    cut = source.pieces[piece]
    content = [shard_file.FORMAT, trainwright.__version__, transforms.digest, source.label, kind, *shape]
    rows = [cut.entry.checksum, cut.entry.size, cut.first, cut.last]
    types = {column.name: column.type for column in cut.columns}
    read = [[name, types[name]] for name in (*transforms.inputs, source.label)]
    key = digest_text(canonical([content, rows, read]))[:32]
    return ShardSpec(key, _WORD, shape, lambda: _encoded(source, piece, transforms, kind, shape[1]))


def _encoded(
    source: RowSource, piece: int, transforms: Transforms, kind: str, words: int
) -> Iterator[NDArray[Any]]:
    classes = kind != "regression"
    for batch, column in source.read(piece):
        rows = _with_label(batch, column, classes=classes)
        encoded = transforms.encode(to_values(rows, transforms.inputs))
        packed = np.empty((rows.num_rows, words), np.dtype(_WORD))
        packed[:, : transforms.width] = encoded.numeric.view(np.int32)
        packed[:, transforms.width : -1] = encoded.categories
        packed[:, -1] = target_values(column, kind).view(np.int32)
        yield packed
