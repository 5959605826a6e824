"""Runs that `summarize` logged in MLflow: list, search and show them, and trace what their steps made.

MLflow has the runs of every machine and cluster that logs there. The service knows them by MLflow's id.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from trainwright.documents import canonical, read_json
from trainwright.errors import InputError
from trainwright.lineage import VERSIONS, Derivation, derive
from trainwright.local.run_folder import Task
from trainwright.local.run_index import RunFilter, RunSummary
from trainwright.service.runs import RunDetail, RunPage, owners_of
from trainwright.service.settings import Settings
from trainwright.tracking.run_log import PARENT, PREFIX, mlflow_name, nested_in
from trainwright.tracking.server import experiment_ids, open_client, persist

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LOGGED = re.compile(r"[0-9a-f]{32}")
"""Ids of runs in MLflow."""

_ANY = "any"
_DIGEST = re.compile(r"[0-9a-f]{6,64}")
_MOST = 1000
"""Runs of MLflow that one search returns."""

Result = TypeVar("Result")


def list_logged(settings: Settings, conditions: RunFilter, *, after: str, limit: int) -> RunPage:
    """Return a page of the runs in MLflow that fulfil the conditions, the newest first.

    Raises:
        InputError: No registry is configured, or MLflow cannot search for a condition.
    """
    queries = list(_queries(conditions))

    def read(client: "MlflowClient") -> RunPage:
        places, order = experiment_ids(client), ["attributes.start_time DESC"]
        for query in queries:
            found = client.search_runs(
                places, query, max_results=limit, order_by=order, page_token=after or None
            )
            if found:
                break
        owners = owners_of((run.info.run_id, run.data.params) for run in found)
        token = found.token or ""  # bytes from a database, text from a server
        token = token.decode() if isinstance(token, bytes) else token
        return RunPage(runs=tuple(map(_listed, found)), next=token, owners=owners)

    return _ask(settings, read)


def get_logged(settings: Settings, run_id: str) -> RunDetail:
    """Return a run by MLflow's or Kubeflow's id, with its arguments as texts and the steps that it executed.

    Raises:
        InputError: There is no such run.
    """

    def read(client: "MlflowClient") -> RunDetail:
        run = client.get_run(run_id) if LOGGED.fullmatch(run_id) else _newest(client, run_id)
        steps = nested_in(client, run)
        link = run.data.tags.get(f"{PREFIX}kfp_url", "")
        return RunDetail(
            summary=replace(_summary(run, steps), run=run_id),
            arguments=run.data.params,
            tasks=tuple(_task(step) for step in steps if f"{PREFIX}step" in step.data.tags),
            link=link if link.startswith(("http://", "https://")) else "",
            source="mlflow",
        )

    return _ask(settings, read)


def find_logged(settings: Settings, run_id: str) -> RunSummary | None:
    """Return a run of Kubeflow as MLflow has it; None if it was not logged."""
    return _ask(settings, lambda client: next(_with_id(client, run_id), None))


def find_related(settings: Settings, digest: str) -> list[RunSummary]:
    """Return the runs that made a version, its ancestors and its descendants.

    ``digest`` is the beginning of one, of at least six digits.
    """
    return _ask(settings, lambda client: list(_related(client, digest))) if _DIGEST.fullmatch(digest) else []


def _ask(settings: Settings, read: "Callable[[MlflowClient], Result]") -> Result:
    uri = settings.registry_of(_ANY).tracking_uri
    return persist(lambda: read(open_client(uri)), uri, 0)


def _queries(conditions: RunFilter) -> Iterator[str]:
    """Yield a query for each kind of version that the digest can be: MLflow has no OR.

    Raises:
        InputError: A condition has a mark that MLflow's queries cannot quote.
    """
    arguments = {mlflow_name(key): value for key, value in conditions.arguments.items()}
    texts = {key: value if isinstance(value, str) else canonical(value) for key, value in arguments.items()}
    wanted = [f"params.`{key}` = '{text}'" for key, text in texts.items()]
    wanted += [f"tags.`{PREFIX}state` = '{conditions.state}'"] if conditions.state else []
    pipeline = f"= '{conditions.pipeline}'" if conditions.pipeline else "LIKE '%'"  # steps have no such tag
    wanted += [f"tags.`{PREFIX}pipeline` {pipeline}"]
    if wrong := [text for text in wanted if text.count("'") != 2]:  # noqa: PLR2004
        raise InputError(f"MLflow cannot search for a value with an apostrophe: {wrong[0]:.200}")
    if not conditions.digest:
        yield " AND ".join(wanted)
    elif _DIGEST.fullmatch(conditions.digest):
        for name in VERSIONS:
            yield " AND ".join([*wanted, f"tags.`{PREFIX}{name}_digest` LIKE '{conditions.digest}%'"])
    else:
        raise InputError(
            f"expected a digest, at least 6 of its digits from 0 to f; found {conditions.digest!r:.80}",
            where="version",
        )


def _newest(client: "MlflowClient", run_id: str) -> "Run":
    for run in _search(client, f"tags.`{PREFIX}run` = '{run_id}'"):
        return run
    raise InputError(f"MLflow has no run {run_id!r}", where="run", hint="It is logged when it has ended.")


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
    return list(client.search_runs(experiment_ids(client), query, max_results=_MOST))


def _listed(run: "Run") -> RunSummary:
    tags = run.data.tags
    made = {name: tags[f"{PREFIX}{name}_digest"] for name in VERSIONS if f"{PREFIX}{name}_digest" in tags}
    derivations = (Derivation(step="", inputs={}, outputs=made),)
    return replace(_summary(run, []), run=run.info.run_id, derivations=derivations)


def _task(step: "Run") -> Task:
    tags = {name.removeprefix(PREFIX): value for name, value in step.data.tags.items()}
    errors = {"what": "error_text", "hint": "error_hint"}
    return Task(
        step=str(step.info.run_name),
        state=tags.get("state", ""),
        environment=tags.get("environment", ""),
        started=_time(step.info.start_time),
        seconds=step.data.metrics.get("seconds", 0.0),
        headline=tags.get("headline", ""),
        decision=tags.get("decision", ""),
        verb=tags["step"],
        error={key: tags[tag] for key, tag in errors.items() if tag in tags},
    )


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _summary(run: "Run", steps: "list[Run]") -> RunSummary:
    tags = {name.removeprefix(PREFIX): value for name, value in run.data.tags.items()}
    return RunSummary(
        run=tags.get("run", run.info.run_name),
        pipeline=tags.get("pipeline", ""),
        created=_time(run.info.start_time),
        state=tags.get("state", ""),
        seconds=run.data.metrics.get("seconds", 0.0),
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
