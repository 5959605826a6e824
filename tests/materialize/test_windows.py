"""Which window a run takes: from the watermark, the run's date and the clock; never of the future."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.materialize.shop import Shop, at, history, row
from trainwright.errors import InputError


def test_a_backfill_that_leaves_a_gap_does_not_move_the_watermark(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(2, 5, 25)])
    assert shop.run(start=at(4), end=at(6)).views[0].mark.reached == ""
    mark = shop.run(date=at(10).isoformat()).views[0].mark
    assert (mark.start, mark.keys) == ("", 2)
    assert shop.run(start=at(9), end=at(12)).views[0].mark.reached == at(12).isoformat()


def test_a_ttl_of_zero_does_not_hide_rows_older_than_a_year(make_shop: Callable[..., Shop]) -> None:
    """Feast's first increment starts 52 weeks ago then, without a word; ours at the first row."""
    shop = make_shop(ttl=timedelta(0)).apply()
    shop.add("a", [row(1, -24 * 800, 10)])
    shop.run()
    assert shop.read(1) == [(10, "n10")]


def test_a_ttl_does_not_decide_where_the_first_window_starts(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(ttl=timedelta(hours=1)).apply()
    shop.add("a", [row(1, -24 * 800, 10)])
    assert shop.run().views[0].mark.keys == 1


def test_the_first_window_can_be_told_to_start_later(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10), row(2, 5, 25)])
    assert shop.run(since=at(4)).views[0].mark.keys == 1


@pytest.mark.parametrize("where", ["end", "date"])
def test_a_future_end_is_refused_with_both_times_in_utc(where: str, make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    now = at(10)
    asked = {where: (now + timedelta(hours=1)).isoformat()}
    with pytest.raises(InputError, match="T11:00:00Z lies in the future: it is 2024-03-01T10:00:00Z now"):
        shop.run(now=now, **asked)
    assert history(shop).last() is None


def test_an_end_that_only_a_skewed_clock_puts_into_the_future_is_taken_for_now(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop().apply()
    mark = shop.run(now=at(10), date=(at(10) + timedelta(minutes=4)).isoformat()).views[0].mark
    assert mark.end == "2024-03-01T10:00:00Z"


def test_a_run_that_starts_late_goes_up_to_the_time_of_its_schedule(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop().apply()
    left = "{{$.pipeline_job_schedule_time_utc}}"
    for hour, scheduled, end in ((9, at(8).isoformat(), at(8)), (10, left, at(10))):
        mark = shop.run(now=at(hour), scheduled=scheduled).views[0].mark
        assert mark.end == f"{end:%Y-%m-%dT%H:%M:%SZ}"


def test_a_start_at_or_after_the_end_is_refused_with_both(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    with pytest.raises(InputError, match="2024-03-01T05:00:00Z is not before the end 2024-03-01T05:00:00Z"):
        shop.run(start=at(5), date=at(5).isoformat())
    with pytest.raises(ValueError, match=r"start .* is not before end"):
        shop.section(start=at(5), end=at(4))


@pytest.mark.parametrize("text", ["2024-03-01T05:00:00", "yesterday"])
def test_a_date_without_a_zone_or_sense_is_refused(text: str, make_shop: Callable[..., Shop]) -> None:
    wanted = r"no time zone; in UTC it would be 2024|expected a date, found 'yesterday'"
    with pytest.raises(InputError, match=wanted):
        make_shop().run(date=text)
    with pytest.raises(ValueError, match=r"must be a time"):
        make_shop().section(end=text)


def test_a_day_stands_for_its_first_moment_and_the_lag_holds_back_what_may_still_come(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop().apply()
    assert shop.run(date="2024-03-02").views[0].mark.end == "2024-03-02T00:00:00Z"
    assert shop.run(now=at(30), lag_s=600).views[0].mark.end == "2024-03-02T05:50:00Z"


def test_a_pod_whose_clock_is_ahead_cannot_move_the_window_into_the_future(
    make_shop: Callable[..., Shop],
) -> None:
    """The store that keeps the watermarks also says what time it is."""
    shop = make_shop().apply()
    shop.run(now=datetime.now(UTC) + timedelta(days=365))
    reached = history(shop).last().reached_time  # type: ignore[union-attr]
    assert reached <= datetime.now(UTC)  # type: ignore[operator]


def test_a_watermark_from_the_future_does_not_brick_later_runs(make_shop: Callable[..., Shop]) -> None:
    """Feast's does: after one future end, every increment is empty or refused."""
    shop = make_shop().apply()
    shop.add("a", [row(1, 0, 10)])
    shop.run(date=at(1).isoformat())
    shop.run(date=at(20).isoformat())  # at(5) was the true time: this clock was ahead
    shop.add("b", [row(1, 4, 14)])
    mark = shop.run(now=at(6)).views[0].mark
    assert mark.start == "2024-03-01T00:00:00Z"
    assert shop.read(1) == [(14, "n14")]


def test_an_apply_does_not_reset_the_watermark(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop().apply()
    shop.run(date=at(5).isoformat())
    shop.apply()
    assert shop.run(date=at(6).isoformat()).views[0].mark.start == "2024-03-01T04:00:00Z"
