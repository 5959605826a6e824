"""The states of a run and of its steps, read from the API's list with the compiled pipeline at hand.

The API lists the nodes of an Argo workflow: a step goes by the name of its task, and beside it stand drivers,
executors and groups. A group that a condition left out is SKIPPED, and nothing inside it is listed.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainwright.authoring import catalog
from trainwright.authoring.pipeline_spec import PREFIX, Pipeline, Step, channels
from trainwright.errors import DataRefused, InternalError, ModelRefused, PreemptedUnsaved

UNSPECIFIED = "RUNTIME_STATE_UNSPECIFIED"
"""The first value of the enumeration: the server leaves it out of its answers, as it does every default."""

WAITING = frozenset({UNSPECIFIED, "PENDING", "PAUSED"})
RUNNING = frozenset({"RUNNING"})
STOPPING = frozenset({"CANCELING"})
SUCCEEDED = frozenset({"SUCCEEDED", "SKIPPED"})
CANCELED = "CANCELED"
RETRYABLE = frozenset({"FAILED", "ERROR", CANCELED})
ENDED = SUCCEEDED | RETRYABLE
KNOWN = ENDED | WAITING | RUNNING | STOPPING
"""The states of the API's description, and ``ERROR``, which older servers have."""

WORDS = {
    UNSPECIFIED: "waiting",
    "PENDING": "waiting",
    "PAUSED": "paused",
    "RUNNING": "running",
    "CANCELING": "stopping",
    "SUCCEEDED": "done",
    "SKIPPED": "not run",
    "FAILED": "failed",
    "ERROR": "failed",
    "CANCELED": "stopped",
}
"""The states on the screen, as ``trainwright run`` names them."""

CODES = {
    "SUCCEEDED": 0,
    "SKIPPED": 0,
    "FAILED": InternalError.code,
    "ERROR": InternalError.code,
    "CANCELED": PreemptedUnsaved.code,
}
"""Exit code of an end of which nothing else is known.

A failed step says its own code in its log. Where the log is gone, the failure is not one that is known to
pass: CI must not try it again by itself. Whoever stopped a run did not see to it that its state was saved.
"""

FIRST_YEAR = 2000
"""The API writes 1970 for a time that it does not know."""

_INNER = re.compile(
    r"root|.*-driver|executor(\(\d+\))?|(condition|condition-branches|for-loop|exit-handler)(-\d+)*|.*\(\d+\)"
)
"""Names of nodes that are no steps."""


def word(state: str | None) -> str:
    """Return a state's name on the screen; an unknown one keeps its own."""
    return WORDS.get(state or UNSPECIFIED, str(state).lower())


def outcome(run: Any, before: str = "") -> str:
    """Return the state that a run ended in, and ``CANCELED`` for a run that somebody terminated.

    The API server of KFP 2.17 sets CANCELING when a run is terminated and FAILED when its workflow has ended;
    nothing in it ever sets CANCELED. A retried run keeps its history, so only the entry before the last one
    counts. CANCELING enters the history with the first report of the persistence agent after it, so a run
    that ends before that report has it only in its state. An entry may lack its state, as a default.

    Args:
        run: As the API has it.
        before: The state at the look before this one; empty for none.
    """
    history = [entry.state for entry in run.state_history or () if entry.state]
    terminated = history[-2:] == ["CANCELING", "FAILED"] or before in STOPPING
    return CANCELED if run.state == "FAILED" and terminated else str(run.state)


def details(run: Any) -> list[Any]:
    """Return the entries that the API lists of a run."""
    found = (run.run_details.task_details if run.run_details else None) or []
    return [detail for detail in found if detail.display_name]


@dataclass(frozen=True, kw_only=True)
class StepNow:
    """The state of one step."""

    name: str  # as ``trainwright run`` calls it
    environment: str  # short name of its image; empty if the pipeline is not known
    state: str  # one of the API's
    seconds: float  # from its start to its end, or to now; 0 before its start
    limit_s: float  # its time limit; 0 for none, or unknown
    cached: bool = False  # Kubeflow took its outputs from the cache; false where that is not certain


def names(pipeline: Pipeline | None) -> dict[str, Step]:
    """Return the steps of a pipeline by their names in the API: the task's, or the displayed one."""
    if pipeline is None:
        return {}
    by_step = {step.name: step for step in pipeline.steps}
    found = dict(by_step)
    for group in pipeline.groups():
        for name, task in pipeline.tasks(group).items():
            if step := by_step.get(task["componentRef"]["name"].removeprefix(PREFIX)):
                found[name] = step
                found.setdefault(str(task.get("taskInfo", {}).get("name", name)), step)
    return found


def steps(run: Any, pipeline: Pipeline | None, now: datetime) -> list[StepNow]:
    """Return the steps of a run that have begun, in order of their start."""
    known = names(pipeline)
    grouped: dict[str, list[Any]] = {}
    for name, detail in _entries(run, known, "start_time"):
        grouped.setdefault(name, []).append(detail)
    by_name = {step.name: step for step in known.values()}
    cached = _cached(run, [detail for entries in grouped.values() for detail in entries])
    return [_step(name, entries, by_name.get(name), now, cached) for name, entries in grouped.items()]


