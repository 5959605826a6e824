"""One view's rows, joined by Feast's offline store on its engine: for a history past one machine.

The engine's answer is verified. It must also return the times of the rows that it took, so that every value
is checked against the time, creation and TTL of its row; it must return one row for each; and some rows are
joined again here, from the files (see :mod:`.reference`).
"""

import copy
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainwright import tables
from trainwright.errors import DependencyError, InternalError
from trainwright.featurestore import Service, View, offline_file, offline_files
from trainwright.join.history import (
    NOTHING,
    UTC_US,
    AsOfResult,
    Ints,
    as_files_type,
    complete_rows,
    distinct_rows,
    microseconds,
)

_ROW, _TIME = "trainwright_row", "event_timestamp"
_EVENT, _CREATED = "trainwright_event", "trainwright_created"
_KEY_AND_TIME = 2


class EngineHistory:
    """One view as an engine joins it.

    Attributes:
        view: The view.
        values: No row of the features, in the types of the files and in the view's order.
        unusable: 0: an engine does not report how many rows of the files it cannot use.
    """

    unusable = 0

    def __init__(self, view: View, service: Service) -> None:
        self.view, self._service = view, service
        with offline_file(view, offline_files(view)[0]) as stream:
            found = pq.read_schema(stream).empty_table()
        columns = {name: found[view.column(name)] for name in (*view.features, *view.keys)}
        table = tables.plain(pa.table(columns))
        self.values = table.select(list(view.features))
        self._keys = table.select(list(view.keys)).schema
        self._answer = self.values
        self._event = self._created = np.empty(0, dtype=np.int64)

    @property
    def max_age(self) -> int:
        """Oldest accepted value, relative to the row, in microseconds; 0 is any age."""
        return int(self.view.definition["ttl_us"])

    def find(self, rows: pa.Table, at: Ints) -> AsOfResult:
        """Join some rows by the engine; the answer stays until the next call.

        Returns:
            Positions within its answer. It does not report what was past its TTL or created too late.

        Raises:
            InputError: A key column has another type here than in the view's files.
            DependencyError: The engine failed.
            InternalError: It returned more or fewer rows than requested.
        """
        pairs = self.view.keys.items()
        keys = [as_files_type(rows[mine], self._keys.field(own).type, self.view, mine) for own, mine in pairs]
        asked = pa.table([*keys, pa.array(at).cast(UTC_US)], names=[*self.view.keys.values(), _TIME])
        first, number = distinct_rows(asked.columns)
        asked = asked.take(pa.array(first))
        place = np.full(asked.num_rows, NOTHING, dtype=np.int64)
        answers, count = [], 0
        for part in _distinguishable(asked, complete_rows(asked)):
            answers.append(self._asked(asked.take(pa.array(part))))
            place[part] = np.arange(count, count + part.size)
            count += part.size
        answer = pa.concat_tables([*answers, self._nothing()])
        known = answer[_EVENT].is_valid().to_numpy()
        self._answer = answer.select(self.values.column_names)
        self._event = microseconds(answer[_EVENT].fill_null(0))
        self._created = microseconds(answer[_CREATED].fill_null(0)) if self.view.created else self._event
        position = place[number]
        matched = np.zeros(at.size, dtype=bool)
        matched[position != NOTHING] = known[position[position != NOTHING]]
        nothing = np.zeros(at.size, dtype=bool)
        return AsOfResult(np.where(matched, position, NOTHING), nothing, nothing)

    def take(self, found: AsOfResult) -> pa.Table:
        """Return the features of the last result, one row for each row; nulls where nothing was found."""
        return self._answer.take(pa.array(found.position, mask=found.position == NOTHING))

    def ages(self, found: AsOfResult, at: Ints) -> Ints:
        """Return the ages of the last result, at the rows' times, in microseconds."""
        matched = found.position != NOTHING
        ages: Ints = at[matched] - self._event[found.position[matched]]
        return ages

    def wrong(self, found: AsOfResult, rows: pa.Table, at: Ints) -> NDArray[np.bool_]:  # noqa: ARG002
        """Tell which rows got a value of a later time, created later, or older than is accepted."""
        matched = found.position != NOTHING
        place, asked = found.position[matched], at[matched]
        event = self._event[place]
        wrong = (event > asked) | (self._created[place] > asked)
        if self.max_age:
            wrong |= event < asked - self.max_age
        result = np.zeros(at.size, dtype=bool)
        result[matched] = wrong
        return result

    def _nothing(self) -> pa.Table:
        return self._typed(pa.table({name: [] for name in (*self.view.features, _EVENT, _CREATED)}))

    def _typed(self, answer: pa.Table) -> pa.Table:
        times = [pa.field(name, UTC_US) for name in (_EVENT, _CREATED)]
        schema = pa.schema([*self.values.schema, *times])
        if not self.view.created:
            schema = schema.remove(len(schema) - 1)
        return tables.plain(answer.select(schema.names)).cast(schema)

    def _asked(self, asked: pa.Table) -> pa.Table:
        """Join rows by the engine, and check that it returns one for each."""
        frame = asked.to_pandas()
        frame[_ROW] = np.arange(len(frame))
        answer = self._ask(frame).sort_by(_ROW)
        if not np.array_equal(answer[_ROW].to_numpy(), np.arange(len(frame))):
            raise InternalError(
                f"view {self.view.name!r}: Feast's {self._service.store} store returned "
                f"{answer.num_rows:,} rows, expected {len(frame):,}"
            )
        return self._typed(answer)

    def _ask(self, frame: Any) -> pa.Table:
        store, view = self._service.feast, self.view
        more = [_EVENT, _CREATED] if view.created else [_EVENT]
        try:
            job = store.provider.offline_store.get_historical_features(
                config=store.config,
                feature_views=[self._timed()],
                feature_refs=[f"{view.name}:{name}" for name in (*view.features, *more)],
                entity_df=frame,
                registry=store.registry,
                project=store.project,
                filter_by_created_timestamp=bool(view.created),
            )
            return job.to_spark_df().toArrow()  # its to_arrow goes through pandas, where 2^53 + 1 is 2^53
        except Exception as error:
            raise DependencyError(
                f"Feast's {self._service.store} store could not join view {view.name!r}: "
                f"{type(error).__name__}: {error}",
                where=view.source,
                hint="Nothing was written: run again when the engine answers.",
            ) from error

    def _timed(self) -> Any:
        """Return Feast's view with the times of its rows as two more features."""
        view = self.view
        feast, source = copy.copy(view.feast), copy.copy(view.feast.batch_source)
        source.spark_options = copy.copy(source.spark_options)
        source.spark_options.path = view.source
        source.timestamp_field = view.column(view.time)
        source.created_timestamp_column = view.column(view.created) if view.created else ""
        kept = (*view.features, *view.keys)
        source.field_mapping = {old: new for old, new in view.renamed.items() if new in kept}
        source.field_mapping[source.timestamp_field] = _EVENT
        if view.created:
            source.field_mapping[source.created_timestamp_column] = _CREATED
        feast.batch_source = source
        feast.projection = copy.copy(feast.projection)
        feast.projection.join_key_map = dict(view.keys)
        return feast


def _distinguishable(asked: pa.Table, complete: Ints) -> list[Ints]:
    """Split rows into parts within which Feast's Spark store can distinguish all rows.

    It identifies a row by its keys as one text, where 1 beside 23 equals 12 beside 3.
    """
    if not complete.size:
        return []
    texts = [asked[name].cast(pa.string()).take(pa.array(complete)) for name in asked.column_names]
    seen: dict[str, int] = {}
    turn = np.zeros(complete.size, dtype=np.int64)
    if len(texts) > _KEY_AND_TIME:
        for place, parts in enumerate(zip(*(text.to_pylist() for text in texts), strict=True)):
            name = "".join(parts)
            turn[place] = seen.get(name, 0)
            seen[name] = int(turn[place]) + 1
    return [complete[turn == number] for number in range(int(turn.max()) + 1)]
