"""Windows and watermarks: which event times a run materializes, and up to where earlier runs got.

Feast keeps its watermark in the registry, where a future end blocks later runs, an apply has reset it, and
two writers on an object store lose each other's. Here a watermark is a small document that is only ever
added, under a number of its own, after the check; the last one counts.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from trainwright.documents import Document, canonical, read_json
from trainwright.errors import InputError, TransientError
from trainwright.storage import AlreadyExists, create, join, list_files, read_bytes, remove

SKEW = timedelta(minutes=5)
"""How far clocks may disagree before a time counts as lying in the future."""

RETAINED = 200
"""Watermarks of a view that are retained: each run's own record has the same figures."""

_MAX_BYTES = 1 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_NAME = re.compile(r"watermark\.(\d{8})\.json")
_END_HINT = "The end is the earliest of materialize.end, the run's date, and now less the lag."


@dataclass(frozen=True)
class TimeWindow:
    """Event times from ``start`` up to, and without, ``end``; both whole seconds in UTC.

    Whole seconds, because some of Feast's stores keep no more: so all rows of one second are read together,
    and the newest of them is known.

    Attributes:
        start: None is the beginning of the data.
        end: Never in the future.
        backfill: Whether the start was configured, and not taken from the watermark.
    """

    start: datetime | None
    end: datetime
    backfill: bool = False

    @property
    def start_us(self) -> int | None:
        """The start in microseconds since 1970."""
        return None if self.start is None else (self.start - _EPOCH) // _US

    @property
    def end_us(self) -> int:
        """The end in microseconds since 1970."""
        return (self.end - _EPOCH) // _US

    def extended_to(self, end: datetime) -> "TimeWindow":
        """Return the window with a later end; itself if the end is not later."""
        return replace(self, end=max(self.end, whole_second(end)))


def window_end(
    configured: datetime | None, scheduled: datetime | None, now: datetime, lag: timedelta
) -> datetime:
    """Return the end of the window: the earliest of the configured end, the run's date, and now less the lag.

    Raises:
        InputError: One of them lies in the future, by more than :data:`SKEW`.
    """
    for what, time in (("materialize.end", configured), ("the run's date", scheduled)):
        if time is not None and time > now + SKEW:
            raise InputError(
                f"{what} {format_time(time)} lies in the future: it is {format_time(now)} now",
                where=what,
                hint="What does not exist yet cannot be materialized, and would be missed when it arrives.",
            )
    return whole_second(min([*(time for time in (configured, scheduled) if time is not None), now - lag]))


def backfill_window(start: datetime, end: datetime) -> TimeWindow:
    """Return the window of a backfill.

    Raises:
        InputError: It is empty.
    """
    start = whole_second(start)
    if start >= end:
        raise InputError(
            f"materialize.start {format_time(start)} is not before the end {format_time(end)}",
            where="materialize.start",
            hint=_END_HINT,
        )
    return TimeWindow(start, end, backfill=True)


def incremental_window(
    reached: datetime | None, first: datetime | None, end: datetime, overlap: timedelta
) -> TimeWindow:
    """Return the window that starts where the last one ended, less the overlap for late rows.

    Args:
        reached: The time up to which everything is materialized; None if nothing is.
        first: Start of the first window; None is the beginning of the data. Feast's own first window starts
            one TTL ago, and with a TTL of 0 only 52 weeks.
        end: End of the window. One before ``reached``, such as after a wrong clock, is no error.
        overlap: How far to look back.

    Raises:
        InputError: ``first`` is not before the end.
    """
    start = whole_second(min(reached, end) - overlap) if reached is not None else first
    if first is not None and start is not None:
        start = max(start, whole_second(first))
    if start is not None and start >= end:
        raise InputError(
            f"materialize.since {format_time(start)} is not before the end {format_time(end)}",
            where="materialize.since",
            hint=_END_HINT,
        )
    return TimeWindow(start, end)


def parse_run_date(text: str) -> datetime | None:
    """Parse the date of a run: a day, which means its first moment in UTC, or a time with its zone.

    Raises:
        InputError: It is neither, or has no zone.
    """
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write it as 2026-01-31 or 2026-01-31T05:00:00Z."
        raise InputError(f"expected a date, found {text!r}", where="date", hint=hint) from None
    if len(text) == len(date.min.isoformat()):
        return time.replace(tzinfo=UTC)
    if time.tzinfo is None:
        raise InputError(
            f"{text!r} has no time zone; in UTC it would be {format_time(time.replace(tzinfo=UTC))}",
            where="date",
            hint=f"Write {text}Z if that is meant.",
        )
    return time.astimezone(UTC)


