"""The reference join: a sample of the rows joined again by Feast itself, to compare the values.

Feast's DuckDB store compares each row with every row of its key. So the sample is split into spans of time,
and each is joined to the reachable part of the history. The columns get names of their own: Feast loses those
that end with ``_y``, and joins by a part of a key of which a service renames another part.
"""

import copy
import math
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from feast import FileSource
from feast.data_format import ParquetFormat
from feast.infra.offline_stores.duckdb import DuckDBOfflineStore
from numpy.typing import NDArray

from trainwright.errors import InputError, InternalError
from trainwright.featurestore import Service
from trainwright.join.history import (
    UTC_US,
    AsOfResult,
    FileHistory,
    History,
    Ints,
    complete,
    distinct_rows,
    microseconds,
)

PAIRS_PER_SPAN = 20_000_000
"""Pairs of rows that DuckDB compares in the overhead of one more join."""

MAX_SPANS = 64

_ROW, _TIME, _EVENT, _CREATED = "trainwright_row", "event_timestamp", "event", "created"
_KEY, _ROWS_KEY, _FEATURE = "key_{}", "rows_key_{}", "feature_{}"


@dataclass(frozen=True)
class ReferenceValues:
    """The view's features of some rows, joined again ``by`` Feast, or by our own search with its result."""

    by: str
    values: pa.Table
    found: AsOfResult | None = None


def joined_again(service: Service, source: History, rows: pa.Table, time: str) -> ReferenceValues:
    """Join some rows by the other implementation: our rows by Feast, those of its engine by our search."""
    if isinstance(source, FileHistory):
        return ReferenceValues("Feast", feast_values(service, source, rows, time))
    own = FileHistory(source.view, among=rows)
    found = own.find(rows, microseconds(rows[time]))
    return ReferenceValues("our own search", own.take(found), found)


def feast_values(service: Service, source: FileHistory, rows: pa.Table, time: str) -> pa.Table:
    """Join one view's features by Feast as of each row's time, once for every distinct key and time.

    Returns:
        The view's features in its order, one row for each of ``rows``, in their order; nulls for a null key.
    """
    keys = list(source.view.keys.values())
    first, number = distinct_rows([rows[name] for name in [*keys, time]])
    distinct = rows.select([*keys, time]).take(pa.array(first))
    place = np.full(distinct.num_rows, -1, dtype=np.int64)
    answers, count = [source.values.slice(0, 0)], 0
    at, of_keys = microseconds(distinct[time]), source.among(distinct)
    usable = np.flatnonzero(complete(distinct.select(keys)))
    pairs = usable.size * int(of_keys.sum()) / max(source.key_count, 1)
    # As many spans as are faster; one without a TTL, since then all of the history is reachable.
    spans = min(max(round(math.sqrt(pairs / PAIRS_PER_SPAN)), 1), MAX_SPANS) if source.max_age else 1
    for span in np.array_split(usable[np.argsort(at[usable], kind="stable")], spans):
        if span.size:
            answers.append(_answer(service, source, distinct.take(pa.array(span)), at[span], of_keys))
            place[span] = np.arange(count, count + span.size)
            count += span.size
    return pa.concat_tables(answers).take(pa.array(place[number], mask=place[number] < 0))


def _answer(
    service: Service, source: FileHistory, rows: pa.Table, at: Ints, of_keys: NDArray[np.bool_]
) -> pa.Table:
    """Join one span by Feast; return the features in the types of the files, one row for each, in order."""
    keys = [_ROWS_KEY.format(place) for place in range(rows.num_columns - 1)]
    frame = rows.rename_columns([*keys, _TIME]).set_column(len(keys), _TIME, pa.array(at).cast(UTC_US))
    frame = frame.append_column(_ROW, pa.array(np.arange(rows.num_rows))).to_pandas()
    store, view = service.feast, source.view
    names = [_FEATURE.format(place) for place in range(len(view.features))]
    try:
        with tempfile.TemporaryDirectory(prefix="trainwright-join-") as folder, warnings.catch_warnings():
            # ibis calls DuckDB by an old name.
            warnings.filterwarnings("ignore", "fetch_arrow_table", DeprecationWarning)
            answer = DuckDBOfflineStore.get_historical_features(
                config=store.config,
                feature_views=[_reachable(source, at, of_keys, Path(folder) / "history.parquet")],
                feature_refs=[f"{view.name}:{name}" for name in names],
                entity_df=frame,
                registry=store.registry,
                project=store.project,
                filter_by_created_timestamp=True,  # without it backfilled values leak
            ).to_arrow()
        schema = pa.schema([*source.values.schema, answer.schema.field(_ROW)])
        answer = answer.select([*names, _ROW]).rename_columns(schema.names).cast(schema).sort_by(_ROW)
    except Exception as error:
        raise InputError(f"Feast could not join view {view.name!r}: {error}", where=view.source) from error
    if not np.array_equal(answer[_ROW].to_numpy(), np.arange(rows.num_rows)):
        raise InternalError(f"view {view.name!r}: expected {rows.num_rows:,} rows, got {answer.num_rows:,}")
    return answer.drop_columns([_ROW])


def _reachable(source: FileHistory, at: Ints, of_keys: NDArray[np.bool_], path: Path) -> Any:
    """Return Feast's view with only those rows of the history that the times can reach.

    They are one file, whatever the source is: Feast itself cannot read a folder.
    """
    within = of_keys & (source.event <= at.max())
    if source.max_age:
        within &= source.event >= at.min() - source.max_age
    history = source.table.filter(pa.array(within))
    columns = {_KEY.format(place): history[name] for place, name in enumerate(source.view.keys)}
    columns |= {_FEATURE.format(place): history[name] for place, name in enumerate(source.view.features)}
    columns[_EVENT] = history[source.view.time]
    if source.view.created:
        columns[_CREATED] = history[source.view.created]
    pq.write_table(pa.table(columns), path, compression="none")
    view = copy.copy(source.view.feast)
    view.batch_source = FileSource(
        path=str(path),
        timestamp_field=_EVENT,
        created_timestamp_column=_CREATED if source.view.created else "",
        file_format=ParquetFormat(),
    )
    view.projection = copy.copy(view.projection)
    places = range(len(source.view.keys))
    view.projection.join_key_map = {_KEY.format(place): _ROWS_KEY.format(place) for place in places}
    return view
