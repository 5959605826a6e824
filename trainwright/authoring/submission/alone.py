"""One run at a time does the same work for the same date.

The key of a submission finds its own run. A run of another key may do the same all the same: a schedule's,
which has no key, or one that another job of CI submitted. Two of them would write to the same places.

What is the same work: the same pipeline, whatever its version, with the same arguments, leaving out those
that are only a record. What is the same date: that of the parameter ``date``; without one, the day in UTC for
which a run was scheduled, or on which it was made: about that day, its steps take one for theirs.
"""

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from trainwright.authoring.submission import provenance, states
from trainwright.authoring.submission.connection import Connection
from trainwright.errors import TransientError

DATE = "date"
FIRST_YEAR = 2000
RECORDED = frozenset({"commit"})
"""Arguments that are only a record: they change nothing of what a run does."""

GOING_ON = sorted(states.WAITING | states.GOING_ON | states.STOPPING)


def date_of(arguments: Mapping[str, Any], moment: datetime) -> str:
    """Return the date that a run is for.

    Args:
        arguments: Of the run.
        moment: For which it is scheduled, or at which it is made; with its zone.
    """
    given = str(arguments.get(DATE) or "")
    try:
        read = datetime.fromisoformat(given) if given else moment
    except ValueError:
        return given
    return (read if read.tzinfo is None else read.astimezone(UTC)).date().isoformat()


def going_on(api: Connection, pipeline_id: str, arguments: Mapping[str, Any], now: datetime) -> list[Any]:
    """Return the runs that do the same work for the same date at this moment, the oldest first.

    Raises:
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    work, date = _work(arguments), date_of(arguments, now)
    found = _listed(api, date)
    same = [run for run in found if _pipeline(run) == pipeline_id and _work(_given(run)) == work]
    return sorted(same, key=lambda run: (run.created_at, run.run_id))


def of_schedules(api: Connection, ids: Collection[str], date: str) -> list[Any]:
    """Return the runs of recurring runs that go on for a date.

    Raises:
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    return [run for run in _listed(api, date) if run.recurring_run_id in ids]


def _listed(api: Connection, date: str) -> list[Any]:
    """Return the runs of the namespace that go on for a date."""
    listed = {"operation": "IN", "key": "state", "string_values": {"values": GOING_ON}}
    found = api.pages(
        "looking for runs that go on",
        api.runs.run_service_list_runs,
        "runs",
        filter=json.dumps({"predicates": [listed]}),
        **({"namespace": api.place.namespace} if api.place.namespace else {}),
    )
    return [run for run in found if date_of(_given(run), _moment(run)) == date]


def refused(api: Connection, run: Any, arguments: Mapping[str, Any], now: datetime) -> TransientError:
    """Return the error that says which run is in the way."""
    origin = "a schedule started it" if run.recurring_run_id else "somebody submitted it with another key"
    return TransientError(
        f"run {run.run_id} does the same for {date_of(arguments, now)} and goes on: {origin}",
        where=api.place.link(run.run_id),
        hint=f"Follow it (trainwright status {run.run_id} --wait), stop it (trainwright terminate "
        f"{run.run_id}), or submit this one --beside it.",
    )


def ours(run: Any, key: str) -> bool:
    """Say whether a run is that of a key."""
    return provenance.read(run.description).get("key") == key


def _given(run: Any) -> Mapping[str, Any]:
    found = run.runtime_config.parameters if run.runtime_config else None
    return found or {}


def _moment(run: Any) -> datetime:
    """Return for when a run was scheduled; the API writes 1970 for a time that it does not know."""
    known = run.scheduled_at and run.scheduled_at.year >= FIRST_YEAR
    found: datetime = run.scheduled_at if known else run.created_at
    return found


def _pipeline(run: Any) -> str:
    reference = run.pipeline_version_reference
    return str(reference.pipeline_id) if reference else ""


def _work(arguments: Mapping[str, Any]) -> str:
    """Return arguments as a text that is the same for the same work; an empty one is none."""
    kept = {name: value for name, value in arguments.items() if name not in RECORDED | {DATE}}
    return json.dumps(
        {name: value for name, value in kept.items() if value not in ("", None)}, sort_keys=True
    )
