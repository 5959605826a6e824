"""Collect records, states and errors of a run after its end. Nothing here fails the run."""

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trainwright.artifacts import Record
from trainwright.errors import MARK, DependencyError, InputError, TrainwrightError, TransientError
from trainwright.lineage import ancestors
from trainwright.storage import Access, find, open_file
from trainwright.summarize.workflow import WorkflowReader, WorkflowTask, read_tasks

OWN = "summarize"
"""The verb of this step, with which the name of its task begins."""

TASKS = "tasks.json"
"""Written by the local runner beside the steps; on a cluster there is none."""

_LOG, _LOG_BYTES = "executor-logs", 1 << 20
"""KFP 2.17 keeps the log of each attempt of a step beside its artifacts, also of one that failed."""

_ATTEMPTS = 6
_PATIENCE_S = 30.0
"""For a call of a store. The page is worth having without records, so it does not wait long for them."""

_LAUNCHER_ERROR = "failed to execute component"
_COUNTED = re.compile(r"-\d+$")
"""What KFP adds to the name of a component that a pipeline uses several times."""

_T = TypeVar("_T")

STATES = {"COMPLETE": "SUCCEEDED", "CACHED": "SUCCEEDED", "CANCELED": "CANCELLED", "RUNNING": ""}
"""What the 2.17 backend calls a state, and what kfp documents. A run that a gate has stopped is RUNNING."""


@dataclass(frozen=True)
class FinalStatus:
    """Kubeflow's status of a run.

    Attributes:
        state: ``SUCCEEDED``, ``FAILED`` or ``CANCELLED``; empty if Kubeflow cannot tell.
        job: Name of the pipeline's job.
        task: The task, or group of tasks, that this is the state of.
        error_code: Code of the error; 0 if there is none.
        error: Its message; empty if there is none.
    """

    state: str
    job: str = ""
    task: str = ""
    error_code: int = 0
    error: str = ""

    def __post_init__(self) -> None:
        """Call the state what kfp documents."""
        object.__setattr__(self, "state", STATES.get(self.state, self.state))


@dataclass(frozen=True)
class RunStep:
    """One step of the run.

    Attributes:
        name: Its name in the pipeline, or its verb.
        state: ``done``, ``cached``, ``failed`` or ``skipped``.
        record: What it wrote about itself; None if it left nothing.
        error: What it ended with: ``what``, ``where``, ``hint``; ``log``, where its log is kept.
        origin: The run that made what the cache served; empty if that is this run, or not known.
    """

    name: str
    state: str
    record: Record | None = None
    error: dict[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True)
class Run:
    """All that was found.

    Attributes:
        name: What the local runner calls it, or the name of Kubeflow's job.
        root: Where it was looked for.
        ending: What Kubeflow says.
        steps: The steps in the order in which they began; those that never did come last.
        lineage: The chain from the result that came furthest back to the source.
        problems: What could not be found or read.
    """

    name: str
    root: str
    ending: FinalStatus
    steps: Sequence[RunStep]
    lineage: Sequence[Record]
    problems: Sequence[str]

    @property
    def records(self) -> list[Record]:
        """The records of the steps that left one."""
        return [step.record for step in self.steps if step.record]

    @property
    def seconds(self) -> float:
        """From the start of the first step to the end of the last, without those reused from earlier runs."""
        spans = [span(step.record) for step in self.steps if step.record and step.state != "cached"]
        return (
            (max(end for _, end in spans) - min(start for start, _ in spans)).total_seconds()
            if spans
            else 0.0
        )


class _Away(Exception):
    """The store does not answer; the page says so already."""


class _Store:
    """Reads the files of a run; a store that once did not answer is not asked again.

    Every call waits for an answer before it fails: with dozens of tasks, the page of a run whose store is
    away would come hours later. Artifacts that a run reads may lie in another store, which may answer.
    """

    def __init__(self, problems: list[str]) -> None:
        self._problems, self._access = problems, Access(retry_s=_PATIENCE_S)
        self._away = set[tuple[str, str]]()

    def find(self, root: str, name: str) -> list[str]:
        """List the files of one name below a folder.

        Raises:
            _Away: The store does not answer, or did not answer before.
        """
        return self._ask(root, lambda: list(find(root, name, self._access)))

    def read(self, uri: str, last: int = 0) -> bytes:
        """Read a file, or only its last bytes.

        Raises:
            _Away: The store does not answer, or did not answer before.
        """

        def whole() -> bytes:
            with open_file(uri, access=self._access) as stream:
                stream.seek(max(stream.seek(0, io.SEEK_END) - last, 0) if last else 0)
                return stream.read()

        return self._ask(uri, whole)

    def record(self, uri: str) -> Record:
        """Read a record.

        Raises:
            _Away: The store does not answer, or did not answer before.
        """
        record = Record.from_json(json.loads(self.read(uri)), uri)
        span(record)
        return record

    def _ask(self, uri: str, call: Callable[[], _T]) -> _T:
        place = urlsplit(uri)
        store = (place.scheme, place.netloc)
        if store in self._away:
            raise _Away
        try:
            return call()
        except (DependencyError, TransientError) as error:
            self._away.add(store)
            missing = "The store was not asked again: records and errors of steps are missing"
            self._problems.append(f"the store: {_line(error)}. {missing}")
            raise _Away from None


