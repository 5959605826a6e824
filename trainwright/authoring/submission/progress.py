"""The states of a run and of its steps, read from the API's list with the compiled pipeline at hand.

The API lists the nodes of an Argo workflow: a step goes by the name of its task, and beside it stand drivers,
executors and groups. A group that a condition left out is SKIPPED, and nothing inside it is listed.

A step that Kubeflow took from its cache says SUCCEEDED as well. Its executor does not: it is SKIPPED, in the
second in which the step starts and ends. No entry names the step that an executor belongs to, so a step is
said to be cached only if that second has an executor for each step of it.
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
"""Those of the description of the API, and ``ERROR``, which older servers have."""

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
"""What a state is called on the screen, as ``trainwright run`` has it."""

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


def word(state: str | None) -> str:
    """Return what a state is called; one that is new to us keeps its name."""
    return WORDS.get(state or UNSPECIFIED, str(state).lower())


def outcome(run: Any, before: str = "") -> str:
    """Return the state that a run ended in, and ``CANCELED`` for a run that somebody terminated.

    The API server of KFP 2.17 sets CANCELING when a run is terminated and FAILED when its workflow has ended;
    nothing in it ever sets CANCELED. A retried run keeps its history, so only the entry before the last one
    counts. CANCELING enters the history with the first report of the persistence agent after it, so a run
    that ends before that report has it only in its state. An entry may lack its state: the server leaves out
    the first value of the enumeration.

    Args:
        run: As the API has it.
        before: The state at the look before this one; empty for none.
    """
    history = [entry.state for entry in run.state_history or () if entry.state]
    terminated = history[-2:] == ["CANCELING", "FAILED"] or before in STOPPING
    return CANCELED if run.state == "FAILED" and terminated else str(run.state)


_INNER = re.compile(
    r"root|.*-driver|executor(\(\d+\))?|(condition|condition-branches|for-loop|exit-handler)(-\d+)*|.*\(\d+\)"
)
"""Names of nodes that are no steps."""

FAILURES = RETRYABLE - {"CANCELED"}
_DECISION = "decision"
EXECUTOR = "executor"
FIRST_YEAR = 2000
"""The API writes 1970 for a time that it does not know."""


@dataclass(frozen=True, kw_only=True)
class StepNow:
    """The state of one step.

    Attributes:
        name: As ``trainwright run`` calls it.
        environment: Short name of its image; empty if the pipeline is not known.
        state: One of the API's.
        seconds: From its start to its end, or to now; 0 before its start.
        limit_s: Seconds after which it is stopped; 0 for none, or unknown.
        cached: Kubeflow took its outputs from the cache; false where that is not certain.
    """

    name: str
    environment: str
    state: str
    seconds: float
    limit_s: float
    cached: bool = False


def names(pipeline: Pipeline) -> dict[str, Step]:
    """Return the steps of a pipeline by what the API calls them: the task's name, or the shown one."""
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
    known = names(pipeline) if pipeline else {}
    grouped: dict[str, list[Any]] = {}
    listed = list(_of_steps(run, known, "start_time"))
    for name, detail in listed:
        grouped.setdefault(name, []).append(detail)
    shown = {step.name: step for step in known.values()}
    cached = _cached(run, [detail for _, detail in listed])
    return [_step(name, found, shown.get(name), now, cached) for name, found in grouped.items()]


def _cached(run: Any, steps: Sequence[Any]) -> set[str]:
    """Return the ids of the entries of steps that were certainly taken from the cache."""
    details = _details(run)
    skipped = Counter(
        detail.start_time
        for detail in details
        if detail.display_name == EXECUTOR and detail.state == "SKIPPED" and _time(detail.start_time)
    )
    instant = [step for step in steps if step.state == "SUCCEEDED" and step.start_time == step.end_time]
    wanted = Counter(step.start_time for step in instant)
    return {step.task_id for step in instant if wanted[step.start_time] <= skipped[step.start_time]}


