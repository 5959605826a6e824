"""Compare the recurring runs of a cluster with declared schedules, and apply the difference.

The API cannot change a recurring run, only enable and disable it. So a changed one is created anew, disabled;
then the old one is disabled, and the new one enabled: at no moment do both fire. Nothing is ever deleted. Any
step can be lost or repeated, and the next look continues from there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from trainwright.authoring.schedules.declaration import DeclaredSchedule
from trainwright.authoring.submission import provenance, runs
from trainwright.authoring.submission.connection import Connection, matching
from trainwright.errors import DependencyError, TransientError

CLOCKS = timedelta(hours=1)
"""Difference that the clocks of server and client may have."""

ROUNDS = 4
"""Looks after which nothing may be left to do: create, switch, and what somebody else did meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Existing:
    """A recurring run on the cluster that this file's owner created."""

    id: str
    name: str  # of its schedule
    key: str  # of the declaration that it was created from
    enabled: bool
    created: datetime
    # Cron, interval in seconds, catch-up and concurrency, as the API has them. A copy that somebody made in
    # the UI has the key of its original, and may fire at other times.
    settings: tuple[str, int, bool, int]

    def is_(self, declared: DeclaredSchedule) -> bool:
        """Return whether it is what is declared, enabled or not."""
        schedule = declared.schedule
        settings = (declared.cron, schedule.interval_s or 0, schedule.catch_up, schedule.max_concurrency)
        return self.key == declared.key and self.settings == settings

    def missed(self, declared: DeclaredSchedule, now: datetime) -> bool:
        """Return whether a time has passed since its creation; its first hour does not count."""
        if now - self.created < CLOCKS:
            return False
        return declared.next_after(self.created, 1, self.created)[0] <= now


@dataclass(frozen=True, kw_only=True)
class Action:
    """One step: ``make``, ``enable``, ``disable``, or ``keep``, and why."""

    do: Literal["make", "enable", "disable", "keep"]
    name: str
    why: str = ""
    declared: DeclaredSchedule | None = None
    existing: Existing | None = None

    def times(self, now: datetime) -> list[datetime]:
        """Return the next times at which the schedule fires then; none if it is off."""
        if self.declared is None or self.do == "disable" or not self.declared.schedule.enabled:
            return []
        return self.declared.next_after(now, begun=self.existing.created if self.existing else None)

    def fields(self, now: datetime) -> dict[str, Any]:
        """Return the step as plain data."""
        return {
            "do": self.do,
            "name": self.name,
            "why": self.why,
            "recurring_run_id": self.existing.id if self.existing else "",
            "next": [time.isoformat() for time in self.times(now)],
            **({"key": self.declared.key} if self.declared else {}),
        }


def plan(declared: Sequence[DeclaredSchedule], there: Sequence[Existing], now: datetime) -> list[Action]:
    """Return the steps towards what is declared; nothing but ``keep`` if the cluster has it.

    Args:
        declared: The schedules of the file.
        there: The recurring runs of the same owner.
        now: The moment. A disabled one that has missed a time since its creation is not enabled again: the
            controller would start the missed run at once. It is created anew.
    """
    found: list[Action] = []
    for one in declared:
        same = sorted((run for run in there if run.name == one.name), key=lambda run: (run.created, run.id))
        found += _towards(one, same, now)
    names = {one.name for one in declared}
    gone = [run for run in there if run.name not in names and run.enabled]
    return found + [_disable(run, "no longer declared") for run in gone]


def _towards(declared: DeclaredSchedule, same: Sequence[Existing], now: datetime) -> Iterator[Action]:
    """Yield the steps for one schedule: the next ones, where an earlier step has to be seen first."""
    fit = [run for run in same if run.is_(declared) and (run.enabled or not run.missed(declared, now))]
    current = next((run for run in fit if run.enabled), fit[0] if fit else None)
    others = [run for run in same if run.enabled and run is not current]
    if current is None and declared.schedule.enabled:
        why = "changed" if others else "new"
        yield Action(do="make", name=declared.name, why=why, declared=declared)
        return
    yield from (
        _disable(run, "another one took its place" if current else "declared as off") for run in others
    )
    if current is None:
        return
    if current.enabled and not declared.schedule.enabled:
        yield _disable(current, "declared as off")
    else:
        do: Literal["enable", "keep"] = "keep"
        if declared.schedule.enabled and not current.enabled:
            do = "enable"
        yield Action(do=do, name=declared.name, existing=current, declared=declared)


def _disable(run: Existing, why: str) -> Action:
    return Action(do="disable", name=run.name, why=why, existing=run)


