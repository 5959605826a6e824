"""The referee: Feast's own point-in-time join, asked for some of the rows to be judged by its answer.

Feast's DuckDB store compares each asked row with every row of its key. So what is asked is cut into spans of
time, and each is asked of the part of the history that it can reach. Columns have names of their own there:
Feast loses those that end with ``_y``, and joins by a part of a key of which a service renames another part.
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
from trainwright.join.asof import Found, Ints
from trainwright.join.distinct import complete_rows, distinct_rows
from trainwright.join.engine import EngineSource
from trainwright.join.source import UTC_US, Source, microseconds

PAIRS_PER_SPAN = 20_000_000
"""Pairs of rows that DuckDB compares in the time that one more question takes."""

MAX_SPANS = 64

_ROW, _TIME = "trainwright_row", "event_timestamp"
_KEY, _ASKED, _FEATURE = "key_{}", "asked_{}", "feature_{}"
_EVENT, _CREATED = "event", "created"


@dataclass(frozen=True)
class Again:
    """What some rows got when they were joined again, another way.

    Attributes:
        by: Who joined them.
        values: The view's features.
        found: What our own search says of them; None if Feast joined them.
    """

    by: str
    values: pa.Table
    found: Found | None = None


def joined_again(service: Service, source: Source | EngineSource, rows: pa.Table, time: str) -> Again:
    """Join some rows the other way: ours by Feast, and those that Feast's engine joined by our own search.

    Raises:
        InputError: Feast refuses the join.
    """
    if isinstance(source, Source):
        return Again("Feast", feast_values(service, source, rows, time))
    own = Source(source.view, among=rows)
    found = own.find(rows, microseconds(rows[time]))
    return Again("our own search", own.take(found), found)


def feast_values(
    service: Service,
    source: Source,
    rows: pa.Table,
    time: str,
    *,
    pairs_per_span: int = PAIRS_PER_SPAN,
) -> pa.Table:
    """Ask Feast for one view's features as of each row's time, once for every distinct key and time.

    Args:
        service: The service the view belongs to.
        source: The view's history, of which only the rows with these keys are shown to Feast.
        rows: Any rows; those with a null key get nulls.
        time: Column of ``rows`` with the time.
        pairs_per_span: Pairs of rows that are worth one more question.

    Returns:
        The view's features in its order, one row for each of ``rows``, in their order.

    Raises:
        InputError: Feast refuses the join.
        InternalError: Feast gave more or fewer rows than it was asked for.
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
    complete: Ints, at: Ints, source: Source, of_keys: NDArray[np.bool_], pairs_per_span: int
) -> list[Ints]:
    """Cut the asked rows into spans of time: as many as pay; one if any age of a value is accepted."""
    pairs = complete.size * int(of_keys.sum()) / max(source.key_count, 1)
    count = min(max(round(math.sqrt(pairs / pairs_per_span)), 1), MAX_SPANS) if source.max_age else 1
    ordered = complete[np.argsort(at[complete], kind="stable")]
    return [span for span in np.array_split(ordered, count) if span.size]


def _answer(
    service: Service, source: Source, asked: pa.Table, at: Ints, of_keys: NDArray[np.bool_]
) -> pa.Table:
    """Ask Feast about one span, and check that it gives one row for each that was asked for, in order."""
    keys = [_ASKED.format(place) for place in range(asked.num_columns - 1)]
    frame = asked.rename_columns([*keys, _TIME]).set_column(len(keys), _TIME, pa.array(at).cast(UTC_US))
    frame = frame.to_pandas()
    frame[_ROW] = np.arange(len(frame))
    with tempfile.TemporaryDirectory(prefix="trainwright-join-") as folder:
        view = _reachable(source, at, of_keys, Path(folder) / "history.parquet")
        answer = _ask(service, source, view, frame).sort_by(_ROW)
    if not np.array_equal(answer[_ROW].to_numpy(), np.arange(asked.num_rows)):
        raise InternalError(
            f"view {source.view.name!r}: asked for {asked.num_rows:,} rows, got {answer.num_rows:,}"
        )
    return answer.drop_columns([_ROW])


def _reachable(source: Source, at: Ints, of_keys: NDArray[np.bool_], path: Path) -> Any:
    """Give Feast's view of only those rows of the history that some of the times can reach.

    They are one file whatever the source is: Feast itself cannot read a folder.
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


def _ask(service: Service, source: Source, reachable: Any, frame: Any) -> pa.Table:
    """Ask Feast's offline store about a frame of rows; gives the features in the types of the files."""
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
