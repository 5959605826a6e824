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

from trainwright import tables
from trainwright.errors import InternalError
from trainwright.featurestore import SETTINGS, Service, View, offline_file, offline_files, spark_session
from trainwright.join.history import (
    NOTHING,
    UTC_US,
    AsOfResult,
    History,
    Ints,
    complete,
    distinct_rows,
    microseconds,
)

_ROW, _TIME = "trainwright_row", "event_timestamp"
_EVENT, _CREATED = "trainwright_event", "trainwright_created"
_KEY_AND_TIME = 2


class EngineHistory(History):
    """One view as an engine joins it: ``values`` are those of the last answer, in the types of the files."""

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
