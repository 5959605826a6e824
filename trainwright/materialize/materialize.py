"""The ``materialize`` step: write each view's window into the online store, check it, add its watermark."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from trainwright.artifacts import Listing
from trainwright.documents import Document
from trainwright.experiment import Materialize
from trainwright.featurestore import (
    Online,
    OnlineView,
    checked_out,
    is_remote,
    open_online,
    retry_outage,
)
from trainwright.materialize.check import EarlierRows, check, look_up_earlier, require_equal
from trainwright.materialize.encoding import encode_rows
from trainwright.materialize.latest import LatestRows, latest_rows
from trainwright.materialize.watermark import (
    TimeWindow,
    Watermark,
    WatermarkHistory,
    format_time,
    reached_after,
    run_window,
    window_end,
)
from trainwright.materialize.writers import LOCAL, RequireLease, keeps_newer_rows, run_engine, writer_for
from trainwright.placeholders import filled
from trainwright.report.markdown import escape, table
from trainwright.storage import join, local_path, require_listing, take_listing
from trainwright.storage.lease import Lease, hold_lease
from trainwright.tracking import Stopwatch


@dataclass(frozen=True, kw_only=True)
class ViewOutcome(Document):
    """Result of one view: the watermark that was added, and what the writer and the checks found.

    Attributes:
        newest: Newest event time in the window, in ISO 8601; empty without rows.
        late: Rows before the window that became known since the last run: they were not written.
        newer: Compared keys whose row in the store is from after the window.
        asked: Keys of earlier rows that were looked up before anything was written; ``gone`` are those that
            the store no longer had, or only with an older row.
    """

    mark: Watermark
    way: str
    newest: str
    late: int
    newer: int
    asked: int
    gone: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class OnlineState(Document):
    """Result of a run: Feast's project, the kind of store, the features' content digest, and each view."""

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
        date: The run's date: a day, for its first moment in UTC, or a time with its zone. Empty for the time
            for which the run was scheduled.
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
    window_end(section, date, now)  # rejects a wrong window before anything is opened
    listing = Listing(source=section.source, files=())
    if is_remote(section.repository):  # fetched in exactly the version that `resolve` found
        listing = require_listing("materialize.source", section.source, features_version)
    with checked_out(section.repository, listing) as checkout:
        online = open_online(
            str(checkout.folder), section.views, fetched=checkout.fetched, retry_s=section.retry_s
        )
        try:
            views = tuple(_run_view(online, view, section, date, now) for view in online.views)
        finally:
            online.close()
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
        window = run_window(section, before.reached_time if before else None, window_end(section, date, now))
        run = _ViewRun(
            online, view, take_listing(view.source), section, lease, now, before, history.last(), window
        )
        # Writing twice gives the same rows, and the lease is held meanwhile: so an attempt can be repeated.
        outcome = retry_outage(run.attempt, f"writing {view.name} to the online store", section.retry_s)
        lease.require()
        history.add(outcome.mark)
    return outcome


@dataclass
class _ViewRun:
    """The writing of one view. An attempt looks up earlier rows, writes and checks as one unit.

    A store without persistence that restarts during a write is empty afterwards: an attempt that only wrote
    its window again would leave out everything from before it, for good.
    """

    online: Online
    view: OnlineView
    listing: Listing
    section: Materialize
    lease: Lease
    now: datetime
    before: Watermark | None
    last: Watermark | None
    requested: TimeWindow
    earlier: EarlierRows = field(default_factory=EarlierRows)
    started: float = field(default_factory=time.monotonic)

    def attempt(self) -> ViewOutcome:
        """Look up earlier rows, write the window, extended to those that the store lost, and check it."""
        online, view, section, window = self.online, self.view, self.section, self._window()
        since = datetime.fromisoformat(self.before.at) if self.before and not window.backfill else None
        with latest_rows(view, self.listing.files, window, since) as latest:
            written, writer = write_rows(online, view, window, latest, self.lease.require)
            self.lease.require()
            result = check(online, view, latest.sample(section.check_keys), window)
        require_equal(result, view, online.store)
        mark = Watermark(
            project=online.project,
            view=view.name,
            store=online.address,
            number=self.last.number + 1 if self.last else 1,
            reached=reached_after(self.before, window),
            start=format_time(window.start) if window.start else "",
            end=format_time(window.end),
            backfill=window.backfill,
            at=self.lease.began.isoformat(),
            definition=view.digest,
            content=self.listing.content_digest,
            rows=latest.rows,
            keys=latest.keys,
            written=written,
            checked=result.keys,
        )
        return ViewOutcome(
            mark=mark,
            way=writer,
            newest=format_time(latest.newest) if latest.newest else "",
            late=latest.late,
            newer=result.newer,
            asked=self.earlier.looked_up,
            gone=self.earlier.gone,
            seconds=round(time.monotonic() - self.started, 3),
        )

    def _window(self) -> TimeWindow:
        online, view, window = self.online, self.view, self.requested
        # A store that an earlier attempt filled in part no longer looks emptied: for this run it stays so.
        if not window.backfill and not self.earlier.emptied:
            self.earlier = look_up_earlier(online, view, self.listing.files, window, self.section.since)
        if self.earlier.emptied:
            self.before = None
            return run_window(self.section, None, window.end)
        if self.before and not keeps_newer_rows(online, view):
            # The newest row of a window up to the last written time is never older than the store's row.
            return window.extended_to(min(self.before.last_time, self.now))
        return window


def write_rows(
    online: Online, view: OnlineView, window: TimeWindow, latest: LatestRows, require_lease: RequireLease
) -> tuple[int, str]:
    """Write all rows; return their number and the writer."""
    if online.engine != LOCAL:
        run_engine(online, view, window)
        return latest.keys, f"{online.store}, by Feast's {online.engine}"
    writer, written = writer_for(online, view, require_lease), 0
    try:
        for batch in latest.batches():
            require_lease()
            written += writer.write(encode_rows(view, batch))
    finally:
        writer.close()
    return written, writer.name


def _headline(state: OnlineState) -> str:
    """Return the step's line on the screen: ``3,344 keys of 4 views up to …``."""
    marks = [view.mark for view in state.views]
    keys, written = sum(mark.keys for mark in marks), sum(mark.written for mark in marks)
    views = "1 view" if len(marks) == 1 else f"{len(marks)} views"
    facts = [f"{keys:,} keys of {views} up to {max(mark.end for mark in marks)}"]
    if written != keys:
        facts.append(f"{keys - written:,} held newer rows")
    facts.append(f"{sum(mark.checked for mark in marks):,} checked")
    if emptied := [view.mark.view for view in state.views if view.asked and view.gone == view.asked]:
        facts.append(f"the store had lost {', '.join(emptied)}")
    elif gone := sum(view.gone for view in state.views):
        facts.append(f"{gone:,} of {sum(view.asked for view in state.views):,} earlier keys are gone")
    if late := sum(view.late for view in state.views):
        facts.append(f"{late:,} rows came later than the overlap")
    return ", ".join(facts)


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
        name = escape(view.mark.view)
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
        if view.late:
            parts.append(
                f"**{view.late:,} rows of {name} became known since the last run and lie before its "
                f"window**: they came more than {section.overlap_s:,} s late and are not in the store. "
                "Backfill them: set `materialize.start`, and raise `materialize.overlap_s` if this repeats.\n"
            )
    return "\n".join(parts)
