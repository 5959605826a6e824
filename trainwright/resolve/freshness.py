"""Limits that a source must keep before a byte of it is read: how old, how large."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

from trainwright.artifacts import SourceFile
from trainwright.errors import DataRefused, InputError
from trainwright.experiment import Quality
from trainwright.resolve.sizes import readable_size

_HOUR_S, _DAY_S = 3600, 86_400


def require_limits(files: Sequence[SourceFile], quality: Quality, source: str, now: datetime) -> None:
    """Refuse a source that is larger or older than it may be; all that is wrong is named at once.

    Args:
        files: Its objects.
        quality: The limits: ``max_bytes`` and ``fresh_within_s``.
        source: What was listed, for errors.
        now: The present.

    Raises:
        DataRefused: It is larger than ``max_bytes``, or its newest object older than ``fresh_within_s``.
        InputError: The store does not say when an object was written.
    """
    wrong = []
    size = sum(entry.size for entry in files)
    if quality.max_bytes is not None and size > quality.max_bytes:
        wrong.append(
            f"the source has {size:,} bytes ({readable_size(size)}) in {len(files):,} files; "
            f"data.quality.max_bytes is {quality.max_bytes:,}"
        )
    if quality.fresh_within_s is not None and (said := _stale(files, quality.fresh_within_s, source, now)):
        wrong.append(said)
    if wrong:
        raise DataRefused(
            "\n".join(wrong),
            where=source,
            hint="Look at what writes the source; if it is right as it is, raise the limit.",
        )


def _stale(files: Sequence[SourceFile], limit_s: int, source: str, now: datetime) -> str:
    times = [entry.written for entry in files if entry.written]
    if not times:
        raise InputError(
            "how old the source is cannot be told: its store does not say when an object was written",
            where=source,
            hint="Leave out data.quality.fresh_within_s; fresh_rows_within_s looks at the rows instead.",
        )
    newest = max(times)
    age_s = (now - _moment(newest)).total_seconds()
    if age_s <= limit_s:
        return ""
    return (
        f"the newest of {len(files):,} files was written at {newest[:19]}Z, {_age(age_s)} ago; "
        f"data.quality.fresh_within_s is {limit_s:,} ({_age(limit_s)})"
    )


def newest_since(quality: Quality, day: date) -> str:
    """Return the time that the newest row must reach, ISO 8601 in UTC; '' if no limit is set.

    It is counted back from the first moment of the run's date, so that it is one and the same all day.
    """
    if quality.fresh_rows_within_s is None:
        return ""
    start = datetime.combine(day, time(), UTC) - timedelta(seconds=quality.fresh_rows_within_s)
    return f"{start:%Y-%m-%dT%H:%M:%SZ}"


def _moment(text: str) -> datetime:
    """Read a time of a listing; what is finer than a second does not count here."""
    return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)


def _age(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.1f} days"
    return f"{seconds / _HOUR_S:.1f} hours" if seconds >= _HOUR_S else f"{seconds:.0f} s"
