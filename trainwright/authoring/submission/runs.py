"""A run in the API: submitted once for its key, found again, stopped, tried again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainwright.authoring.submission import provenance
from trainwright.authoring.submission.connection import Connection
from trainwright.authoring.submission.states import ENDED, STOPPING, TRIABLE
from trainwright.authoring.submission.upload import Version
from trainwright.errors import InputError

Run: TypeAlias = Any
"""A ``kfp_server_api.V2beta1Run``; the generated models have no types."""

DEFAULT_EXPERIMENT = "trainwright"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is to be run.

    Attributes:
        name: Shown name of the run.
        version: The uploaded pipeline.
        arguments: The pipeline's arguments.
        key: A second submission with this key finds the run of the first.
        labels: Where it comes from.
        service_account: Kubernetes service account of its pods; empty for the installation's.
    """

    name: str
    version: Version
    arguments: Mapping[str, Any]
    key: str
    labels: Mapping[str, str]
    service_account: str = ""


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
        TrainwrightError: It was refused, or the API did not answer in time.
    """
    body = {
        "display_name": submission.name,
        "description": provenance.description(submission.key, submission.labels),
        "experiment_id": experiment_id,
        "pipeline_version_reference": {
            "pipeline_id": submission.version.pipeline_id,
            "pipeline_version_id": submission.version.version_id,
        },
        "runtime_config": {"parameters": dict(submission.arguments)},
        **({"service_account": submission.service_account} if submission.service_account else {}),
    }

    def look() -> Run | None:
        return next(iter(of_key(api, experiment_id, submission.key)), None)

    run, tried = api.made("submitting the run", look, api.runs.run_service_create_run, body)
    if not tried:
        return run, False
    kept, *others = of_key(api, experiment_id, submission.key)
    for other in others:
        if other.state not in ENDED:
            terminate(api, other.run_id)
    return kept, not others


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


def retry(api: Connection, run_id: str) -> tuple[Run, bool]:
    """Ask for the steps of a run that failed, or was stopped, to be done again.

    Returns:
        The run, and whether it was started again just now: one that is still going on is left as it is.

    Raises:
        InputError: It has succeeded.
    """

    def look() -> Run | None:
        run = get(api, run_id)
        return None if run.state in TRIABLE else run

    run, fresh = api.made("trying the run again", look, api.runs.run_service_retry_run, run_id)
    if run.state in ENDED:
        raise InputError(
            f"run {run_id} has ended with {run.state}: there is nothing to try again", where=api.place.host
        )
    return run, fresh
