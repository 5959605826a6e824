"""The target of a training on rows: its labels, class weights, loss, and decision threshold."""

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainwright import tables
from trainwright.artifacts import Snapshot, SnapshotTarget
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import ResolvedTraining
from trainwright.experiment.training import Objective
from trainwright.serving.columns import numeric_labels
from trainwright.serving.outputs import Outputs, Threshold
from trainwright.serving.predictions import no_labels
from trainwright.train.architectures import Architecture, Target
from trainwright.train.process_group import Coordinator, Ranks

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps the module's output and the target to the loss of each sample, shape (samples,)."""

MOST_CLASSES = 10_000
"""A column with more different values is a number or a key."""

_TWO = 2
_SHOWN = 5


@dataclass(frozen=True)
class HoldOut:
    """The held-out rows of a split, or, unless ``inside``, all its other rows.

    Whether a row is held out depends on its key and the seed alone: every process, attempt and kind of model
    holds out the same rows.
    """

    share: float
    seed: int
    inside: bool

    @classmethod
    def of(cls, training: ResolvedTraining, *, inside: bool) -> Self | None:
        """Return the rows of a training; None if it holds none out."""
        early = training.guards.early_stopping
        return cls(early.share, training.seed, inside) if early and early.share else None

    def mask(self, keys: pa.Array) -> pa.Array:
        """Return whether each row belongs here, from the column with the keys."""
        # A seed of its own: the splits of `data` may be hashes of the same key, by data.split_seed.
        digest = hashlib.sha256(f"held out {self.seed}".encode()).digest()
        hashes = tables.fingerprints(keys, int.from_bytes(digest[:8], "big"))
        held_out = hashes < int(self.share * 2**64)
        return pa.array(held_out == self.inside)


