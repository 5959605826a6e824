"""The ``materialize`` step: write each view's window into the online store, check it, add its watermark."""

import time
from collections.abc import Iterator, Sequence
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
    retry_outage,
)
from trainwright.materialize.check import EarlierRows, StoreCheck, check, look_up_earlier, require_equal
from trainwright.materialize.encoding import encode_rows, is_fast
from trainwright.materialize.latest import LatestRows, latest_rows
from trainwright.materialize.watermark import (
    TimeWindow,
    Watermark,
    WatermarkHistory,
    backfill_window,
    format_time,
    incremental_window,
    parse_run_date,
    reached_after,
    window_end,
)
from trainwright.materialize.writers import LOCAL, keeps_newer_rows, run_engine, writer_for
from trainwright.placeholders import filled
from trainwright.report.markdown import escape, table
from trainwright.storage import join, local_path, take_listing
from trainwright.storage.lease import Lease, hold_lease
from trainwright.tracking import Stopwatch


@dataclass(frozen=True, kw_only=True)
class ViewOutcome(Document):
    """Result of one view.

    Attributes:
        mark: The watermark that was added.
        way: The writer that wrote the rows.
        newest: Newest event time among the rows of the window, in ISO 8601; empty without rows.
        late: Rows before the window that became known since the last run: they were not written.
        newer: Compared keys whose row in the store is from after the window.
        asked: Keys of earlier rows that were looked up before anything was written.
        gone: Keys of them that the store no longer had, or only with an older row.
        by_feast: Features whose values went through Feast's own converter.
        seconds: Duration.
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
    """Result of a run.

    Attributes:
        project: Feast's project.
        store: Feast's name of the kind of store.
        features: Content digest of the features' files, as passed to the run.
        views: Result of each view.
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
    """Write the newest row of every key within the window into the online store, and check that it is there.

    Safe to kill at any point and to run again: what is written twice is the same, an older row replaces no
    newer one, and the watermark moves only after the check.

    Args:
        section: Section ``materialize`` of the experiment.
        features_version: Content digest that ``resolve`` found for ``section.source``. A repository that is
            fetched must still have it; of a folder it is only recorded.
        date: The run's date; see :func:`~trainwright.materialize.watermark.parse_run_date`. Empty for the
            time for which the run was scheduled.
        folder: Folder for ``online.json`` and the step's record.
        summary: Path of the Markdown summary.
        now: The time; the clock's when None.
        scheduled: The scheduled time, with its zone; empty, or a placeholder that was not filled in, for now.

    Raises:
        InputError: The window is empty or lies in the future, or a view or a file is missing or broken.
        TransientError: Another run was writing all the time.
        DependencyError: The store failed, or does not hold what was written.
    """
    watch = Stopwatch()
    now, date = now or datetime.now(UTC), date or filled(scheduled)
    _window_end(section, date, now)  # rejects a wrong window before anything is opened
    with _open_repository(section, features_version) as online:
        views = tuple(_run_view(online, view, section, date, now) for view in online.views)
    state = OnlineState(project=online.project, store=online.store, features=features_version, views=views)
    folder.mkdir(parents=True, exist_ok=True)
    state.write(folder)
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(_summary(state, section))
    watch.record(
        folder,
        "materialize",
        _headline(state),
        config=section.model_dump(mode="json"),
        inputs={"features": features_version},
        outputs={"online": state.digest} | {f"view.{view.mark.view}": view.mark.definition for view in views},
    )
    return state


