"""The training split in memory: read once by all processes together, one copy a machine.

Each process fits and encodes its share of the files; what was fitted is merged in the order of the files, so
the result does not depend on the number of processes. The encoded rows lie in files that every process of
the machine maps, and that are unlinked as soon as all of them have.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Tabular
from trainwright.train.columns import to_values
from trainwright.train.group import Group
from trainwright.train.samples import Batch
from trainwright.transforms import Fit, Kind, Transforms


@dataclass(frozen=True)
class Labels:
    """Counts of labels: rows without one are left out.

    Attributes:
        negatives: Rows of label 0.
        positives: Rows of label 1.
        missing: Rows without a label.
    """

    negatives: int
    positives: int
    missing: int

    @property
    def rows(self) -> int:
        """Rows with a label."""
        return self.negatives + self.positives


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
    def files(self) -> int:
        """Number of files."""
        return sum(entry.split == self.split for entry in self.snapshot.files)

    def read(self, file: int) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Give the rows of one file that have a label, with their labels, in batches."""
        entries = [entry for entry in self.snapshot.files if entry.split == self.split]
        part = dataclasses.replace(self.snapshot, files=(entries[file],))
        for batch in tables.iter_batches(self.folder, part, [self.split], [*self.kinds, self.label]):
            yield batch, batch.column(self.label)


@dataclass(frozen=True)
class _Part:
    """What one process found in one file."""

    fit: dict[str, Any]
    labels: Labels


def fit(source: Source, network: Tabular, group: Group) -> tuple[Transforms, list[Labels]]:
    """Fit transforms on the rows that have a label, and count the labels of each file.

    Raises:
        InputError: A label is neither 0 nor 1, or no input column tells anything.
        DataRefused: Fewer than two classes are there.
    """
    mine = {file: _fit_file(source, file, network) for file in range(group.rank, source.files, group.size)}
    gathered: list[dict[int, _Part]] = [{} for _ in range(group.size)]
    distributed.all_gather_object(gathered, mine)
    parts = {file: part for share in gathered for file, part in share.items()}
    total = Fit(source.kinds, network.scaling)
    for file in range(source.files):
        total.merge(parts[file].fit)
    labels = [parts[file].labels for file in range(source.files)]
    _require_two_classes(labels, source)
    transforms = total.finish(max_categories=network.max_categories, min_rows=network.min_category_rows)
    if not transforms.inputs:
        raise InputError(
            f"no input column tells anything: {transforms.unused}", where=f"split {source.split!r}"
        )
    return transforms, labels


def _fit_file(source: Source, file: int, network: Tabular) -> _Part:
    part = Fit(source.kinds, network.scaling)
    negatives = positives = missing = 0
    for batch, labels in source.read(file):
        known = _labels(labels, source)
        missing += labels.null_count
        positives += int(known.sum())
        negatives += len(known) - int(known.sum())
        part.add(to_values(_labelled(batch, labels), source.kinds))
    return _Part(part.state, Labels(negatives, positives, missing))


def _labelled(batch: pa.RecordBatch, labels: pa.Array) -> pa.RecordBatch:
    return batch.filter(labels.is_valid()) if labels.null_count else batch


def _labels(labels: pa.Array, source: Source) -> NDArray[np.float32]:
    """Return the labels that are there, as 0 and 1.

    Raises:
        InputError: One is neither.
    """
    values = pc.cast(labels.drop_null(), pa.int64()).to_numpy()
    if len(values) and (values.min() < 0 or values.max() > 1):
        raise InputError(
            f"label {source.label!r} lies in [{values.min()}, {values.max()}]; the network learns 0 or 1",
            where=f"split {source.split!r}",
        )
    return values.astype(np.float32)  # type: ignore[no-any-return]


def _require_two_classes(labels: list[Labels], source: Source) -> None:
    negatives, positives = sum(part.negatives for part in labels), sum(part.positives for part in labels)
    if negatives and positives:
        return
    missing = sum(part.missing for part in labels)
    raise DataRefused(
        f"label {source.label!r} has {positives:,} ones and {negatives:,} zeros; {missing:,} rows have none",
        where=f"split {source.split!r} of the training set",
        hint="Telling two classes apart takes rows of both: look at the label, or at the split's span.",
    )


@dataclass(frozen=True)
class Rows:
    """Encoded rows, shared by the processes of a machine.

    Attributes:
        numeric: Shape (rows, features), float32.
        categories: Shape (rows, columns), int32.
        label: Shape (rows,), float32, 0 or 1.
    """

    numeric: Tensor
    categories: Tensor
    label: Tensor

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.label)

    def take(self, index: NDArray[np.int64]) -> Batch:
        """Return some rows, in the order of ``index``."""
        ids = torch.from_numpy(index)
        numeric, categories = (part.index_select(0, ids) for part in (self.numeric, self.categories))
        return Batch((numeric, categories), self.label.index_select(0, ids), torch.ones(len(ids)), ids)


def encode(source: Source, transforms: Transforms, labels: list[Labels], folder: Path, group: Group) -> Rows:
    """Encode the rows that have a label; every process of the machine encodes its share.

    Args:
        source: The split.
        transforms: What was fitted on it.
        labels: Counts of labels of each file.
        folder: Where the encoded rows lie until all processes of this machine have mapped them.
        group: The processes.
    """
    starts = np.cumsum([0, *(part.rows for part in labels)])
    shared = _Shared(folder, int(starts[-1]), transforms)
    if group.local_rank == 0:
        shared.create()
    distributed.barrier()
    rows = shared.map()
    for file in range(group.local_rank, source.files, group.local_size):
        _encode_file(source, file, transforms, rows, int(starts[file]))
    distributed.barrier()
    if group.local_rank == 0:
        shared.unlink()
    return rows


def _encode_file(source: Source, file: int, transforms: Transforms, rows: Rows, start: int) -> None:
    for batch, labels in source.read(file):
        known = _labels(labels, source)
        encoded = transforms.encode(to_values(_labelled(batch, labels), transforms.inputs))
        end = start + len(known)
        rows.numeric[start:end] = torch.from_numpy(encoded.numeric)
        rows.categories[start:end] = torch.from_numpy(encoded.categories)
        rows.label[start:end] = torch.from_numpy(known)
        start = end


class _Shared:
    """Files that the processes of a machine map into their memory."""

    def __init__(self, folder: Path, rows: int, transforms: Transforms) -> None:
        self._rows = rows
        self._parts = {
            folder / "numeric.bin": (transforms.width, torch.float32),
            folder / "categories.bin": (len(transforms.categories), torch.int32),
            folder / "label.bin": (1, torch.float32),
        }

    def create(self) -> None:
        for path, (width, _) in self._parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as stream:
                if size := 4 * self._rows * width:
                    # Where the disk has no room, this says so; writing to a mapped hole of a file kills.
                    os.posix_fallocate(stream.fileno(), 0, size)

    def map(self) -> Rows:
        numeric, categories, label = (
            torch.from_file(str(path), shared=True, size=self._rows * width, dtype=kind).view(
                self._rows, width
            )
            if width
            else torch.empty((self._rows, 0), dtype=kind)
            for path, (width, kind) in self._parts.items()
        )
        return Rows(numeric, categories, label.view(-1))

    def unlink(self) -> None:
        for path in self._parts:
            path.unlink()
            folder = path.parent
        folder.rmdir()