def _entries(run: Any, known: Mapping[str, Step], by: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries of steps, by name, in order of one of their times; an unknown time comes last."""
    listed = details(run)
    nodes = [child.pod_name for detail in listed for child in detail.child_tasks or [] if child.pod_name]
    workflow = {node.rpartition("-")[0] for node in nodes}  # its own entry has its name
    for detail in sorted(listed, key=lambda detail: str(_time(getattr(detail, by)) or "9")):
        step = known.get(detail.display_name)
        inner = _INNER.fullmatch(detail.display_name) or detail.display_name in workflow
        if step or not (known or inner):
            yield (step.name if step else detail.display_name), detail


def _cached(run: Any, entries: Sequence[Any]) -> set[str]:
    """Return the ids of the entries of steps that were certainly taken from the cache.

    A cached step says SUCCEEDED as well. Its executor does not: it is SKIPPED, in the second in which the
    step starts and ends. No entry names the step that an executor belongs to, so a step counts as cached only
    if that second has an executor for each step of it.
    """
    skipped = Counter(
        detail.start_time
        for detail in details(run)
        if detail.display_name == "executor" and detail.state == "SKIPPED" and _time(detail.start_time)
    )
    instant = [
        entry for entry in entries if entry.state == "SUCCEEDED" and entry.start_time == entry.end_time
    ]
    needed = Counter(entry.start_time for entry in instant)
    return {entry.task_id for entry in instant if needed[entry.start_time] <= skipped[entry.start_time]}


def _step(
    name: str, entries: Sequence[Any], step: Step | None, now: datetime, cached: Collection[str]
) -> StepNow:
    """Return the state of a step; of one that a loop repeats, a failure first, then what is running."""
    states = [entry.state or UNSPECIFIED for entry in entries]
    order = [*(state for kind in (RETRYABLE, RUNNING) for state in states if state in kind)]
    order += [state for state in states if state not in SUCCEEDED]
    starts = [time for entry in entries if (time := _time(entry.start_time))]
    ends = [_time(entry.end_time) or now for entry in entries]
    return StepNow(
        name=name,
        environment=step.toolchain if step else "",
        state=next(iter(order), states[-1]),
        seconds=max((max(ends) - min(starts)).total_seconds(), 0.0) if starts else 0.0,
        limit_s=step.timeout_s if step else 0.0,
        cached=all(entry.task_id in cached for entry in entries),
    )


def _time(value: datetime | None) -> datetime | None:
    return value if value and value.year >= FIRST_YEAR else None


def failed(run: Any, pipeline: Pipeline | None) -> str:
    """Return the name of the step that failed first, by the time of its end; empty if none did."""
    ended = _entries(run, names(pipeline), "end_time")
    return next((name for name, detail in ended if detail.state in {"FAILED", "ERROR"}), "")


@dataclass(frozen=True, kw_only=True)
class Held:
    """A gate that stopped a run which, for the API, has succeeded, and the documented exit code for it."""

    step: str
    code: int


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A group of tasks that runs by a gate's decision; one that ``explains`` runs where the gate held."""

    group: str
    gate: Step
    explains: bool


def branches(pipeline: Pipeline) -> Iterator[Branch]:
    """Yield every group whose condition depends on a gate's decision."""
    explaining = {step.name for step in pipeline.steps if step.explains}
    for group, (parent, name) in pipeline.owners.items():
        task = pipeline.tasks(parent)[name]
        inside = {one["componentRef"]["name"].removeprefix(PREFIX) for one in pipeline.tasks(group).values()}
        inputs = task.get("inputs", {}).get("parameters", {})
        for channel in channels(task.get("triggerPolicy", {}).get("condition", "")):
            for origin in pipeline.origins(parent, inputs.get(channel, {})):
                step = pipeline.step(origin.step) if origin.step else None
                if step and (catalog.judged_by(step.verb) or origin.name == "decision"):
                    yield Branch(group=name, gate=step, explains=bool(inside & explaining))


def held(run: Any, pipeline: Pipeline) -> Held | None:
    """Return the gate that stopped a run that has succeeded; None if none did.

    A gate has, if it succeeded and the group that it lets go on was skipped, or the one that explains ran.
    """
    states: Mapping[str, str] = {detail.display_name: detail.state or "" for detail in details(run)}
    done = {step.name for name, step in names(pipeline).items() if states.get(name) == "SUCCEEDED"}
    for branch in branches(pipeline):
        if branch.gate.name in done and (states.get(branch.group) == "SUCCEEDED") == branch.explains:
            data = catalog.judged_by(branch.gate.verb) == "data"
            return Held(step=branch.gate.name, code=DataRefused.code if data else ModelRefused.code)
    return None
