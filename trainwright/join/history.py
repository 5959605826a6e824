"""The history of a feature view: its rows, and a search for the newest that was known at a time."""

import copy
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import tables
from trainwright.errors import InputError, InternalError
from trainwright.featurestore import SETTINGS, Service, View, offline_file, offline_files, spark_session
from trainwright.tables import plain

Ints = NDArray[np.int64]

NOTHING = -1
"""Position of no row."""

_UNITS = (1, 1_000, 1_000_000, 60_000_000)
"""Microseconds, milliseconds, seconds, minutes: the usual units of times."""


@dataclass(frozen=True)
class AsOfResult:
    """Result of a point-in-time lookup; arrays of shape (lookups,).

    ``position``: row of the history, or :data:`NOTHING`. ``expired``: a row was known, but the newest one is
    older than the limit. ``held_back``: a newer row was created only after the lookup's time.
    """

    position: Ints
    expired: NDArray[np.bool_]
    held_back: NDArray[np.bool_]


class PointInTimeIndex:
    """Rows ordered for point-in-time lookups by key: codes from 0 and below 2**31, times in microseconds."""

    def __init__(self, key: Ints, event: Ints, created: Ints) -> None:
        self._line = _SortKey(key, event)
        place = self._line.of(key, event)
        order = np.argsort(place)
        self._places = place[order]
        if (self._places[1:] == self._places[:-1]).any():
            order = np.lexsort((created, place))
        self.order: Ints = order.astype(np.int64, copy=False)
        self._key, self._event, self._created = key[self.order], event[self.order], created[self.order]

    def ties(self) -> tuple[Ints, Ints]:
        """Return pairs of rows with the same key, event and creation time: neither is newer."""
        same = (self._places[1:] == self._places[:-1]) & (self._created[1:] == self._created[:-1])
        first = np.flatnonzero(same)
        return self.order[first], self.order[first + 1]

    def newest(self, key: Ints, at: Ints, *, max_age: int) -> AsOfResult:
        """Find, for each key and time, the row with the latest event, then creation, that was known by then.

        Feast's definition: event <= at, created <= at, event >= at - max_age; ties go to the latest created.
        An unknown key is any other code; a ``max_age`` of 0 is any age.
        """
        if not self._key.size:
            nothing = np.zeros(at.size, dtype=bool)
            return AsOfResult(np.full(at.size, NOTHING, dtype=np.int64), nothing, nothing)
        latest = _count_up_to(self._places, self._line.of(key, at)) - 1
        latest = np.where((latest >= 0) & (self._key[latest] == key), latest, NOTHING)
        place = self._known(latest, at)
        known = place != NOTHING
        expired = known & (max_age > 0) & (self._event[place] < at - max_age)
        position = np.where(known & ~expired, self.order[place], NOTHING)
        return AsOfResult(position.astype(np.int64, copy=False), expired, held_back=place != latest)

    @cached_property
    def _earlier(self) -> Ints:
        return _earlier_created(self._key, self._created)

    def _known(self, place: Ints, at: Ints) -> Ints:
        """Step back from rows that were created after ``at``, over all others that were, too."""
        place = place.copy()
        late = np.flatnonzero((place != NOTHING) & (self._created[place] > at))
        while late.size:
            place[late] = self._earlier[place[late]]
            late = late[(place[late] != NOTHING) & (self._created[place[late]] > at[late])]
        return place


class _SortKey:
    """Maps a key and a time to one number that orders by both, for one sort and one search.

    Keys and times often fit into 64 bits together, or do when the times are whole seconds; where they do not,
    the ranks of the times replace them.
    """

    def __init__(self, key: Ints, event: Ints) -> None:
        self._first, last = (int(event.min()), int(event.max())) if event.size else (0, 0)
        self._keys = int(key.max(initial=-1)) + 1
        self._times: Ints | None = None
        for self._unit in _UNITS:
            self._width = (last - self._first) // self._unit + 2
            fits = self._keys * self._width <= np.iinfo(np.int64).max
            if fits and (self._unit == 1 or not ((event - self._first) % self._unit).any()):
                return
        self._times = np.unique(event)
        self._width = self._times.size + 1

    def of(self, key: Ints, time: Ints) -> Ints:
        """Return the numbers of keys and times; of an unknown key, any number."""
        place: Ints = np.clip(key, -1, self._keys - 1) * self._width
        if self._times is not None:
            return place + _count_up_to(self._times, time)
        # 0 is before the first time; rounding down keeps the order of each time and those before it.
        step = np.maximum(time - self._first, -self._unit) // self._unit + 1
        place += np.minimum(step, self._width - 1)
        return place


