"""The decision of a trigger: a pure function of its rules, of facts and of earlier starts.

There is no state besides the runs that were started. So a decision that was lost, repeated, or made by two
reconcilers at once is made again from the same runs, with the same result.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

from trainwright.experiment import Triggers

START, WAIT = "START", "WAIT"
_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that conditions are compared with.

    Attributes:
        source: Content digest of the source.
        trained: Content digests of the sources of all registered versions.
        newest: Registration of the newest version; None if there is no version.
        drift: Decision of `monitor`; empty if it did not run.
        drift_headline: The columns that moved, with their limits.
        metric: Newest value of the monitored metric; None if it is not asked for, or unknown.
        metric_problem: Reason why it is unknown.
    """

    source: str
    trained: Collection[str] = ()
    newest: datetime | None = None
    drift: str = ""
    drift_headline: str = ""
    metric: float | None = None
    metric_problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run that the trigger started earlier, and the source's digest at that time."""

    run: str
    day: date
    source: str
    state: Literal["active", "ended", "failed"]  # failed also if somebody terminated it


@dataclass(frozen=True)
class Check:
    """One condition: ``holds`` is None if nothing could be learned about it."""

    name: str
    holds: bool | None
    what: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The checks, and what forbids a start although a condition holds."""

    checks: tuple[Check, ...]
    obstacles: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The conditions that hold, with their numbers."""
        return tuple(check.what for check in self.checks if check.holds)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The checks that could not be made."""
        return tuple(f"{check.name}: {check.what}" for check in self.checks if check.holds is None)

    @property
    def decision(self) -> str:
        """START or WAIT."""
        return START if self.reasons and not self.obstacles else WAIT

    @property
    def headline(self) -> str:
        """The decision with its reason, in one line."""
        if not self.reasons:
            return f"{WAIT}: {'; '.join(check.what for check in self.checks)}"
        return f"{self.decision}: {'; '.join((*self.obstacles, *self.reasons))}"


def decide(rules: Triggers, facts: Facts, started: Sequence[Start], now: datetime, day: date) -> Decision:
    """Decide whether to start a run.

    Args:
        rules: The conditions and limits.
        facts: What was looked at.
        started: All earlier starts of this trigger.
        now: The present, for ages.
        day: The date to decide for, at most one run each: that of the schedule, however late it is.
    """
    checks = tuple(_checks(rules, facts, started, now))
    return Decision(checks=checks, obstacles=tuple(obstacles(rules, started, day)))


def _checks(rules: Triggers, facts: Facts, started: Sequence[Start], now: datetime) -> Iterator[Check]:
    if rules.new_data:
        # A run that a gate held has ended, and the same bytes would be held again. One that failed has not
        # answered the arrival.
        done = {*facts.trained, *(one.source for one in started if one.state != "failed")}
        fresh = facts.source not in done
        words = "nothing was trained on" if fresh else "was trained on, or is in training"
        yield Check("new_data", fresh, f"{words} source {facts.source[:_SHOWN]}")
    if rules.drift:
        holds = {"PASS": False, "HOLD": True, "FAIL": True}.get(facts.drift)
        yield Check("drift", holds, facts.drift_headline or "the serving log was not compared")
    if rules.max_age_days:
        limit = timedelta(days=rules.max_age_days)
        age = now - facts.newest if facts.newest else None
        found = "there is no version"
        if age is not None:
            found = f"the newest version is {age / timedelta(days=1):.1f} days old"
        yield Check("age", age is None or age > limit, f"{found}, at most {rules.max_age_days} days")
    if rules.metric:
        yield _metric_check(rules, facts)


def _metric_check(rules: Triggers, facts: Facts) -> Check:
    metric, value = rules.metric, facts.metric
    if metric is None or value is None:
        return Check("metric", None, facts.metric_problem)
    if metric.at_least is not None:
        return Check(
            "metric", value < metric.at_least, f"{metric.name} {value:g}, at least {metric.at_least:g}"
        )
    beyond = metric.at_most is not None and value > metric.at_most
    return Check("metric", beyond, f"{metric.name} {value:g}, at most {metric.at_most:g}")


def obstacles(rules: Triggers, started: Sequence[Start], day: date) -> Iterator[str]:
    """Yield what forbids a start; in whole days, so that a later minute than yesterday's delays nothing."""
    for one in started:
        if one.day == day:
            yield f"run {one.run} was started for {day}"
        elif one.state == "active":
            yield f"run {one.run} of {one.day} is active"
    last = max((one.day for one in started if one.day != day), default=None)
    if last and abs((day - last).days) < rules.cool_down_days:
        yield f"the last start was on {last}, and cool_down_days is {rules.cool_down_days}"
    counted = {one.day for one in started if day - timedelta(days=rules.period_days) < one.day <= day}
    if len(counted) >= rules.max_runs:
        yield f"{len(counted)} starts in {rules.period_days} days, max_runs is {rules.max_runs}"
