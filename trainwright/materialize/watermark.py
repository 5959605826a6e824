"""Windows and watermarks: which event times a run materializes, and up to where earlier runs got.

Feast keeps its watermark in the registry, where a future end blocks later runs, an apply has reset it, and
two writers on an object store lose each other's. Here a watermark is a small document that is only ever
added, under a number of its own, after the check; the last one counts.
"""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from trainwright.documents import Document, canonical
from trainwright.errors import InputError, TransientError
from trainwright.experiment import Materialize
from trainwright.storage import AlreadyExists, create, join, list_files, read_bytes, remove

SKEW = timedelta(minutes=5)
"""How far clocks may disagree before a time counts as lying in the future."""

RETAINED = 200
"""Watermarks of a view that are retained: each run's own record has the same figures."""


@dataclass(frozen=True)
class TimeWindow:
    """Event times from ``start`` up to, and without, ``end``; both whole seconds in UTC.

    Some of Feast's stores keep no more: so all rows of one second are read together, and the newest is
    known. A ``start`` of None is the beginning of the data.
    """

    start: datetime | None
    end: datetime
    backfill: bool = False

    @property
    def start_us(self) -> int | None:
        """The start in microseconds since 1970."""
        return None if self.start is None else int(self.start.timestamp()) * 1_000_000

    @property
    def end_us(self) -> int:
        """The end in microseconds since 1970."""
        return int(self.end.timestamp()) * 1_000_000

    def extended_to(self, end: datetime) -> "TimeWindow":
        """Return the window with a later end; itself if the end is not later."""
        return replace(self, end=max(self.end, whole_second(end)))


def window_end(section: Materialize, date: str, now: datetime) -> datetime:
    """Return the earliest of the configured end, the run's date, and now less the lag."""
    times = [("materialize.end", section.end), ("the run's date", _parse_run_date(date))]
    ends = [now - timedelta(seconds=section.lag_s)]
    for what, time in times:
        if time is not None and time > now + SKEW:
            raise InputError(
                f"{what} {format_time(time)} lies in the future: it is {format_time(now)} now",
                where=what,
                hint="What does not exist yet cannot be materialized, and would be missed when it arrives.",
            )
        ends += [time] if time is not None else []
    return whole_second(min(ends))


def run_window(section: Materialize, reached: datetime | None, end: datetime) -> TimeWindow:
    """Return the window of a backfill; else it starts where the last one ended, less the overlap.

    The first one starts at the beginning of the data: Feast's own starts one TTL ago, with a TTL of 0 only
    52 weeks. An ``end`` before ``reached``, such as after a wrong clock, is no error.
    """
    what, start = (
        ("materialize.start", section.start) if section.start else ("materialize.since", section.since)
    )
    if section.start is None and reached is not None:
        overlapping = min(reached, end) - timedelta(seconds=section.overlap_s)
        start = max(overlapping, start or overlapping)
    start = whole_second(start) if start else None
    if start is not None and start >= end:
        raise InputError(
            f"{what} {format_time(start)} is not before the end {format_time(end)}",
            where=what,
            hint="The end is the earliest of materialize.end, the run's date, and now less the lag.",
        )
    return TimeWindow(start, end, backfill=section.start is not None)


def _parse_run_date(text: str) -> datetime | None:
    """Parse a day, which means its first moment in UTC, or a time with its zone; None for an empty text."""
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
        store: The online store's address, without credentials.
        number: 1 for the first; each is one more.
        reached: Everything before this time is in the online store, in ISO 8601; empty if that is not known,
            as after a backfill somewhere in between.
        start: Start of the run's window; empty is the beginning of the data.
        at: When the run began, by the clock of the store that holds this.
        definition: Digest of the view's definition.
        content: Digest of the files that were read.
        keys: Keys with rows in the window; ``written`` are those without a newer row already, and ``checked``
            those that were compared afterwards, all equal.
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
    """The last watermarks of one view, :data:`RETAINED` of them, in a folder or URI that need not exist."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def last(self) -> Watermark | None:
        """Return the newest watermark; None if the view was never materialized."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def resumable(self, now: datetime, *, store: str, definition: str) -> Watermark | None:
        """Return the newest watermark that a run can continue from.

        One that reached beyond ``now`` was written by a clock that was ahead, and is skipped. Rows in another
        store do not count, and after a change of the view's definition, all rows are due.
        """
        for number in reversed(self._numbers()):
            mark = self._read(number)
            if (mark.store, mark.definition) != (store, definition):
                return None
            if mark.reached_time is None or mark.reached_time <= now + SKEW:
                return mark
        return None

    def add(self, mark: Watermark) -> None:
        """Write the next watermark, and remove those that are no longer retained."""
        uri = self._uri(mark.number)
        try:
            create(uri, canonical(mark.to_json()).encode())
        except AlreadyExists:
            raise TransientError(
                f"another run of view {mark.view!r} finished meanwhile", where=uri, hint="Run again."
            ) from None
        remove(self._uri(number) for number in self._numbers() if number <= mark.number - RETAINED)

    def _numbers(self) -> list[int]:
        try:
            files = list_files(join(self._folder, "watermark.*.json"))
        except InputError:
            return []
        return sorted(int(file.uri.rsplit(".", 2)[-2]) for file in files)

    def _read(self, number: int) -> Watermark:
        uri = self._uri(number)
        try:
            return Watermark.parse(read_bytes(uri), where=uri)
        except InputError as error:
            hint = "Remove it: the next run continues from the one before it."
            raise InputError(f"this watermark is not valid: {error.what}", where=uri, hint=hint) from None

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