@dataclass(frozen=True)
class LabelStats:
    """Statistics of the labels of some rows; rows without a label are not trained on.

    Attributes:
        kind: Kind of label.
        rows: Rows with a label.
        missing: Rows without one: null or NaN.
        counts: Rows by class; empty for ``regression``.
        mean: Mean, for ``regression``.
        squares: Sum of squared deviations from the mean, for ``regression``.
        low: Smallest label, and the first row that has it, counted from 0 over all rows.
        high: Largest label, and the first row that has it.
    """

    kind: Literal["classes", "regression"] = "classes"
    rows: int = 0
    missing: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)
    mean: float = 0.0
    squares: float = 0.0
    low: tuple[float, int] = (0.0, 0)
    high: tuple[float, int] = (0.0, 0)

    @classmethod
    def of(cls, column: pa.Array, *, classes: bool) -> Self:
        """Count the labels of some rows."""
        kind: Literal["classes", "regression"] = "classes" if classes else "regression"
        column = numeric_labels(column, classes=classes)
        values = column.drop_null().to_numpy(zero_copy_only=False)
        if not len(values):
            return cls(kind, 0, column.null_count)
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        low, high = (
            (float(values[at]), int(rows[at])) for at in (int(values.argmin()), int(values.argmax()))
        )
        part = cls(kind, len(values), column.null_count, low=low, high=high)
        if classes:
            within = values[(values >= 0) & (values < MOST_CLASSES)]  # others are rejected later
            distinct, counts = np.unique(within, return_counts=True)
            return replace(part, counts=dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        with np.errstate(invalid="ignore"):  # non-finite values are rejected later
            mean = float(values.mean())
            return replace(part, mean=mean, squares=float(np.square(values - mean).sum()))

    def merged(self, other: Self) -> Self:
        """Return the statistics of these rows and the ones that follow them (Chan et al., 1979)."""
        rows, before, missing = self.rows + other.rows, self.rows + self.missing, self.missing + other.missing
        low, high = ((value, row + before) for value, row in (other.low, other.high))
        if not other.rows:
            return replace(self if self.rows else other, missing=missing)
        if not self.rows:
            return replace(other, missing=missing, low=low, high=high)
        finite = math.isfinite(self.mean) and math.isfinite(other.mean)
        step = other.mean - self.mean if finite else 0.0
        counts = Counter(self.counts)
        counts.update(other.counts)
        return replace(
            self,
            rows=rows,
            missing=missing,
            counts=dict(sorted(counts.items())),
            mean=self.mean + step * other.rows / rows,
            squares=self.squares + other.squares + step * step * self.rows * other.rows / rows,
            low=min(self.low, low, key=lambda entry: entry[0]),
            high=max(self.high, high, key=lambda entry: entry[0]),
        )

    @property
    def classes(self) -> int:
        """Number of classes: the largest one and all below it."""
        return max(self.counts, default=-1) + 1

    @property
    def rates(self) -> tuple[float, ...]:
        """Share of rows of each class; for ``regression`` the mean and the standard deviation."""
        if self.kind == "regression":
            return self.mean, math.sqrt(self.squares / self.rows) if self.rows else 0.0
        return tuple(self.counts.get(each, 0) / self.rows for each in range(self.classes))


def merge_labels(parts: Iterable[LabelStats]) -> LabelStats:
    """Return the statistics of consecutive parts together."""
    return functools.reduce(LabelStats.merged, parts, LabelStats())


def require_learnable(found: LabelStats, described: SnapshotTarget, name: str, split: str) -> None:
    """Check that the labels of the training split are as the snapshot describes them, and that they differ.

    Raises:
        InputError: A label is out of range.
        DataRefused: There are not two classes, or two different numbers.
    """
    require_in_range(found, described, name, split)
    where, rest = f"split {split!r} of the training set", f"{found.missing:,} rows have none"
    if found.kind == "regression":
        if found.rows and found.low[0] < found.high[0]:
            return
        value = f"is {found.low[0]:g} in {found.rows:,} rows" if found.rows else "has no value"
        raise DataRefused(f"label {name!r} {value}; {rest}", where=where, hint="There is nothing to learn.")
    if len(found.counts) >= _TWO:
        return
    counts = (
        f"{found.counts.get(1, 0):,} ones and {found.counts.get(0, 0):,} zeros"
        if found.classes <= _TWO
        else ", ".join(f"{rows:,} of class {class_name(described, at)}" for at, rows in found.counts.items())
    )
    raise DataRefused(
        f"label {name!r} has {counts}; {rest}",
        where=where,
        hint="Training needs rows of at least two classes: check the label, or the split's time span.",
    )


def require_in_range(found: LabelStats, described: SnapshotTarget, name: str, split: str) -> None:
    """Check that the labels of a split are as the snapshot describes them, or raise InputError."""
    if not found.rows:
        return
    kind, (low, low_row), (high, high_row) = described.kind, found.low, found.high
    shown = f"label {name!r} lies in [{low:g}, {high:g}]"
    where = f"split {split!r}, row {low_row if low < 0 or math.isinf(low) else high_row:,}"
    if math.isinf(low) or math.isinf(high):
        raise InputError(f"{shown}, which is not finite", where=where)
    if kind == "regression":
        return
    hint = "Set data.label_kind to the kind of this label, or list its values in data.classes."
    if kind == "binary" and (low < 0 or high > 1):
        raise InputError(f"{shown}; a binary label is 0 or 1", where=where, hint=hint)
    if low < 0:
        raise InputError(f"{shown}; classes are numbered from 0", where=where, hint=hint)
    if high >= MOST_CLASSES:
        raise InputError(f"{shown}; there may be {MOST_CLASSES:,} classes", where=where, hint=hint)
    if described.classes and high >= len(described.classes):
        what = f"{shown}; the snapshot names {len(described.classes)} classes"
        raise InputError(what, where=where, hint=hint)


def target_values(column: pa.Array, kind: str) -> NDArray[np.float32] | NDArray[np.int32]:
    """Return the labels, without nulls: int32 for more than two classes, else float32."""
    values = numeric_labels(column, classes=kind != "regression").drop_null().to_numpy(zero_copy_only=False)
    return values.astype(np.int32 if kind == "multiclass" else np.float32)  # type: ignore[no-any-return]


def class_name(described: SnapshotTarget, number: int) -> str:
    """Return the name of a class; its number where the source itself has numbers."""
    return described.classes[number] if described.classes else str(number)


def target_of(labels: LabelStats, described: SnapshotTarget, name: str) -> Target:
    """Return the target of a training from the labels of its split, which are learnable."""
    if described.kind == "regression":
        return Target("regression", labels.rates)
    classes = len(described.classes) or labels.classes
    empty = [number for number in range(classes) if not labels.counts.get(number)]
    if empty:
        names = [class_name(described, number) for number in empty[:_SHOWN]]
        shown = ", ".join(names) + (", ..." if len(empty) > _SHOWN else "")
        raise DataRefused(
            f"label {name!r} has {classes} classes, and no row to train on of {len(empty)} of them: {shown}",
            where="training split",
            hint="Add rows of these classes to the split, or leave the classes out of the data; or, if the "
            "label is an amount, set data.label_kind: regression.",
        )
    return Target("binary" if described.kind == "binary" else "multiclass", labels.rates)


def class_weights(target: Target, objective: Objective) -> tuple[float, ...] | None:
    """Return the weight of a row by its class, with mean 1 over the training rows; None if all weigh 1.

    Balanced, every class has the same total weight: ``rows / (classes * rows of the class)``.
    King and Zeng, Political Analysis 2001.
    """
    if objective.class_weights == "none":
        return None
    return tuple(1 / (len(target.rates) * rate) for rate in target.rates)


def loss_of(architecture: Architecture, objective: Objective) -> Loss:
    """Return the loss to minimise: the architecture's own loss of each row, or its focal loss.

    The focal loss is ``(1 - p)^gamma`` times the cross-entropy, where ``p`` is the probability of the true
    class. The cross-entropy ``-log p`` determines ``p``, so this works for every architecture of classes.
    Lin et al., ICCV 2017, without their weight alpha, which class weights replace.
    """
    if not objective.focal:
        return architecture.loss

    def focal(output: Tensor, target: Tensor) -> Tensor:
        loss = architecture.loss(output, target)
        # Not 0, where the slope of a power below 1 is not finite.
        missed = (-torch.expm1(-loss)).clamp_min(torch.finfo(loss.dtype).tiny)
        return missed.pow(objective.focal) * loss

    return focal


def base_loss(target: Target, objective: Objective) -> float:
    """Return the mean loss of a constant prediction: the weighted base rate, or the mean.

    For regression it is 1: losses are in units of the variance.
    """
    if target.kind == "regression":
        return 1.0
    rates = np.array(target.rates) * np.array(class_weights(target, objective) or 1.0)
    if objective.sampling == "balanced":  # every class is seen equally often
        rates = np.full(len(rates), 1 / len(rates))
    return float(-(rates * (1 - rates) ** objective.focal * np.log(rates)).sum())


def constant_losses(label: NDArray[np.generic], target: Target, objective: Objective) -> NDArray[np.float64]:
    """Return the loss of each row if the (weighted) base rate, or the mean, is predicted; shape (rows,)."""
    if target.kind == "regression":
        mean, deviation = target.rates
        return np.square((label.astype(np.float64) - mean) / deviation)
    rates = np.array(target.rates) * np.array(class_weights(target, objective) or 1.0)
    return -np.log(rates)[label.astype(np.int64)]  # type: ignore[no-any-return]


def check_labels(
    folder: Path, snapshot: Snapshot, splits: Sequence[str], outputs: Outputs, ranks: Ranks
) -> None:
    """Check before the training that the splits to predict have usable labels; reads the label alone.

    All processes call this together, and share the reading.
    """

    def count() -> dict[str, tuple[int, float]]:
        found = dict.fromkeys(splits, (0, 0.0))
        for split in splits:
            for piece in tables.pieces(folder, snapshot, [split])[ranks.rank :: ranks.size]:
                for batch in tables.read_piece(folder, piece, [snapshot.roles["label"]]):
                    labels = LabelStats.of(batch.column(0), classes=outputs.kind != "regression")
                    rows, high = found[split]
                    found[split] = rows + labels.rows, max(high, labels.high[0])
        return found

    counts = Coordinator(ranks, ranks.patient).on_all(count)
    if empty := [split for split in splits if not sum(each[split][0] for each in counts)]:
        raise no_labels(empty, snapshot)
    for split in splits:
        high = max(each[split][1] for each in counts)
        if outputs.classes and high >= outputs.classes:
            raise unknown_class(outputs.label, int(high), outputs.classes, split)


def unknown_class(label: str, found: int, classes: int, split: str) -> InputError:
    """Return the error for a class that no row of the training split has."""
    return InputError(
        f"label {label!r} goes up to class {found}; the training split has classes 0 to {classes - 1}",
        where=f"split {split!r}",
        hint="Choose splits that all have rows of every class, or leave the class out of the data.",
    )


def best_threshold(label: NDArray[np.int64], score: NDArray[np.float64], rule: str) -> tuple[float, float]:
    """Return the best threshold, and the value of the rule at it.

    The threshold lies halfway between two neighbouring scores, so that rounding moves no row across it. Of
    several equally good ones it is the highest.

    Args:
        label: Shape (rows,), 0 or 1; both occur.
        score: Shape (rows,), in [0, 1].
        rule: ``f1``: the harmonic mean of precision and recall; ``youden``: the true positive rate minus the
            false positive rate (Youden, Cancer 1950).
    """
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], np.cumsum(label[order])
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    found, hit = last + 1, hits[last]
    positives = int(hits[-1])
    if rule == "f1":
        gain = 2 * hit / (found + positives)
    else:
        gain = hit / positives - (found - hit) / (len(label) - positives)
    best = int(np.argmax(gain))
    if best == len(last) - 1:
        return 0.0, float(gain[best])
    above, below = float(ranked[last[best]]), float(ranked[last[best] + 1])
    middle = (above + below) / 2
    return (middle if middle > below else above), float(gain[best])


