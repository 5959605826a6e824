"""What can be found out about a run after its end: records, states, errors. Nothing here fails the run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from trainwright.artifacts import Record
from trainwright.errors import InputError
from trainwright.lineage import ancestors
from trainwright.storage import find, open_file

OWN = "summarize"
"""The verb of this step, with which the name of its task begins."""

TASKS = "tasks.json"
"""Written by the local runner beside the steps; on a cluster there is none."""


STATES = {"COMPLETE": "SUCCEEDED", "CACHED": "SUCCEEDED", "CANCELED": "CANCELLED", "RUNNING": ""}
"""What the 2.17 backend calls a state, and what kfp documents. A run that a gate has stopped is RUNNING."""


@dataclass(frozen=True)
class Ending:
    """What Kubeflow says about the end of a run.

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
class Step:
    """One step of the run.

    Attributes:
        name: Its name in the pipeline, or its verb.
        state: ``done``, ``cached``, ``failed`` or ``skipped``.
        record: What it wrote about itself; None if it left nothing.
        error: What it ended with: ``what``, ``where``, ``hint``.
    """

    name: str
    state: str
    record: Record | None = None
    error: dict[str, Any] = field(default_factory=dict)


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
    ending: Ending
    steps: Sequence[Step]
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
    ``kfp.local`` alone; the 2.17 backend passes it on as it stands.
    """
    return uri.rpartition(f"/{OWN}")[0]


def read_run(root: str, ending: Ending) -> Run:
    """Look for what a run left below its root; what cannot be read becomes a problem of the page.

    Args:
        root: The pipeline's root: a folder or a URI.
        ending: What Kubeflow says.
    """
    problems: list[str] = []
    records = _records(root, problems)
    told = _told(root, problems)
    steps = _steps(told.get("tasks", []), records, problems)
    latest = max(records, key=lambda record: (len(ancestors([record])), record.started), default=None)
    name = str(told.get("run", "")) or ending.job.rsplit("/", 1)[-1]
    return Run(name, root, ending, steps, ancestors([latest] if latest else []), problems)


def _records(root: str, problems: list[str]) -> list[Record]:
    """Read every record once, in the order in which the steps began."""
    found: dict[str, Record] = {}
    try:
        uris = list(find(root, Record.FILE))
    except Exception as error:
        problems.append(f"{root} cannot be listed: {_line(error)}")
        return []
    for uri in uris:
        try:
            with open_file(uri) as stream:
                record = Record.from_json(json.load(stream), uri)
            span(record)
            if record.step != OWN:
                found[record.digest] = record
        except Exception as error:
            problems.append(f"{uri} cannot be read: {_line(error)}")
    if not uris:
        problems.append(f"no step left a record below {root}")
    return sorted(found.values(), key=lambda record: record.started)


def _told(root: str, problems: list[str]) -> dict[str, Any]:
    """Read the local runner's own list: the run's name, and its tasks but for this one."""
    try:
        with open_file(f"{root.rstrip('/')}/{TASKS}") as stream:
            told = dict(json.load(stream))
        told["tasks"] = [task for task in told["tasks"] if task["step"] != OWN and task["state"]]
    except InputError:
        return {}
    except Exception as error:
        problems.append(f"{TASKS} cannot be read: {_line(error)}")
        return {}
    return told


def _steps(tasks: Sequence[dict[str, Any]], records: Sequence[Record], problems: list[str]) -> list[Step]:
    """Match the runner's tasks, if there is such a list, with the records."""
    waiting, steps = list(records), []
    for task in tasks:
        record = next((entry for entry in waiting if _is_of(entry, task)), None)
        if record:
            waiting.remove(record)
        error = task.get("error") or {}
        told = error if isinstance(error, dict) else {"what": str(error)}
        steps.append(Step(str(task["step"]), str(task["state"]), record, told))
        if record is None and task["state"] in {"done", "cached"}:
            problems.append(f"{task['step']} is {task['state']}, but left no record")
    return steps + [Step(record.step, "done", record) for record in waiting]


def _is_of(record: Record, task: dict[str, Any]) -> bool:
    """Tell whether a record is a task's: by its headline, which the runner took from it."""
    verb = str(task["step"]).split(".")[0].split("-")[0]
    return record.step == verb and record.headline == task.get("headline", "")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
