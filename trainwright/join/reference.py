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
from trainwright.join.engine import EngineHistory
from trainwright.join.history import (
    UTC_US,
    AsOfResult,
    FileHistory,
    Ints,
    complete_rows,
    distinct_rows,
    microseconds,
)

PAIRS_PER_SPAN = 20_000_000
"""Pairs of rows that DuckDB compares in the overhead of one more join."""

MAX_SPANS = 64

_ROW, _TIME = "trainwright_row", "event_timestamp"
_KEY, _ASKED, _FEATURE = "key_{}", "asked_{}", "feature_{}"
_EVENT, _CREATED = "event", "created"


@dataclass(frozen=True)
class ReferenceValues:
    """Values of some rows that were joined again, by the other implementation.

    Attributes:
        by: The implementation.
        values: The view's features.
        found: Result of our own search; None if Feast joined them.
    """

    by: str
    values: pa.Table
    found: AsOfResult | None = None


def joined_again(
    service: Service, source: FileHistory | EngineHistory, rows: pa.Table, time: str
) -> ReferenceValues:
    """Join some rows by the other implementation: ours by Feast, those of Feast's engine by our own search.

    Raises:
        InputError: Feast rejects the join.
    """
    if isinstance(source, FileHistory):
        return ReferenceValues("Feast", feast_values(service, source, rows, time))
    own = FileHistory(source.view, among=rows)
    found = own.find(rows, microseconds(rows[time]))
    return ReferenceValues("our own search", own.take(found), found)


def feast_values(
    service: Service,
    source: FileHistory,
    rows: pa.Table,
    time: str,
    *,
    pairs_per_span: int = PAIRS_PER_SPAN,
) -> pa.Table:
    """Join one view's features by Feast as of each row's time, once for every distinct key and time.

    Args:
        service: The service of the view.
        source: The view's history; Feast gets only the rows with these keys.
        rows: Any rows; those with a null key get nulls.
        time: Column of ``rows`` with the time.
        pairs_per_span: Pairs of rows that are worth one more join.

    Returns:
        The view's features in its order, one row for each of ``rows``, in their order.

    Raises:
        InputError: Feast rejects the join.
        InternalError: Feast returned more or fewer rows than requested.
    """
    keys = list(source.view.keys.values())
    first, number = distinct_rows([rows[name] for name in [*keys, time]])
    asked = rows.select([*keys, time]).take(pa.array(first))
    complete = complete_rows(asked.select(keys))
    place = np.full(asked.num_rows, -1, dtype=np.int64)
    answers, count = [source.values.slice(0, 0)], 0
    at = microseconds(asked[time])
    of_keys = source.among(asked)
    for span in _spans(complete, at, source, of_keys, pairs_per_span):
        part = asked.take(pa.array(span))
        answers.append(_answer(service, source, part, at[span], of_keys))
        place[span] = np.arange(count, count + span.size)
        count += span.size
    return pa.concat_tables(answers).take(pa.array(place[number], mask=place[number] < 0))


def _spans(
    complete: Ints, at: Ints, source: FileHistory, of_keys: NDArray[np.bool_], pairs_per_span: int
) -> list[Ints]:
    """Split the rows into spans of time: as many as are faster; one without a TTL."""
    pairs = complete.size * int(of_keys.sum()) / max(source.key_count, 1)
    count = min(max(round(math.sqrt(pairs / pairs_per_span)), 1), MAX_SPANS) if source.max_age else 1
    ordered = complete[np.argsort(at[complete], kind="stable")]
    return [span for span in np.array_split(ordered, count) if span.size]


def _answer(
    service: Service, source: FileHistory, asked: pa.Table, at: Ints, of_keys: NDArray[np.bool_]
) -> pa.Table:
    """Join one span by Feast, and check that it returns one row for each, in order."""
    keys = [_ASKED.format(place) for place in range(asked.num_columns - 1)]
    frame = asked.rename_columns([*keys, _TIME]).set_column(len(keys), _TIME, pa.array(at).cast(UTC_US))
    frame = frame.to_pandas()
    frame[_ROW] = np.arange(len(frame))
    with tempfile.TemporaryDirectory(prefix="trainwright-join-") as folder:
        view = _reachable(source, at, of_keys, Path(folder) / "history.parquet")
        answer = _ask(service, source, view, frame).sort_by(_ROW)
    if not np.array_equal(answer[_ROW].to_numpy(), np.arange(asked.num_rows)):
        raise InternalError(
            f"view {source.view.name!r}: expected {asked.num_rows:,} rows, got {answer.num_rows:,}"
        )
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
    view.projection.join_key_map = {_KEY.format(place): _ASKED.format(place) for place in places}
    return view


def _ask(service: Service, source: FileHistory, reachable: Any, frame: Any) -> pa.Table:
    """Join a frame of rows by Feast's offline store; return the features in the types of the files."""
    store, view = service.feast, source.view
    names = [_FEATURE.format(place) for place in range(len(view.features))]
    try:
        with warnings.catch_warnings():
            # ibis calls DuckDB by an old name.
            warnings.filterwarnings("ignore", "fetch_arrow_table", DeprecationWarning)
            answer = DuckDBOfflineStore.get_historical_features(
                config=store.config,
                feature_views=[reachable],
                feature_refs=[f"{view.name}:{name}" for name in names],
                entity_df=frame,
                registry=store.registry,
                project=store.project,
                filter_by_created_timestamp=True,  # without it backfilled values leak
            ).to_arrow()
        schema = pa.schema([*source.values.schema, answer.schema.field(_ROW)])
        return answer.select([*names, _ROW]).rename_columns(schema.names).cast(schema)
    except Exception as error:
        raise InputError(f"Feast could not join view {view.name!r}: {error}", where=view.source) from error