def span(record: Record) -> tuple[datetime, datetime]:
    """Return when a step began and when it ended.

    Raises:
        InputError: Its record does not say so.
    """
    try:
        start = datetime.fromisoformat(record.started)
        end = start + timedelta(seconds=record.seconds)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{record.started!r} and {record.seconds} s are no span of time: {error}") from None
    if start.tzinfo is None:
        raise InputError(f"{record.started!r} has no time zone")
    return start, end


def root_of(uri: str) -> str:
    """Return the root of a run from the address of one of this step's own artifacts.

    Both runners put an artifact at ``<root>/<task>/…``. KFP's placeholder for the root is resolved by
    ``kfp.local`` alone; the 2.17 backend passes it on unchanged.
    """
    return uri.rpartition(f"/{OWN}")[0]


def read_run(root: str, ending: FinalStatus, cluster: WorkflowReader | None = None) -> Run:
    """Look for what a run left; what cannot be read becomes a problem of the page.

    On a cluster the run's own tasks say which artifacts they read and wrote, in this run's folder or in
    that of the run that the cache answered from. Where they cannot be read, only this run's folder is listed.

    Args:
        root: The pipeline's root: a folder or a URI.
        ending: What Kubeflow says.
        cluster: The API that lists the run's tasks; None for a local run.
    """
    problems: list[str] = []
    unread: list[str] = []
    store = _Store(unread)
    told = _told(root, store, unread)
    steps = _cluster_steps(root, ending, cluster, store, problems) if cluster and not told else None
    if steps is None:
        steps = _steps(told.get("tasks", []), _records(root, store, problems), problems)
    records = [step.record for step in steps if step.record]
    latest = max(records, key=lambda record: (len(ancestors([record])), record.started), default=None)
    name = str(told.get("run", "")) or ending.job.rsplit("/", 1)[-1]
    return Run(name, root, ending, steps, ancestors([latest] if latest else []), problems + unread)


def _cluster_steps(
    root: str, ending: FinalStatus, cluster: WorkflowReader, store: _Store, problems: list[str]
) -> list[RunStep] | None:
    """Return the steps of a run on a cluster; None if its tasks cannot be read."""
    try:
        tasks = [task for task in read_tasks(cluster, ending.job) if task.name != OWN]
    except TrainwrightError as error:
        told = f"{_line(error)}. {error.hint}".rstrip(". ")
        missing = "Steps that the cache served, or that failed, may be missing"
        problems.append(f"the run's tasks: {told}. {missing}")
        return None
    made = {task.name: _record_of(task, store, problems) for task in tasks if task.state == "done"}
    reused = dict(_reused(root, tasks, store))
    embedded = _embedded(tasks, [*filter(None, made.values()), *(record for record, _ in reused.values())])
    return [_cluster_step(task, made.get(task.name), reused, embedded, store) for task in tasks]


def _embedded(tasks: Sequence[WorkflowTask], records: Sequence[Record]) -> dict[str, Record]:
    """Return, by task, the records that others carry as their parents.

    A record names its verb, not its task: where several tasks have one verb, it may be of any of them.
    """
    verbs = {task.name: _COUNTED.sub("", task.name).replace("-", "_") for task in tasks}
    count, carried = Counter(verbs.values()), ancestors(records)
    found = {
        name: next((record for record in carried if record.step == verb), None)
        for name, verb in verbs.items()
        if count[verb] == 1
    }
    return {name: record for name, record in found.items() if record}


def _cluster_step(
    task: WorkflowTask,
    record: Record | None,
    reused: dict[str, tuple[Record, str]],
    embedded: dict[str, Record],
    store: _Store,
) -> RunStep:
    origin, error = "", {}
    if task.state == "cached":
        record, origin = reused.get(task.name, (embedded.get(task.name), ""))
    elif task.state == "failed":
        error = _failure(task, store)
    return RunStep(task.shown, task.state, record, error, origin)


