"""Slices: the rows that share a value of a column, measured one by one."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.documents import digest_text
from trainwright.errors import InputError
from trainwright.significance import Estimate, Gap, delong, largest_gap, wilson

MAX_SLICES = 50
"""Most slices a column of names is cut into; its rarest values share one that is listed, not judged."""

MAX_VALUES = 30
"""A column of numbers with more distinct values is cut into buckets instead."""

BUCKETS = 10
"""Buckets of about equally many rows that such a column is cut into."""

MAX_NAME = 80
"""Characters of a slice's name."""

MISSING = "(no value)"

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grouping:
    """Which slice each row belongs to.

    Attributes:
        names: Names of the slices, in the order in which they are shown.
        place: Index of each row's slice, shape (rows,).
        pooled: Name of the slice of rare values; empty if there is none.
    """

    names: Sequence[str]
    place: Integers
    pooled: str = ""


@dataclass(frozen=True)
class Slice:
    """The figures of one slice at the threshold.

    Attributes:
        name: The value that its rows share.
        rows: Rows with a label.
        positives: Rows of label 1.
        selected: Rows that are predicted to be 1.
        hits: Rows that are both.
        auc: Area under the ROC curve; None if only one class occurs.
        reason: Why it is not judged; empty if it is.
    """

    name: str
    rows: int
    positives: int
    selected: int
    hits: int
    auc: Estimate | None
    reason: str = ""

    @property
    def recall(self) -> Estimate | None:
        """P(predicted 1 | label 1), or None without a positive."""
        return wilson(self.hits, self.positives) if self.positives else None

    @property
    def precision(self) -> Estimate | None:
        """P(label 1 | predicted 1), or None if nothing is predicted."""
        return wilson(self.hits, self.selected) if self.selected else None

    @property
    def selection_rate(self) -> Estimate:
        """P(predicted 1)."""
        return wilson(self.selected, self.rows)


@dataclass(frozen=True)
class Cut:
    """All slices of one column.

    Attributes:
        column: Its name.
        slices: Every slice, judged or not.
        gap: The equal-opportunity gap over the judged slices; None if fewer than two are judged.
        highest: Judged slice with the largest recall.
        lowest: Judged slice with the smallest.
    """

    column: str
    slices: tuple[Slice, ...]
    gap: Gap | None

    @property
    def judged(self) -> list[Slice]:
        """The slices that are judged, in order."""
        return [entry for entry in self.slices if not entry.reason]

    @property
    def highest(self) -> Slice | None:
        """The judged slice with the largest recall, or None without a gap."""
        return self.judged[self.gap.highest] if self.gap else None

    @property
    def lowest(self) -> Slice | None:
        """The judged slice with the smallest recall, or None without a gap."""
        return self.judged[self.gap.lowest] if self.gap else None

    @property
    def summary(self) -> str:
        """How far recall differs, in one sentence."""
        if self.gap is None or self.highest is None or self.lowest is None:
            return "Fewer than two slices have enough positives to be compared."
        size, ends = self.gap.size, f"{self.lowest.name} and {self.highest.name}"
        return f"Recall differs by {size.value:.3f}, 95 % interval {size.interval}, between {ends}."


def group_rows(column: Any, name: str) -> Grouping:
    """Put each row into a slice by a column of Arrow, of shape (rows,).

    Names and truth values give one slice a value; numbers one a value up to :data:`MAX_VALUES`, else
    :data:`BUCKETS` of about equally many rows. Rows without a value form a slice of their own.

    Raises:
        InputError: The column holds neither names nor numbers.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _by_name(column.cast(pa.string()))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _by_number(column)
    raise InputError(
        f"column {name!r} of type {kind} cannot be cut into slices",
        where="evaluation.slices",
        hint="Name a column of names or numbers, such as the hour of a time.",
    )


def _by_name(column: Any) -> Grouping:
    coded = pc.fill_null(column, MISSING).combine_chunks().dictionary_encode()
    values = np.asarray(coded.dictionary.to_pylist(), dtype=object)
    order = np.argsort(values.astype(str), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    place = rank[coded.indices.to_numpy(zero_copy_only=False)]
    return _pool([_short(str(value)) for value in values[order]], place)


def _short(name: str) -> str:
    """Cut a very long value to its beginning, and tell it from others that begin so by its digest."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 10]}… {digest_text(name)[:8]}"


