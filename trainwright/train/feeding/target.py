"""The target of a training on rows: its labels, class weights, loss, and decision threshold."""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainwright import tables
from trainwright.artifacts import Snapshot
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Training
from trainwright.experiment.training import Objective
from trainwright.serving.columns import numeric_labels
from trainwright.serving.outputs import Outputs, Threshold
from trainwright.serving.predictions import no_labels
from trainwright.train.architectures import Architecture, Target
from trainwright.train.process_group import Coordinator, Ranks

LabelKind: TypeAlias = Literal["auto", "binary", "multiclass", "regression"]
"""The configured kind; with ``auto``, whole numbers are classes and other numbers are regressed."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps the module's output and the target to the loss of each sample, shape (samples,)."""

MOST_CLASSES = 10_000
"""A column with more different values is a number or a key."""

_TWO = 2
_SHOWN = 5


@dataclass(frozen=True)
class LabelStats:
    """Statistics of the labels of some rows; rows without a label are not trained on.

    Attributes:
        kind: Kind of label; ``classes`` before the number of classes is known.
        rows: Rows with a label.
        missing: Rows without one: null or NaN.
        counts: Rows by class; empty for ``regression``.
        mean: Mean, for ``regression``.
        squares: Sum of squared deviations from the mean, for ``regression``.
        low: Smallest label, and the first row that has it, counted from 0 over all rows.
        high: Largest label, and the first row that has it.
    """

    kind: Literal["classes", "binary", "multiclass", "regression"] = "classes"
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


def is_whole_number(arrow_type: str) -> bool:
    """Return whether a column of this Arrow type holds whole numbers."""
    return re.fullmatch(r"bool|u?int(8|16|32|64)", arrow_type) is not None


def merge_labels(parts: Iterable[LabelStats]) -> LabelStats:
    """Return the statistics of consecutive parts together."""
    return functools.reduce(LabelStats.merged, parts, LabelStats())


def resolve_labels(found: LabelStats, configured: LabelKind, name: str, split: str) -> LabelStats:
    """Resolve the kind of the labels of a split, and check them against it."""
    kind: Literal["classes", "binary", "multiclass", "regression"]
    if configured == "auto":
        several = found.high[0] > 1
        kind = "regression" if found.kind == "regression" else "multiclass" if several else "binary"
    else:
        kind = configured
    if found.rows:
        _require_in_range(found, kind, name, split)
    _require_different(found, kind, name, split)
    return replace(found, kind=kind)


def _require_in_range(found: LabelStats, kind: str, name: str, split: str) -> None:
    (low, low_row), (high, high_row) = found.low, found.high
    shown = f"label {name!r} lies in [{low:g}, {high:g}]"
    where = f"split {split!r}, row {low_row if low < 0 or math.isinf(low) else high_row:,}"
    if math.isinf(low) or math.isinf(high):
        raise InputError(f"{shown}, which is not finite", where=where)
    if kind == "regression":
        return
    hint = "Set training.objective.kind to the kind of this label, or use another label."
    if kind == "binary" and (low < 0 or high > 1):
        raise InputError(f"{shown}; the network learns 0 or 1", where=where, hint=hint)
    if low < 0:
        raise InputError(f"{shown}; classes are numbered from 0", where=where, hint=hint)
    if high >= MOST_CLASSES:
        raise InputError(f"{shown}; there may be {MOST_CLASSES:,} classes", where=where, hint=hint)


def _require_different(found: LabelStats, kind: str, name: str, split: str) -> None:
    where, rest = f"split {split!r} of the training set", f"{found.missing:,} rows have none"
    if kind == "regression":
        if found.rows and found.low[0] < found.high[0]:
            return
        value = f"is {found.low[0]:g} in {found.rows:,} rows" if found.rows else "has no value"
        raise DataRefused(f"label {name!r} {value}; {rest}", where=where, hint="There is nothing to learn.")
    if len(found.counts) >= _TWO:
        return
    counts = (
        f"{found.counts.get(1, 0):,} ones and {found.counts.get(0, 0):,} zeros"
        if found.classes <= _TWO
        else ", ".join(f"{rows:,} of class {each}" for each, rows in found.counts.items())
    )
    raise DataRefused(
        f"label {name!r} has {counts}; {rest}",
        where=where,
        hint="Training needs rows of at least two classes: check the label, or the split's time span.",
    )


