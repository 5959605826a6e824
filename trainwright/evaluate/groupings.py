"""Assign rows to slices: by name, by number, by bucket, or by two columns crossed."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.documents import digest_text
from trainwright.errors import InputError
from trainwright.evaluate.findings import Integers
from trainwright.significance import ValueDistribution

MAX_VALUES = 30
"""A column of numbers with more distinct values is cut into buckets instead."""

BUCKETS = 10
"""Buckets of about equally many rows that such a column is cut into."""

MAX_NAME = 80
"""Characters of a slice's name."""

MISSING = "(no value)"

_WHERE = "evaluation.slices"


@dataclass(frozen=True)
class ColumnSummary:
    """The values of a column that slices depend on, of some rows.

    Attributes:
        rows: Rows, those without a value among them.
        known: Rows with a value.
        names: Rows by name; empty of numbers.
        numbers: ValueDistribution of numbers; None of names.
    """

    rows: int
    known: int
    names: Mapping[str, int]
    numbers: ValueDistribution | None

    @classmethod
    def of(cls, column: Any, name: str, most: int) -> "ColumnSummary":
        """Summarize a column of Arrow, of shape (rows,): of names, truth values or numbers."""
        column = _plain(column)
        kind, known = column.type, _known(column)
        if _is_name(kind):
            counted = column.cast(pa.string()).drop_null().value_counts()
            names = dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))
            return cls(len(column), int(known.sum()), names, None)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            # In the column's own type: a large integer has no place in a float64.
            values = column.filter(pa.array(known)).to_numpy()
            return cls(len(column), len(values), {}, ValueDistribution.of(values, most))
        raise InputError(
            f"column {name!r} of type {kind} cannot be cut into slices",
            where=_WHERE,
            hint="Name a column of names or numbers, such as the hour of a time.",
        )

    @classmethod
    def merged(cls, parts: Sequence["ColumnSummary"]) -> "ColumnSummary":
        """Return the summary of the rows of all parts."""
        names: dict[str, int] = {}
        for part in parts:
            for name, rows in part.names.items():
                names[name] = names.get(name, 0) + rows
        numbers = [part.numbers for part in parts if part.numbers is not None]
        return cls(
            sum(part.rows for part in parts),
            sum(part.known for part in parts),
            names,
            ValueDistribution.merged(numbers) if numbers else None,
        )


ArrowColumns = Mapping[str, Any]


@dataclass(frozen=True)
class Grouping:
    """Slices by one or two columns: their names in order, and the assignment of rows to them.

    Attributes:
        columns: Names of the columns.
        names: Of the slices.
        assign: Returns the slice of each row of some columns, from 0, shape (rows,).
        pooled: Name of the slice of rare values, or empty.
        buckets: True if numbers were cut into buckets.
    """

    columns: tuple[str, ...]
    names: Sequence[str]
    assign: Callable[[ArrowColumns], Integers]
    pooled: str = ""
    buckets: bool = False


def group_rows(column: ColumnSummary, name: str, *, most: int = 50) -> Grouping:
    """Return the slices of a column.

    Names and truth values give one slice a value; numbers one a value up to :data:`MAX_VALUES`, else
    :data:`BUCKETS` of about equally many rows. Rows without a value form a slice of their own.

    Of more than ``most`` names the rarest share a slice that is listed, not judged.
    """
    if column.rows and not column.known:
        raise InputError(f"column {name!r} has no value in any of {column.rows:,} rows", where=_WHERE)
    if column.numbers is None:
        return _by_name(column, name, most)
    return _by_number(column, column.numbers, name)


def cross(first: Grouping, second: Grouping, rows: Integers, *, most: int = 50) -> Grouping:
    """Return the slices of two columns: the pairs that occur, the rarest together.

    ``rows`` are those of every pair, shape (slices of the first, slices of the second).
    """
    pairs = np.argwhere(rows > 0)
    names = [f"{first.names[i]}, {second.names[j]}" for i, j in pairs.tolist()]
    target, kept, pooled = _pool(names, rows[rows > 0], most)
    targets = np.zeros(rows.shape, np.int64)
    targets[rows > 0] = target
    return Grouping(
        (*first.columns, *second.columns), kept, partial(_assign_pairs, first, second, targets), pooled
    )


