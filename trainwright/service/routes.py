"""The API below ``/api/v1``."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from trainwright.artifacts.cost import CostGroup
from trainwright.authoring import arguments, catalog
from trainwright.errors import InputError, ModelRefused, PermissionRefused
from trainwright.experiment import PromotionRequest
from trainwright.local.run_index import Difference, RunFilter, condition
from trainwright.registry import listing
from trainwright.registry.history import history_json, read_history
from trainwright.registry.listing import VersionSummary, show_version
from trainwright.registry.register import Registration
from trainwright.service import cluster, models, runs
from trainwright.service.access import Reader, Writer, access_of, identify
from trainwright.service.problems import PathNotFound, problem
from trainwright.service.settings import Settings
from trainwright.tracking.run_log import start_of_month

RunId = Annotated[str, Path(pattern=r"^[0-9a-zA-Z][0-9a-zA-Z_-]{0,63}$")]
"""Name of a run of this machine, or the id of one on Kubeflow."""

ModelName = Annotated[str, Path(min_length=1, max_length=250)]
Version = Annotated[str, Path(pattern=r"^([1-9][0-9]{0,8}|[a-zA-Z][0-9a-zA-Z_-]{0,63})$")]
"""Number of a version, or an alias."""

Text = Annotated[str, Field(max_length=10_000)]

TYPES = {
    ".html": "text/html",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    **dict.fromkeys((".md", ".txt", ".yaml", ".pbtxt"), "text/plain"),
}
"""Types of the files that a browser shows; every other is downloaded."""

SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
"""Content-Security-Policy of a file of a run: no script, no request, no access to our pages."""


PROMOTE = "promote_model"
"""The pipeline whose arguments name an approver."""

REMOTE = ("gs://", "s3://", "https://")
"""Schemes of documents that a caller behind a gateway may name: not a file of the service."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RunRequest(_Body):
    """A run to start."""

    experiment: dict[str, Any] = Field({}, description="Content of an experiment file.")
    parameters: dict[str, Any] = Field({}, description="Parameters of the pipeline; win over the experiment.")
    date: str = Field("", description="Date that {date} in a source stands for.")


class StartedRun(BaseModel):
    """A run that was started, or found by its key."""

    run: str
    pipeline: str
    started: bool
    link: str


class RegistrationRequest(_Body):
    """A run whose model is to be registered."""

    run: str = Field(pattern=r"^[0-9a-zA-Z_-]{1,64}$")


class StageRequest(_Body):
    """A stage to move a version to; the caller approves it."""

    to: Literal["staging", "canary", "production", "archived"]
    reason: str = Field(min_length=1, max_length=2_000, description="It goes into the audit.")
    by: Text = Field("", description="Who requests it. Default: the caller.")
    expected: Text = Field("evaluated", description="Version that must be in production; '' for none.")
    approval: Text = Field("", description="URI of the approver's token, if the policy names approvers.")
    canary_verdict: Text = Field("", description="URI of the verdict on the canary.")
    data_verdict: Text = Field("", description="Digest of a data verdict to accept though it is not PASS.")


class Session(BaseModel):
    """The caller, and the value of the header x-csrf-token for changes."""

    user: str
    csrf: str


router = APIRouter(prefix="/api/v1", dependencies=[Depends(identify)])


def settings_of(request: Request) -> Settings:
    """Return the settings of the application that serves a request."""
    settings: Settings = request.app.state.settings
    return settings


Configured = Annotated[Settings, Depends(settings_of)]


@contextmanager
def named_in_path() -> Iterator[None]:
    """Answer 404 if what the path names does not exist."""
    try:
        yield
    except InputError as error:
        raise PathNotFound(error.what, where=error.where, hint=error.hint) from None


@router.get("/session")
def get_session(request: Request, identity: Reader) -> Session:
    """Return the caller, and what a change needs beside the identity."""
    return Session(user=identity, csrf=access_of(request).csrf(identity))