def _count_up_to(values: Ints, asked: Ints) -> Ints:
    """Return how many of some ordered values are at most each of ``asked``."""
    # An ordered search reads memory once: that saves more than the sort costs.
    order = np.argsort(asked)
    found = np.empty(asked.size, dtype=np.int64)
    found[order] = np.searchsorted(values, asked[order], side="right")
    return found


def _earlier_created(key: Ints, created: Ints) -> Ints:
    """Return for each row the nearest one before it, of the same key, that was created earlier.

    Everything between was created no earlier than the row itself, so a lookup that comes too early for the
    row can skip it: a backfill of a million rows at once costs one step.
    """
    before = np.arange(-1, key.size - 1, dtype=np.int64)
    before[np.flatnonzero(np.diff(key, prepend=-1))] = NOTHING
    # Where creation follows the events the answer is the row before; the few others are walked.
    late = np.flatnonzero((before != NOTHING) & (created[before] >= created))
    while late.size:
        before[late] = before[before[late]]
        late = late[(before[late] != NOTHING) & (created[before[late]] >= created[late])]
    return before


UNKNOWN = -1
"""Code of a key that the history never had, or that is null in any of its columns."""

_DENSE = 2**24
"""Whole numbers that span less than this are their own codes: no table has to be looked up."""


class KeyCodes:
    """Numbers for the combinations of key values in a history's ``keys``, which have no nulls.

    They are at least 0 and below 2**31. ``own`` is the code of each row of the history; shape (rows,).
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray]) -> None:
        self._columns = [_Column(column) for column in keys]
        self._known: list[Ints] = []
        own = self._columns[0].codes(keys[0])
        for column, values in zip(self._columns[1:], keys[1:], strict=True):
            # Numbered anew after every column: the next product then fits into 64 bits.
            known, own = np.unique(own * column.size + column.codes(values), return_inverse=True)
            self._known.append(known)
        self.own: Ints = own.astype(np.int64, copy=False)

    def of(self, keys: Sequence[pa.ChunkedArray]) -> Ints:
        """Return the code of each row's key, given in the history's types; shape (rows,)."""
        total = self._columns[0].codes(keys[0])
        for known, column, values in zip(self._known, self._columns[1:], keys[1:], strict=True):
            code = column.codes(values)
            if not known.size:
                return np.full_like(total, UNKNOWN)
            pair = total * column.size + code
            place = np.minimum(np.searchsorted(known, pair), known.size - 1)
            there = (total >= 0) & (code >= 0) & (known[place] == pair)
            total = np.where(there, place, UNKNOWN)
        return total


class _Column:
    """Numbers below ``size`` for the values of one key column."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._low: int | None = None
        if pa.types.is_signed_integer(column.type) and len(column):
            numbers = column.to_numpy()
            low, high = int(numbers.min()), int(numbers.max())
            if high - low < _DENSE and low > np.iinfo(np.int64).min:
                self._low, self.size = low, high - low + 1
                return
        self._values = pc.unique(column)
        self.size = max(len(self._values), 1)

    def codes(self, column: pa.ChunkedArray) -> Ints:
        """Return the number of each value; -1 for a null, and for a value that is not among them."""
        if self._low is None:
            code = pc.fill_null(pc.index_in(column, value_set=self._values), UNKNOWN)
            return code.to_numpy().astype(np.int64)  # type: ignore[no-any-return]
        low = self._low
        numbers: Ints = pc.fill_null(column.cast(pa.int64()), low - 1).to_numpy()
        return np.where((numbers >= low) & (numbers < low + self.size), numbers - low, UNKNOWN)


UTC_US = pa.timestamp("us", tz="UTC")

BATCH_ROWS = 65_536
"""Rows of a file read at a time, where only some keys are needed."""

THREADS = min(os.cpu_count() or 1, 8)
"""Columns gathered in parallel."""