def existing(api: Connection, owner: str) -> list[Existing]:
    """Return the recurring runs that an owner's file has created, enabled or not."""
    found = api.pages(
        "listing the recurring runs",
        api.recurring.recurring_run_service_list_recurring_runs,
        "recurring_runs",
        filter=matching("description", f"{provenance.MARK}owner={owner}", "IS_SUBSTRING"),
        **api.scope,
    )
    labelled = [(run, provenance.read(run.description)) for run in found]
    return [
        Existing(
            id=run.recurring_run_id,
            name=labels["schedule"],
            key=labels.get("key", ""),
            enabled=run.status == "ENABLED",
            created=run.created_at,
            settings=_settings(run),
        )
        for run, labels in labelled
        if labels.get("owner") == owner and "schedule" in labels
    ]


def _settings(run: Any) -> tuple[str, int, bool, int]:
    trigger = run.trigger
    cron = trigger.cron_schedule.cron if trigger and trigger.cron_schedule else ""
    periodic = trigger.periodic_schedule if trigger else None
    interval_s = int(periodic.interval_second or 0) if periodic else 0
    return cron or "", interval_s, not run.no_catchup, int(run.max_concurrency or 0)


def apply(
    api: Connection,
    owner: str,
    declared: Sequence[DeclaredSchedule],
    now: Callable[[], datetime],
    done: Callable[[Action], None],
) -> None:
    """Bring the cluster to what is declared, and look again until nothing is left to do."""
    for _ in range(ROUNDS):
        there = existing(api, owner)
        actions = [action for action in plan(declared, there, now()) if action.do != "keep"]
        if not actions:
            return
        for action in actions:
            _require_alone(api, action, there, now())
        for action in sorted(actions, key=lambda action: ["make", "disable", "enable"].index(action.do)):
            if action.do == "make" and action.declared:
                _make(api, owner, action.declared, now)
            elif action.existing:
                _switch(api, action.existing, on=action.do == "enable")
            done(action)
    raise DependencyError(
        "the schedules do not settle: somebody else changes them", where=api.place.host, hint="Apply again."
    )


def _require_alone(api: Connection, action: Action, there: Sequence[Existing], now: datetime) -> None:
    """Reject a new recurring run while a run of the old one is active for the date of its first run.

    The controller counts active runs for each recurring run by itself, so it would start it beside that.
    """
    declared = action.declared
    if declared is None:
        return
    own = action.existing.id if action.existing else ""
    others = {run.id for run in there if run.name == action.name and run.id != own}
    first = declared.next_after(now, 1)[0]
    date = runs.date_of(declared.arguments, first)
    for run in runs.active_of_schedules(api, others, date) if others else ():
        raise TransientError(
            f"run {run.run_id} of {action.name} goes on for {date}, and as it is declared now it would fire "
            f"for the same date, at {first:%H:%M:%S %Z}",
            where=api.place.link(run.run_id),
            hint=f"Apply again when it has ended, or stop it: trainwright terminate {run.run_id}.",
        )


def _switch(api: Connection, recurring: Existing, *, on: bool) -> None:
    calls = api.recurring

    def find() -> Any:
        get = calls.recurring_run_service_get_recurring_run
        run = api.read("reading the recurring run", get, recurring.id)
        return run if (run.status == "ENABLED") == on else None

    enable, disable = (
        calls.recurring_run_service_enable_recurring_run,
        calls.recurring_run_service_disable_recurring_run,
    )
    what = f"switching {recurring.name} {'on' if on else 'off'}"
    api.ensure(what, find, enable if on else disable, recurring.id)


def _make(api: Connection, owner: str, declared: DeclaredSchedule, now: Callable[[], datetime]) -> None:
    """Create a recurring run, disabled."""
    schedule, package = declared.schedule, declared.package
    experiment = runs.experiment(api, schedule.experiment)
    if declared.starts:
        runs.uploaded(api, declared.starts, declared.labels)
    version = runs.uploaded(api, package, declared.labels)
    labels = {"owner": owner, "schedule": declared.name, **declared.labels}
    sentence = provenance.sentence(package.display_name, declared.arguments, declared.labels)
    trigger: dict[str, Any] = {"cron_schedule": {"cron": declared.cron}}
    if schedule.interval_s:
        trigger = {"periodic_schedule": {"interval_second": str(schedule.interval_s)}}
    body = {
        "display_name": declared.name,
        "description": provenance.description(declared.key, labels, sentence),
        "experiment_id": experiment,
        "pipeline_version_reference": version.reference,
        "runtime_config": {"parameters": dict(declared.arguments)},
        "trigger": trigger,
        "mode": "DISABLE",
        "no_catchup": not schedule.catch_up,
        "max_concurrency": str(schedule.max_concurrency),
        **api.scope,
        **({"service_account": schedule.service_account} if schedule.service_account else {}),
    }

    def find() -> Existing | None:
        same = (run for run in existing(api, owner) if run.name == declared.name and run.is_(declared))
        return next((run for run in same if not run.missed(declared, now())), None)

    create = api.recurring.recurring_run_service_create_recurring_run
    api.ensure(f"making the recurring run {declared.name}", find, create, body)
