"""The history behind one feature view, read from its files and searched without Feast."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.featurestore import View, offline_file, offline_files
from trainwright.join.asof import Found, History, Ints
from trainwright.tables import plain

UTC_US = pa.timestamp("us", tz="UTC")


class Source:
    """One view's rows: their values, and which of them was the newest known at a time.

    Attributes:
        view: The view.
        table: Keys, times and features of each usable row of the files: those with a key and all times.
        values: The features, in the view's order; one row for each of ``table``.
        event: Time that each row's values describe, in microseconds; shape (rows,).

    Raises:
        InputError: Two rows of the same key, time and creation have different values: which of them a join
            would take is chance.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        table = _read(view)
        times = [name for name in (view.time, view.created) if name]
        self.table = table.filter(_all_valid([table[name] for name in [*view.keys, *times]]))
        self.values = self.table.select(list(view.features))
        self.event = microseconds(self.table[view.time])
        self._codes = _Codes([self.table[name] for name in view.keys])
        created = microseconds(self.table[view.created]) if view.created else self.event
        self._history = History(self._codes.own, self.event, created)
        self._refuse_ties()

    @property
    def key_count(self) -> int:
        """Keys that have any row."""
        return self._codes.count

    def find(self, rows: pa.Table, at: Ints) -> Found:
        """Find the newest known row for each of some rows, by key, at the times ``at`` in microseconds.

        Raises:
            InputError: A key column has another type here than in the view's files.
        """
        keys = [rows[name] for name in self.view.keys.values()]
        codes = self._codes.of(keys, self.view)
        return self._history.newest(codes, at, max_age=int(self.view.definition["ttl_us"]))

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


class _Codes:
    """Numbers for the combinations of key values that a history has."""

    def __init__(self, keys: Sequence[pa.ChunkedArray]) -> None:
        self._values = [pc.unique(column) for column in keys]
        combined = self._combined(keys)
        self._known, own = np.unique(combined, return_inverse=True)
        self.own: Ints = own.astype(np.int64)
        self.count = self._known.size

    def of(self, keys: Sequence[pa.ChunkedArray], view: View) -> Ints:
        """Return the code of each row's key, or -1 for a key that the history never had, or a null."""
        cast = [
            _as_type(column, values.type, view, name)
            for column, values, name in zip(keys, self._values, view.keys.values(), strict=True)
        ]
        if not self._known.size:
            return np.full(len(keys[0]), -1, dtype=np.int64)
        combined = self._combined(cast)
        place = np.minimum(np.searchsorted(self._known, combined), self._known.size - 1)
        return np.where((self._known[place] == combined) & (combined >= 0), place, -1).astype(np.int64)

    def _combined(self, keys: Sequence[pa.ChunkedArray]) -> Ints:
        total: Ints = np.zeros(len(keys[0]), dtype=np.int64)
        for column, values in zip(keys, self._values, strict=True):
            code = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy().astype(np.int64)
            total = np.where((code < 0) | (total < 0), -1, total * max(len(values), 1) + code)
        return total


def _as_type(column: pa.ChunkedArray, kind: pa.DataType, view: View, name: str) -> pa.ChunkedArray:
    both_integers = pa.types.is_integer(column.type) and pa.types.is_integer(kind)
    if column.type != kind and not both_integers:
        raise InputError(
            f"view {view.name!r} joins by {name!r}, {column.type} in the rows but {kind} in its files",
            where=view.source,
        )
    if column.type == kind:
        return column
    narrow = column.cast(kind, safe=False)  # a number that does not fit is a key that the files do not have
    fits = pc.equal(narrow.cast(column.type, safe=False), column)
    return pc.if_else(fits, narrow, pa.scalar(None, kind))


def _read(view: View) -> pa.Table:
    renamed = {new: old for old, new in view.renamed.items()}
    columns = {name: renamed.get(name, name) for name in view.features}
    columns |= {name: name for name in (*view.keys, view.time, view.created) if name}
    parts = []
    for uri in offline_files(view):
        with offline_file(view, uri) as stream:
            parts.append(pq.read_table(stream, columns=list(dict.fromkeys(columns.values()))))
    return plain(_rename(pa.concat_tables(parts), columns), view.source)


def _rename(table: pa.Table, columns: Mapping[str, str]) -> pa.Table:
    return pa.table({name: table[column] for name, column in columns.items()})


def _all_valid(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    valid = np.all([column.is_valid().to_numpy() for column in columns], axis=0)
    return pa.array(valid)


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
        unlike: NDArray[np.bool_] = np.array([left != right for left, right in pairs], dtype=bool)
        return one_null | unlike
    unequal = pc.not_equal(expected, found)
    if pa.types.is_floating(expected.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(expected), pc.is_nan(found)))
    differ: NDArray[np.bool_] = pc.fill_null(unequal, fill_value=False).to_numpy(zero_copy_only=False)
    return one_null | differ