def target_values(column: pa.Array, kind: str) -> NDArray[np.float32] | NDArray[np.int32]:
    """Return the labels, without nulls: int32 for more than two classes, else float32."""
    values = numeric_labels(column, classes=kind != "regression").drop_null().to_numpy(zero_copy_only=False)
    return values.astype(np.int32 if kind == "multiclass" else np.float32)  # type: ignore[no-any-return]


def target_of(labels: LabelStats, name: str, objective: Objective) -> Target:
    """Return the target of a training from the labels of its split, with their kind resolved."""
    if labels.kind == "regression":
        if wrong := objective.of_classes:
            raise InputError(
                f"{', '.join(wrong)}: for classes, but label {name!r} holds numbers that are regressed",
                where="training.objective",
                hint="Leave them out, or set training.objective.kind.",
            )
        return Target("regression", labels.rates)
    rates = labels.rates
    if empty := [number for number, rate in enumerate(rates) if not rate]:
        shown = ", ".join(map(str, empty[:_SHOWN])) + (", ..." if len(empty) > _SHOWN else "")
        raise DataRefused(
            f"label {name!r} has classes up to {len(rates) - 1}, and no row of {len(empty)} of them: {shown}",
            where="training split",
            hint="Number the classes 0, 1, 2, ... without a gap; or, if the label is an amount, set "
            "training.objective.kind: regression.",
        )
    if objective.threshold != "half" and labels.kind != "binary":
        raise InputError(
            f"threshold {objective.threshold} is for two classes; label {name!r} has {len(rates)}",
            where="training.objective.threshold",
        )
    return Target("binary" if labels.kind == "binary" else "multiclass", rates)


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


def check_labels(
    folder: Path, snapshot: Snapshot, splits: Sequence[str], outputs: Outputs, ranks: Ranks
) -> None:
    """Check before the training that the splits to predict have usable labels; reads the label alone.

    All processes call this together, and share the reading.
    """

    def count() -> dict[str, int]:
        found = dict.fromkeys(splits, 0)
        for split in splits:
            for piece in tables.pieces(folder, snapshot, [split])[ranks.rank :: ranks.size]:
                for batch in tables.read_piece(folder, piece, [snapshot.roles["label"]]):
                    labels = numeric_labels(batch.column(0), classes=outputs.kind != "regression")
                    found[split] += len(labels) - labels.null_count
        return found

    counts = Coordinator(ranks, ranks.patient).on_all(count)
    if empty := [split for split in splits if not sum(each[split] for each in counts)]:
        raise no_labels(empty, snapshot)


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
    training: Training,
    outputs: Outputs,
    predict: Callable[[pa.RecordBatch], NDArray[np.float64]],
) -> Threshold | None:
    """Choose the configured threshold on a split that was not trained on; None for 0.5.

    ``predict`` maps rows to the probability of label 1.

    The best threshold of many is optimistic on its own split. If a split of its own ends the training early,
    the threshold is chosen on that one, and evaluation stays fair; otherwise it is chosen on the evaluated
    split, and the model card says so.
    """
    rule, name, watched = (
        training.objective.threshold,
        snapshot.roles["label"],
        training.guards.early_stopping,
    )
    split = watched.split if watched else training.predict[0]
    if rule == "half" or outputs.kind != "binary":
        return None
    labels, scores = [], []
    for batch in tables.iter_batches(folder, snapshot, [split]):
        found = numeric_labels(batch.column(name), classes=True)
        labels.append(found.drop_null().to_numpy())
        scores.append(predict(batch.filter(found.is_valid())))
    label = np.concatenate(labels) if labels else np.empty(0, dtype=np.int64)
    if len(np.unique(label)) != _TWO:
        raise DataRefused(
            f"label {name!r} has {int((label == 1).sum()):,} ones and {int((label == 0).sum()):,} zeros: no "
            f"threshold can be chosen by {rule}",
            where=f"split {split!r}",
        )
    value, gain = best_threshold(label, np.concatenate(scores), rule)
    return Threshold(value, rule, split, gain)
