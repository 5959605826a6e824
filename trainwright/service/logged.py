"""Runs that `summarize` logged in MLflow, and what their steps made from what: the lineage on a cluster."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from trainwright.documents import read_json
from trainwright.lineage import Derivation, derive
from trainwright.local.run_index import RunSummary
from trainwright.service.settings import Settings
from trainwright.tracking.run_log import PARENT, PREFIX, nested_in
from trainwright.tracking.server import open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_ANY = "any"
_DIGEST = re.compile(r"[0-9a-f]{6,64}")
_MOST = 1000
"""Runs of MLflow that one search returns."""


def find_logged(settings: Settings, run_id: str) -> RunSummary | None:
    """Return a run of Kubeflow as MLflow has it; None if it was not logged."""
    return next(iter(_ask(settings, lambda client: _with_id(client, run_id))), None)


def find_related(settings: Settings, digest: str) -> list[RunSummary]:
    """Return the runs that made a version, its ancestors and its descendants.

    ``digest`` is the beginning of one, of at least six digits.
    """
    return _ask(settings, lambda client: _related(client, digest)) if _DIGEST.fullmatch(digest) else []


def _ask(settings: Settings, search: "Callable[[MlflowClient], Iterator[RunSummary]]") -> list[RunSummary]:
    uri = settings.registry_of(_ANY).tracking_uri
    return persist(lambda: list(search(open_client(uri))), uri, 0)


def _with_id(client: "MlflowClient", run_id: str) -> "Iterator[RunSummary]":
    for run in _search(client, f"tags.`{PREFIX}run` = '{run_id}'"):
        yield _summary(run, nested_in(client, run))


def _related(client: "MlflowClient", start: str) -> "Iterator[RunSummary]":
    """Follow digests from step to step, up to the source and down to the versions."""
    steps: dict[str, Run] = {}
    for near, far in (("outputs", "inputs"), ("inputs", "outputs")):
        waiting, seen = [start], set[str]()
        while waiting:
            digest = waiting.pop()
            seen.add(digest)
            for step in _search(client, f"tags.`{PREFIX}{near}` LIKE '%\"{digest}%'"):
                steps[step.info.run_id] = step
                found = _derivation(step)
                waiting += {*getattr(found, far).values()} - seen if found else ()
    get_run = cache(client.get_run)
    parents: dict[str, tuple[Run, list[Run]]] = {}
    for step in steps.values():
        run = step
        while parent := run.data.tags.get(PARENT):
            run = get_run(parent)
        parents.setdefault(run.info.run_id, (run, []))[1].append(step)
    for run, children in parents.values():
        yield _summary(run, children)


def _search(client: "MlflowClient", query: str) -> "list[Run]":
    experiments = [one.experiment_id for one in client.search_experiments()]
    return list(client.search_runs(experiments, query, max_results=_MOST))


def _summary(run: "Run", steps: "list[Run]") -> RunSummary:
    tags = {name.removeprefix(PREFIX): value for name, value in run.data.tags.items()}
    return RunSummary(
        run=tags.get("run", run.info.run_name),
        pipeline=tags.get("pipeline", ""),
        created=datetime.fromtimestamp(run.info.start_time / 1000, UTC).isoformat(timespec="seconds"),
        state=tags.get("state", ""),
        headline=tags.get("headline", ""),
        registered=tags.get("registered", "").replace(" version ", "/"),
        metrics={name: value for name, value in run.data.metrics.items() if name != "seconds"},
        derivations=tuple(found for step in steps if (found := _derivation(step))),
    )


def _derivation(step: "Run") -> Derivation | None:
    tags = step.data.tags
    try:
        inputs, outputs = (dict(read_json(tags[f"{PREFIX}{name}"])) for name in ("inputs", "outputs"))
    except (KeyError, ValueError):  # it failed, or MLflow cut a long list of files
        return None
    return derive(tags.get(f"{PREFIX}step", ""), inputs, outputs)
