"""Runs on Kubeflow, read and submitted through its API, in the shape of the runs of this machine."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from trainwright.authoring.submission import order, progress, runs
from trainwright.authoring.submission.connection import Connection, Endpoint, connect
from trainwright.documents import flatten
from trainwright.errors import InputError, TrainwrightError
from trainwright.local.run_folder import Task
from trainwright.local.run_index import Difference, RunFilter, RunSummary, compare_runs
from trainwright.retries import RetryPolicy
from trainwright.service import runs as local
from trainwright.service.logged import LOGGED, find_logged, get_logged, list_logged
from trainwright.service.runs import RunDetail, RunPage
from trainwright.service.settings import Settings

Source = Literal["", "folder", "kubeflow", "mlflow"]

RETRIES = RetryPolicy(outage_s=5.0, longest_s=2.0)
"""A caller waits for a page: shorter than for a submission of the command line."""


def connected(settings: Settings) -> Connection:
    """Return a connection to the API, after asking for its health."""
    place = _endpoint(settings)
    api = connect(place, RETRIES)
    api.check()
    return api


def _endpoint(settings: Settings) -> Endpoint:
    token, certificates = (Path(text) if text else None for text in (settings.token_file, settings.ca_file))
    return Endpoint(
        host=settings.kfp_host, namespace=settings.namespace, token_file=token, ca_file=certificates
    )


def find_runs(
    settings: Settings, conditions: RunFilter, *, after: str = "", limit: int = 50, source: Source = ""
) -> RunPage:
    """Return runs of a source; by default of Kubeflow, where it is configured, else of the folder.

    Raises:
        InputError: The source is not configured.
    """
    source = source or sources_of(settings)[0]
    if source == "mlflow":
        return list_logged(settings, conditions, after=after, limit=limit)
    if source == "folder":
        return local.list_runs(settings.runs_folder, conditions, after=after, limit=limit)
    if not settings.kfp_host:
        raise InputError("no Kubeflow is configured", hint="Start the service with --kfp-host.")
    return list_runs(settings, conditions, after=after, limit=limit)


def sources_of(settings: Settings) -> list[Source]:
    """Return the configured sources of runs, the default first."""
    found: list[Source] = ["kubeflow"] if settings.kfp_host else []
    return [*found, "folder", "mlflow"] if settings.registry else [*found, "folder"]


def find_run(settings: Settings, run: str) -> RunDetail:
    """Return a run of Kubeflow, whose ids are UUIDs, of MLflow, by either id, or of the folder.

    Raises:
        InputError: There is no such run.
    """
    if settings.kfp_host and "-" in run:
        return get_run(settings, run)
    if settings.registry and ("-" in run or LOGGED.fullmatch(run)):
        return get_logged(settings, run)
    return local.get_run(settings.runs_folder, run)


def diff_runs(settings: Settings, first: str, second: str) -> dict[str, list[Difference]]:
    """Return the differences of two runs: their arguments, versions and metrics."""
    both = [find_run(settings, run) for run in (first, second)]
    return compare_runs(both[0].summary, both[1].summary, [flatten(one.arguments) for one in both])


def list_runs(settings: Settings, conditions: RunFilter, *, after: str, limit: int) -> RunPage:
    """Return a page of the API's runs, the newest first, without those that do not fulfil the conditions.

    Raises:
        InputError: A condition is one that the API cannot answer, or ``after`` is no token of it.
    """
    if conditions.digest or conditions.pipeline:
        raise InputError(
            "Kubeflow lists runs by state and arguments alone", hint="Leave out pipeline and version."
        )
    api = connected(settings)
    call = api.runs.run_service_list_runs
    options = {"page_token": after, "page_size": limit, "sort_by": "created_at desc", **api.scope}
    page = api.read("listing the runs", call, **options)
    found = [(run, _summary(run, str(run.display_name))) for run in page.runs or []]
    kept = [
        summary
        for run, summary in found
        if conditions.state in {"", summary.state} and conditions.has_arguments(flatten(_arguments(run)))
    ]
    owners = local.owners_of((str(run.run_id), flatten(_arguments(run))) for run, _ in found)
    return RunPage(runs=tuple(kept), next=page.next_page_token or "", owners=owners)


def get_run(settings: Settings, run_id: str) -> RunDetail:
    """Return a run with its arguments, and the state of each step that has begun.

    Raises:
        InputError: There is no such run.
    """
    api = connected(settings)
    run = runs.get(api, run_id)
    pipeline = runs.pipeline_of(api, run)
    summary = _summary(run, pipeline.name if pipeline else str(run.display_name))
    tasks = [_task(step) for step in progress.steps(run, pipeline, datetime.now(UTC))]
    held = progress.held(run, pipeline) if pipeline and run.state in progress.SUCCEEDED else None
    failed = progress.failed(run, pipeline)
    state, headline = ("held", f"{held.step} held the run") if held else (summary.state, failed)
    known = _logged(settings, run_id, state) if run.state in progress.ENDED else {}
    summary = RunSummary.from_json(summary.to_json() | {"state": state, "headline": headline} | known)
    page = flatten(_arguments(run)).get("run.page") or ("/pipeline" if settings.auth == "gateway" else "")
    link = f"{page.rstrip('/')}/#/runs/details/{run_id}" if page else api.place.link(run_id)
    graph = {step.name: tuple(sorted(step.upstream)) for step in pipeline.steps} if pipeline else {}
    return RunDetail(
        summary=summary,
        arguments=_arguments(run),
        tasks=tuple(tasks),
        link=link,
        source="kubeflow",
        steps=graph,
    )


def _logged(settings: Settings, run_id: str, state: str) -> dict[str, Any]:
    """Return what MLflow knows of a run; nothing if it is away: the page is worth having without it.

    A run that was retried since has another state there, and its headline is old.
    """
    with contextlib.suppress(TrainwrightError):
        if settings.registry and (found := find_logged(settings, run_id)) and found.state == state:
            shown = found.to_json()
            return {name: shown[name] for name in ("headline", "registered", "metrics", "derivations")}
    return {}


def _arguments(run: runs.Run) -> Mapping[str, Any]:
    return (run.runtime_config.parameters if run.runtime_config else None) or {}


def _summary(run: runs.Run, pipeline: str) -> RunSummary:
    ended = run.finished_at if run.state in progress.ENDED else datetime.now(UTC)
    state = progress.word(progress.outcome(run) if run.state in progress.ENDED else run.state)
    return RunSummary(
        run=str(run.run_id),
        pipeline=pipeline,
        created=run.created_at.isoformat(timespec="seconds"),
        state="cancelled" if state == "stopped" else state,
        seconds=max((ended - run.created_at).total_seconds(), 0.0) if ended else 0.0,
    )


def _task(step: progress.StepNow) -> Task:
    state = "cached" if step.cached else progress.word(step.state)
    return Task(step=step.name, state=state, environment=step.environment, seconds=round(step.seconds, 3))


def submit(
    settings: Settings,
    pipeline: str,
    experiment: Mapping[str, Any] | None,
    parameters: Sequence[str],
    *,
    date: str,
    key: str,
    identity: str,
) -> runs.SubmittedRun:
    """Submit a run, once for its key.

    Raises:
        TrainwrightError: The arguments are invalid, or the API rejected them or was away.
    """
    prepared = order.prepared(
        pipeline, experiment, parameters, date, registry=settings.images, labels=[f"by={identity}"],
        key=key, data_version="", experiment="trainwright", service_account="", place=_endpoint(settings),
    )  # fmt: skip
    return runs.submit(connected(settings), prepared, lambda _: None)
