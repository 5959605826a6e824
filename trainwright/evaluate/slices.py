"""Assign rows to slices, and check that a slice has enough rows for an interval."""

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
from trainwright.evaluate.evaluation_data import EvaluationData
from trainwright.evaluate.findings import Integers, Kind, Sample, Slice

MAX_VALUES = 30
"""A column of numbers with more distinct values is cut into buckets instead."""

BUCKETS = 10
"""Buckets of about equally many rows that such a column is cut into."""

MAX_NAME = 80
"""Characters of a slice's name."""

MISSING = "(no value)"


@dataclass(frozen=True)
class Grouping:
    """The slice of each row.

    Attributes:
        columns: One name, or two.
        names: Names of the slices, in the order in which they are shown.
        place: Index of each row's slice, shape (rows,).
        pooled: Name of the slice of rare values; empty if there is none.
        edges: Where numbers were cut into buckets, ascending; empty otherwise.
        values: Distinct values that there were.
    """

    columns: tuple[str, ...]
    names: Sequence[str]
    place: Integers
    pooled: str = ""
    edges: tuple[float, ...] = ()
    values: int = 0


def group_rows(column: Any, name: str, *, most: int = 50, frozen: Any = None) -> Grouping:
    """Put each row into a slice by a column of Arrow, of shape (rows,).

    Names and truth values give one slice a value; numbers one a value up to :data:`MAX_VALUES`, else
    :data:`BUCKETS` of about equally many rows. Rows without a value form a slice of their own.

    Args:
        column: The column.
        name: What it is called.
        most: Most slices of names; the rarest values share one that is listed, not judged.
        frozen: Column whose quantiles bound the buckets; the column itself if None.

    Raises:
        InputError: The column holds neither names nor numbers, or no value at all.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if len(column) and column.null_count == len(column):
        raise InputError(f"column {name!r} has no value in any of {len(column):,} rows", where=_WHERE)
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _by_name(column.cast(pa.string()), name, most)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _by_number(column, name, column if frozen is None else frozen)
    raise InputError(
        f"column {name!r} of type {kind} cannot be cut into slices",
        where=_WHERE,
        hint="Name a column of names or numbers, such as the hour of a time.",
    )


_WHERE = "evaluation.slices"


def cross(first: Grouping, second: Grouping, *, most: int = 50) -> Grouping:
    """Put each row into the slice of both: those that occur, the rarest together."""
    code, place = np.unique(first.place * len(second.names) + second.place, return_inverse=True)
    names = [
        f"{first.names[index // len(second.names)]}, {second.names[index % len(second.names)]}"
        for index in code.tolist()
    ]
    columns = (*first.columns, *second.columns)
    return _pool(columns, names, place.astype(np.int64).ravel(), most)


def _by_name(column: Any, name: str, most: int) -> Grouping:
    coded = pc.fill_null(column, MISSING).combine_chunks().dictionary_encode()
    values = np.asarray(coded.dictionary.to_pylist(), dtype=object)
    order = np.argsort(values.astype(str), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    place = rank[coded.indices.to_numpy(zero_copy_only=False)]
    return _pool((name,), [_short(str(value)) for value in values[order]], place, most)


def _short(name: str) -> str:
    """Cut a very long value to its beginning, and tell it from others that begin so by its digest."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 10]}… {digest_text(name)[:8]}"


def _pool(columns: tuple[str, ...], names: list[str], place: Integers, most: int) -> Grouping:
    """Keep the largest slices, in the order of their names, and put the rest together."""
    if len(names) <= most:
        return Grouping(columns, names, place, values=len(names))
    rows = np.bincount(place, minlength=len(names))
    kept = np.sort(np.argsort(-rows, kind="stable")[:most])
    target = np.full(len(names), most)
    target[kept] = np.arange(most)
    pooled = f"({len(names) - most} rarer values)"
    return Grouping(
        columns, [*(names[index] for index in kept), pooled], target[place], pooled, values=len(names)
    )


def _known(column: Any) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = pc.invert(pc.is_null(column, nan_is_null=True)).to_numpy()
    return known


