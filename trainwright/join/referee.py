"""The referee: Feast's own point-in-time join, asked for some of the rows to be judged by its answer.

Feast's DuckDB store compares each asked row with every row of its key. So what is asked is cut into spans of
time, and each is asked of the part of the history that it can reach.
"""

import copy
import math
import tempfile
import warnings
from collections.abc import Sequence
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
from trainwright.featurestore import Service, View
from trainwright.join.asof import Ints
from trainwright.join.source import UTC_US, Source, microseconds

PAIRS_PER_SPAN = 20_000_000
"""Pairs of rows that DuckDB compares in the time that one more question takes."""

MAX_SPANS = 64

_ROW, _TIME = "trainwright_row", "event_timestamp"


def feast_values(
    service: Service, source: Source, rows: pa.Table, time: str, *, known_only: bool = True
) -> pa.Table:
    """Ask Feast for one view's features as of each row's time, once for every distinct key and time.

    Args:
        service: The service the view belongs to.
        source: The view's history, of which only the rows with these keys are shown to Feast.
        rows: Any rows; those with a null key get nulls.
        time: Column of ``rows`` with the time.
        known_only: Leave out values created after the row's time. Without it backfilled values leak.

    Returns:
        The view's features in its order, one row for each of ``rows``, in their order.

    Raises:
        InputError: Feast refuses the join.
        InternalError: Feast gave more or fewer rows than it was asked for.
    """
    keys = list(source.view.keys.values())
    first, number = _distinct([rows[name] for name in [*keys, time]])
    asked = rows.select([*keys, time]).take(pa.array(first))
    complete = np.flatnonzero(np.all([asked[name].is_valid().to_numpy() for name in keys], axis=0))
    place = np.full(asked.num_rows, -1, dtype=np.int64)
    answers, count = [source.values.slice(0, 0)], 0
    at = microseconds(asked[time])
    of_keys = source.among(asked)
    for span in _spans(complete, at, source, of_keys):
        part = asked.take(pa.array(span))
        answers.append(_answer(service, source, part, at[span], of_keys, known_only=known_only))
        place[span] = np.arange(count, count + span.size)
        count += span.size
    return pa.concat_tables(answers).take(pa.array(place[number], mask=place[number] < 0))


def _distinct(columns: Sequence[pa.ChunkedArray]) -> tuple[Ints, Ints]:
    """Number the distinct combinations of values.

    Returns:
        The first row of each combination, and the combination's number for each row.
    """
    number = np.zeros(len(columns[0]), dtype=np.int64)
    first = number[:1]
    for column in columns:
        codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
        pair = number * (len(column) + 1) + codes.to_numpy().astype(np.int64)
        _, first, number = np.unique(pair, return_index=True, return_inverse=True)
    return first.astype(np.int64), number.astype(np.int64)


def _spans(complete: Ints, at: Ints, source: Source, of_keys: NDArray[np.bool_]) -> list[Ints]:
    """Cut the asked rows into spans of time: as many as pay; one if any age of a value is accepted."""
    pairs = complete.size * int(of_keys.sum()) / max(source.key_count, 1)
    count = min(max(round(math.sqrt(pairs / PAIRS_PER_SPAN)), 1), MAX_SPANS) if source.max_age else 1
    ordered = complete[np.argsort(at[complete], kind="stable")]
    return [span for span in np.array_split(ordered, count) if span.size]


def _answer(
    service: Service,
    source: Source,
    asked: pa.Table,
    at: Ints,
    of_keys: NDArray[np.bool_],
    *,
    known_only: bool,
) -> pa.Table:
    """Ask Feast about one span, and check that it gives one row for each that was asked for, in order."""
    frame = asked.select(asked.column_names[:-1]).append_column(_TIME, pa.array(at).cast(UTC_US)).to_pandas()
    frame[_ROW] = np.arange(len(frame))
    with tempfile.TemporaryDirectory(prefix="trainwright-join-") as folder:
        view = _reachable(source, at, of_keys, Path(folder) / "history.parquet")
        answer = _ask(service, source.view, view, frame, known_only=known_only).sort_by(_ROW)
    if not np.array_equal(answer[_ROW].to_numpy(), np.arange(asked.num_rows)):
        raise InternalError(
            f"view {source.view.name!r}: asked for {asked.num_rows:,} rows, got {answer.num_rows:,}"
        )
    return answer.select(source.values.column_names).cast(source.values.schema)


def _reachable(source: Source, at: Ints, of_keys: NDArray[np.bool_], path: Path) -> Any:
    """Give Feast's view of only those rows of the history that some of the times can reach.

    They are one file whatever the source is: Feast itself cannot read a folder.
    """
    within = of_keys & (source.event <= at.max())
    if source.max_age:
        within &= source.event >= at.min() - source.max_age
    pq.write_table(source.table.filter(pa.array(within)), path, compression="none")
    view = copy.copy(source.view.feast)
    view.batch_source = FileSource(
        path=str(path),
        timestamp_field=source.view.time,
        created_timestamp_column=source.view.created,
        file_format=ParquetFormat(),
    )
    return view


def _ask(service: Service, view: View, reachable: Any, frame: Any, *, known_only: bool) -> pa.Table:
    """Ask Feast's offline store about a frame of rows."""
    store = service.feast
    try:
        with warnings.catch_warnings():
            # ibis calls DuckDB by an old name.
            warnings.filterwarnings("ignore", "fetch_arrow_table", DeprecationWarning)
            return DuckDBOfflineStore.get_historical_features(
                config=store.config,
                feature_views=[reachable],
                feature_refs=[f"{view.name}:{name}" for name in view.features],
                entity_df=frame,
                registry=store.registry,
                project=store.project,
                filter_by_created_timestamp=known_only,
            ).to_arrow()
    except Exception as error:
        raise InputError(f"Feast could not join view {view.name!r}: {error}", where=view.source) from error
