"""Which slice each row belongs to: by the values of a column, by buckets of numbers, or by two crossed."""

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

MAX_VALUES = 30
"""A column of numbers with more distinct values is cut into buckets instead."""

BUCKETS = 10
"""Buckets of about equally many rows that such a column is cut into."""

MAX_NAME = 80
"""Characters of a slice's name."""

MISSING = "(no value)"

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Grouping:
    """Which slice each row belongs to.

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
    """Put each row into the slice of both: those that occur, the rarest together.

    Args:
        first: A grouping of one column.
        second: Of another.
        most: Most slices; the rarest pairs share one that is listed, not judged.
    """
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
