"""The online store of a run: each view's window written, checked, and only then marked as done."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainwright.artifacts import Listing, SourceFile
from trainwright.documents import Document
from trainwright.errors import TransientError
from trainwright.experiment import Materialize
from trainwright.featurestore import (
    Online,
    OnlineView,
    checked_out,
    is_remote,
    open_online,
    require_version,
    sit_out,
)
from trainwright.materialize.check import check, require_equal
from trainwright.materialize.emptied import Earlier, look_up_earlier
from trainwright.materialize.engine import LOCAL, run_engine
from trainwright.materialize.latest import Latest, latest_rows
from trainwright.materialize.rows import encoded
from trainwright.materialize.summary import headline, summary_of
from trainwright.materialize.watermark import History, Watermark, reached_after
from trainwright.materialize.window import Window, explicit, incremental, run_date, shown, window_end
from trainwright.materialize.writers import is_ours, writer_for
from trainwright.placeholders import filled
from trainwright.storage import join, local_path, take_listing
from trainwright.storage.lease import Lease, held
from trainwright.tracking import Stopwatch


@dataclass(frozen=True, kw_only=True)
class ViewOutcome(Document):
    """What became of one view.

    Attributes:
        mark: The watermark that was added.
        way: How rows went into the store.
        newest: Newest event time among the rows of the window, in ISO 8601; empty without rows.
        late: Rows before the window that became known since the last run: they were not written.
        newer: Compared keys whose row in the store is from after the window.
        asked: Keys of earlier rows that were looked up before anything was written.
        gone: Keys of them that the store did not have any more, or only as they were before.
        by_feast: Features whose values went through Feast's own converter.
        seconds: How long it took.
    """

    mark: Watermark
    way: str
    newest: str
    late: int
    newer: int
    asked: int
    gone: int
    by_feast: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class OnlineState(Document):
    """What a run put into an online store.

    Attributes:
        project: Feast's project.
        store: Feast's name of the kind of store.
        features: Content digest of the features' files, as the run was given it.
        views: What became of each view.
    """

    FILE = "online.json"

    project: str
    store: str
    features: str
    views: tuple[ViewOutcome, ...]


def materialize(
    section: Materialize,
    features_version: str,
    date: str,
    folder: Path,
    summary: Path,
    now: datetime | None = None,
    scheduled: str = "",
) -> OnlineState:
    """Bring the newest row of every key within the window into the online store, and check that it is there.

    Safe to kill at any point and to run again: what is written twice is the same, an older row replaces no
    newer one, and the watermark moves only after the check.

    Args:
        section: What to materialize.
        features_version: Content digest that ``resolve`` found for ``section.source``. A repository that is
            fetched must still have it; of a folder it is for the record.
        date: The run's date; see :func:`trainwright.materialize.window.run_date`. Empty for the
            time for which the run was scheduled.
        folder: Where ``online.json`` and the step's record are written.
        summary: Where the Markdown summary is written.
        now: The time; the clock's when None.
        scheduled: When that was, with its zone; empty, or a placeholder that nothing was put in place of,
            for now.

    Returns:
        What was done.

    Raises:
        InputError: The window is empty or lies in the future, or a view or a file is missing or broken.
        TransientError: Another run was writing all the time.
        DependencyError: The store failed, or does not hold what was written.
    """
    watch = Stopwatch()
    now, date = now or datetime.now(UTC), date or filled(scheduled)
    _window_end(section, date, now)  # refused before anything is opened
    with _opened(section, features_version) as online:
        views = tuple(_run_view(online, view, section, date, now) for view in online.views)
    state = OnlineState(project=online.project, store=online.store, features=features_version, views=views)
    folder.mkdir(parents=True, exist_ok=True)
    state.write(folder)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(summary_of(state, section))
    watch.record(
        folder,
        "materialize",
        headline(state),
        config=section.model_dump(mode="json"),
        inputs={"features": features_version},
        outputs={"online": state.digest} | {f"view.{view.mark.view}": view.mark.definition for view in views},
    )
    return state


@contextmanager
def _opened(section: Materialize, version: str) -> Iterator[Online]:
    """Open the repository, fetched if it is remote: exactly what was looked at, then."""
    remote = is_remote(section.repository)
    listing = require_version(section.source, version) if remote else Listing(source=section.source, files=())
    with checked_out(section.repository, listing) as checkout:
        folder, fetched = str(checkout.folder), checkout.fetched
        online = open_online(folder, section.views, fetched=fetched, retry_s=section.retry_s)
        try:
            yield online
        finally:
            online.close()


def _run_view(
    online: Online, view: OnlineView, section: Materialize, date: str, now: datetime
) -> ViewOutcome:
    """Materialize one view, under its lease."""
    place = local_path(section.state)
    folder = join(str(place) if place else section.state, online.project, view.name)
    with held(folder, lease_s=section.lease_s, wait_s=section.wait_s) as lease:
        history = History(folder)
        now = min(now, lease.began)  # a pod's clock that is ahead may not move the window into the future
        before = history.reached(now, store=online.place, definition=view.digest)
        window = _window(section, date, now, before)
        listing = take_listing(view.source)
        started = time.monotonic()
        task = _Task(online, view, listing.files, section, lease, now, before, window, window)
        # rows that are written twice are the same, and the lease is held meanwhile
        done = sit_out(task.attempt, f"writing {view.name} to the online store", section.retry_s)
        mark = _mark(online, view, task.window, listing, lease, task.before, history.last(), done)
        lease.require()
        history.add(mark)
    newest = done.latest.seen.newest
    return ViewOutcome(
        mark=mark,
        way=done.way,
        newest="" if newest is None else shown(datetime.fromtimestamp(newest / 1_000_000, UTC)),
        late=done.latest.seen.late,
        newer=done.newer,
        asked=task.earlier.asked,
        gone=task.earlier.gone,
        by_feast=done.by_feast,
        seconds=round(time.monotonic() - started, 3),
    )


def _mark(
    online: Online,
    view: OnlineView,
    window: Window,
    listing: Listing,
    lease: Lease,
    before: Watermark | None,
    last: Watermark | None,
    done: "_Written",
) -> Watermark:
    """Make the next watermark of a view."""
    return Watermark(
        project=online.project,
        view=view.name,
        store=online.place,
        number=last.number + 1 if last else 1,
        reached=reached_after(before, window),
        start=shown(window.start) if window.start else "",
        end=shown(window.end),
        backfill=window.backfill,
        at=lease.began.isoformat(),
        definition=view.digest,
        content=listing.content_digest,
        rows=done.latest.seen.rows,
        keys=done.latest.keys,
        written=done.written,
        checked=done.checked,
    )


def _window(section: Materialize, date: str, now: datetime, before: Watermark | None) -> Window:
    end = _window_end(section, date, now)
    if section.start is not None:
        return explicit(section.start, end)
    reached = before.reached_time if before else None
    return incremental(reached, section.since, end, timedelta(seconds=section.overlap_s))


def _window_end(section: Materialize, date: str, now: datetime) -> datetime:
    return window_end(section.end, run_date(date), now, timedelta(seconds=section.lag_s))


@dataclass(frozen=True)
class _Written:
    """What was done with one view's rows."""

    latest: Latest
    written: int
    checked: int
    newer: int
    way: str
    by_feast: tuple[str, ...]


