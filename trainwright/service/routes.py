"""The API below ``/api/v1``."""

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from trainwright.local.run_index import RunFilter
from trainwright.service import models, runs
from trainwright.service.settings import Settings

router = APIRouter(prefix="/api/v1")


def settings_of(request: Request) -> Settings:
    """Return the settings of the application that serves a request."""
    settings: Settings = request.app.state.settings
    return settings


@router.get("/runs")
def list_runs(
    request: Request,
    pipeline: str = "",
    state: str = "",
    version: str = "",
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Any:
    """List runs, the newest first."""
    conditions = RunFilter(pipeline=pipeline, state=state, digest=version)
    return runs.list_runs(Path(settings_of(request).runs), conditions, after=after, limit=limit)


@router.get("/runs/{run}")
def get_run(request: Request, run: str) -> Any:
    """Return a run with its arguments and steps."""
    return runs.get_run(Path(settings_of(request).runs), run)


@router.get("/runs/{first}/diff/{second}")
def diff_runs(request: Request, first: str, second: str) -> Any:
    """Compare two runs: arguments, versions and metrics that differ."""
    return runs.diff_runs(Path(settings_of(request).runs), first, second)


@router.get("/lineage/{version:path}")
def lineage(request: Request, version: str) -> Any:
    """Trace a run, a registered version or a digest in both directions."""
    return runs.trace(Path(settings_of(request).runs), version)


@router.get("/models")
def list_models(request: Request) -> Any:
    """List the registered models."""
    return models.list_models(settings_of(request))


@router.get("/models/{name}")
def list_versions(request: Request, name: str) -> Any:
    """List the versions of a model, the newest first."""
    return models.list_model_versions(settings_of(request), name)


@router.get("/models/{name}/versions/{version}")
def get_version(request: Request, name: str, version: str) -> Any:
    """Return a version by its number or alias, with its evidence."""
    return models.get_version(settings_of(request), name, version)
