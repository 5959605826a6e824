"""Objects of the API: pipelines and versions, experiments, and runs, each created once.

A run is submitted once for a key, and one at a time for a date. The key of a submission finds its own run. A
run of another key may do the same work: a schedule's, which has no key, or one that another job of CI
submitted; both would write to the same places. The same work is the same pipeline, whatever its version, with
the same arguments but those that are only a record. The same date is the parameter ``date``; without it, the
day in UTC for which a run was scheduled, or on which it was created.
"""

import json
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from trainwright.authoring import pipeline_spec
from trainwright.authoring.pipeline_spec import Pipeline
from trainwright.authoring.submission import provenance
from trainwright.authoring.submission.connection import Connection, matching
from trainwright.authoring.submission.order import Order, Package
from trainwright.authoring.submission.progress import (
    ENDED,
    FIRST_YEAR,
    RETRYABLE,
    RUNNING,
    STOPPING,
    SUCCEEDED,
    WAITING,
)
from trainwright.errors import InputError, TrainwrightError, TransientError

DATE = "date"
RECORDED = frozenset({"commit"})
"""Arguments that are only a record: they change nothing of what a run does."""

ACTIVE = sorted(WAITING | RUNNING | STOPPING)

Run: TypeAlias = Any
"""A ``kfp_server_api.V2beta1Run``; the generated models have no types."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a pipeline in the API, and whether it was uploaded just now."""

    pipeline_id: str
    version_id: str
    fresh: bool

    @property
    def reference(self) -> dict[str, str]:
        """The version, as a run refers to it."""
        return {"pipeline_id": self.pipeline_id, "pipeline_version_id": self.version_id}


@dataclass(frozen=True, kw_only=True)
class SubmittedRun:
    """A run in the API."""

    pipeline: str
    run_id: str
    link: str
    key: str = ""  # the key of its submission; empty if it was not submitted here
    fresh: bool = True  # it was submitted, or started again, just now
    found: str = ""  # why it was not, in words
    uploaded: bool = False  # the version of its pipeline was uploaded just now
    labels: Mapping[str, str] = field(default_factory=dict)


def submit(api: Connection, order: Order, warn: Callable[[str], None]) -> SubmittedRun:
    """Upload the package and submit the run, unless they are there.

    A run has no unique name in the API. So it is looked up by its key before it is created and after every
    lost answer. After its creation, others of the same key that somebody created meanwhile are stopped: the
    oldest one stays. Whoever submits last does this, so that exactly one is left.

    Raises:
        TransientError: A run of another key does the same for the same date, and is active.
        TrainwrightError: The API refused it, or did not answer in time.
    """
    for text in order.warnings:
        warn(text)
    experiment_id = experiment(api, order.experiment)
    return create(api, order, uploaded(api, order.package, order.labels), experiment_id)


def create(api: Connection, order: Order, version: Version, experiment_id: str) -> SubmittedRun:
    """Submit the run of a version that is in the API, as :func:`submit` does."""
    now = datetime.now(UTC)
    body = {
        "display_name": order.name,
        "description": order.description,
        "experiment_id": experiment_id,
        "pipeline_version_reference": version.reference,
        "runtime_config": {"parameters": dict(order.arguments)},
        **({"service_account": order.service_account} if order.service_account else {}),
    }

    def find() -> Run | None:
        if found := next(iter(_of_key(api, experiment_id, order.key)), None):
            return found
        for rival in _rivals(api, order, version, now):
            raise _already_running(api, rival, order, now)
        return None

    run, tried = api.ensure("submitting the run", find, api.runs.run_service_create_run, body)
    fresh = tried
    if tried:
        run, fresh = _settle_races(api, order, version, experiment_id, now)
    return SubmittedRun(
        pipeline=order.package.name,
        run_id=run.run_id,
        link=api.place.link(run.run_id),
        key=order.key,
        fresh=fresh,
        found="" if fresh else "found by its key, not submitted again",
        uploaded=version.fresh,
        labels=order.labels,
    )


def _settle_races(
    api: Connection, order: Order, version: Version, experiment_id: str, now: datetime
) -> tuple[Run, bool]:
    """Stop runs that were created at the same moment; return the one that stays, and whether it is ours."""
    run, *others = _of_key(api, experiment_id, order.key)
    for other in others:
        if other.state not in ENDED:
            terminate(api, other.run_id)
    # Of two keys, the younger run gives way. Each side does this, so one is left.
    for rival in _rivals(api, order, version, now):
        if (rival.created_at, rival.run_id) < (run.created_at, run.run_id):
            terminate(api, run.run_id)
            raise _already_running(api, rival, order, now)
    return run, not others