@contextmanager
def _open_repository(section: Materialize, version: str) -> Iterator[Online]:
    """Open the repository; a remote one is fetched in exactly the version that ``resolve`` found."""
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
    path = local_path(section.state)
    folder = join(str(path) if path else section.state, online.project, view.name)
    with hold_lease(folder, lease_s=section.lease_s, wait_s=section.wait_s) as lease:
        history = WatermarkHistory(folder)
        now = min(now, lease.began)  # a pod's clock that is ahead may not move the window into the future
        before = history.resumable(now, store=online.address, definition=view.digest)
        window = _window(section, date, now, before)
        listing = take_listing(view.source)
        started = time.monotonic()
        task = _Task(online, view, listing.files, section, lease, now, before, window, window)
        # Writing twice gives the same rows, and the lease is held meanwhile: so an attempt can be repeated.
        done = retry_outage(task.attempt, f"writing {view.name} to the online store", section.retry_s)
        mark = _watermark(task, done, history.last(), listing.content_digest)
        lease.require()
        history.add(mark)
    newest = done.latest.statistics.newest
    return ViewOutcome(
        mark=mark,
        way=done.writer,
        newest="" if newest is None else format_time(datetime.fromtimestamp(newest / 1_000_000, UTC)),
        late=done.latest.statistics.late,
        newer=done.check.newer,
        asked=task.earlier.asked,
        gone=task.earlier.gone,
        by_feast=done.by_feast,
        seconds=round(time.monotonic() - started, 3),
    )


def _watermark(task: "_Task", done: "_Written", last: Watermark | None, content: str) -> Watermark:
    return Watermark(
        project=task.online.project,
        view=task.view.name,
        store=task.online.address,
        number=last.number + 1 if last else 1,
        reached=reached_after(task.before, task.window),
        start=format_time(task.window.start) if task.window.start else "",
        end=format_time(task.window.end),
        backfill=task.window.backfill,
        at=task.lease.began.isoformat(),
        definition=task.view.digest,
        content=content,
        rows=done.latest.statistics.rows,
        keys=done.latest.keys,
        written=done.written,
        checked=done.check.keys,
    )


def _window(section: Materialize, date: str, now: datetime, before: Watermark | None) -> TimeWindow:
    end = _window_end(section, date, now)
    if section.start is not None:
        return backfill_window(section.start, end)
    reached = before.reached_time if before else None
    return incremental_window(reached, section.since, end, timedelta(seconds=section.overlap_s))


def _window_end(section: Materialize, date: str, now: datetime) -> datetime:
    return window_end(section.end, parse_run_date(date), now, timedelta(seconds=section.lag_s))


@dataclass(frozen=True)
class _Written:
    """The written and checked rows of one view."""

    latest: LatestRows
    written: int
    writer: str
    by_feast: tuple[str, ...]
    check: StoreCheck


@dataclass
class _Task:
    """The writing of one view. An attempt looks up earlier rows, writes and checks as one unit.

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
    requested: TimeWindow
    window: TimeWindow
    earlier: EarlierRows = field(default_factory=EarlierRows)

    def attempt(self) -> _Written:
        """Look up earlier rows, extend the window if the store lost them, write the window and check it."""
        # A store that an earlier attempt filled in part no longer looks emptied: for this run it stays so.
        if not self.requested.backfill and not self.earlier.emptied:
            self.earlier = self._look_up()
        if self.earlier.emptied:
            self.before = None
            self.window = incremental_window(None, self.section.since, self.requested.end, timedelta(0))
        elif self.before and not keeps_newer_rows(self.online, self.view):
            # The newest row of a window up to the last written time is never older than the store's row.
            self.window = self.requested.extended_to(min(self.before.last_time, self.now))
        since = datetime.fromisoformat(self.before.at) if self.before and not self.window.backfill else None
        with latest_rows(self.view, self.files, self.window, since) as latest:
            written, writer, by_feast = self.write(latest)
            self.lease.require()
            result = check(self.online, self.view, latest.sample(self.section.check_keys), self.window)
        require_equal(result, self.view, self.online.store)
        return _Written(latest, written, writer, by_feast, result)

    def write(self, latest: LatestRows) -> tuple[int, str, tuple[str, ...]]:
        """Write all rows; return their number, the writer, and the features that Feast's converter took."""
        online, view = self.online, self.view
        if online.engine != LOCAL:
            run_engine(online, view, self.window)
            return latest.keys, f"{online.store}, by Feast's {online.engine}", ()
        writer, written = writer_for(online, view, self.lease.require), 0
        by_feast: dict[str, None] = {}
        try:
            self._require_not_emptied()
            for batch in latest.batches():
                self.lease.require()
                types = {name: batch.schema.field(name).type for name in view.features}
                slow = [name for name, kind in view.features.items() if not is_fast(kind, types[name])]
                by_feast |= dict.fromkeys(slow)
                written += writer.write(encode_rows(view, batch))
        finally:
            writer.close()
        return written, writer.name, tuple(by_feast)

    def _look_up(self) -> EarlierRows:
        return look_up_earlier(self.online, self.view, self.files, self.requested, self.section.since)

    def _require_not_emptied(self) -> None:
        """Raise if the store was emptied after the look-up; from here on the writer's fence detects it."""
        if not self.requested.backfill and not self.earlier.emptied and self._look_up().emptied:
            raise TransientError(
                "the store was emptied after its earlier rows were looked up",
                where="the online store",
                hint="Nothing is lost: run again, and everything is written again.",
            )