def _pool(names: list[str], place: Integers) -> Grouping:
    """Keep the largest slices, in the order of their names, and put the rest together."""
    if len(names) <= MAX_SLICES:
        return Grouping(names, place)
    rows = np.bincount(place, minlength=len(names))
    kept = np.sort(np.argsort(-rows, kind="stable")[:MAX_SLICES])
    target = np.full(len(names), MAX_SLICES)
    target[kept] = np.arange(MAX_SLICES)
    pooled = f"({len(names) - MAX_SLICES} rarer values)"
    return Grouping([*(names[index] for index in kept), pooled], target[place], pooled)


def _by_number(column: Any) -> Grouping:
    known = pc.invert(pc.is_null(column, nan_is_null=True)).to_numpy()
    # In the column's own type: a large integer has no place in a float64.
    values = column.filter(pa.array(known)).to_numpy()
    distinct = np.unique(values)
    if len(distinct) <= MAX_VALUES:
        names, slot = [str(value).removesuffix(".0") for value in distinct], np.searchsorted(distinct, values)
    else:
        ordered = np.sort(values)
        cuts = np.unique(ordered[[len(ordered) * part // BUCKETS for part in range(1, BUCKETS)]])
        ends = _told_apart([distinct[0], *cuts, distinct[-1]])
        names = [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
        slot = np.searchsorted(cuts, values, side="right")
    place = np.full(len(known), len(names), np.int64)
    place[known] = slot
    return Grouping(names if known.all() else [*names, MISSING], place)


def _told_apart(ends: Sequence[Any]) -> list[str]:
    """Write ascending numbers with as few digits as tell the different ones apart, six at least."""
    texts = ([f"{end:.{digits}g}" for end in ends] for digits in range(6, 17))
    short = (found for found in texts if len(set(found)) == len(set(ends)))
    return next(short, [str(end) for end in ends])


def measure_slices(
    label: Integers, score: Floats, grouping: Grouping, *, threshold: float, min_positives: int
) -> tuple[Slice, ...]:
    """Measure each slice; arrays of shape (rows,).

    Args:
        label: 0 or 1.
        score: In [0, 1].
        grouping: The slice of each row.
        threshold: A score of at least this predicts label 1.
        min_positives: Slices with fewer rows of label 1 are listed with a reason, not judged.
    """
    count = len(grouping.names)
    order = np.argsort(grouping.place, kind="stable")
    ends = np.cumsum(np.bincount(grouping.place, minlength=count))
    members = np.split(order, ends[:-1])
    return tuple(
        _measure(
            name, label[rows], score[rows], threshold, _reason(name, label[rows], grouping, min_positives)
        )
        for name, rows in zip(grouping.names, members, strict=True)
        if len(rows)
    )


def _reason(name: str, label: Integers, grouping: Grouping, min_positives: int) -> str:
    if name == grouping.pooled:
        return "rare values together"
    positives = int(label.sum())
    return f"{positives} of at least {min_positives} positives" if positives < min_positives else ""


def _measure(name: str, label: Integers, score: Floats, threshold: float, reason: str) -> Slice:
    selected = score >= threshold
    positives = int(label.sum())
    return Slice(
        name=name,
        rows=len(label),
        positives=positives,
        selected=int(selected.sum()),
        hits=int((selected & (label == 1)).sum()),
        auc=delong(label, score) if 0 < positives < len(label) else None,
        reason=reason,
    )


def cut_column(
    label: Integers, score: Floats, column: Any, name: str, *, threshold: float, min_positives: int
) -> Cut:
    """Measure how unequally a classifier finds the positives of a column's slices.

    The equal-opportunity gap: the largest minus the smallest P(prediction = 1 | label = 1, slice). Hardt,
    Price and Srebro, NeurIPS 2016. Arguments as for :func:`measure_slices`, ``column`` of Arrow.

    Raises:
        InputError: The column cannot be cut into slices.
    """
    grouping = group_rows(column, name)
    slices = measure_slices(label, score, grouping, threshold=threshold, min_positives=min_positives)
    judged = [entry for entry in slices if not entry.reason]
    if len(judged) < 2:  # noqa: PLR2004
        return Cut(name, slices, None)
    gap = largest_gap([entry.hits for entry in judged], [entry.positives for entry in judged])
    return Cut(name, slices, gap)
