"""Compare existing recurring runs with declared schedules, and apply the difference.

The API cannot change a recurring run, only switch it on and off. So a changed one is made anew, switched off;
then the old one is switched off, and the new one on: at no moment do both fire. Nothing is ever deleted. Any
step can be lost or repeated, and the next look finds where things stand.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from trainwright.authoring.schedules.declared import Wanted
from trainwright.authoring.submission import naming, provenance, runs, upload
from trainwright.authoring.submission.connection import Connection
from trainwright.errors import DependencyError, TransientError

CLOCKS = timedelta(hours=1)
"""By how much the clock of the server may differ from ours."""

ROUNDS = 4
"""Looks after which things must have settled: make, switch, and what somebody else did meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Existing:
    """A recurring run on the cluster that this file's owner made.

    Attributes:
        id: Its id.
        name: Of its schedule.
        key: Of the content that it was made of.
        enabled: Whether it fires.
        created: When it was made.
        settings: As the API has them. A copy that somebody made in the UI has the key of what it is a copy
            of, and may fire at other times.
    """

    id: str
    name: str
    key: str
    enabled: bool
    created: datetime
    settings: tuple[str, int, bool, int] | None = None

    def is_(self, wanted: Wanted) -> bool:
        """Say whether it is what is wanted, on or off."""
        schedule = wanted.schedule
        timing = (wanted.cron, schedule.interval_s or 0)
        return self.key == wanted.key and self.settings == (
            *timing,
            schedule.catch_up,
            schedule.max_concurrency,
        )


@dataclass(frozen=True, kw_only=True)
class Action:
    """One step: ``make``, ``enable``, ``disable``, or ``keep``, and why."""

    do: Literal["make", "enable", "disable", "keep"]
    name: str
    why: str = ""
    wanted: Wanted | None = None
    existing: Existing | None = None

    def times(self, now: datetime) -> list[datetime]:
        """Return the next times at which the schedule fires then; none if it is off."""
        if self.wanted is None or self.do == "disable" or not self.wanted.schedule.enabled:
            return []
        return self.wanted.next_after(now, begun=self.existing.created if self.existing else None)


def plan(declared: Sequence[Wanted], there: Sequence[Existing], now: datetime) -> list[Action]:
    """Return what is to be done; nothing but ``keep`` if all is as declared.

    Args:
        declared: What is to be.
        there: What is, of the same owner.
        now: The moment. One that is off, and has missed a time since it was made, is not switched on again:
            the controller would start the missed run at once. It is made anew.
    """
    found: list[Action] = []
    for wanted in declared:
        same = sorted(
            (one for one in there if one.name == wanted.name), key=lambda one: (one.created, one.id)
        )
        found += _towards(wanted, same, now)
    names = {wanted.name for wanted in declared}
    gone = [one for one in there if one.name not in names and one.enabled]
    return found + [_off(one, "no longer declared") for one in gone]


def _towards(wanted: Wanted, same: Sequence[Existing], now: datetime) -> Iterator[Action]:
    """Yield the steps for one schedule: the next ones, when an earlier step must be seen first."""
    fit = [one for one in same if one.is_(wanted) and (one.enabled or not _missed(wanted, one, now))]
    kept = next((one for one in fit if one.enabled), fit[0] if fit else None)
    others = [one for one in same if one.enabled and one is not kept]
    if kept is None and not wanted.schedule.enabled:
        yield from (_off(one, "declared as off") for one in others)
        return
    if kept is None:
        why = "changed" if others else "new"
        yield Action(do="make", name=wanted.name, why=why, wanted=wanted)
        return
    yield from (_off(one, "another one took its place") for one in others)
    if kept.enabled and not wanted.schedule.enabled:
        yield _off(kept, "declared as off")
    elif wanted.schedule.enabled and not kept.enabled:
        yield Action(do="enable", name=wanted.name, existing=kept, wanted=wanted)
    else:
        yield Action(do="keep", name=wanted.name, existing=kept, wanted=wanted)


def _off(one: Existing, why: str) -> Action:
    return Action(do="disable", name=one.name, why=why, existing=one)


def _missed(wanted: Wanted, one: Existing, now: datetime) -> bool:
    """Say whether one has missed a time since it was made; its first hour does not count: clocks differ."""
    if now - one.created < CLOCKS:
        return False
    return wanted.next_after(one.created, 1, one.created)[0] <= now


def existing(api: Connection, owner: str) -> list[Existing]:
    """Return the recurring runs that an owner's file has made, on or off."""
    mark = f"{provenance.MARK}owner={owner}"
    ours = {"predicates": [{"operation": "IS_SUBSTRING", "key": "description", "string_value": mark}]}
    found = api.pages(
        "listing the recurring runs",
        api.recurring.recurring_run_service_list_recurring_runs,
        "recurring_runs",
        filter=json.dumps(ours),
        **({"namespace": api.place.namespace} if api.place.namespace else {}),
    )
    return [one for run in found if (one := _read(run, owner))]


def _read(run: Any, owner: str) -> Existing | None:
    labels = provenance.read(run.description)
    if labels.get("owner") != owner or "schedule" not in labels:
        return None
    return Existing(
        id=run.recurring_run_id,
        name=labels["schedule"],
        key=labels.get("key", ""),
        enabled=run.status == "ENABLED",
        created=run.created_at,
        settings=_settings(run),
    )


