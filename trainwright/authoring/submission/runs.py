"""Runs of the API: submitted once for a key and one at a time for a date, terminated, retried.

The key of a submission finds its own run. A run of another key may do the same work: a schedule's, which has
no key, or one that another job of CI submitted. Both would write to the same places. The same work is the
same pipeline, whatever its version, with the same arguments but those that are only a record. The same date
is the parameter ``date``; without it, the day in UTC for which a run was scheduled, or on which it was made.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from trainwright.authoring.submission import progress, provenance
from trainwright.authoring.submission.connection import Connection
from trainwright.authoring.submission.progress import ENDED, RETRYABLE, STOPPING, SUCCEEDED
from trainwright.authoring.submission.upload import Version
from trainwright.errors import InputError, TransientError

DATE = "date"
FIRST_YEAR = 2000
RECORDED = frozenset({"commit"})
"""Arguments that are only a record: they change nothing of what a run does."""

ACTIVE = sorted(progress.WAITING | progress.RUNNING | progress.STOPPING)


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


def active_runs(api: Connection, pipeline_id: str, arguments: Mapping[str, Any], now: datetime) -> list[Any]:
    """Return the runs that do the same work for the same date at this moment, the oldest first.

    Raises:
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    work, date = _work(arguments), date_of(arguments, now)
    found = _listed(api, date)
    same = [run for run in found if _pipeline(run) == pipeline_id and _work(_given(run)) == work]
    return sorted(same, key=lambda run: (run.created_at, run.run_id))


def active_of_schedules(api: Connection, ids: Collection[str], date: str) -> list[Any]:
    """Return the runs of recurring runs that go on for a date.

    Raises:
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    return [run for run in _listed(api, date) if run.recurring_run_id in ids]


def _listed(api: Connection, date: str) -> list[Any]:
    """Return the runs of the namespace that go on for a date."""
    listed = {"operation": "IN", "key": "state", "string_values": {"values": ACTIVE}}
    found = api.pages(
        "looking for runs that go on",
        api.runs.run_service_list_runs,
        "runs",
        filter=json.dumps({"predicates": [listed]}),
        **({"namespace": api.place.namespace} if api.place.namespace else {}),
    )
    return [run for run in found if date_of(_given(run), _moment(run)) == date]


def already_running(api: Connection, run: Any, arguments: Mapping[str, Any], now: datetime) -> TransientError:
    """Return the error that says which run is in the way."""
    origin = "a schedule started it" if run.recurring_run_id else "somebody submitted it with another key"
    return TransientError(
        f"run {run.run_id} does the same for {date_of(arguments, now)} and goes on: {origin}",
        where=api.place.link(run.run_id),
        hint=f"Follow it (trainwright status {run.run_id} --wait), stop it (trainwright terminate "
        f"{run.run_id}), or submit this one --beside it.",
    )


def has_key(run: Any, key: str) -> bool:
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


Run: TypeAlias = Any
"""A ``kfp_server_api.V2beta1Run``; the generated models have no types."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The run to create.

    Attributes:
        name: Display name of the run.
        description: The sentence that its description begins with.
        version: The uploaded pipeline.
        arguments: The pipeline's arguments.
        key: A second submission with this key finds the run of the first.
        labels: Where it comes from.
        service_account: Kubernetes service account of its pods; empty for the installation's.
        beside: Whether it may go on beside a run that does the same for the same date.
    """

    name: str
    description: str
    version: Version
    arguments: Mapping[str, Any]
    key: str
    labels: Mapping[str, str]
    service_account: str = ""
    beside: bool = False


def experiment(api: Connection, name: str) -> str:
    """Return the id of the experiment of a name; make it if it is not there.

    Raises:
        InputError: It is archived: a run could not be seen in it.
    """
    named = {"predicates": [{"operation": "EQUALS", "key": "display_name", "string_value": name}]}
    namespace = {"namespace": api.place.namespace} if api.place.namespace else {}

    def look() -> Any:
        call = api.experiments.experiment_service_list_experiments
        found = api.pages(
            "looking for the experiment", call, "experiments", filter=json.dumps(named), **namespace
        )
        return next(iter(found), None)

    body = {"display_name": name, **namespace}
    call = api.experiments.experiment_service_create_experiment
    found, _ = api.made("making the experiment", look, call, body)
    if found.storage_state == "ARCHIVED":
        hint = "Restore it in the UI, or name another one: --experiment."
        raise InputError(f"the experiment {name!r} is archived", where=api.place.host, hint=hint)
    return str(found.experiment_id)


def submitted(api: Connection, experiment_id: str, submission: Submission) -> tuple[Run, bool]:
    """Return the run of a submission, and whether it was made just now.

    A run has no unique name in the API. So it is looked for by its key before it is made and after every
    lost answer; and once it is made, others of the same key that somebody made meanwhile are stopped: the
    oldest one stays. Whoever submits last does this, so that exactly one is left.

    Raises:
        TransientError: A run of another key does the same for the same date, and goes on.
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    rival = _ConcurrentRuns(api, submission)
    body = {
        "display_name": submission.name,
        "description": provenance.description(submission.key, submission.labels, submission.description),
        "experiment_id": experiment_id,
        "pipeline_version_reference": {
            "pipeline_id": submission.version.pipeline_id,
            "pipeline_version_id": submission.version.version_id,
        },
        "runtime_config": {"parameters": dict(submission.arguments)},
        **({"service_account": submission.service_account} if submission.service_account else {}),
    }

    def look() -> Run | None:
        if found := next(iter(of_key(api, experiment_id, submission.key)), None):
            return found
        rival.refuse()
        return None

    run, tried = api.made("submitting the run", look, api.runs.run_service_create_run, body)
    if not tried:
        return run, False
    kept, *others = of_key(api, experiment_id, submission.key)
    for other in others:
        if other.state not in ENDED:
            terminate(api, other.run_id)
    rival.refuse_older(kept)
    return kept, not others