class History:
    """The values and times of one view's rows, as a join found them.

    ``values`` has the features in the view's order, ``event`` and ``created`` their times in microseconds
    (``created`` is ``event`` if unknown). ``unusable`` counts the rows of the files without a key or a
    creation time, which no lookup finds.
    """

    view: View
    values: pa.Table
    event: Ints
    created: Ints
    unusable: int = 0

    @property
    def max_age(self) -> int:
        """Oldest accepted value, relative to the row, in microseconds; 0 is any age."""
        return int(self.view.definition["ttl_us"])

    def find(self, rows: pa.Table, at: Ints) -> AsOfResult:
        """Find the newest known row for each of some rows, by key, at the times ``at`` in microseconds."""
        raise NotImplementedError

    def take(self, found: AsOfResult) -> pa.Table:
        """Return the features of a result, one row for each lookup; nulls where nothing was found."""
        position = pa.array(found.position, mask=found.position == NOTHING)
        with ThreadPoolExecutor(THREADS) as pool:
            columns = list(pool.map(lambda column: column.take(position), self.values.columns))
        return pa.table(columns, schema=self.values.schema)

    def ages(self, found: AsOfResult, at: Ints) -> Ints:
        """Return the ages of a result, at the rows' times, in microseconds."""
        matched = found.position != NOTHING
        ages: Ints = at[matched] - self.event[found.position[matched]]
        return ages

    def wrong(self, found: AsOfResult, rows: pa.Table, at: Ints) -> NDArray[np.bool_]:  # noqa: ARG002
        """Tell which rows got a value of a later time, created later, or older than is accepted."""
        result: NDArray[np.bool_] = found.position != NOTHING
        place, moment = found.position[result], at[result]
        wrong = (self.event[place] > moment) | (self.created[place] > moment)
        if self.max_age:
            wrong |= self.event[place] < moment - self.max_age
        result[result] = wrong
        return result

    def keys(self, rows: pa.Table, own: pa.Schema) -> list[pa.ChunkedArray]:
        """Return the rows' keys in the types ``own`` of the files; null where these cannot hold the value."""
        pairs = self.view.keys.items()
        return [as_files_type(rows[mine], own.field(name).type, self.view, mine) for name, mine in pairs]