def _record_of(task: WorkflowTask, store: _Store, problems: list[str]) -> Record | None:
    """Read the record that a task left beside one of its artifacts."""
    folders = {uri.rpartition("/")[0] for uri in task.outputs}
    try:
        uris = [uri for folder in folders for uri in store.find(folder, Record.FILE)]
        if uris:
            return store.record(uris[0])
        problems.append(f"{task.shown} is done, but left no record")
    except _Away:
        return None
    except Exception as error:
        problems.append(f"the record of {task.shown} cannot be read: {_line(error)}")
    return None


def _reused(
    root: str, tasks: Sequence[WorkflowTask], store: _Store
) -> Iterator[tuple[str, tuple[Record, str]]]:
    """Yield what earlier runs made and this run's steps read: the task's name, its record, and the run."""
    uris = {uri for task in tasks for uri in task.inputs if not uri.startswith(f"{root}/")}
    for uri in sorted(uris):
        *_, run, name, _attempt, _artifact = ["", "", "", "", *uri.split("/")]
        try:
            yield name, (store.record(f"{uri}/{Record.FILE}"), run)
        except _Away:
            return
        except Exception:  # noqa: S112  # nosec B112 - most artifacts have no record beside them
            continue


def _failure(task: WorkflowTask, store: _Store) -> dict[str, Any]:
    """Return the error of a task that failed, from the log that Kubeflow Pipelines keeps of it."""
    told = {"what": task.message or "it left no reason"}
    for folder in sorted({uri.rpartition("/")[0] for uri in task.outputs}):
        for attempt in reversed(range(_ATTEMPTS)):
            log = f"{folder}/{_LOG}-{attempt}"
            try:
                lines = store.read(log, _LOG_BYTES).decode(errors="replace").splitlines()
            except _Away:
                return told
            except Exception:  # noqa: S112  # nosec B112 - there was no such attempt, or no log of it
                continue
            return told | _marked(lines) | {"log": log}
    return told


def _marked(lines: Sequence[str]) -> dict[str, Any]:
    """Return the last error that a step wrote into its log, else the reason that KFP's launcher gives."""
    for line in reversed(lines):
        _, mark, said = line.partition(MARK)
        try:
            if mark and isinstance(found := json.loads(said), dict):
                return found
        except ValueError:
            continue
    reasons = [line for line in lines if _LAUNCHER_ERROR in line]
    return {"what": reasons[-1].strip()[:600]} if reasons else {}


def _records(root: str, store: _Store, problems: list[str]) -> list[Record]:
    """Read every record once, in the order in which the steps began."""
    found: dict[str, Record] = {}
    try:
        uris = store.find(root, Record.FILE)
    except _Away:
        return []
    except Exception as error:
        problems.append(f"{root} cannot be listed: {_line(error)}")
        return []
    for uri in uris:
        try:
            if (record := store.record(uri)).step != OWN:
                found[record.digest] = record
        except _Away:
            break
        except Exception as error:
            problems.append(f"{uri} cannot be read: {_line(error)}")
    if not uris:
        problems.append(f"no step left a record below {root}")
    return sorted(found.values(), key=lambda record: record.started)


def _told(root: str, store: _Store, problems: list[str]) -> dict[str, Any]:
    """Read the local runner's own list: the run's name, and its tasks but for this one."""
    try:
        told = dict(json.loads(store.read(f"{root.rstrip('/')}/{TASKS}")))
        told["tasks"] = [task for task in told["tasks"] if task["step"] != OWN and task["state"]]
    except (InputError, _Away):
        return {}
    except Exception as error:
        problems.append(f"{TASKS} cannot be read: {_line(error)}")
        return {}
    return told


def _steps(tasks: Sequence[dict[str, Any]], records: Sequence[Record], problems: list[str]) -> list[RunStep]:
    """Match the runner's tasks, if there is such a list, with the records."""
    waiting, steps = list(records), []
    for task in tasks:
        record = next((entry for entry in waiting if _is_of(entry, task)), None)
        if record:
            waiting.remove(record)
        error = task.get("error") or {}
        told = error if isinstance(error, dict) else {"what": str(error)}
        steps.append(RunStep(str(task["step"]), str(task["state"]), record, told))
        if record is None and task["state"] in {"done", "cached"}:
            problems.append(f"{task['step']} is {task['state']}, but left no record")
    return steps + [RunStep(record.step, "done", record) for record in waiting]


def _is_of(record: Record, task: dict[str, Any]) -> bool:
    """Tell whether a record is a task's: by its headline, which the runner took from it."""
    return record.step == task.get("verb") and record.headline == task.get("headline", "")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