@router.get("/runs")
def list_runs(
    settings: Configured,
    pipeline: str = "",
    state: str = "",
    version: Annotated[str, Query(description="Beginning of a digest that the run read or made.")] = "",
    owner: Annotated[str, Query(description="Value of run.owner.")] = "",
    where: Annotated[list[str], Query(description="KEY=VALUE, such as training.epochs=3.")] = [],  # noqa: B006
    after: Annotated[str, Query(description="`next` of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    source: Annotated[cluster.Source, Query(description="Default: Kubeflow where it is configured.")] = "",
) -> runs.RunPage:
    """List runs, the newest first. Conditions narrow the list."""
    wanted = dict(map(condition, where)) | ({"run.owner": owner} if owner else {})
    conditions = RunFilter(pipeline=pipeline, state=state, digest=version, arguments=wanted)
    return cluster.find_runs(settings, conditions, after=after, limit=limit, source=source)


@router.get("/cost")
def get_cost(
    settings: Configured,
    by: Literal["owner", "cost_centre", "pipeline", "model"] = "owner",
    since: Annotated[date | None, Query(description="First day, UTC. Default: that of this month.")] = None,
) -> tuple[CostGroup, ...]:
    """Sum the cost of runs, and what of it was lost."""
    return runs.sum_cost(settings, by, since or start_of_month().date())


@router.get("/runs/{run}")
def get_run(settings: Configured, run: RunId) -> runs.RunDetail:
    """Return a run with its arguments, its steps and their progress."""
    with named_in_path():
        return cluster.find_run(settings, run)


@router.get("/runs/{run}/diff/{other}")
def diff_runs(settings: Configured, run: RunId, other: RunId) -> dict[str, list[Difference]]:
    """Compare two runs: the arguments, versions and metrics that differ."""
    with named_in_path():
        return cluster.diff_runs(settings, run, other)


@router.get("/runs/{run}/files/{path:path}", response_class=FileResponse)
def get_file(settings: Configured, run: RunId, path: str) -> FileResponse:
    """Return a file of a run: a report, a log, a document. A browser runs no script in it."""
    with named_in_path():
        found = runs.find_file(settings.runs_folder, run, path)
    kind = TYPES.get(found.suffix, "application/octet-stream")
    shown = "inline" if found.suffix in TYPES else "attachment"
    headers = {"Content-Security-Policy": SANDBOX}
    return FileResponse(
        found, media_type=kind, filename=found.name, content_disposition_type=shown, headers=headers
    )


@router.post("/pipelines/{name}/runs", status_code=201)
def start_run(
    settings: Configured,
    identity: Writer,
    name: str,
    body: RunRequest,
    response: Response,
    idempotency_key: Annotated[str, Header(max_length=256)] = "",
) -> StartedRun:
    """Start a run: on Kubeflow where one is configured, else on this machine. Once for a key."""
    if name not in catalog.pipelines():
        raise PathNotFound(
            f"there is no pipeline {name!r:.80}", hint=f"Known: {', '.join(catalog.pipelines())}."
        )
    if settings.auth == "gateway" and name == PROMOTE:
        text = f"{name} takes the approver as a text, and nobody may approve in another's name"
        raise PermissionRefused(text, hint="PUT /api/v1/models/{name}/versions/{version}/stage")
    texts = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in body.parameters.items()
    ]
    experiment = body.experiment or None
    if settings.kfp_host:
        made = cluster.submit(
            settings, name, experiment, texts, date=body.date, key=idempotency_key, identity=identity
        )
        run, fresh = made.run_id, made.fresh
    else:
        values = arguments.of_pipeline(catalog.pipeline(name), experiment, texts, body.date)
        run, fresh = runs.start_run(settings, name, values, idempotency_key)
    link = f"{settings.root_path}{router.prefix}/runs/{run}"
    response.status_code = 201 if fresh else 200
    return StartedRun(run=run, pipeline=name, started=fresh, link=link)


@router.get("/lineage/{version:path}")
def get_lineage(settings: Configured, version: str) -> runs.VersionLineage:
    """Trace a run, a registered version (NAME/VERSION) or the beginning of a digest, in both directions."""
    with named_in_path():
        return models.trace(settings, version)


@router.get("/models")
def list_models(settings: Configured) -> list[models.ModelSummary]:
    """List the registered models."""
    with named_in_path():
        return models.list_models(settings)


@router.get("/models/{name}")
def list_versions(settings: Configured, name: ModelName) -> list[VersionSummary]:
    """List the versions of a model, the newest first."""
    with named_in_path():
        return listing.list_versions(settings.registry_of(name))


@router.get("/models/{name}/history")
def get_history(settings: Configured, name: ModelName) -> dict[str, Any]:
    """Return every change of stages and aliases, by the verified audit."""
    with named_in_path():
        history: dict[str, Any] = json.loads(history_json(read_history(settings.registry_of(name))))
        return history


@router.get("/models/{name}/versions/{version}")
def get_version(settings: Configured, name: ModelName, version: Version) -> VersionSummary:
    """Return a version by its number or alias, with its evidence, metrics and parameters."""
    with named_in_path():
        return show_version(settings.registry_of(name), version)


@router.post("/models/{name}/versions", status_code=201)
def register_model(
    settings: Configured, identity: Writer, name: ModelName, body: RegistrationRequest, response: Response
) -> Registration:
    """Register the model of a finished run, once. Its evidence is checked as in the pipeline."""
    made = models.register_run(settings, name, body.run, identity)
    response.status_code = 200 if made.registered_before else 201
    return made


@router.put("/models/{name}/versions/{version}/stage", response_model=models.PromotionAnswer)
def set_stage(
    settings: Configured, identity: Writer, name: ModelName, version: Version, body: StageRequest
) -> models.PromotionAnswer | JSONResponse:
    """Promote a version to a stage, with the caller as approver. 409 with the verdict if it is held."""
    with named_in_path():
        number = show_version(settings.registry_of(name), version).version
    for field in ("approval", "canary_verdict"):
        value = str(getattr(body, field))
        if settings.auth == "gateway" and value and not value.startswith(REMOTE):
            raise InputError(f"expected {' or '.join(REMOTE)}, found {value!r:.80}", where=field)
    asked = body.model_dump() | {"version": number, "by": body.by or identity, "approver": identity}
    answer = models.promote_version(settings, name, PromotionRequest.check(asked, "body"))
    if answer.result.decision == "PASS":
        return answer
    text = f"{answer.result.decision}: version {number} was not promoted to {body.to}"
    verdict = answer.verdict.to_json()
    return problem(409, ModelRefused(text, hint="verdict has each rule with its number."), verdict=verdict)