class _ConcurrentRuns:
    """Return a running run of another key for the same pipeline and date."""

    def __init__(self, api: Connection, submission: Submission) -> None:
        self._api, self._wanted, self._now = api, submission, datetime.now(UTC)

    def refuse(self) -> None:
        """Refuse to submit beside one."""
        for run in self._others():
            raise already_running(self._api, run, self._wanted.arguments, self._now)

    def refuse_older(self, own: Run) -> None:
        """Stop the own run if an older one appeared at the same moment: each side does, so one is left."""
        for run in self._others():
            if (run.created_at, run.run_id) < (own.created_at, own.run_id):
                terminate(self._api, own.run_id)
                raise already_running(self._api, run, self._wanted.arguments, self._now)

    def _others(self) -> list[Run]:
        if self._wanted.beside:
            return []
        pipeline_id = self._wanted.version.pipeline_id
        found = active_runs(self._api, pipeline_id, self._wanted.arguments, self._now)
        return [run for run in found if not has_key(run, self._wanted.key)]


def of_key(api: Connection, experiment_id: str, key: str) -> list[Run]:
    """Return the runs with a key, the oldest first."""
    marked = {
        "predicates": [
            {"operation": "IS_SUBSTRING", "key": "description", "string_value": provenance.marker(key)}
        ]
    }
    found = api.pages(
        "looking for the run",
        api.runs.run_service_list_runs,
        "runs",
        experiment_id=experiment_id,
        filter=json.dumps(marked),
        sort_by="created_at asc",
    )
    ours = [run for run in found if provenance.read(run.description).get("key") == key]
    return sorted(ours, key=lambda run: (run.created_at, run.run_id))


def get(api: Connection, run_id: str) -> Run:
    """Return a run.

    Raises:
        InputError: There is no such run.
    """
    found = api.read_if_there("reading the run", api.runs.run_service_get_run, run_id)
    if found is None:
        raise InputError(f"there is no run {run_id}", where=api.place.host)
    return found


def terminate(api: Connection, run_id: str) -> Run:
    """Ask for a run to be stopped; one that has ended, or is being stopped, is left as it is."""

    def look() -> Run | None:
        run = get(api, run_id)
        return run if run.state in ENDED | STOPPING else None

    call = api.runs.run_service_terminate_run
    return api.made("stopping the run", look, call, run_id)[0]


def retry(api: Connection, run_id: str) -> tuple[Run, datetime | None]:
    """Ask for the steps of a run that failed, or was stopped, to be done again.

    Returns:
        The run, and when it had ended before: that it is not tried again just now, but goes on as it is, is
        told by None.

    Raises:
        InputError: It has succeeded.
        TransientError: It is being stopped.
    """
    before = get(api, run_id)
    if before.state in STOPPING:
        hint = "Try again when it has stopped: trainwright status says so."
        raise TransientError(f"run {run_id} is being stopped", where=api.place.host, hint=hint)
    if before.state in SUCCEEDED:
        text = f"run {run_id} has ended with {before.state}: there is nothing to try again"
        raise InputError(text, where=api.place.host)
    if before.state not in RETRYABLE:
        return before, None

    def look() -> Run | None:
        run = get(api, run_id)
        return None if run.state in RETRYABLE and run.finished_at == before.finished_at else run

    run, _ = api.made("trying the run again", look, api.runs.run_service_retry_run, run_id)
    return run, before.finished_at