@dataclass
class _Task:
    """The rows to write of one view. Its attempts look up earlier rows and write as one unit.

    A store without persistence that restarts during a write is empty afterwards: an attempt that only wrote
    its window again would leave out everything from before it, for good.
    """

    online: Online
    view: OnlineView
    files: Sequence[SourceFile]
    section: Materialize
    lease: Lease
    now: datetime
    before: Watermark | None
    requested: Window
    window: Window
    earlier: Earlier = field(default_factory=Earlier)

    def attempt(self) -> _Written:
        """Look up earlier rows, widen the window if the store lost them, write the window and check it."""
        # an emptied store that an attempt filled in part no longer looks emptied: it stays so for this run
        if not self.requested.backfill and not self.earlier.emptied:
            self.earlier = self._look_up()
        if self.earlier.emptied:
            self.before = None
            self.window = incremental(None, self.section.since, self.requested.end, timedelta(0))
        elif self.before and self.before.reached_time and not is_ours(self.online, self.view):
            self.window = self.requested.up_to(min(self.before.reached_time, self.now))
        return self._write()

    def _write(self) -> _Written:
        online, view, window = self.online, self.view, self.window
        since = datetime.fromisoformat(self.before.at) if self.before and not window.backfill else None
        with latest_rows(view, self.files, window, since) as latest:
            if online.engine == LOCAL:
                written, way, by_feast = _by_us(online, view, latest, self.lease, self._require_not_emptied)
            else:
                run_engine(online, view, window)
                written, way, by_feast = latest.keys, f"{online.store}, by Feast's {online.engine}", ()
            self.lease.require()
            checked = check(online, view, latest.sample(self.section.check_keys), window)
        require_equal(checked, view, online.store)
        return _Written(latest, written, checked.keys, checked.newer, way, by_feast)

    def _look_up(self) -> Earlier:
        return look_up_earlier(self.online, self.view, self.files, self.requested, self.section.since)

    def _require_not_emptied(self) -> None:
        """Raise if the store was emptied after the look-up; from here on the writer's fence notices it."""
        if not self.requested.backfill and not self.earlier.emptied and self._look_up().emptied:
            raise TransientError(
                "the store was emptied after its earlier rows were looked up",
                where="the online store",
                hint="Nothing is lost: run again, and everything is written again.",
            )


def _by_us(
    online: Online, view: OnlineView, latest: Latest, lease: Lease, require_not_emptied: Callable[[], None]
) -> tuple[int, str, tuple[str, ...]]:
    """Write all rows; return how many were written, by which way, and what Feast's converter did."""
    from trainwright.materialize.values import is_fast

    writer, written = writer_for(online, view, lease.require), 0
    slow: dict[str, None] = {}
    try:
        require_not_emptied()
        for batch in latest.batches():
            lease.require()
            slow |= {
                name: None
                for name, kind in view.features.items()
                if not is_fast(kind, batch.schema.field(name).type)
            }
            written += writer.write(encoded(view, batch))
    finally:
        writer.close()
    return written, writer.name, tuple(slow)