def _assign_pairs(first: Grouping, second: Grouping, targets: Integers, columns: ArrowColumns) -> Integers:
    found: Integers = targets[first.assign(columns), second.assign(columns)]
    return found


def _plain(column: Any) -> Any:
    """Return a column with the values of its dictionary, in one chunk."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_name(kind: Any) -> bool:
    return any(
        is_kind(kind) for is_kind in (pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    )


def _by_name(column: ColumnSummary, name: str, most: int) -> Grouping:
    counts = dict(column.names)
    if column.rows > column.known:
        counts[MISSING] = counts.get(MISSING, 0) + column.rows - column.known
    values = sorted(counts)
    target, kept, pooled = _pool(
        [_shorten(value) for value in values], np.array([counts[value] for value in values]), most
    )
    return Grouping(
        (name,), kept, partial(_assign_names, name, pa.array(values, pa.string()), target), pooled
    )


def _assign_names(name: str, values: Any, target: Integers, columns: ArrowColumns) -> Integers:
    column = pc.fill_null(_plain(columns[name]).cast(pa.string()), MISSING)
    found: Integers = target[pc.index_in(column, value_set=values).to_numpy(zero_copy_only=False)]
    return found


def _shorten(name: str) -> str:
    """Cut a very long value to its beginning, and tell it from others that begin so by its digest."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 10]}… {digest_text(name)[:8]}"


def _pool(names: list[str], rows: Integers, most: int) -> tuple[Integers, list[str], str]:
    """Keep the largest slices, in the order of their names, and put the rest together.

    Return the new place of each slice, the names that are left, and that of the rest or nothing.
    """
    if len(names) <= most:
        return np.arange(len(names)), names, ""
    kept = np.sort(np.argsort(-rows, kind="stable")[:most])
    target = np.full(len(names), most)
    target[kept] = np.arange(most)
    pooled = f"({len(names) - most} rarer values)"
    return target, [*(names[index] for index in kept), pooled], pooled


def _known(column: Any) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = pc.invert(pc.is_null(column, nan_is_null=True)).to_numpy(zero_copy_only=False)
    return known


def _by_number(column: ColumnSummary, numbers: ValueDistribution, name: str) -> Grouping:
    distinct: NDArray[Any] = numbers.values
    if buckets := len(distinct) > MAX_VALUES:
        at = np.array([numbers.rows * part // BUCKETS for part in range(1, BUCKETS)])
        cuts = np.unique(numbers.ordered(at))
        ends = _distinct_texts([distinct[0], *cuts, distinct[-1]])
        names = [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
        assign = partial(_assign_numbers, name, cuts, "right", len(names))
    else:
        names = [str(value).removesuffix(".0") for value in distinct]
        assign = partial(_assign_numbers, name, distinct, "left", len(names))
    names = names if column.known == column.rows else [*names, MISSING]
    return Grouping((name,), names, assign, buckets=buckets)


def _assign_numbers(name: str, ends: Any, side: Any, missing: int, columns: ArrowColumns) -> Integers:
    column = _plain(columns[name])
    known = _known(column)
    place = np.full(len(known), missing, np.int64)
    place[known] = np.searchsorted(ends, column.filter(pa.array(known)).to_numpy(), side=side)
    return place


def _distinct_texts(ends: Sequence[Any]) -> list[str]:
    """Write ascending numbers with as few digits as tell the different ones apart, six at least."""
    texts = ([f"{end:.{digits}g}" for end in ends] for digits in range(6, 17))
    short = (found for found in texts if len(set(found)) == len(set(ends)))
    return next(short, [str(end) for end in ends])
