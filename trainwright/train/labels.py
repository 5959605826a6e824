"""What is known of the labels of a split: counted file by file, merged in the order of the files."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import DataRefused, InputError
from trainwright.serving.columns import numeric_labels

Asked: TypeAlias = Literal["auto", "binary", "multiclass", "regression"]
"""What a training can be asked for; ``auto``: whole numbers are classes, other numbers are regressed."""

MOST_CLASSES = 10_000
"""Different classes; a column with more of them is a number or a key."""

_TWO = 2


@dataclass(frozen=True)
class Labels:
    """Counts of labels; rows without one are left out of the training.

    Attributes:
        kind: What they are; ``classes`` before it is known whether there are two or more.
        rows: Rows with a label.
        missing: Rows without one: null or NaN.
        counts: Rows by class; empty for ``regression``.
        mean: Mean, for ``regression``.
        squares: Sum of the squared deviations from it, for ``regression``.
        low: Smallest and the row that has it first, counted from 0 over all rows.
        high: Largest and the row that has it first.
    """

    kind: Literal["classes", "binary", "multiclass", "regression"] = "classes"
    rows: int = 0
    missing: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)
    mean: float = 0.0
    squares: float = 0.0
    low: tuple[float, int] = (math.inf, 0)
    high: tuple[float, int] = (-math.inf, 0)

    @classmethod
    def of(cls, column: pa.Array, *, classes: bool) -> Self:
        """Count the labels of some rows."""
        kind: Literal["classes", "regression"] = "classes" if classes else "regression"
        column = numeric_labels(column, classes=classes)
        values = column.drop_null().to_numpy(zero_copy_only=False)
        if not len(values):
            return cls(kind, 0, column.null_count)
        places = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        low, high = (
            (float(values[at]), int(places[at])) for at in (int(values.argmin()), int(values.argmax()))
        )
        part = cls(kind, len(values), column.null_count, low=low, high=high)
        if classes:
            within = values[(values >= 0) & (values < MOST_CLASSES)]  # with others, all will be refused
            distinct, counts = np.unique(within, return_counts=True)
            return replace(part, counts=dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        with np.errstate(invalid="ignore"):  # of what is not finite, which will be refused
            mean = float(values.mean())
            return replace(part, mean=mean, squares=float(np.square(values - mean).sum()))

    def merged(self, other: Self) -> Self:
        """Return what is known of these rows and those that follow them (Chan et al., 1979)."""
        rows, before = self.rows + other.rows, self.rows + self.missing
        finite = math.isfinite(self.mean) and math.isfinite(other.mean)
        step = other.mean - self.mean if self.rows and other.rows and finite else 0.0
        counts = Counter(self.counts)
        counts.update(other.counts)
        return replace(
            self if self.rows else other,
            rows=rows,
            missing=self.missing + other.missing,
            counts=dict(sorted(counts.items())),
            mean=self.mean + step * other.rows / max(rows, 1) if self.rows else other.mean,
            squares=self.squares + other.squares + step * step * self.rows * other.rows / max(rows, 1),
            low=min(self.low, (other.low[0], other.low[1] + before), key=lambda entry: entry[0]),
            high=max(self.high, (other.high[0], other.high[1] + before), key=lambda entry: entry[0]),
        )

    @property
    def negatives(self) -> int:
        """Rows of class 0."""
        return self.counts.get(0, 0)

    @property
    def positives(self) -> int:
        """Rows of class 1."""
        return self.counts.get(1, 0)

    @property
    def classes(self) -> int:
        """Number of classes: the largest one and those below it."""
        return max(self.counts, default=-1) + 1

    @property
    def deviation(self) -> float:
        """Standard deviation, for ``regression``."""
        return math.sqrt(self.squares / self.rows) if self.rows else 0.0

    @property
    def rates(self) -> tuple[float, ...]:
        """Share of rows of each class; for ``regression`` the mean and the standard deviation."""
        if self.kind == "regression":
            return self.mean, self.deviation
        return tuple(self.counts.get(each, 0) / self.rows for each in range(self.classes))


def whole(kind: str) -> bool:
    """Tell whether a column of this Arrow type holds whole numbers."""
    return re.fullmatch(r"bool|u?int(8|16|32|64)", kind) is not None


def total(parts: Iterable[Labels]) -> Labels:
    """Return what is known of all parts together, in their order."""
    found = Labels()
    for part in parts:
        found = found.merged(part)
    return found


def settled(found: Labels, asked: Asked, name: str, split: str) -> Labels:
    """Say what the labels of a split are, or refuse them.

    Args:
        found: What is known of all of them.
        asked: What the training is asked for.
        name: Name of the column, for the error.
        split: Name of the split, for the error.

    Raises:
        InputError: A label is not what it is to be.
        DataRefused: There are no two classes, or no two different numbers.
    """
    kind: Literal["classes", "binary", "multiclass", "regression"]
    if asked == "auto":
        several = found.high[0] > 1
        kind = "regression" if found.kind == "regression" else "multiclass" if several else "binary"
    else:
        kind = asked
    _require_in_range(found, kind, name, split)
    _require_different(found, kind, name, split)
    return replace(found, kind=kind)


def _require_in_range(found: Labels, kind: str, name: str, split: str) -> None:
    (low, low_row), (high, high_row) = found.low, found.high
    wrong_row = low_row if low < 0 or math.isinf(low) else high_row
    shown = f"label {name!r} lies in [{low:g}, {high:g}]"
    where = f"split {split!r}, row {wrong_row:,}"
    if math.isinf(low) or math.isinf(high):
        if found.rows:
            raise InputError(f"{shown}, which is not finite", where=where)
        return
    if kind == "regression":
        return
    hint = "Set training.objective.kind to what it is, or another label."
    if kind == "binary" and (low < 0 or high > 1):
        raise InputError(f"{shown}; the network learns 0 or 1", where=where, hint=hint)
    if low < 0:
        raise InputError(f"{shown}; classes are numbered from 0", where=where, hint=hint)
    if high >= MOST_CLASSES:
        raise InputError(f"{shown}; there may be {MOST_CLASSES:,} classes", where=where, hint=hint)


def _require_different(found: Labels, kind: str, name: str, split: str) -> None:
    where, rest = f"split {split!r} of the training set", f"{found.missing:,} rows have none"
    if kind == "regression":
        if found.rows and found.low[0] < found.high[0]:
            return
        value = f"is {found.low[0]:g} in {found.rows:,} rows" if found.rows else "has no value"
        raise DataRefused(f"label {name!r} {value}; {rest}", where=where, hint="There is nothing to learn.")
    if len(found.counts) >= _TWO:
        return
    counts = (
        f"{found.positives:,} ones and {found.negatives:,} zeros"
        if found.classes <= _TWO
        else ", ".join(f"{rows:,} of class {each}" for each, rows in found.counts.items())
    )
    raise DataRefused(
        f"label {name!r} has {counts}; {rest}",
        where=where,
        hint="Telling two classes apart takes rows of both: look at the label, or at the split's span.",
    )


def as_target(column: pa.Array, kind: str) -> NDArray[np.float32] | NDArray[np.int32]:
    """Return the labels that are there as a network's target: classes above two as int32, else float32."""
    values = numeric_labels(column, classes=kind != "regression").drop_null().to_numpy(zero_copy_only=False)
    return values.astype(np.int32 if kind == "multiclass" else np.float32)  # type: ignore[no-any-return]
