"""The window of a run: which times it materializes, decided from the run's date and never from the future."""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from trainwright.errors import InputError

SKEW = timedelta(minutes=5)
"""How far clocks may disagree before a time counts as lying in the future."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


@dataclass(frozen=True)
class Window:
    """Times from ``start`` up to, and without, ``end``; both whole seconds in UTC.

    Whole seconds, because some of Feast's stores keep no more: so all rows of one second are looked at
    together, and the newest of them is known.

    Attributes:
        start: None is the beginning of the data.
        end: Never in the future.
        backfill: Whether the start was asked for, and not taken from the watermark.
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

    def up_to(self, reached: datetime) -> "Window":
        """Return this window, or one that goes on up to ``reached``, where that is later.

        For stores that let an older row replace a newer one: what is newest of a longer window is not older.
        """
        return replace(self, end=max(self.end, whole_second(reached)))

    def __str__(self) -> str:
        return f"[{shown(self.start) if self.start else 'the beginning'}, {shown(self.end)})"


def window_end(
    requested: datetime | None, scheduled: datetime | None, now: datetime, lag: timedelta
) -> datetime:
    """Return where the window ends: the earliest of what was asked for, the run's date, and now less the lag.

    Raises:
        InputError: One of them lies in the future, by more than clocks may disagree.
    """
    for what, time in (("materialize.end", requested), ("the run's date", scheduled)):
        if time is not None and time > now + SKEW:
            raise InputError(
                f"{what} {shown(time)} lies in the future: it is {shown(now)} now",
                where=what,
                hint="What is not there yet cannot be materialized, and would be missed when it comes.",
            )
    known = [time for time in (requested, scheduled) if time is not None]
    return whole_second(min([*known, now - lag]))


def explicit(start: datetime, end: datetime) -> Window:
    """Return the window of a backfill.

    Raises:
        InputError: It is empty.
    """
    start = whole_second(start)
    if start >= end:
        raise InputError(
            f"materialize.start {shown(start)} is not before the end {shown(end)}",
            where="materialize.start",
            hint="The end is the earliest of materialize.end, the run's date, and now less the lag.",
        )
    return Window(start, end, backfill=True)


def incremental(
    reached: datetime | None, first: datetime | None, end: datetime, overlap: timedelta
) -> Window:
    """Return the window that goes on where the last one ended, and looks back once more for late rows.

    Args:
        reached: Up to where everything was materialized; None if nothing was.
        first: Where the first window starts; None is the beginning of the data. Feast's own first window
            starts one TTL ago, and with a TTL of 0 only 52 weeks.
        end: Where it ends. One before ``reached``, such as after a clock that went wrong, is no error.
        overlap: How far to look back.
    """
    start = whole_second(min(reached, end) - overlap) if reached is not None else first
    if first is not None and start is not None:
        start = max(start, whole_second(first))
    if start is not None and start >= end:
        raise InputError(
            f"materialize.since {shown(start)} is not before the end {shown(end)}",
            where="materialize.since",
            hint="The end is the earliest of materialize.end, the run's date, and now less the lag.",
        )
    return Window(start, end)


def run_date(text: str) -> datetime | None:
    """Read the date of a run: a day, which stands for its first moment in UTC, or a time with its zone.

    Raises:
        InputError: It is neither, or has no zone.
    """
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write it as 2026-01-31 or 2026-01-31T05:00:00Z."
        raise InputError(f"{text!r} is no date", where="date", hint=hint) from None
    if len(text) == len(date.min.isoformat()):
        return time.replace(tzinfo=UTC)
    if time.tzinfo is None:
        raise InputError(
            f"{text!r} has no time zone; in UTC it would be {shown(time.replace(tzinfo=UTC))}",
            where="date",
            hint=f"Write {text}Z if that is meant.",
        )
    return time.astimezone(UTC)


def whole_second(time: datetime) -> datetime:
    """Round down to a whole second, in UTC."""
    return time.astimezone(UTC).replace(microsecond=0)


def shown(time: datetime) -> str:
    """Write a time for people, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