def _settings(run: Any) -> tuple[str, int, bool, int]:
    """Return when, and how many at a time, a recurring run starts runs."""
    trigger = run.trigger
    cron = trigger.cron_schedule.cron if trigger and trigger.cron_schedule else ""
    periodic = trigger.periodic_schedule if trigger else None
    interval_s = int(periodic.interval_second or 0) if periodic else 0
    return cron or "", interval_s, not run.no_catchup, int(run.max_concurrency or 0)


def apply(
    api: Connection,
    owner: str,
    declared: Sequence[Wanted],
    now: Callable[[], datetime],
    done: Callable[[Action], None],
) -> None:
    """Bring the cluster to what is declared, and look again until nothing is left to do.

    Args:
        api: The API.
        owner: Whose recurring runs these are.
        declared: What is to be.
        now: Tells the time.
        done: Called with every change that was made.

    Raises:
        TransientError: A run goes on for the date for which the next one would start beside it.
        TrainwrightError: A step was refused, or the API did not answer; another apply goes on from there.
    """
    for _ in range(ROUNDS):
        there = existing(api, owner)
        actions = [action for action in plan(declared, there, now()) if action.do != "keep"]
        if not actions:
            return
        for action in actions:
            _require_alone(api, action, there, now())
        for action in sorted(actions, key=lambda action: ["make", "disable", "enable"].index(action.do)):
            _take(api, owner, action, now)
            done(action)
    raise DependencyError(
        "the schedules do not settle: somebody else changes them", where=api.place.host, hint="Apply again."
    )


def _require_alone(api: Connection, action: Action, there: Sequence[Existing], now: datetime) -> None:
    """Refuse to replace a recurring run while its run goes on for the date of the first one of the new one.

    The controller counts how many go on for each recurring run by itself, so it would start it beside that.
    """
    wanted = action.wanted
    if wanted is None or action.do == "keep":
        return
    own = action.existing.id if action.existing else ""
    others = {one.id for one in there if one.name == action.name and one.id != own}
    first = wanted.next_after(now, 1)[0]
    date = runs.date_of(wanted.arguments, first)
    for run in runs.active_of_schedules(api, others, date) if others else ():
        raise TransientError(
            f"run {run.run_id} of {action.name} goes on for {date}, and as it is declared now it would fire "
            f"for the same date, at {first:%H:%M:%S %Z}",
            where=api.place.link(run.run_id),
            hint=f"Apply again when it has ended, or stop it: trainwright terminate {run.run_id}.",
        )


def _take(api: Connection, owner: str, action: Action, now: Callable[[], datetime]) -> None:
    if action.do == "make" and action.wanted:
        _make(api, owner, action.wanted, now)
    elif action.existing:
        _switch(api, action.existing, on=action.do == "enable")


def _switch(api: Connection, one: Existing, *, on: bool) -> None:
    calls = api.recurring

    def look() -> Any:
        run = api.read("reading the recurring run", calls.recurring_run_service_get_recurring_run, one.id)
        return run if (run.status == "ENABLED") == on else None

    switch = (
        calls.recurring_run_service_enable_recurring_run
        if on
        else calls.recurring_run_service_disable_recurring_run
    )
    api.made(f"switching {one.name} {'on' if on else 'off'}", look, switch, one.id)


def _make(api: Connection, owner: str, wanted: Wanted, now: Callable[[], datetime]) -> None:
    """Make a recurring run, switched off."""
    experiment = runs.experiment(api, wanted.schedule.experiment)
    version = upload.uploaded(api, wanted.package, wanted.labels)
    labels = {"owner": owner, "schedule": wanted.name, **wanted.labels}
    called = wanted.package.display_name or wanted.package.name
    sentence = naming.sentence(called, wanted.arguments, wanted.labels)
    body = {
        "display_name": wanted.name,
        "description": provenance.description(wanted.key, labels, sentence),
        "experiment_id": experiment,
        "pipeline_version_reference": {
            "pipeline_id": version.pipeline_id,
            "pipeline_version_id": version.version_id,
        },
        "runtime_config": {"parameters": dict(wanted.arguments)},
        "trigger": trigger(wanted),
        "mode": "DISABLE",
        "no_catchup": not wanted.schedule.catch_up,
        "max_concurrency": str(wanted.schedule.max_concurrency),
        "namespace": api.place.namespace or None,
        "service_account": wanted.schedule.service_account or None,
    }
    body = {key: value for key, value in body.items() if value is not None}

    def look() -> Existing | None:
        fit = (
            one
            for one in existing(api, owner)
            if one.name == wanted.name and one.is_(wanted) and not _missed(wanted, one, now())
        )
        return next(fit, None)

    call = api.recurring.recurring_run_service_create_recurring_run
    api.made(f"making the recurring run {wanted.name}", look, call, body)


def trigger(wanted: Wanted) -> dict[str, Any]:
    """Return when it fires, as the API takes it."""
    if wanted.schedule.interval_s:
        return {"periodic_schedule": {"interval_second": str(wanted.schedule.interval_s)}}
    return {"cron_schedule": {"cron": wanted.cron}}


def fields(action: Action, now: datetime) -> dict[str, Any]:
    """Describe a step for a program."""
    return {
        "do": action.do,
        "name": action.name,
        "why": action.why,
        "recurring_run_id": action.existing.id if action.existing else "",
        "next": [time.isoformat() for time in action.times(now)],
        **({"key": action.wanted.key} if action.wanted else {}),
    }
