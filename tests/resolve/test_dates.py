import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InputError, TrainwrightError
from trainwright.resolve.resolve import fill_in, resolve, run_date

DAY = dt.date(2026, 1, 31)


@pytest.mark.parametrize(
    ("source", "filled"),
    [
        ("gs://b/{date}/*.parquet", "gs://b/2026-01-31/*.parquet"),
        ("in/{date:%Y/%m/%d}/", "in/2026/01/31/"),
        ("in/year={date:%Y}/month={date:%m}/x_{date:%y%j}.csv", "in/year=2026/month=01/x_26031.csv"),
        ("in/week={date:%G-W%V-%u}", "in/week=2026-W05-6"),
        ("in/plain", "in/plain"),
    ],
)
def test_a_date_is_filled_in_in_any_form(source: str, filled: str) -> None:
    assert fill_in(source, DAY) == filled


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("in/{day}", "'{day}' stands in the source, but only a date is filled in"),
        ("in/{a,b}.csv", "only a date is filled in"),
        ("in/{}", "only a date is filled in"),
        ("in/{date", "only a date is filled in"),
        ("in/date}", "only a date is filled in"),
        ("in/{date:}", "is no form of a date"),
        ("in/{date:year}", "is no form of a date"),
        ("in/{date:%s}", "is no form of a date"),
        ("in/{date:%Y%}", "is no form of a date"),
        ("in/{date.year}", "only a date is filled in"),
        ("{{$.inputs.parameters['source']}}", "nothing was put in its place"),
        ("in/{{workflow.name}}", "nothing was put in its place"),
        ("in/[[ScheduledTime.2006-01-02]]", "nothing was put in its place"),
    ],
)
def test_anything_else_in_braces_is_refused(source: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        fill_in(source, DAY)
    assert caught.value.where == "parameter source"


def test_the_date_is_a_day_or_today_in_utc() -> None:
    late = dt.datetime(2026, 1, 31, 23, 30, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    assert run_date("", late) == dt.date(2026, 2, 1)
    assert run_date("2026-01-31", late) == DAY
    for wrong in ("2026-02-30", "31.01.2026", "2026-1-31", "20260131", "today", "2026-01-31T00:00"):
        with pytest.raises(InputError, match="is no day"):
            run_date(wrong, late)
    with pytest.raises(InputError, match="nothing was put in its place"):
        run_date("[[ScheduledTime.2006-01-02]]", late)


@pytest.mark.parametrize(
    ("date", "scheduled", "day"),
    [
        ("", "2026-01-30T23:50:00Z", "2026-01-30"),
        ("2026-01-29", "2026-01-30T23:50:00Z", "2026-01-29"),
        ("", "{{$.pipeline_job_schedule_time_utc}}", "2026-01-31"),
        ("", "", "2026-01-31"),
    ],
)
def test_a_run_that_starts_after_midnight_is_for_the_day_of_its_schedule(
    tmp_path: Path, date: str, scheduled: str, day: str
) -> None:
    (tmp_path / f"{day}.csv").write_text("a\n1\n")
    late = dt.datetime(2026, 1, 31, 0, 5, tzinfo=dt.UTC)
    found = resolve(f"{tmp_path}/{{date}}.csv", tmp_path / "listing", "", date, scheduled, now=late)
    assert found.source.endswith(f"/{day}.csv")


@given(source=st.text(st.sampled_from("{}[]$%:/.daYm-te"), max_size=30) | st.text())
def test_any_text_is_filled_in_or_refused(source: str) -> None:
    try:
        filled = fill_in(source, DAY)
    except TrainwrightError as error:
        said = error
        assert said.code == 10
    else:
        assert "{" not in filled
        assert "}" not in filled


def test_what_is_handed_on_has_its_date_filled_in(tmp_path: Path) -> None:
    for day in ("2026-01-30", "2026-01-31"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.csv").write_text(f"id,day\n1,{day}\n")
    first = resolve(f"{tmp_path}/day={{date}}", tmp_path / "1", date="2026-01-30")
    assert first.source == f"{tmp_path}/day=2026-01-30"
    now = dt.datetime(2026, 1, 31, 5, tzinfo=dt.UTC)
    second = resolve(f"{tmp_path}/day={{date}}", tmp_path / "2", now=now)
    assert second.source == f"{tmp_path}/day=2026-01-31"
    assert first.version != second.version