def whole_second(time: datetime) -> datetime:
    """Round down to a whole second, in UTC."""
    return time.astimezone(UTC).replace(microsecond=0)


def format_time(time: datetime) -> str:
    """Format a time in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, kw_only=True)
class Watermark(Document):
    """Record of one finished and checked run of one view.

    Attributes:
        project: Feast's project.
        view: The view.
        store: The online store's address, without credentials.
        number: 1 for the first; each is one more.
        reached: Everything before this time is in the online store, in ISO 8601; empty if that is not known,
            as after a backfill somewhere in between.
        start: Start of the run's window; empty is the beginning of the data.
        end: End of the run's window.
        backfill: Whether the start was configured.
        at: When the run began, by the clock of the store that holds this.
        definition: Digest of the view's definition.
        content: Digest of the files that were read.
        rows: Rows in the window.
        keys: Keys that had any.
        written: Keys that were written; the others had a newer row already.
        checked: Keys that were compared afterwards, all equal.
    """

    project: str
    view: str
    store: str
    number: int
    reached: str
    start: str
    end: str
    backfill: bool
    at: str
    definition: str
    content: str
    rows: int
    keys: int
    written: int
    checked: int

    @property
    def reached_time(self) -> datetime | None:
        """``reached`` as a time."""
        return datetime.fromisoformat(self.reached) if self.reached else None

    @property
    def last_time(self) -> datetime:
        """The latest time up to which this run or one before it wrote rows."""
        end = datetime.fromisoformat(self.end)
        return max(end, self.reached_time or end)


class WatermarkHistory:
    """The watermarks of one view in one folder.

    Args:
        folder: Path or URI; it need not exist.
        retained: How many of the last ones stay.
    """

    def __init__(self, folder: str, retained: int = RETAINED) -> None:
        self._folder, self._retained = folder, retained

    def last(self) -> Watermark | None:
        """Return the newest watermark; None if the view was never materialized."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def resumable(self, now: datetime, *, store: str, definition: str) -> Watermark | None:
        """Return the newest watermark that a run can continue from.

        Args:
            now: The time. A watermark that reached further was written by a clock that was ahead, and is
                skipped.
            store: The store; rows in another one do not count.
            definition: Digest of the view. After a change of it, such as a new feature, all rows are due.
        """
        for number in reversed(self._numbers()):
            mark = self._read(number)
            if (mark.store, mark.definition) != (store, definition):
                return None
            if mark.reached_time is None or mark.reached_time <= now + SKEW:
                return mark
        return None

    def add(self, mark: Watermark) -> None:
        """Write the next watermark, and remove those that are no longer retained.

        Raises:
            TransientError: Another run wrote it first.
        """
        uri = self._uri(mark.number)
        try:
            create(uri, canonical(mark.to_json()).encode())
        except AlreadyExists:
            raise TransientError(
                f"another run of view {mark.view!r} finished meanwhile", where=uri, hint="Run again."
            ) from None
        remove(self._uri(number) for number in self._numbers() if number <= mark.number - self._retained)

    def _numbers(self) -> list[int]:
        try:
            files = list_files(join(self._folder, "watermark.*.json"))
        except InputError:
            return []
        names = (_NAME.fullmatch(file.uri.rsplit("/", 1)[-1]) for file in files)
        return sorted(int(name.group(1)) for name in names if name)

    def _read(self, number: int) -> Watermark:
        uri = self._uri(number)
        try:
            data = read_json(read_bytes(uri), where=uri, max_bytes=_MAX_BYTES)
        except InputError as error:
            hint = "Remove it: the next run continues from the one before it."
            raise InputError(f"this watermark is not valid: {error.what}", where=uri, hint=hint) from None
        return Watermark.from_json(data, where=uri)

    def _uri(self, number: int) -> str:
        return join(self._folder, f"watermark.{number:08d}.json")


def reached_after(before: Watermark | None, window: TimeWindow) -> str:
    """Return the time up to which everything is materialized after a window; empty if unknown.

    A window that starts where nothing was left out advances it; one that starts later leaves a gap and does
    not. It never moves back: rows stay written.
    """
    reached = before.reached_time if before else None
    no_gap = window.start is None or not window.backfill or (reached is not None and window.start <= reached)
    if not no_gap:
        return before.reached if before else ""
    return max(window.end, reached or window.end).astimezone(UTC).isoformat()