def _of_steps(run: Any, known: Mapping[str, Step], by: str) -> Iterator[tuple[str, Any]]:
    """Yield the steps that have begun, by name, in order of one of their times; one unknown comes last."""
    details = _details(run)
    nodes = [child.pod_name for detail in details for child in detail.child_tasks or [] if child.pod_name]
    workflow = {node.rpartition("-")[0] for node in nodes}  # its own entry is called like it
    for detail in sorted(details, key=lambda detail: str(_time(getattr(detail, by)) or "9")):
        step = known.get(detail.display_name)
        inner = _INNER.fullmatch(detail.display_name) or detail.display_name in workflow
        if step or not (known or inner):
            yield (step.name if step else detail.display_name), detail


def _details(run: Any) -> list[Any]:
    found = (run.run_details.task_details if run.run_details else None) or []
    return [detail for detail in found if detail.display_name]


def _step(
    name: str, details: Sequence[Any], step: Step | None, now: datetime, cached: Collection[str]
) -> StepNow:
    starts = [time for detail in details if (time := _time(detail.start_time))]
    ends = [_time(detail.end_time) or now for detail in details]
    return StepNow(
        name=name,
        environment=step.toolchain if step else "",
        state=_together([detail.state or UNSPECIFIED for detail in details]),
        seconds=max((max(ends) - min(starts)).total_seconds(), 0.0) if starts else 0.0,
        limit_s=step.timeout_s if step else 0.0,
        cached=all(detail.task_id in cached for detail in details),
    )


def _together(states: Sequence[str]) -> str:
    """Return the state of a step that a loop does several times: a failure first, then what goes on."""
    for kind in (RETRYABLE, RUNNING):
        if found := next((state for state in states if state in kind), ""):
            return found
    return next((state for state in states if state not in SUCCEEDED), states[-1])


def _time(value: datetime | None) -> datetime | None:
    return value if value and value.year >= FIRST_YEAR else None


def failed(run: Any, now: Sequence[StepNow], pipeline: Pipeline | None) -> StepNow | None:
    """Return the step that failed first, by the time of its end; None if none did."""
    known = names(pipeline) if pipeline else {}
    ended = (name for name, detail in _of_steps(run, known, "end_time") if detail.state in FAILURES)
    first = next(ended, "")
    return next((step for step in now if step.name == first), None)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A gate that stopped a run which, for the API, has succeeded, and the documented exit code for it."""

    step: str
    code: int


def gates(pipeline: Pipeline) -> Iterator[tuple[str, Step]]:
    """Yield every condition that depends on a gate's decision: the group's task, and the gate."""
    for group, (parent, name) in pipeline.owners.items():
        task = pipeline.tasks(parent)[name]
        inputs = task.get("inputs", {}).get("parameters", {})
        if _explains(pipeline, group):
            continue
        for channel in channels(task.get("triggerPolicy", {}).get("condition", "")):
            for origin in pipeline.origins(parent, inputs.get(channel, {})):
                step = pipeline.step(origin.step) if origin.step else None
                if step and (catalog.judged_by(step.verb) or origin.name == _DECISION):
                    yield name, step


def _explains(pipeline: Pipeline, group: str) -> bool:
    """Return whether a group is the branch of a gate that held: it says why, and may notify somebody."""
    inside = {task["componentRef"]["name"].removeprefix(PREFIX) for task in pipeline.tasks(group).values()}
    return bool(inside & {step.name for step in pipeline.steps if step.explains})


def held(run: Any, pipeline: Pipeline) -> Held | None:
    """Return the gate that stopped a run that has succeeded; None if none did.

    A gate has, if it succeeded and the group that depends on its decision was skipped.
    """
    states: Mapping[str, str] = {detail.display_name: detail.state or "" for detail in _details(run)}
    done = {step.name for name, step in names(pipeline).items() if states.get(name) == "SUCCEEDED"}
    for group, gate in gates(pipeline):
        if gate.name in done and states.get(group) != "SUCCEEDED":
            data = catalog.judged_by(gate.verb) == "data"
            return Held(step=gate.name, code=DataRefused.code if data else ModelRefused.code)
    return None
