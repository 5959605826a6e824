"""Read runs: list, search, show, compare, and trace what was made from what."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import InputError
from trainwright.local.run_folder import Request, Task, Tasks, require_run
from trainwright.local.run_index import (
    Difference,
    Lineage,
    Node,
    RunFilter,
    RunSummary,
    compare_runs,
    read_run,
    read_runs,
)


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """Some runs, the newest first; ``next`` continues the list after them, empty at its end."""

    runs: tuple[RunSummary, ...]
    next: str


@dataclass(frozen=True, kw_only=True)
class RunDetail:
    """A run with its arguments, the results of its steps so far, and what each step waits for."""

    summary: RunSummary
    arguments: dict[str, object]
    continues: str
    tasks: tuple[Task, ...]
    steps: dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class LineageNode:
    """A version in a lineage, with its distance from the version asked for."""

    depth: int
    node: Node


@dataclass(frozen=True, kw_only=True)
class VersionLineage:
    """A version, what it was made from, and what was made from it; ``edges`` lead from a digest to another."""

    version: Node
    edges: tuple[tuple[str, str], ...]
    made_from: tuple[LineageNode, ...]
    made_into: tuple[LineageNode, ...]


def list_runs(runs: Path, conditions: RunFilter, *, after: str = "", limit: int = 50) -> RunPage:
    """Return runs that fulfil the conditions, the newest first, from the one after ``after`` on."""
    matching = (one for one in _readable(runs) if not after or one.run < after)
    found = list(itertools.islice((one for one in matching if conditions.matches(runs, one)), limit + 1))
    return RunPage(runs=tuple(found[:limit]), next=found[limit - 1].run if len(found) > limit else "")


def _readable(runs: Path) -> Iterator[RunSummary]:
    """Yield the runs that can be read."""
    return (one for one in read_runs(runs) if isinstance(one, RunSummary))


def get_run(runs: Path, run: str) -> RunDetail:
    """Return a run with its arguments and steps.

    Raises:
        InputError: There is no such run.
    """
    folder = require_run(runs, run)
    request, tasks = Request.read(folder), Tasks(run=run, state="running", tasks=())
    if (folder / Tasks.FILE).exists():
        tasks = Tasks.read(folder)
    return RunDetail(
        summary=read_run(folder),
        arguments=request.arguments,
        continues=request.continues,
        tasks=tasks.tasks,
        steps=tasks.steps,
    )


def diff_runs(runs: Path, first: str, second: str) -> dict[str, list[Difference]]:
    """Return the differences of two runs: their arguments, versions and metrics."""
    one, other = (read_run(require_run(runs, name)) for name in (first, second))
    return compare_runs(runs, one, other)


def trace(runs: Path, start: str) -> VersionLineage:
    """Return the lineage, in both directions, of a run's result, a registered version, or a digest.

    Raises:
        InputError: No run read or made it, or several versions begin so.
    """
    known = list(_readable(runs))
    graph = Lineage(known)
    run = next((one for one in known if one.run == start), None)
    digest = graph.find((run.version("model") or run.version("data") or start) if run else start)
    up, down = (
        tuple(LineageNode(depth=depth, node=node) for depth, node in graph.walk(digest, up=up))
        for up in (True, False)
    )
    shown = {digest, *(one.node.digest for one in (*up, *down))}
    edges = tuple((parent, one) for one in sorted(shown) for parent in sorted(graph.parents(one) & shown))
    return VersionLineage(version=graph.node(digest), edges=edges, made_from=up, made_into=down)


def require_known(problem: InputError | RunSummary) -> RunSummary:
    """Return a run that was read; raise the error of one that was not."""
    if isinstance(problem, InputError):
        raise problem
    return problem
