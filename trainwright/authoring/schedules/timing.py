"""Fire times of a schedule, cron with a zone or an interval, as Kubeflow's controller computes them.

The controller reads cron with robfig/cron 1.2: six fields, seconds first; with five, the first is taken for
the seconds, and ``10 10 * * *`` runs every hour. Its zone is one for the whole installation
(``CRON_SCHEDULE_TIMEZONE``); a schedule in another zone is translated where that can be done exactly.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
_PART = r"([0-9]+|[A-Za-z]{3})"
_TERM = re.compile(rf"(\*|\?|{_PART}(-{_PART})?)(/[0-9]+)?")
_DAY, _HOUR = 24 * 60, 60
YEARS = 3
COMPARED = 400
"""Firings by which a translation is tried: more than a year of daily ones."""


def zone(name: str) -> ZoneInfo:
    """Return a time zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; write it as Europe/Berlin, or UTC") from None


def checked(cron: str) -> str:
    """Return a cron expression that both the controller and we read the same way."""
    fields = cron.split()
    if len(fields) != len(FIELDS):
        text = "six fields, seconds first: 0 30 2 * * * is 02:30 every day"
        raise ValueError(f"{len(fields)} fields; Kubeflow takes {text}")
    for name, field in zip(FIELDS, fields, strict=True):
        if not all(_TERM.fullmatch(term) for term in field.split(",")):
            raise ValueError(f"{name}: {field!r} cannot be read")
    if not re.fullmatch("[0-9]+", fields[0]):
        raise ValueError(f"second: {fields[0]!r} starts more than one run a minute; write one number")
    if re.search(r"\b7\b", fields[5]):
        raise ValueError("day of week: 7 is refused by the controller; Sunday is 0")
    try:
        CronSim(" ".join(fields).replace("?", "*"), datetime.now(UTC))
    except CronSimError as error:
        raise ValueError(f"{str(error).lower()} in {cron!r}") from None
    return " ".join(fields)


def firings(cron: str, where: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the moments at which a cron expression fires after a moment, in its zone.

    A time that a change of the clocks skips does not fire, and one that it repeats fires twice: that is what
    the controller does.
    """
    yield from CronSim(cron.replace("?", "*"), after.astimezone(where))


def every(interval_s: int, after: datetime, begun: datetime | None = None) -> Iterator[datetime]:
    """Yield the moments after another one at which an interval fires."""
    step = timedelta(seconds=interval_s)
    begun = begun or after
    moment = begun + max((after - begun) // step, 0) * step
    while True:
        moment += step
        yield moment


def translated(cron: str, wanted: ZoneInfo, cluster: ZoneInfo) -> str:
    """Return the expression that fires in the cluster's zone when the given one fires in the wanted zone."""
    if wanted.key == cluster.key:
        return cron
    start = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC)
    moments = [start + timedelta(hours=12 * number) for number in range(YEARS * 2 * 365)]
    shifts = {_minutes(moment, wanted) - _minutes(moment, cluster) for moment in moments}
    if len(shifts) > 1:
        raise ValueError(
            f"the clocks of {wanted.key} and of the cluster ({cluster.key}) do not change together, and a "
            f"recurring run has no zone of its own; write the time in {cluster.key}"
        )
    found = _shifted(cron, shifts.pop())
    pairs = (firings(cron, wanted, start), firings(found, cluster, start)) if found else ()
    same = pairs and all(a == b for a, b in islice(zip(*pairs, strict=False), COMPARED))
    if not same:
        text = f"{cron!r} in {wanted.key} cannot be written in {cluster.key}, the cluster's zone"
        raise ValueError(f"{text}; write the time in {cluster.key}")
    return found


def _minutes(moment: datetime, where: ZoneInfo) -> int:
    offset = moment.astimezone(where).utcoffset() or timedelta()
    return int(offset.total_seconds()) // 60


def _shifted(cron: str, minutes: int) -> str:
    """Write an expression so many minutes earlier; empty if it cannot be written as one."""
    fields = cron.replace("?", "*").split()
    read = CronSim(" ".join(fields), datetime.now(UTC))
    times = {hour * _HOUR + minute - minutes for hour in read.hours for minute in read.minutes}
    within = {time % _DAY for time in times}
    hours, mins = {time // _HOUR for time in within}, {time % _HOUR for time in within}
    days = {time // _DAY for time in times}
    if len(hours) * len(mins) != len(within):
        return ""
    if days != {0} and fields[3:] != ["*", "*", "*"]:
        if len(days) > 1 or fields[3:5] != ["*", "*"]:
            return ""
        moved = {(int(day) + min(days)) % 7 for day in read.weekdays if isinstance(day, int)}
        fields[5] = _written(moved, 7)
    return " ".join([fields[0], _written(mins, 60), _written(hours, 24), *fields[3:]])


def _written(values: set[int], count: int) -> str:
    return "*" if len(values) == count else ",".join(map(str, sorted(values)))
