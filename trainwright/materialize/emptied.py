"""Whether the store still holds what earlier runs wrote: a watermark cannot know that it was emptied since.

A few keys of the rows from before the window are looked up. Those rows are taken from three row groups of
the files, not from all: that finds a store that was emptied or put back to an older state, not a single key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from trainwright import tables
from trainwright.artifacts import SourceFile
from trainwright.errors import InputError
from trainwright.featurestore import Online, OnlineView
from trainwright.materialize.check import stored
from trainwright.materialize.latest import opened, time_span
from trainwright.materialize.rows import microseconds
from trainwright.materialize.window import Window

GROUPS = 3
"""Row groups that keys are taken from, at most."""

KEYS = 20
"""Keys taken from each, at most."""

_US = 1_000_000


@dataclass(frozen=True)
class Earlier:
    """What became of rows that earlier runs wrote.

    Attributes:
        asked: Keys that were looked up.
        gone: Keys of them for which the store has no row, or an older one.
    """

    asked: int = 0
    gone: int = 0

    @property
    def emptied(self) -> bool:
        """Whether nothing is left."""
        return 0 < self.asked == self.gone


def look_up_earlier(
    online: Online, view: OnlineView, files: Sequence[SourceFile], window: Window, since: datetime | None
) -> Earlier:
    """Look up some keys of rows from before the window of an increment.

    Args:
        online: The repository.
        view: The view.
        files: Its files.
        window: The window. Without a start there is nothing before it.
        since: Where the very first window started; None is the beginning of the data.

    Raises:
        DependencyError: Feast could not read from its store.
    """
    if window.start is None or getattr(online.feast.config.online_store, "key_ttl_seconds", None):
        return Earlier()  # a key that goes after a while is nothing to wonder about
    groups = list(_groups(view, files, window.start))
    asked = gone = 0
    for place in _spread(len(groups), GROUPS):
        try:
            rows = _before(view, *groups[place], window.start, since)
        except InputError:
            continue  # what is broken outside the window stops nobody from going on
        if not rows.num_rows:
            continue
        rows = rows.take(pa.array(_spread(rows.num_rows, KEYS), pa.int64()))
        times = microseconds(rows[view.time].combine_chunks()).to_pylist()
        found = stored(online, view, rows, list(view.features)[:1])
        asked += len(times)
        gone += sum(at is None or at < time // _US for time, (_, at) in zip(times, found, strict=True))
    return Earlier(asked, gone)


def _spread(count: int, most: int) -> list[int]:
    """Return some of ``count`` places, evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count)).tolist()})


def _groups(
    view: OnlineView, files: Sequence[SourceFile], start: datetime
) -> Iterator[tuple[SourceFile, int]]:
    """Name the row groups that have rows from before a time, oldest first as far as is known."""
    found = []
    for entry in files:
        with opened(view, entry) as parquet:
            for index in range(parquet.num_row_groups):
                span = time_span(parquet.metadata.row_group(index), view.columns[view.time])
                if span is not None and span[0] < start:
                    found.append((span[0], entry.uri, index, entry))
    yield from ((entry, index) for _, _, index, entry in sorted(found, key=lambda group: group[:3]))


def _before(
    view: OnlineView, entry: SourceFile, group: int, start: datetime, since: datetime | None
) -> pa.Table:
    """Read the keys and times of a row group's rows from before a time."""
    columns = {name: view.columns[name] for name in (*view.keys, view.time)}
    with opened(view, entry) as parquet:
        read = parquet.read_row_group(group, columns=list(columns.values()))
    table = tables.plain(pa.table({name: read[column] for name, column in columns.items()}), entry.uri)
    at = microseconds(table[view.time].combine_chunks())
    inside = pc.less(at, _micros(start))
    if since is not None:
        inside = pc.and_(inside, pc.greater_equal(at, _micros(since)))
    return table.filter(inside)


def _micros(time: datetime) -> int:
    return int(time.timestamp()) * _US