def _by_number(column: Any, name: str, frozen: Any) -> Grouping:
    known = _known(column)
    # In the column's own type: a large integer has no place in a float64.
    values = column.filter(pa.array(known)).to_numpy()
    distinct = np.unique(values)
    edges: tuple[float, ...] = ()
    if len(distinct) <= MAX_VALUES:
        names, slot = [str(value).removesuffix(".0") for value in distinct], np.searchsorted(distinct, values)
    else:
        ordered = np.sort(frozen.filter(pa.array(_known(frozen))).to_numpy())
        cuts = np.unique(ordered[[len(ordered) * part // BUCKETS for part in range(1, BUCKETS)]])
        ends = _told_apart([distinct[0], *cuts, distinct[-1]])
        names = [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
        slot = np.searchsorted(cuts, values, side="right")
        edges = tuple(float(cut) for cut in cuts)
    place = np.full(len(known), len(names), np.int64)
    place[known] = slot
    names = names if known.all() else [*names, MISSING]
    return Grouping((name,), names, place, edges=edges, values=len(distinct))


def _told_apart(ends: Sequence[Any]) -> list[str]:
    """Write ascending numbers with as few digits as tell the different ones apart, six at least."""
    texts = ([f"{end:.{digits}g}" for end in ends] for digits in range(6, 17))
    short = (found for found in texts if len(set(found)) == len(set(ends)))
    return next(short, [str(end) for end in ends])


MIN_UNITS = 30
"""With fewer rows of any class, intervals are too narrow to rely on (coverage below 90 %), and so they are
with fewer clusters (Cameron, Gelbach and Miller, Review of Economics and Statistics 90, 2008)."""


def smallest_count(kind: Kind, sample: Sample, metric: str, cluster: str | None) -> tuple[int, str]:
    """Return how few there are of what a metric is about, and what that is."""
    number = metric.partition("/")[2]
    found = [(sample.rows, "rows")]
    counted = [(sample.counts, "rows of")]
    if sample.clusters:
        found.append((sample.clusters, f"values of {cluster}"))
        counted.append((sample.counts_in_clusters, f"values of {cluster} with rows of"))
    for counts, what in counted:
        if kind == "binary" or metric.startswith("macro_"):
            rare = "rarer" if kind == "binary" else "rarest"
            found.append((min(counts), f"{what} the {rare} label"))
        elif number:
            found.append((counts[int(number)], f"{what} class {number}"))
    return min(found)


def class_too_small(metric: str, entry: Slice, least: int) -> str:
    """Say why a slice is too small for the metric of one class, or a mean of all; empty if it is not."""
    number = metric.partition("/")[2]
    if metric.startswith("macro_") and entry.counts:
        number = str(min(range(len(entry.counts)), key=entry.counts.__getitem__))
    if not number or int(number) >= len(entry.counts):
        return ""
    count = entry.counts[int(number)]
    return f"{count:,} of at least {least:,} rows of class {number}" if count < least else ""


def count_units(
    subject: EvaluationData, place: Integers, parts: int, rows: Integers | None = None
) -> Integers:
    """Return how many clusters each part has, shape (parts,); without clusters how many rows.

    Args:
        subject: The rows.
        place: The part of each, shape (rows,).
        parts: How many there are.
        rows: Indices of those that count; all if None.
    """
    of = np.arange(subject.rows) if subject.clusters is None else subject.clusters
    cell = place * subject.units + of
    met = np.unique(cell if rows is None else cell[rows]) // subject.units
    return np.bincount(met, minlength=parts).astype(np.int64)


def units_by_class(subject: EvaluationData) -> tuple[int, ...]:
    """Return how many clusters have rows of each class; empty without clusters, or without classes."""
    if subject.clusters is None or not subject.classes:
        return ()
    label = subject.candidate.predictions.label.astype(np.int64)
    return tuple(count_units(subject, label, subject.classes).tolist())


def slice_too_small(
    subject: EvaluationData, grouping: Grouping, index: int, rows: Integers, counts: Sequence[int]
) -> str:
    """Say why a slice is not judged; empty if it is."""
    asked = subject.evaluation
    if grouping.names[index] == grouping.pooled:
        return "rare values together"
    if len(rows) < asked.min_rows:
        return f"{len(rows):,} of at least {asked.min_rows:,} rows"
    units = len(rows) if subject.clusters is None else len(np.unique(subject.clusters[rows]))
    if subject.clusters is not None and units < MIN_UNITS:
        return f"{units} of at least {MIN_UNITS} values of {asked.cluster}"
    binary = subject.candidate.predictions.kind == "binary"
    return _binary_class_too_small(subject, rows, counts) if binary else ""


def _binary_class_too_small(subject: EvaluationData, rows: Integers, counts: Sequence[int]) -> str:
    asked, label = subject.evaluation, subject.candidate.predictions.label[rows]
    for value, what, least in ((1, "positives", asked.min_positives), (0, "negatives", asked.min_negatives)):
        if counts[value] < least:
            return f"{counts[value]:,} of at least {least:,} {what}"
        if subject.clusters is None:
            continue
        units = len(np.unique(subject.clusters[rows[label == value]]))
        if units < MIN_UNITS:
            return f"{units} of at least {MIN_UNITS} values of {asked.cluster} with {what}"
    return ""
