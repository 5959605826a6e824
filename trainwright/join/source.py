"""The history behind one feature view, read from its files and searched without Feast."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.featurestore import View, offline_file, offline_files
from trainwright.join.asof import NOTHING, Found, History, Ints
from trainwright.join.codes import Codes
from trainwright.tables import plain

UTC_US = pa.timestamp("us", tz="UTC")

BATCH_ROWS = 65_536
"""Rows of a file read at a time, where only some of them are wanted."""

THREADS = min(os.cpu_count() or 1, 8)
"""Columns gathered at once."""


class Source:
    """One view's rows: their values, and which of them was the newest known at a time.

    Attributes:
        view: The view.
        table: Keys, times and features of each usable row of the files: those with a key and all times.
        values: The features, in the view's order; one row for each of ``table``.
        event: Time that each row's values describe, in microseconds; shape (rows,).
        created: Time from which on they were known; ``event`` if nobody recorded it.
        unusable: Rows of the files that no row can get: without a key, or without the time of their creation.

    Args:
        view: The view.
        among: Only read the rows of the files with a key that is among the keys of these rows; all if None.

    Raises:
        InputError: A row has no event time; or two rows of the same key, time and creation have different
            values: which of them a join would take is chance.
    """

    def __init__(self, view: View, among: pa.Table | None = None) -> None:
        self.view = view
        table = _read(view, among)
        _require_times(view, table)
        needed = [*view.keys, view.created] if view.created else list(view.keys)
        self.table = _usable(table, needed).combine_chunks()
        self.unusable = table.num_rows - self.table.num_rows
        self.values = self.table.select(list(view.features))
        self.event = microseconds(self.table[view.time])
        self.created = microseconds(self.table[view.created]) if view.created else self.event
        self._codes = Codes([self.table[name] for name in view.keys])
        self._history = History(self._codes.own, self.event, self.created)
        self._refuse_ties()

    @property
    def key_count(self) -> int:
        """Keys that have any row."""
        return int(np.unique(self._codes.own).size)

    def among(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Tell which rows of the history have a key that is among the keys of some rows."""
        asked = self._codes.of(self.keys(rows))
        return np.isin(self._codes.own, asked[asked >= 0])

    @property
    def max_age(self) -> int:
        """Oldest accepted value, relative to the row, in microseconds; 0 is any age."""
        return int(self.view.definition["ttl_us"])

    def find(self, rows: pa.Table, at: Ints) -> Found:
        """Find the newest known row for each of some rows, by key, at the times ``at`` in microseconds.

        Raises:
            InputError: A key column has another type here than in the view's files.
        """
        return self._history.newest(self._codes.of(self.keys(rows)), at, max_age=self.max_age)

    def keys(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """Return the rows' keys in the types of the files; null where they could not hold the value.

        Raises:
            InputError: A key column has another type here than in the view's files.
        """
        pairs = self.view.keys.items()
        return [as_files_type(rows[mine], self.table[own].type, self.view, mine) for own, mine in pairs]

    def take(self, found: Found) -> pa.Table:
        """Return the features of what was found, one row for each lookup; nulls where nothing was."""
        position = pa.array(found.position, mask=found.position == NOTHING)
        with ThreadPoolExecutor(THREADS) as pool:
            columns = list(pool.map(lambda column: column.take(position), self.values.columns))
        return pa.table(columns, schema=self.values.schema)

    def ages(self, found: Found, at: Ints) -> Ints:
        """Return the ages of what was found, at the rows' times, in microseconds."""
        matched = found.position != NOTHING
        ages: Ints = at[matched] - self.event[found.position[matched]]
        return ages

    def wrong(self, found: Found, rows: pa.Table, at: Ints) -> NDArray[np.bool_]:
        """Tell, from the files' own columns, which rows got a value that they must not have.

        That is one of another key, of a later time, created later, or older than is accepted. Nothing that
        the search was made from is asked again.
        """
        matched = found.position != NOTHING
        place = found.position[matched]
        event = self.event[place]
        wrong = (event > at[matched]) | (self.created[place] > at[matched])
        if self.max_age:
            wrong |= event < at[matched] - self.max_age
        for own, key in zip(self.view.keys, self.keys(rows), strict=True):
            same = pc.equal(self.table[own].take(pa.array(place)), key.filter(pa.array(matched)))
            wrong |= ~pc.fill_null(same, fill_value=False).to_numpy()
        result = np.zeros(at.size, dtype=bool)
        result[matched] = wrong
        return result

    def _refuse_ties(self) -> None:
        first, second = self._history.ties()
        if not first.size:
            return
        differ = differing_rows(self.values.take(pa.array(first)), self.values.take(pa.array(second)))
        if not differ.any():
            return
        example = self.table.slice(int(first[differ][0]), 1)
        shown = ", ".join(f"{name}={example[name][0].as_py()}" for name in [*self.view.keys, self.view.time])
        raise InputError(
            f"view {self.view.name!r} fans out: {int(differ.sum()):,} pairs of its rows have the same key, "
            f"time and creation but other values, such as {shown}",
            where=self.view.source,
            hint="Keep one of them, or give them different created timestamps.",
        )


def as_files_type(column: pa.ChunkedArray, kind: pa.DataType, view: View, name: str) -> pa.ChunkedArray:
    """Return a key column of the rows in its type in the files; null where that cannot hold the value.

    Args:
        column: The rows' column.
        kind: Its type in the files.
        view: The view that joins by it, for the error.
        name: Its name in the rows.

    Raises:
        InputError: The types cannot be compared.
    """
    if pa.types.is_floating(kind):
        raise InputError(
            f"view {view.name!r} joins by {name!r}, {kind} in its files: no two such numbers are surely one",
            where=view.source,
            hint="Write keys as integers or strings; in pandas, integers beside nulls are floats.",
        )
    both_integers = pa.types.is_integer(column.type) and pa.types.is_integer(kind)
    if column.type != kind and not both_integers:
        raise InputError(
            f"view {view.name!r} joins by {name!r}, {column.type} in the rows but {kind} in its files",
            where=view.source,
            hint="Write the key with the same type in both.",
        )
    if column.type == kind:
        return column
    narrow = column.cast(kind, safe=False)  # a number that does not fit is a key that the files do not have
    fits = pc.equal(narrow.cast(column.type, safe=False), column)
    # The way there and back turns -1 into 2^64 - 1 and into -1 again: its sign tells.
    signs = [pc.less(numbers, pa.scalar(0, numbers.type)) for numbers in (narrow, column)]
    fits = pc.and_(fits, pc.equal(*signs))
    return pc.if_else(fits, narrow, pa.scalar(None, kind))


def _read(view: View, among: pa.Table | None) -> pa.Table:
    names = (*view.features, *view.keys, view.time, view.created)
    columns = {name: view.column(name) for name in names if name}
    parts = []
    for uri in offline_files(view):
        with offline_file(view, uri) as stream:
            read = list(dict.fromkeys(columns.values()))
            if among is None:
                parts.append(plain(_rename(pq.read_table(stream, columns=read), columns), uri))
                continue
            file = pq.ParquetFile(stream)
            for batch in file.iter_batches(BATCH_ROWS, columns=read):
                piece = plain(_rename(pa.Table.from_batches([batch]), columns), uri)
                parts.append(piece.filter(_with_key_among(piece, view, among)))
    return pa.concat_tables(parts)


def _with_key_among(piece: pa.Table, view: View, among: pa.Table) -> pa.ChunkedArray:
    """Tell which rows have, part by part, a key that some rows have; a few too many are no harm."""
    found = pa.chunked_array([pa.array(np.ones(piece.num_rows, dtype=bool))])
    for own, mine in view.keys.items():
        wanted = as_files_type(among[mine], piece[own].type, view, mine).drop_null().unique()
        found = pc.and_(found, pc.is_in(piece[own], value_set=wanted))
    return found


def _rename(table: pa.Table, columns: Mapping[str, str]) -> pa.Table:
    return pa.table({name: table[column] for name, column in columns.items()})


def _require_times(view: View, table: pa.Table) -> None:
    """Refuse rows that do not say when they were true."""
    if nulls := table[view.time].null_count:
        raise InputError(
            f"event timestamp column {view.column(view.time)!r} of view {view.name!r} has {nulls:,} nulls",
            where=view.source,
            hint="Every row needs its time: leave such rows out of the files.",
        )


def _usable(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Leave out rows with a null in any of some columns."""
    gaps = [table[name] for name in names if table[name].null_count]
    if not gaps:
        return table
    return table.filter(pa.array(np.all([column.is_valid().to_numpy() for column in gaps], axis=0)))


def microseconds(time: pa.ChunkedArray) -> Ints:
    """Return timestamps as microseconds since 1970 in UTC; one without a zone is UTC, as Feast takes it."""
    kind = pa.timestamp("us") if time.type.tz is None else UTC_US
    values: Ints = time.cast(kind).cast(pa.int64()).to_numpy()
    return values


def differing_rows(expected: pa.Table, found: pa.Table) -> NDArray[np.bool_]:
    """Tell which rows of two tables of the same columns differ; null equals null and NaN equals NaN."""
    differ = np.zeros(expected.num_rows, dtype=bool)
    for name in expected.column_names:
        differ |= _differing(expected[name].combine_chunks(), found[name].combine_chunks())
    return differ


def _differing(expected: pa.Array, found: pa.Array) -> NDArray[np.bool_]:
    one_null: NDArray[np.bool_] = pc.xor(expected.is_null(), found.is_null()).to_numpy(zero_copy_only=False)
    if pa.types.is_nested(expected.type):
        pairs = zip(expected.to_pylist(), found.to_pylist(), strict=True)
        # NaN within a list is unlike itself; as text it is not.
        differ = [left != right and repr(left) != repr(right) for left, right in pairs]
        unlike: NDArray[np.bool_] = np.array(differ, dtype=bool)
        return one_null | unlike
    unequal = pc.not_equal(expected, found)
    if pa.types.is_floating(expected.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(expected), pc.is_nan(found)))
    other: NDArray[np.bool_] = pc.fill_null(unequal, fill_value=False).to_numpy(zero_copy_only=False)
    return one_null | other