class FileHistory(History):
    """One view's history, read from its files; only rows with a key of the rows ``among``, if passed.

    ``table`` has keys, times and features of each usable row: those with a key and all times.
    """

    def __init__(self, view: View, among: pa.Table | None = None) -> None:
        self.view = view
        table = _read(view, among)
        if nulls := table[view.time].null_count:
            name = view.column(view.time)
            raise InputError(
                f"event timestamp column {name!r} of view {view.name!r} has {nulls:,} nulls",
                where=view.source,
                hint="Every row needs its time: remove such rows from the files.",
            )
        needed = [*view.keys, view.created] if view.created else list(view.keys)
        if any(table[name].null_count for name in needed):
            self.unusable = table.num_rows
            table = table.filter(pa.array(complete(table.select(needed))))
            self.unusable -= table.num_rows
        self.table = table.combine_chunks()
        self.values = self.table.select(list(view.features))
        self.event = microseconds(self.table[view.time])
        self.created = microseconds(self.table[view.created]) if view.created else self.event
        self._codes = KeyCodes([self.table[name] for name in view.keys])
        self._index = PointInTimeIndex(self._codes.own, self.event, self.created)
        self._reject_ties()

    @property
    def key_count(self) -> int:
        """Number of distinct keys."""
        return int(np.unique(self._codes.own).size)

    def among(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Tell which rows of the history have a key of some rows."""
        codes = self._codes.of(self.keys(rows, self.table.schema))
        return np.isin(self._codes.own, codes[codes >= 0])

    def find(self, rows: pa.Table, at: Ints) -> AsOfResult:
        """Find the newest known row for each of some rows; see :meth:`History.find`."""
        return self._index.newest(
            self._codes.of(self.keys(rows, self.table.schema)), at, max_age=self.max_age
        )

    def wrong(self, found: AsOfResult, rows: pa.Table, at: Ints) -> NDArray[np.bool_]:
        """Tell also which rows got a value of another key, from the files' own columns and not the index."""
        wrong: NDArray[np.bool_] = super().wrong(found, rows, at)
        matched = found.position != NOTHING
        place = pa.array(found.position[matched])
        for own, key in zip(self.view.keys, self.keys(rows, self.table.schema), strict=True):
            same = pc.equal(self.table[own].take(place), key.filter(pa.array(matched)))
            wrong[matched] |= ~pc.fill_null(same, fill_value=False).to_numpy()
        return wrong

    def _reject_ties(self) -> None:
        first, second = self._index.ties()
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
    """Return the rows' column ``name`` in its type in the files; null where that cannot hold the value."""
    if pa.types.is_floating(kind):
        raise InputError(
            f"view {view.name!r} joins by {name!r}, {kind} in its files, which is not exact",
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
    narrow = column.cast(kind, safe=False)  # the files cannot have a key that does not fit
    fits = pc.equal(narrow.cast(column.type, safe=False), column)
    # The cast there and back turns -1 into 2^64 - 1 and into -1 again: compare the signs.
    signs = [pc.less(numbers, pa.scalar(0, numbers.type)) for numbers in (narrow, column)]
    fits = pc.and_(fits, pc.equal(*signs))
    return pc.if_else(fits, narrow, pa.scalar(None, kind))


def _read(view: View, among: pa.Table | None) -> pa.Table:
    names = (*view.features, *view.keys, view.time, view.created)
    columns = {name: view.column(name) for name in names if name}
    read, parts = list(dict.fromkeys(columns.values())), []

    def renamed(table: pa.Table, uri: str) -> pa.Table:
        return plain(pa.table({name: table[column] for name, column in columns.items()}), uri)

    for uri in offline_files(view):
        with offline_file(view, uri) as stream:
            if among is None:
                parts.append(renamed(pq.read_table(stream, columns=read), uri))
                continue
            for batch in pq.ParquetFile(stream).iter_batches(BATCH_ROWS, columns=read):
                piece = renamed(pa.Table.from_batches([batch]), uri)
                # Part by part of the key: a few rows too many do no harm.
                for own, mine in view.keys.items():
                    values = as_files_type(among[mine], piece[own].type, view, mine).drop_null().unique()
                    piece = piece.filter(pc.is_in(piece[own], value_set=values))
                parts.append(piece)
    return pa.concat_tables(parts)


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


def distinct_rows(columns: Sequence[pa.ChunkedArray]) -> tuple[Ints, Ints]:
    """Return the first row of each distinct combination of values, and each row's combination number."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    first = number[:1]
    for column in columns:
        codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
        pair = number * (len(column) + 1) + codes.to_numpy().astype(np.int64)
        _, first, number = np.unique(pair, return_index=True, return_inverse=True)
    return first.astype(np.int64), number.astype(np.int64)


def complete(rows: pa.Table) -> NDArray[np.bool_]:
    """Tell which rows have no null."""
    return np.all([column.is_valid().to_numpy() for column in rows.columns], axis=0)  # type: ignore[no-any-return]


_ROW, _TIME = "trainwright_row", "event_timestamp"
_EVENT, _CREATED = "trainwright_event", "trainwright_created"
_KEY_AND_TIME = 2


class EngineHistory(History):
    """One view, joined by Feast's offline store on its engine: for a history past one machine.

    ``values`` are those of the last answer, in the types of the files. The answer is verified. It must also
    return the times of the rows that it took, so that every value is checked against the time, creation and
    TTL of its row; it must return one row for each; and some rows are joined again here, from the files (see
    :mod:`.reference`).
    """

    def __init__(self, view: View, service: Service) -> None:
        self.view, self._service = view, service
        with offline_file(view, offline_files(view)[0]) as stream:
            found = pq.read_schema(stream).empty_table()
        columns = {name: found[view.column(name)] for name in (*view.features, *view.keys)}
        table = tables.plain(pa.table(columns))
        self.values = table.select(list(view.features))
        self._keys = table.select(list(view.keys)).schema
        self.event = self.created = np.empty(0, dtype=np.int64)

    def find(self, rows: pa.Table, at: Ints) -> AsOfResult:
        """Join some rows by the engine. It does not report what was past its TTL or created too late."""
        columns = [*self.keys(rows, self._keys), pa.array(at).cast(UTC_US)]
        requested = pa.table(columns, names=[*self.view.keys.values(), _TIME])
        first, number = distinct_rows(requested.columns)
        requested = requested.take(pa.array(first))
        place = np.full(requested.num_rows, NOTHING, dtype=np.int64)
        times = [_EVENT, _CREATED] if self.view.created else [_EVENT]
        schema = pa.schema([*self.values.schema, *(pa.field(name, UTC_US) for name in times)])
        answers, count = [schema.empty_table()], 0
        for part in _distinguishable(requested, np.flatnonzero(complete(requested))):
            answer = self._ask(requested.take(pa.array(part)), times)
            answers.append(tables.plain(answer.select(schema.names)).cast(schema))
            place[part] = np.arange(count, count + part.size)
            count += part.size
        answer = pa.concat_tables(answers)
        self.values = answer.select(self.values.column_names)
        self.event = microseconds(answer[_EVENT].fill_null(0))
        self.created = microseconds(answer[_CREATED].fill_null(0)) if self.view.created else self.event
        known = np.append(answer[_EVENT].is_valid().to_numpy(), False)  # NOTHING is the last one
        position = np.where(known[place[number]], place[number], NOTHING)
        nothing = np.zeros(at.size, dtype=bool)
        return AsOfResult(position, nothing, nothing)

    def _ask(self, rows: pa.Table, times: list[str]) -> pa.Table:
        """Join rows by the engine, and check that it returns one for each."""
        store, view = self._service.feast, self.view
        frame = rows.to_pandas()
        frame[_ROW] = np.arange(len(frame))
        where = f"{SETTINGS}: offline_store"
        failed = f"Feast's {self._service.store} store could not join view {view.name!r}"
        with spark_session(store.config.offline_store.spark_conf, failed, where):
            job = store.provider.offline_store.get_historical_features(
                config=store.config,
                feature_views=[self._with_times()],
                feature_refs=[f"{view.name}:{name}" for name in (*view.features, *times)],
                entity_df=frame,
                registry=store.registry,
                project=store.project,
                filter_by_created_timestamp=bool(view.created),
            )
            # Its to_arrow goes through pandas, where 2^53 + 1 is 2^53.
            answer = job.to_spark_df().toArrow().sort_by(_ROW)
        if not np.array_equal(answer[_ROW].to_numpy(), np.arange(len(frame))):
            raise InternalError(
                f"view {view.name!r}: Feast's {self._service.store} store returned "
                f"{answer.num_rows:,} rows, expected {len(frame):,}"
            )
        return answer

    def _with_times(self) -> Any:
        """Return Feast's view with the times of its rows as two more features."""
        view = self.view
        feast, source = copy.copy(view.feast), copy.copy(view.feast.batch_source)
        source.spark_options = copy.copy(source.spark_options)
        source.spark_options.path = view.source
        source.timestamp_field = view.column(view.time)
        source.created_timestamp_column = view.column(view.created) if view.created else ""
        names = (*view.features, *view.keys)
        source.field_mapping = {old: new for old, new in view.renamed.items() if new in names}
        source.field_mapping[source.timestamp_field] = _EVENT
        if view.created:
            source.field_mapping[source.created_timestamp_column] = _CREATED
        feast.batch_source = source
        feast.projection = copy.copy(feast.projection)
        feast.projection.join_key_map = dict(view.keys)
        return feast


def _distinguishable(rows: pa.Table, places: Ints) -> list[Ints]:
    """Split the rows at some places into parts within which Feast's Spark store can distinguish all of them.

    It identifies a row by its keys as one text, where 1 beside 23 equals 12 beside 3.
    """
    if not places.size:
        return []
    texts = [rows[name].cast(pa.string()).take(pa.array(places)) for name in rows.column_names]
    seen: dict[str, int] = {}
    turn = np.zeros(places.size, dtype=np.int64)
    if len(texts) > _KEY_AND_TIME:
        for place, parts in enumerate(zip(*(text.to_pylist() for text in texts), strict=True)):
            name = "".join(parts)
            turn[place] = seen.get(name, 0)
            seen[name] = int(turn[place]) + 1
    return [places[turn == number] for number in range(int(turn.max()) + 1)]
