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
    """The slice of each row: the slices' names in order, and the index of each row's, shape (rows,).

    ``pooled`` is the name of the slice of rare values, or empty.
    """

    columns: tuple[str, ...]
    names: Sequence[str]
    place: Integers
    pooled: str = ""
    buckets: bool = False


def group_rows(column: Any, name: str, *, most: int = 50, frozen: Any = None) -> Grouping:
    """Put each row into a slice by a column of Arrow, of shape (rows,).

    Names and truth values give one slice a value; numbers one a value up to :data:`MAX_VALUES`, else
    :data:`BUCKETS` of about equally many rows. Rows without a value form a slice of their own.

    Of more than ``most`` names the rarest share a slice that is listed, not judged. Buckets are bounded by
    the quantiles of ``frozen``, or of the column itself.
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
    pairs = (divmod(index, len(second.names)) for index in code.tolist())
    names = [f"{first.names[i]}, {second.names[j]}" for i, j in pairs]
    return _pool((*first.columns, *second.columns), names, place.astype(np.int64).ravel(), most)


def _by_name(column: Any, name: str, most: int) -> Grouping:
    coded = pc.fill_null(column, MISSING).combine_chunks().dictionary_encode()
    values = np.asarray(coded.dictionary.to_pylist(), dtype=object).astype(str)
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    place = rank[coded.indices.to_numpy(zero_copy_only=False)]
    return _pool((name,), [_shorten(str(value)) for value in values[order]], place, most)


def _shorten(name: str) -> str:
    """Cut a very long value to its beginning, and tell it from others that begin so by its digest."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 10]}… {digest_text(name)[:8]}"


def _pool(columns: tuple[str, ...], names: list[str], place: Integers, most: int) -> Grouping:
    """Keep the largest slices, in the order of their names, and put the rest together."""
    if len(names) <= most:
        return Grouping(columns, names, place)
    rows = np.bincount(place, minlength=len(names))
    kept = np.sort(np.argsort(-rows, kind="stable")[:most])
    target = np.full(len(names), most)
    target[kept] = np.arange(most)
    pooled = f"({len(names) - most} rarer values)"
    return Grouping(columns, [*(names[index] for index in kept), pooled], target[place], pooled)


def _known(column: Any) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = pc.invert(pc.is_null(column, nan_is_null=True)).to_numpy()
    return known


def _by_number(column: Any, name: str, frozen: Any) -> Grouping:
    known = _known(column)
    # In the column's own type: a large integer has no place in a float64.
    values = column.filter(pa.array(known)).to_numpy()
    distinct = np.unique(values)
    if buckets := len(distinct) > MAX_VALUES:
        ordered = np.sort(frozen.filter(pa.array(_known(frozen))).to_numpy())
        cuts = np.unique(ordered[[len(ordered) * part // BUCKETS for part in range(1, BUCKETS)]])
        ends = _distinct_texts([distinct[0], *cuts, distinct[-1]])
        names = [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
        slot = np.searchsorted(cuts, values, side="right")
    else:
        names, slot = [str(value).removesuffix(".0") for value in distinct], np.searchsorted(distinct, values)
    place = np.full(len(known), len(names), np.int64)
    place[known] = slot
    return Grouping((name,), names if known.all() else [*names, MISSING], place, buckets=buckets)


def _distinct_texts(ends: Sequence[Any]) -> list[str]:
    """Write ascending numbers with as few digits as tell the different ones apart, six at least."""
    texts = ([f"{end:.{digits}g}" for end in ends] for digits in range(6, 17))
    short = (found for found in texts if len(set(found)) == len(set(ends)))
    return next(short, [str(end) for end in ends])


MIN_UNITS = 30
"""With fewer rows of any class, intervals are too narrow to rely on (coverage below 90 %), and so they are
with fewer clusters (Cameron, Gelbach and Miller, Review of Economics and Statistics 90, 2008)."""


def smallest_count(kind: Kind, sample: Sample, metric: str, cluster: str | None) -> tuple[int, str]:
    """Return the smallest number of rows or clusters that a metric depends on, and its description."""
    of_class = metric.partition("/")[2]
    found = [(sample.rows, "rows")]
    counted = [(sample.counts, "rows of")]
    if sample.clusters:
        found.append((sample.clusters, f"values of {cluster}"))
        counted.append((sample.counts_in_clusters, f"values of {cluster} with rows of"))
    for counts, what in counted:
        if kind == "binary" or metric.startswith("macro_"):
            rare = "rarer" if kind == "binary" else "rarest"
            found.append((min(counts), f"{what} the {rare} label"))
        elif of_class:
            found.append((counts[sample.class_names.index(of_class)], f"{what} {class_title(of_class)}"))
    return min(found)


def class_title(name: str) -> str:
    """Write the name of a class so that a number is not taken for a count: ``class 2``, ``setosa``."""
    return f"class {name}" if name.isdecimal() else name


def class_too_small(metric: str, entry: Slice, classes: Sequence[str], least: int) -> str:
    """Say why a slice is too small for the metric of one class, or a mean of all; empty if it is not."""
    of_class = metric.partition("/")[2]
    if metric.startswith("macro_") and entry.counts:
        of_class = classes[min(range(len(entry.counts)), key=entry.counts.__getitem__)]
    if not of_class or not entry.counts:
        return ""
    count = entry.counts[classes.index(of_class)]
    return f"{count:,} of at least {least:,} rows of {class_title(of_class)}" if count < least else ""


def count_units(data: EvaluationData, place: Integers, parts: int, rows: Integers | None = None) -> Integers:
    """Return how many clusters, or without clusters how many rows, each part has, shape (parts,).

    ``place`` is the part of each row, shape (rows,); ``rows`` are the indices of those that count.
    """
    of = np.arange(data.rows) if data.clusters is None else data.clusters
    cell = place * data.units + of
    met = np.unique(cell if rows is None else cell[rows]) // data.units
    return np.bincount(met, minlength=parts).astype(np.int64)


def units_by_class(data: EvaluationData) -> tuple[int, ...]:
    """Return how many clusters have rows of each class; empty without clusters, or without classes."""
    if data.clusters is None or not data.classes:
        return ()
    label = data.candidate.predictions.label.astype(np.int64)
    return tuple(count_units(data, label, data.classes).tolist())


def slice_too_small(
    data: EvaluationData, grouping: Grouping, index: int, rows: Integers, counts: Sequence[int]
) -> str:
    """Say why a slice is not judged; empty if it is."""
    section = data.evaluation
    if grouping.names[index] == grouping.pooled:
        return "rare values together"
    if len(rows) < section.min_rows:
        return f"{len(rows):,} of at least {section.min_rows:,} rows"

    def too_few_units(some: Integers, what: str = "") -> str:
        units = MIN_UNITS if data.clusters is None else len(np.unique(data.clusters[some]))
        return (
            f"{units} of at least {MIN_UNITS} values of {section.cluster}{what}" if units < MIN_UNITS else ""
        )

    if reason := too_few_units(rows):
        return reason
    label = data.candidate.predictions.label[rows]
    of_classes = (1, "positives", section.min_positives), (0, "negatives", section.min_negatives)
    for value, what, least in of_classes if data.candidate.predictions.kind == "binary" else ():
        if counts[value] < least:
            return f"{counts[value]:,} of at least {least:,} {what}"
        if reason := too_few_units(rows[label == value], f" with {what}"):
            return reason
    return ""
