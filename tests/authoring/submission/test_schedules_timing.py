"""A schedule fires when the controller's own rules say so: minute by minute, by another method."""

import functools
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from trainwright.authoring.schedules import declaration

NAMES = {"MON": 1, "FRI": 5, "JAN": 1}


@functools.cache
def bits(field: str, low: int, high: int) -> frozenset[int]:
    """What robfig/cron 1.2 makes of a field: its getRange and getBits."""
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        start, dash, end = span.partition("-")
        first = low if start in {"*", "?"} else NAMES.get(start, 0) or int(start)
        last = high if start in {"*", "?"} or (step and not dash) else NAMES.get(end, 0) or int(end or first)
        found |= set(range(first, last + 1, int(step or 1)))
    return frozenset(found)


def fires(cron: str, at: datetime) -> bool:
    """Whether robfig/cron 1.2 fires in a minute: its SpecSchedule.Next and dayMatches."""
    second, minute, hour, day, month, weekday = cron.split()
    assert bits(second, 0, 59) == {int(second)}
    day_fits = at.day in bits(day, 1, 31)
    weekday_fits = at.isoweekday() % 7 in bits(weekday, 0, 6)
    any_star = any(field[0] in "*?" for field in (day, weekday))
    fits = (day_fits and weekday_fits) if any_star else (day_fits or weekday_fits)
    in_time = at.minute in bits(minute, 0, 59) and at.hour in bits(hour, 0, 23)
    return fits and in_time and at.month in bits(month, 1, 12)


CRONS = [
    "0 30 2 * * *",
    "0 0 */6 * * ?",
    "0 10/20 8-10 * * MON-FRI",
    "0 0 0 1,15 * *",
    "0 0 0 13 * 5",
    "0 0 12 */2 * 1",
    "0 59 23 31 12 ?",
    "0 30 2 29 2 *",
    "0 30 2 * JAN *",
]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_the_times_are_those_that_counting_every_minute_finds(zone: str) -> None:
    where, start = ZoneInfo(zone), datetime(2026, 10, 20, 22, 17, tzinfo=UTC)
    # Over the end of summer time in Europe and America: 16 days.
    minutes = [start + timedelta(minutes=count) for count in range(1, 16 * 24 * 60)]
    clocks = [(moment, moment.astimezone(where)) for moment in minutes]
    for cron in CRONS:
        expected = [moment for moment, clock in clocks if fires(cron, clock)]
        found = islice(declaration.firings(cron, where, start), len(expected) + 1)
        within = [time for found_at in found if (time := found_at.astimezone(UTC)) <= minutes[-1]]
        assert within == expected, cron


def test_a_time_that_the_clocks_skip_does_not_fire_and_one_that_they_repeat_fires_twice() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    spring = declaration.firings("0 30 2 * * *", berlin, datetime(2027, 3, 27, 12, tzinfo=UTC))
    assert next(spring).day == 29, "on 2027-03-28 there is no 02:30"
    autumn = declaration.firings("0 30 2 * * *", berlin, datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert [time.astimezone(UTC).hour for time in islice(autumn, 2)] == [0, 1]


@pytest.mark.covers("B70")
@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("* * * * * *", "starts more than one run a minute"),
        ("*/5 * * * * *", "starts more than one run a minute"),
        ("0 60 * * * *", "bad minute"),
        ("0 0 0 * * 7", "Sunday is 0"),
        ("0 0 0 L * *", "cannot be read"),
        ("0 0 0 * * MON#2", "cannot be read"),
        ("@daily", "1 fields"),
        ("0 0 0 30 2 *", "bad day-of-month"),
    ],
)
def test_what_the_controller_reads_otherwise_or_not_at_all_is_refused(cron: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declaration.check_cron(cron)


@pytest.mark.parametrize(
    ("cron", "wanted", "cluster", "found"),
    [
        ("0 30 6 * * *", "Asia/Tokyo", "UTC", "0 30 21 * * *"),
        ("0 30 6 * * 1-5", "Asia/Tokyo", "UTC", "0 30 21 * * 0,1,2,3,4"),
        ("0 15 12 1 * *", "Asia/Kolkata", "UTC", "0 45 6 1 * *"),
        ("0 0 */2 * * *", "Asia/Tokyo", "UTC", "0 0 1,3,5,7,9,11,13,15,17,19,21,23 * * *"),
        ("0 30 6 * * *", "Europe/Berlin", "Europe/Paris", "0 30 6 * * *"),
    ],
)
def test_a_zone_is_translated_where_it_can_be_exactly(
    cron: str, wanted: str, cluster: str, found: str
) -> None:
    assert declaration.translated(cron, ZoneInfo(wanted), ZoneInfo(cluster)) == found


@pytest.mark.parametrize(
    ("cron", "wanted", "message"),
    [
        ("0 30 6 * * *", "Europe/Berlin", "do not change together"),
        ("0 30 6 1 * *", "Asia/Tokyo", "cannot be written in UTC"),
        ("0 0,40 6 * * *", "Asia/Kolkata", "cannot be written in UTC"),
    ],
)
def test_a_zone_that_cannot_be_translated_is_refused(cron: str, wanted: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declaration.translated(cron, ZoneInfo(wanted), ZoneInfo("UTC"))


def test_an_interval_fires_evenly() -> None:
    start = datetime(2026, 11, 20, tzinfo=UTC)
    found = list(islice(declaration.every(3600, start), 3))
    assert found == [start + timedelta(hours=hour) for hour in (1, 2, 3)]
    later = start + timedelta(minutes=150)
    assert next(declaration.every(3600, later, start)) == start + timedelta(hours=3), (
        "it counts from its making"
    )
    assert next(declaration.every(3600, start, later)) == later + timedelta(hours=1)
