"""Read runs of the folder and of Kubeflow: list, search, show, compare; trace versions; open reports."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from trainwright.artifacts.cost import CostGroup, sum_by
from trainwright.artifacts.record import Progress
from trainwright.local.run_folder import Request, Task, Tasks, newest_progress, require_run
from trainwright.local.run_index import (
    Lineage,
    Node,
    RunFilter,
    RunSummary,
    read_run,
    spending_of,
)
from trainwright.service.index import index_of
from trainwright.service.problems import PathNotFound
from trainwright.service.settings import Settings
from trainwright.tracking.server import open_client, persist
from trainwright.tracking.spending import read_spending

OWNER = "run.owner"
"""The argument that names the owner of a run."""


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """Some runs, the newest first.

    Attributes:
        next: Continues the list after them; empty at its end.
        owners: Owner by run, of those that name one.
    """

    runs: tuple[RunSummary, ...]
    next: str
    owners: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunDetail:
    """A run with its arguments and steps.

    Attributes:
        tasks: The steps that have ended; on Kubeflow, all that have begun.
        steps: Every step, with those that it waits for; empty for a run of an earlier release.
        progress: Progress of running trainings by step.
        link: The run's page in Kubeflow; empty for one of this machine.
        source: Where it was read: ``folder``, ``kubeflow`` or ``mlflow``.
        continues: The earlier run whose arguments it changed; empty if there is none.
    """

    summary: RunSummary
    arguments: Mapping[str, Any]
    tasks: tuple[Task, ...]
    progress: Mapping[str, Progress] = field(default_factory=dict)
    link: str = ""
    source: str = "folder"
    continues: str = ""
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LineageNode:
    """A version in a lineage, with its distance from the version asked for."""

    depth: int
    node: Node


@dataclass(frozen=True, kw_only=True)
class VersionLineage:
    """A version, what it was made from, and what was made from it; ``edges`` are pairs of digests."""

    version: Node
    edges: tuple[tuple[str, str], ...]
    made_from: tuple[LineageNode, ...]
    made_into: tuple[LineageNode, ...]


def list_runs(runs: Path, conditions: RunFilter, *, after: str = "", limit: int = 50) -> RunPage:
    """Return runs that fulfil the conditions, the newest first, from the one after ``after`` on."""
    index = index_of(runs)
    matching = (
        one
        for one in index.summaries(after)
        if conditions.matches_summary(one)
        and (not conditions.arguments or conditions.has_arguments(index.arguments(one.run)))
    )
    found = list(itertools.islice(matching, limit + 1))
    shown = tuple(found[:limit])
    owners = owners_of((one.run, index.arguments(one.run)) for one in shown)
    return RunPage(runs=shown, next=shown[-1].run if len(found) > limit else "", owners=owners)


def owners_of(arguments: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Return the owner of each run whose arguments, by dotted keys, name one."""
    return {run: str(named[OWNER]) for run, named in arguments if named.get(OWNER)}


def get_run(runs: Path, run: str) -> RunDetail:
    """Return a run with its arguments and steps.

    Raises:
        InputError: There is no such run.
    """
    folder = require_run(runs, run)
    tasks = Tasks(run=run, state="", tasks=())
    if (folder / Tasks.FILE).exists():
        tasks = Tasks.read(folder)
    request, summary, progress = Request.read(folder), read_run(folder), {}
    if summary.state == "running":
        ended = {task.step for task in tasks.tasks}
        steps = (path.name for path in folder.iterdir() if path.is_dir() and path.name not in ended)
        progress = {step: at for step in steps if (at := newest_progress(folder / step))}
    return RunDetail(
        summary=summary,
        arguments=request.arguments,
        tasks=tasks.tasks,
        progress=progress,
        continues=request.continues,
        steps=tasks.steps,
    )


def trace(runs: Path, start: str) -> VersionLineage:
    """Return the lineage, in both directions, of a run's result, a registered version, or a digest.

    Raises:
        InputError: No run read or made it, or several versions begin so.
    """
    index = index_of(runs)
    return trace_in(index.lineage(), index.find(start), start)


def trace_in(graph: Lineage, run: RunSummary | None, start: str) -> VersionLineage:
    """Return likewise the lineage in a graph; ``run`` is the run that ``start`` names, None for another name.

    Raises:
        InputError: As :func:`trace`.
    """
    digest = graph.find((run.version("model") or run.version("data") or start) if run else start)
    up, down = (
        tuple(LineageNode(depth=depth, node=node) for depth, node in graph.walk(digest, up=up))
        for up in (True, False)
    )
    shown = {digest, *(one.node.digest for one in (*up, *down))}
    edges = tuple((parent, one) for one in sorted(shown) for parent in sorted(graph.parents(one) & shown))
    return VersionLineage(version=graph.node(digest), edges=edges, made_from=up, made_into=down)


def sum_cost(settings: Settings, by: str, since: date) -> tuple[CostGroup, ...]:
    """Sum the cost of runs that began on a day or later: those in MLflow with Kubeflow, else those here."""
    if settings.kfp_host and settings.registry:
        uri, start = settings.registry_of("any").tracking_uri, datetime.combine(since, time(), UTC)
        return tuple(sum_by(by, persist(lambda: read_spending(open_client(uri), start), uri, 0)))
    index = index_of(settings.runs_folder)
    newest = itertools.takewhile(lambda one: one.created >= since.isoformat(), index.summaries())
    costing = (one for one in newest if one.cost is not None)
    return tuple(sum_by(by, (spending_of(one, index.arguments(one.run)) for one in costing)))


def find_file(runs: Path, run: str, path: str) -> Path:
    """Return a file of a run: a report, a log, a document; links are followed, and lead nowhere else.

    Raises:
        PathNotFound: The run has no such file.
    """
    folder = require_run(runs, run)
    try:
        found = (folder / path).resolve()
        inside = found.relative_to(folder.resolve()).parts
        if found.is_file() and not any(part.startswith(".") for part in inside):
            return found
    except (ValueError, OSError):  # outside of the folder; a name that no file can have
        pass
    raise PathNotFound(f"run {run} has no file {path!r:.200}", hint="The tasks of the run name its outputs.")