def choose_threshold(
    folder: Path,
    snapshot: Snapshot,
    training: ResolvedTraining,
    outputs: Outputs,
    predict: Callable[[pa.RecordBatch], NDArray[np.float64]],
) -> Threshold | None:
    """Choose the configured threshold on a split that was not trained on; None for 0.5.

    ``predict`` maps rows to the probability of label 1.

    The best threshold of many is optimistic on its own rows. If rows of their own end the training early,
    the threshold is chosen on those, and evaluation stays fair; otherwise it is chosen on the evaluated
    split, and the model card says so.
    """
    rule, name = training.objective.threshold, snapshot.roles["label"]
    early, hold_out = training.guards.early_stopping, HoldOut.of(training, inside=True)
    split = training.split if hold_out else (early and early.split) or training.predict[0]
    if rule == "half" or outputs.kind != "binary":
        return None
    label, scores = score_rows(folder, snapshot, split, hold_out, predict)
    if len(np.unique(label)) != _TWO:
        raise DataRefused(
            f"label {name!r} has {int((label == 1).sum()):,} ones and {int((label == 0).sum()):,} zeros: no "
            f"threshold can be chosen by {rule}",
            where=f"split {split!r}",
        )
    value, gain = best_threshold(label, scores, rule)
    held_out = f", {hold_out.share:.0%} held out" if hold_out else ""
    return Threshold(value, rule, f"{split}{held_out}", gain)


def score_rows(
    folder: Path,
    snapshot: Snapshot,
    split: str,
    hold_out: HoldOut | None,
    predict: Callable[[pa.RecordBatch], NDArray[np.float64]],
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return labels and scores of the labelled rows of a split, or of those that it holds out."""
    classes = snapshot.target.kind != "regression"
    labels, scores = [np.empty(0, dtype=np.int64)], []
    for batch in tables.iter_batches(folder, snapshot, [split]):
        rows = batch.filter(hold_out.mask(batch.column(snapshot.roles["key"]))) if hold_out else batch
        found = numeric_labels(rows.column(snapshot.roles["label"]), classes=classes)
        labels.append(found.drop_null().to_numpy(zero_copy_only=False))
        scores.append(predict(rows.filter(found.is_valid())))
    return np.concatenate(labels), np.concatenate(scores) if scores else np.empty(0)