def _headline(state: OnlineState) -> str:
    """Return the step's line on the screen: ``3,344 keys of 4 views up to …``."""
    keys = sum(view.mark.keys for view in state.views)
    written = sum(view.mark.written for view in state.views)
    end = max(view.mark.end for view in state.views)
    count = len(state.views)
    facts = [f"{keys:,} keys of {count} {'view' if count == 1 else 'views'} up to {end}"]
    if written != keys:
        facts.append(f"{keys - written:,} held newer rows")
    facts.append(f"{sum(view.mark.checked for view in state.views):,} checked")
    if emptied := [view.mark.view for view in state.views if view.asked and view.gone == view.asked]:
        facts.append(f"the store had lost {', '.join(emptied)}")
    elif gone := sum(view.gone for view in state.views):
        facts.append(f"{gone:,} of {sum(view.asked for view in state.views):,} earlier keys are gone")
    if late := sum(view.late for view in state.views):
        facts.append(f"{late:,} rows came later than the overlap")
    return ", ".join(facts)


def _converted(features: Sequence[str], view: str) -> str:
    names = ", ".join(escape(feature) for feature in features)
    return f"Values of {names} in {view} went through Feast's own, slow converter.\n"


def _summary(state: OnlineState, section: Materialize) -> str:
    """Return the Markdown summary: each view's window, rows and check, and advice for late or lost rows."""
    header = ["view", "from", "up to", "rows", "keys", "written", "checked", "newest row", "way", "s"]
    rows = [
        [
            view.mark.view,
            view.mark.start or "the beginning",
            view.mark.end,
            *(f"{n:,}" for n in (view.mark.rows, view.mark.keys, view.mark.written, view.mark.checked)),
            view.newest or "none",
            view.way,
            f"{view.seconds:.1f}",
        ]
        for view in state.views
    ]
    parts = [
        f"## Materialize: {escape(state.project)} to {escape(state.store)}\n",
        "Every checked key was read back through Feast and equals the newest row of the files.\n",
        table(header, rows, numeric=[3, 4, 5, 6, 9]),
    ]
    for view in state.views:
        name, late = escape(view.mark.view), view.late
        if view.gone and view.gone == view.asked:
            parts.append(
                f"**The store had none of {view.asked:,} keys of {name} that earlier runs wrote**: it was "
                "emptied, or restored to an older state. So everything was written again.\n"
            )
        elif view.gone:
            parts.append(
                f"**{view.gone:,} of {view.asked:,} keys of {name} from before its window are not in the "
                "store**, or only with older rows: they were removed, or came too late. Backfill them: set "
                "`materialize.start`.\n"
            )
        if late:
            parts.append(
                f"**{late:,} rows of {name} became known since the last run and lie before its window**: "
                f"they came more than {section.overlap_s:,} s late and are not in the store. Backfill them: "
                "set `materialize.start`, and raise `materialize.overlap_s` if it happens again.\n"
            )
        parts += [_converted(view.by_feast, name)] if view.by_feast else []
    return "\n".join(parts)
