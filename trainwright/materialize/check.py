"""Checks of the online store by Feast's own reader: of earlier rows before a run, of its rows after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import SourceFile
from trainwright.errors import DependencyError, InputError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.encoding import NULL_TIME, feast_values, microseconds
from trainwright.materialize.latest import open_parquet, time_span
from trainwright.materialize.watermark import TimeWindow, format_time

READ_KEYS = 200
"""Keys read from the store at a time."""

SAMPLED_GROUPS, SAMPLED_KEYS = 3, 20
"""Row groups of earlier rows that keys are taken from, and keys taken from each, at most."""

_US = 1_000_000


@dataclass(frozen=True)
class StoreCheck:
    """Result of the check after a run: compared keys, and how many of them are newer or wrong in the store.

    A row from after the window is right to stay; a wrong one is missing, older, or has other values.
    """

    keys: int
    newer: int
    wrong: int
    example: str


def check(online: Online, view: OnlineView, rows: pa.Table, window: TimeWindow) -> StoreCheck:
    """Compare the newest ``rows`` of some keys with what ``get_online_features`` returns for them.

    The expected values come from Feast's own converter: another path than the one that wrote them. A row from
    after the window may stay in the store.
    """
    newer, wrong, example = 0, 0, ""
    for first in range(0, rows.num_rows, READ_KEYS):
        piece = rows.slice(first, READ_KEYS).combine_chunks()
        expected = {
            name: [_plain(value) for value in feast_values(kind, _one_chunk(piece[name]))]
            for name, kind in view.features.items()
        }
        times = microseconds(_one_chunk(piece[view.time])).to_pylist()
        for index, (values, at) in enumerate(_read_store(online, view, piece, list(view.features))):
            expected_at = times[index] // _US
            unlike = [name for name, column in expected.items() if values.get(name) != column[index]]
            if at is not None and at * _US >= window.end_us:
                newer += 1
                continue
            if at is None:
                problem = "it is not there"
            elif at != expected_at:
                store, files = (format_time(datetime.fromtimestamp(time, UTC)) for time in (at, expected_at))
                problem = f"the store's row is of {store}, the files' of {files}"
            elif unlike:
                problem = f"{', '.join(unlike)} differ"
            else:
                continue
            key = ", ".join(f"{name}={piece[name][index].as_py()!r}" for name in view.keys)
            wrong, example = wrong + 1, example or f"{key}: {problem}"
    return StoreCheck(rows.num_rows, newer, wrong, example)


def require_equal(result: StoreCheck, view: OnlineView, store: str) -> None:
    """Reject a store that does not hold the rows that were written."""
    if result.wrong:
        raise DependencyError(
            f"{result.wrong:,} of {result.keys:,} compared keys of view {view.name!r} are not in the online "
            f"store as in the files, such as {result.example}",
            where=f"the online store ({store})",
            hint="The watermark stays where it was: run again, and look for another writer of the store.",
        )


def _read_store(
    online: Online, view: OnlineView, rows: pa.Table, names: Sequence[str]
) -> list[tuple[dict[str, bytes], int | None]]:
    """Return each key's values of some features, and its row's time in seconds; None without a row."""
    keys = rows.select(list(view.keys)).to_pylist()
    try:
        response = online.feast.get_online_features(
            features=[f"{view.name}:{name}" for name in names], entity_rows=keys
        ).proto
    except Exception as error:
        what = f"Feast could not read view {view.name!r}: {type(error).__name__}: {error}"
        raise DependencyError(what, where=f"the online store ({online.store})") from error
    columns = dict(zip(response.metadata.feature_names.val, response.results, strict=True))
    found: list[tuple[dict[str, bytes], int | None]] = []
    for index in range(len(keys)):
        times = [columns[name].event_timestamps[index] for name in names]
        at = max((time.seconds for time in times if time.seconds or time.nanos), default=None)
        found.append(({name: _plain(columns[name].values[index]) for name in names}, at))
    return found


def _plain(value: Any) -> bytes:
    """Serialize a value so that equal ones are equal bytes; Feast has two nulls for a time."""
    if value.WhichOneof("val") == "unix_timestamp_val" and value.unix_timestamp_val == NULL_TIME:
        return b""
    return bytes(value.SerializeToString(deterministic=True))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


@dataclass(frozen=True)
class EarlierRows:
    """Keys of rows that earlier runs wrote, and those that the store lost or holds with an older row."""

    looked_up: int = 0
    gone: int = 0

    @property
    def emptied(self) -> bool:
        """True if none is left."""
        return 0 < self.looked_up == self.gone


def look_up_earlier(
    online: Online, view: OnlineView, files: Sequence[SourceFile], window: TimeWindow, since: datetime | None
) -> EarlierRows:
    """Look up some keys of rows from before the window of an increment, and from ``since`` on.

    A watermark cannot tell that the store was emptied since. The keys come from three row groups of the
    files, since the newest may hold only late rows: that detects a store that was emptied or restored to an
    older state, not a single key.
    """
    start = window.start
    if start is None or getattr(online.feast.config.online_store, "key_ttl_seconds", None):
        return EarlierRows()  # keys that expire are expected to be gone
    groups: list[tuple[datetime, str, int, SourceFile]] = []
    for entry in files:
        with open_parquet(view, entry) as parquet:
            for group in range(parquet.num_row_groups):
                span = time_span(parquet.metadata.row_group(group), view.columns[view.time])
                if span is not None and span[0] < start:
                    groups.append((span[0], entry.uri, group, entry))
    groups.sort(key=lambda found: found[:3])
    looked_up = gone = 0
    for index in _spread(len(groups), SAMPLED_GROUPS):
        _, _, group, entry = groups[index]
        try:
            rows = _rows_before(view, entry, group, start, since)
        except InputError:
            continue  # a broken file outside the window does not stop the run
        if not rows.num_rows:
            continue
        rows = rows.take(pa.array(_spread(rows.num_rows, SAMPLED_KEYS), pa.int64()))
        times = microseconds(_one_chunk(rows[view.time])).to_pylist()
        found = _read_store(online, view, rows, list(view.features)[:1])
        looked_up += len(times)
        gone += sum(at is None or at < time // _US for time, (_, at) in zip(times, found, strict=True))
    return EarlierRows(looked_up, gone)


def _spread(count: int, most: int) -> list[int]:
    """Return at most ``most`` of ``count`` indices, evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count)).tolist()})


def _rows_before(
    view: OnlineView, entry: SourceFile, group: int, start: datetime, since: datetime | None
) -> pa.Table:
    """Read the keys and times of a row group's rows from before a time."""
    columns = {name: view.columns[name] for name in (*view.keys, view.time)}
    with open_parquet(view, entry) as parquet:
        read = parquet.read_row_group(group, columns=list(columns.values()))
    table = tables.plain(pa.table({name: read[column] for name, column in columns.items()}), entry.uri)
    at = microseconds(_one_chunk(table[view.time]))
    inside = pc.less(at, int(start.timestamp()) * _US)
    if since is not None:
        inside = pc.and_(inside, pc.greater_equal(at, int(since.timestamp()) * _US))
    return table.filter(inside)
