"""Start runs here; read those of the folder and of Kubeflow: list, search, show, compare, trace."""

import fcntl
import functools
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from trainwright import credentials
from trainwright.artifacts.cost import CostGroup, sum_by
from trainwright.artifacts.record import Progress
from trainwright.documents import canonical, digest_text
from trainwright.errors import ERRORS, InputError, InternalError
from trainwright.local.run_folder import (
    OWN,
    Request,
    Task,
    Tasks,
    create,
    is_held,
    newest_progress,
    require_run,
)
from trainwright.local.run_index import (
    Lineage,
    Node,
    RunFilter,
    RunSummary,
    read_arguments,
    read_run,
    spending_of,
)
from trainwright.service.problems import PathNotFound
from trainwright.service.settings import Settings
from trainwright.tracking.run_log import read_spending
from trainwright.tracking.server import open_client, persist


@dataclass
class _Entry:
    """A run; ``signature`` is that of its summary's file, None while it has not ended."""

    signature: tuple[int, int, int] | None
    summary: RunSummary
    arguments: Mapping[str, Any] | None = None


class RunIndex:
    """The runs of a folder. Every call looks which files have changed, so it holds no state of its own."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._lock = runs, threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._lineage: Lineage | None = None

    def summaries(self, before: str = "") -> Iterator[RunSummary]:
        """Yield the runs that can be read, the newest first; only those older than ``before``, if named."""
        with self._lock:
            self._refresh()
            entries = self._entries
        for name in sorted(entries, reverse=True):  # ids sort by time
            if not before or name < before:
                yield entries[name].summary

    def count(self) -> int:
        """Return the number of runs at the last look."""
        return len(self._entries)

    def find(self, run: str) -> RunSummary | None:
        """Return a run by its name, as it was at the last look."""
        entry = self._entries.get(run)
        return entry.summary if entry else None

    def arguments(self, run: str) -> Mapping[str, Any]:
        """Return the arguments of a run, by dotted keys; none if they cannot be read."""
        entry = self._entries.get(run)
        if entry is None:
            return {}
        if entry.arguments is None:
            try:
                entry.arguments = read_arguments(self._runs / run)
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                entry.arguments = {}
        return entry.arguments

    def lineage(self) -> Lineage:
        """Return the lineage of all runs."""
        with self._lock:
            if self._refresh() or self._lineage is None:
                self._lineage = Lineage(
                    self._entries[name].summary for name in sorted(self._entries, reverse=True)
                )
            return self._lineage

    def _refresh(self) -> bool:
        """Read what has changed; return True if anything has."""
        known, found, changed = self._entries, {}, False
        for name, signature in self._signatures():
            entry = known.get(name)
            if entry is None or signature is None or entry.signature != signature:
                try:
                    entry = _Entry(signature, read_run(self._runs / name))
                except InputError:  # `trainwright runs list` names it
                    continue
                changed = True
            found[name] = entry
        self._entries = found
        return changed or found.keys() != known.keys()

    def _signatures(self) -> Iterator[tuple[str, tuple[int, int, int] | None]]:
        if not self._runs.is_dir():
            return
        with os.scandir(self._runs) as folders:
            for folder in folders:
                try:
                    at = os.stat(f"{folder.path}/{RunSummary.FILE}")
                except OSError:  # it has not ended, or is no run
                    if os.path.exists(f"{folder.path}/{Request.FILE}"):
                        yield folder.name, None
                else:
                    yield folder.name, (at.st_mtime_ns, at.st_ino, at.st_size)


@functools.cache
def index_of(runs: Path) -> RunIndex:
    """Return the index of a folder, the same one at each call."""
    return RunIndex(runs)


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
        uri = settings.registry_of("any").tracking_uri
        start = datetime(since.year, since.month, since.day, tzinfo=UTC)
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


KEYS = ".keys"
"""Folder, below the runs, of one file per idempotency key: the run that was started with it."""

LOG = "serve.log"
_POLL_S = 0.05


def start_run(settings: Settings, pipeline: str, arguments: Mapping[str, Any], key: str) -> tuple[str, bool]:
    """Start a run, and wait until its process has begun or rejected it.

    Args:
        settings: The folder of the runs, and the command line.
        pipeline: Name of the pipeline.
        arguments: Its arguments.
        key: A second call with it returns the run of the first; empty for a new run.

    Returns:
        The run, and True if this call started it.

    Raises:
        InputError: The arguments are invalid, or the key is that of a run with others.
        DependencyError: An environment is missing.
    """
    credentials.require_none(arguments, where="an argument", plain=True)
    runs = settings.runs_folder
    if not key:
        folder, _ = create(runs, pipeline, dict(arguments))
        _launch(settings, folder, pipeline)
        return folder.name, True
    with _locked(runs / KEYS / digest_text(key)) as file:
        known = runs / file.read_text()
        if file.read_text() and (known / Request.FILE).exists():
            _require_same(Request.read(known), pipeline, arguments)
            begun = (known / Tasks.FILE).exists() or is_held(known)
            if not begun:  # an earlier call was killed in between
                _launch(settings, known, pipeline)
            return known.name, not begun
        folder, _ = create(runs, pipeline, dict(arguments))
        file.write_text(folder.name)
        _launch(settings, folder, pipeline)
        return folder.name, True


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Hold the lock on a key's file; a second call with the key waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(descriptor)


def _require_same(request: Request, pipeline: str, arguments: Mapping[str, Any]) -> None:
    if request.pipeline != pipeline or canonical(request.arguments) != canonical(dict(arguments)):
        raise InputError(
            f"this key started run {request.run} of {request.pipeline}, with other arguments",
            where="Idempotency-Key",
            hint="Send a new key for another run.",
        )


def _launch(settings: Settings, folder: Path, pipeline: str) -> None:
    """Start the process of a run; it outlives the service.

    Raises:
        TrainwrightError: It rejected the run; nothing was run, and the run's folder is removed.
    """
    (folder / OWN).mkdir(exist_ok=True)
    command = [
        *settings.command,
        "run",
        pipeline,
        "--run",
        folder.name,
        "--runs",
        str(folder.parent),
        "--json",
    ]
    with (folder / OWN / LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()  # so that it does not stay as a zombie
    while process.poll() is None and not is_held(folder):
        time.sleep(_POLL_S)
    if process.returncode and not (folder / Tasks.FILE).exists():
        record = _last_error(folder / OWN / LOG)
        shutil.rmtree(folder)
        raise ERRORS.get(process.returncode, InternalError)(
            str(record.get("what", f"the run's process ended with {process.returncode}")),
            where=str(record.get("where", "")),
            hint=str(record.get("hint", "")),
        )


def _last_error(log: Path) -> dict[str, Any]:
    """Return the error that the command line printed as its last line; empty if it printed none."""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith('{"event": "error"'):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}
