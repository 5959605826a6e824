"""Schedules with triggers on this machine: the same pipeline decides, and earlier runs are its history."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from trainwright.authoring import catalog
from trainwright.authoring.schedules.declaration import RECONCILER, DeclaredSchedule
from trainwright.errors import InputError
from trainwright.experiment import StartedBy
from trainwright.local import runner
from trainwright.local.run_folder import Request, Task
from trainwright.local.run_index import read_run
from trainwright.local.runner import Listener, Outcome
from trainwright.trigger.cluster import with_reason
from trainwright.trigger.decision import START

_STATES = {"running": "active", "done": "ended", "held": "ended"}


@dataclass(frozen=True, kw_only=True)
class TriggerEvaluation:
    """The run that decided, and the reason of a start; None if nothing is to start."""

    outcome: Outcome
    headline: str
    summary: str  # file with every condition
    start: StartedBy | None


def evaluate(declared: DeclaredSchedule, day: date, runs_folder: Path) -> TriggerEvaluation:
    """Decide for a date whether a schedule's pipeline is to start; start nothing."""
    trigger = declared.arguments["target"]["trigger"]
    arguments = {
        **declared.arguments,
        "date": declared.arguments.get("date") or day.isoformat(),
        "kubeflow": "",
        "earlier": list(_earlier(runs_folder, trigger)),
    }
    outcome = runner.run(catalog.pipeline(RECONCILER), arguments, runs_folder=runs_folder)
    tasks: Mapping[str, Task] = {task.step: task for task in outcome.tasks}
    decided, start = tasks["trigger-with-drift" if "serving" in arguments else "trigger"], None
    if decided.parameters.get("decision") == START:
        start = StartedBy(
            trigger=trigger,
            date=arguments["date"],
            source=tasks["resolve"].parameters["version"],
            reason=decided.parameters["reason"],
        )
    summary = decided.outputs["summary"].uri if "summary" in decided.outputs else ""
    failed = next((str(task.error["what"]) for task in outcome.tasks if task.error), "")
    return TriggerEvaluation(
        outcome=outcome, headline=failed or decided.headline, summary=summary, start=start
    )


def run(declared: DeclaredSchedule, by: StartedBy, runs_folder: Path, listener: Listener) -> Outcome:
    """Run the pipeline of a schedule for the reason of its trigger."""
    dated = "date" in declared.starts.pipeline.parameters if declared.starts else False
    arguments = with_reason(declared.arguments["target"]["arguments"], by, dated=dated)
    return runner.run(declared.compiled, arguments, runs_folder=runs_folder, listener=listener)


def _earlier(runs_folder: Path, trigger: str) -> Iterator[dict[str, Any]]:
    """Yield the runs that a trigger started on this machine."""
    for path in sorted(runs_folder.glob(f"*/{Request.FILE}")):
        by = Request.read(path.parent).arguments.get("run", {}).get("started_by", {})
        if by.get("trigger") == trigger:
            state = _STATES.get(read_run(path.parent).state, "failed")
            yield {"run": path.parent.name, "date": by["date"], "source": by["source"], "state": state}


def with_triggers(declared: list[DeclaredSchedule], path: Path) -> list[DeclaredSchedule]:
    """Return the enabled schedules that have triggers; InputError if there is none."""
    found = [one for one in declared if one.starts and one.schedule.enabled]
    if not found:
        raise InputError(
            "no enabled schedule has triggers",
            where=str(path),
            hint="docs/triggers.md shows the section triggers of a schedule.",
        )
    return found
