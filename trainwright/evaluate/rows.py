"""Rows of predictions that are read piece by piece, and statistics of them that are merged."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.artifacts import Snapshot
from trainwright.engine import map_merge, reachable
from trainwright.errors import InputError
from trainwright.evaluate.predictions import (
    BASELINE,
    PredictionPair,
    Predictions,
    names_to_read,
    pair,
    read_predictions,
    roles_of,
    to_predictions,
)
from trainwright.experiment import DataEngine
from trainwright.significance import Cells
from trainwright.tables import ROW_GROUP, Piece, fingerprints, pieces, read_piece

PIECE_ROWS = 2 * ROW_GROUP
"""Rows a piece, about: what is in memory at once."""

Partial = dict[str, Any]
"""Sufficient statistics of some rows by name: arrays, which are added up, or values with ``merged``."""


@dataclass(frozen=True)
class Rows:
    """Predictions that are read piece by piece, as often as a pass needs them.

    Attributes:
        pieces: Plain data, which any process can be handed.
        read: Returns the rows of a piece.
        total: Rows of all pieces, those without a label among them.
        where: Named in errors.
        engine: Takes statistics of the pieces.
    """

    pieces: Sequence[Any]
    read: Callable[[Any], PredictionPair]
    total: int
    where: str = "predictions"
    engine: DataEngine = field(default_factory=lambda: DataEngine(workers=1))

    @classmethod
    def of(cls, pair: PredictionPair, where: str = "predictions") -> "Rows":
        """Return rows that are in memory, as one piece."""
        return cls([pair], _identity, pair.candidate.rows + pair.candidate.unlabelled, where)

    def add_up(self, take: Callable[..., Partial], request: Any) -> Partial:
        """Return the merged partial results of ``take(pair, number, request)`` of all numbered pieces.

        The engine changes nothing of the sums, to the last digit.
        """
        return map_merge(
            partial(_take, self.read, take, request),
            merge,
            list(enumerate(self.pieces)),
            self.engine,
            "evaluate",
            describe=lambda task: f"{self.where}, pieces from {task[0][0]} on",
        )


def _take(
    read: Callable[[Any], PredictionPair],
    take: Callable[..., Partial],
    request: Any,
    numbered: tuple[int, Any],
) -> Partial:
    number, piece = numbered
    return take(read(piece), number, request)


def _identity(pair: PredictionPair) -> PredictionPair:
    return pair


def merge(taken: Iterable[Partial]) -> Partial:
    """Merge partial results in the order of the pieces."""
    total: Partial = {}
    held: dict[str, list[Any]] = {}
    for part in taken:
        for name, value in part.items():
            if not isinstance(value, np.ndarray):
                held.setdefault(name, []).append(value)
                if len(held[name]) == _HELD.get(type(value)):
                    held[name] = [value.merged(held[name])]
            elif name in total:
                # Not in place: of a piece without rows, numpy's weighted sums are integers.
                total[name] = total[name] + value
            else:
                total[name] = value
    return total | {name: values[0].merged(values) for name, values in held.items()}


@dataclass(frozen=True)
class _Split:
    """The predictions of one split, read by piece."""

    folder: Path
    snapshot: Snapshot
    columns: tuple[str, ...]
    where: str

    @property
    def key(self) -> str:
        return roles_of(self.snapshot).key

    def keys(self, piece: Piece) -> Any:
        batches = read_piece(self.folder, piece, [self.key])
        return pa.chunked_array([batch.column(0) for batch in batches])

    def read(self, piece: Piece) -> Predictions:
        names = names_to_read(self.snapshot, self.columns, self.where)
        table = pa.Table.from_batches(read_piece(self.folder, piece, names))
        return to_predictions(table, self.snapshot, self.columns, f"{self.where}, {piece.entry.uri}")


def read_rows(
    folder: Path,
    snapshot: Snapshot,
    split: str,
    columns: Sequence[str],
    baseline: tuple[Path, Snapshot] | None = None,
    *,
    engine: DataEngine,
    uris: Sequence[str] = ("", ""),
) -> Rows:
    """Return the predictions of a split, with those of the baseline; memory stays that of a piece.

    Both models' predictions are matched piece by piece where both have the rows in the same order, as those
    of ``train`` and ``score`` have. Other orders are matched by key in memory, and so are those of a language
    model, whose tokens are counted over all rows. ``uris`` are the folders as an engine's workers reach them;
    empty for their paths.
    """
    entries = [("predictions", folder, snapshot), *([(BASELINE, *baseline)] if baseline else [])]
    splits = []
    for name, place, entry in entries:
        chosen = () if name == BASELINE else tuple(columns)
        where = f"{name}, split {split!r}"
        names_to_read(entry, chosen, where)
        splits.append(_Split(place, entry, chosen, where))
    found = [pieces(part.folder, part.snapshot, [split], PIECE_ROWS) for part in splits]
    where = splits[0].where
    if found[0] and roles_of(snapshot).kind != "language_model" and _aligned(splits, found):
        if engine.is_remote:
            found = [
                reachable(part, uri or str(split.folder.absolute()))
                for part, split, uri in zip(found, splits, uris, strict=False)
            ]
        rows = partial(_read_pair, tuple(splits))
        return Rows(list(zip(*found, strict=True)), rows, snapshot.splits[split], where, engine)
    whole = [
        read_predictions(place, entry, split, part.columns, name)
        for (name, place, entry), part in zip(entries, splits, strict=True)
    ]
    for model, part in zip(whole[1:], splits[1:], strict=True):
        require_unique(KeySample.of(model), model.rows, part.key, part.where)
    return Rows.of(pair(whole[0], whole[1] if baseline else None), where)


def _read_pair(splits: Sequence[_Split], found: Sequence[Piece]) -> PredictionPair:
    read = [split.read(piece) for split, piece in zip(splits, found, strict=True)]
    return pair(read[0], read[1] if len(read) > 1 else None)


def _aligned(splits: Sequence[_Split], found: Sequence[Sequence[Piece]]) -> bool:
    """Return True if all have the same rows in the same order, as far as their keys tell."""
    if len(splits) == 1:
        return True
    if [piece.rows for piece in found[0]] != [piece.rows for piece in found[1]]:
        return False
    if not all(split.key for split in splits):
        return True  # pair() raises the error
    for both in zip(*found, strict=True):
        ours, theirs = (split.keys(piece) for split, piece in zip(splits, both, strict=True))
        if ours.type == theirs.type and not ours.equals(theirs):
            return False
    return True


KEYS = 1 << 21
"""Keys that are compared with each other: all of so many rows, else a random sample of this size at most."""


@dataclass(frozen=True)
class KeySample:
    """Fingerprints of keys: those whose highest bits are 0, so that equal keys are sampled together.

    ``shift`` is the number of those bits: all keys are sampled if it is 0.
    """

    fingerprints: NDArray[np.uint64]
    shift: int = 0

    @classmethod
    def of(cls, predictions: Predictions) -> "KeySample":
        """Sample the keys of some rows; none where they have no key."""
        if predictions.key is None:
            return cls(np.empty(0, np.uint64))
        return cls(fingerprints(predictions.key))

    @classmethod
    def merged(cls, parts: Sequence["KeySample"]) -> "KeySample":
        """Return the sample of the keys of all parts."""
        shift = max(part.shift for part in parts)
        found = np.concatenate([part.fingerprints for part in parts])
        while True:
            found = found[found >> np.uint64(64 - shift) == 0] if shift else found
            if len(found) <= KEYS:
                return cls(found, shift)
            shift += 1


_HELD = {Cells: 8, KeySample: 2}
"""Partial results that are held at once, of kinds that are large."""


def require_unique(sample: KeySample, rows: int, key: str, where: str) -> None:
    """Reject rows that were scored twice, as a sampler that pads its last batch does."""
    sampled, distinct = len(sample.fingerprints), len(np.unique(sample.fingerprints))
    if distinct != sampled:
        of = f", a sample of {rows:,}," if sample.shift else ""
        raise InputError(
            f"{sampled:,} rows{of} have {distinct:,} keys in {key!r}: some were scored twice",
            where=where,
            hint="Score every row once; a distributed sampler pads its last batch with repeats.",
        )