def _of_key(api: Connection, experiment_id: str, key: str) -> list[Run]:
    """Return the runs with a key, the oldest first."""
    found = api.pages(
        "looking for the run",
        api.runs.run_service_list_runs,
        "runs",
        experiment_id=experiment_id,
        filter=matching("description", f"{provenance.MARK}key={key}", "IS_SUBSTRING"),
        sort_by="created_at asc",
    )
    ours = [run for run in found if provenance.read(run.description).get("key") == key]
    return sorted(ours, key=lambda run: (run.created_at, run.run_id))


def _rivals(api: Connection, order: Order, version: Version, now: datetime) -> list[Run]:
    """Return the active runs of another key that do the same work for the same date, the oldest first."""
    if order.beside:
        return []
    same = [
        run
        for run in _active(api, date_of(order.arguments, now))
        if (reference := run.pipeline_version_reference)
        and reference.pipeline_id == version.pipeline_id
        and _work(_arguments(run)) == _work(order.arguments)
        and provenance.read(run.description).get("key") != order.key
    ]
    return sorted(same, key=lambda run: (run.created_at, run.run_id))


def _already_running(api: Connection, run: Run, order: Order, now: datetime) -> TransientError:
    origin = "a schedule started it" if run.recurring_run_id else "somebody submitted it with another key"
    return TransientError(
        f"run {run.run_id} does the same for {date_of(order.arguments, now)} and goes on: {origin}",
        where=api.place.link(run.run_id),
        hint=f"Follow it (trainwright status {run.run_id} --wait), stop it (trainwright terminate "
        f"{run.run_id}), or submit this one --beside it.",
    )


def date_of(arguments: Mapping[str, Any], moment: datetime) -> str:
    """Return the date that a run is for: its argument ``date``, else the day of a moment in UTC."""
    given = str(arguments.get(DATE) or "")
    try:
        found = datetime.fromisoformat(given) if given else moment
    except ValueError:
        return given
    return (found if found.tzinfo is None else found.astimezone(UTC)).date().isoformat()


def active_of_schedules(api: Connection, ids: Collection[str], date: str) -> list[Run]:
    """Return the active runs of recurring runs for a date."""
    return [run for run in _active(api, date) if run.recurring_run_id in ids]


def _active(api: Connection, date: str) -> list[Run]:
    """Return the active runs of the namespace for a date."""
    active = {"operation": "IN", "key": "state", "string_values": {"values": ACTIVE}}
    found = api.pages(
        "looking for runs that go on",
        api.runs.run_service_list_runs,
        "runs",
        filter=json.dumps({"predicates": [active]}),
        **api.scope,
    )

    def scheduled_at(run: Run) -> datetime:
        known = run.scheduled_at and run.scheduled_at.year >= FIRST_YEAR
        moment: datetime = run.scheduled_at if known else run.created_at
        return moment

    return [run for run in found if date_of(_arguments(run), scheduled_at(run)) == date]


def _arguments(run: Run) -> Mapping[str, Any]:
    return (run.runtime_config.parameters if run.runtime_config else None) or {}


def _work(arguments: Mapping[str, Any]) -> str:
    """Return arguments as a text that is equal for the same work; an empty argument is as good as absent.

    Section ``run`` changes no work: it has the reason of a trigger, and recipients of alerts.
    """
    work = {name: value for name, value in arguments.items() if name not in RECORDED | {DATE, "run"}}
    return json.dumps(
        {name: value for name, value in work.items() if value not in ("", None)}, sort_keys=True
    )


def experiment(api: Connection, name: str) -> str:
    """Return the id of an experiment; create it if it is not there."""

    def find() -> Any:
        call = api.experiments.experiment_service_list_experiments
        named = matching("display_name", name)
        found = api.pages("looking for the experiment", call, "experiments", filter=named, **api.scope)
        return next(iter(found), None)

    call = api.experiments.experiment_service_create_experiment
    found, _ = api.ensure("making the experiment", find, call, {"display_name": name, **api.scope})
    if found.storage_state == "ARCHIVED":
        hint = "Restore it in the UI, or name another one: --experiment."
        raise InputError(f"the experiment {name!r} is archived", where=api.place.host, hint=hint)
    return str(found.experiment_id)


def uploaded(api: Connection, package: Package, tags: Mapping[str, str]) -> Version:
    """Return the version of the pipeline that has this content; upload it if there is none.

    Its name is the digest of its content, and names are unique in a pipeline: no repeated upload, no lost
    answer and no race between two creates a second one.
    """
    pipeline_id = _pipeline_id(api, package)

    def find() -> str | None:
        call = api.pipelines.pipeline_service_list_pipeline_versions
        options = {"pipeline_id": pipeline_id, "filter": matching("name", package.digest)}
        found = api.pages("looking for the version of the pipeline", call, "pipeline_versions", **options)
        return next((version.pipeline_version_id for version in found), None)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_text(package.text)
        version_id, fresh = api.ensure(
            "uploading the package",
            find,
            api.uploads.upload_pipeline_version,
            str(path),
            name=package.digest,
            display_name=provenance.version_name(package.digest, tags, datetime.now(UTC)),
            pipelineid=pipeline_id,
            tags=json.dumps(dict(tags)),
        )
    return Version(pipeline_id=pipeline_id, version_id=version_id, fresh=fresh)


def _pipeline_id(api: Connection, package: Package) -> str:
    """Return the id of the pipeline of a package's name; create it if it is not there."""

    def find() -> str | None:
        call = api.pipelines.pipeline_service_get_pipeline_by_name
        found = api.read_if_there("looking for the pipeline", call, package.name, **api.scope)
        return found.pipeline_id if found else None

    body = {"name": package.name, "display_name": package.display_name, **api.scope}
    body |= {"description": package.description} if package.description else {}
    create = api.pipelines.pipeline_service_create_pipeline
    return api.ensure("making the pipeline", find, create, body)[0]


def pipeline_of(api: Connection, run: Run) -> Pipeline | None:
    """Return the pipeline of a run; None if the API does not have it."""
    reference, holder = run.pipeline_version_reference, run
    if reference and reference.pipeline_version_id:
        call = api.pipelines.pipeline_service_get_pipeline_version
        ids = (reference.pipeline_id, reference.pipeline_version_id)
        holder = api.read_if_there("reading the pipeline", call, *ids)
    return pipeline_in(holder)


def pipeline_in(holder: Any) -> Pipeline | None:
    """Return the pipeline that a run or a version holds; None if it cannot be read."""
    document = holder.pipeline_spec if holder else None
    if not isinstance(document, dict):
        return None
    try:
        return pipeline_spec.parse(document.get("pipeline_spec", document), document.get("platform_spec", {}))
    except (KeyError, TypeError, AttributeError, TrainwrightError, yaml.YAMLError):
        return None


def described(api: Connection, run: Run, pipeline: Pipeline | None, found: str = "") -> SubmittedRun:
    """Describe a run of the API; ``found`` says why it was not started just now, empty if it was."""
    labels = provenance.read(run.description)
    return SubmittedRun(
        pipeline=pipeline.name if pipeline else str(run.display_name),
        run_id=run.run_id,
        link=api.place.link(run.run_id),
        key=labels.pop("key", ""),
        fresh=not found,
        found=found,
        labels=labels,
    )


def get(api: Connection, run_id: str) -> Run:
    """Return a run."""
    found = api.read_if_there("reading the run", api.runs.run_service_get_run, run_id)
    if found is None:
        raise InputError(f"there is no run {run_id}", where=api.place.host)
    return found


def terminate(api: Connection, run_id: str) -> Run:
    """Stop a run; one that has ended, or is being stopped, stays as it is."""

    def find() -> Run | None:
        run = get(api, run_id)
        return run if run.state in ENDED | STOPPING else None

    return api.ensure("stopping the run", find, api.runs.run_service_terminate_run, run_id)[0]


def retry(api: Connection, run_id: str) -> tuple[Run, datetime | None]:
    """Repeat the steps of a run that failed or were stopped.

    Returns:
        The run, and when it had ended before; None if it had not, and is not retried.
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

    def find() -> Run | None:
        run = get(api, run_id)
        return None if run.state in RETRYABLE and run.finished_at == before.finished_at else run

    run, _ = api.ensure("trying the run again", find, api.runs.run_service_retry_run, run_id)
    return run, before.finished_at
