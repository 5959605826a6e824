"""A task handler for kfp.local that runs nothing, and small components to run with it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kfp import dsl
from kfp.local import status, task_handler_interface

component = dsl.component(base_image="python:3.11", install_kfp_package=False)


@component
def say(text: str) -> str:
    return text


@component
def judge(text: str) -> NamedTuple("Judged", [("decision", str), ("count", int)]):
    return (text, 3)


@component
def take(numbers: list, table: dict) -> str:
    return ""


@component
def make(data: dsl.Output[dsl.Dataset]):
    pass


@component
def read(data: dsl.Input[dsl.Dataset]) -> str:
    return ""


@component
def pages() -> NamedTuple("Pages", [("items", list)]):
    return ([],)


@component
def close(status: dsl.PipelineTaskFinalStatus):
    pass


@dataclass
class Probe:
    """A task handler's class that runs nothing: it keeps the calls, and returns what it is told."""

    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    failing: tuple[str, ...] = ()
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    root: str = ""

    def handler(self) -> type:
        probe = self

        class Handler(task_handler_interface.ITaskHandler):
            def __init__(self, *, full_command: list[str], **_: object) -> None:
                self.command = full_command

            def run(self) -> status.Status:
                return probe.call(self.command)

        return Handler

    def call(self, command: list[str]) -> status.Status:
        data = json.loads(command[command.index("--executor_input") + 1])
        place = Path(data["outputs"]["outputFile"])
        name = str(place.parent.relative_to(self.root)).split("/", 1)[1]
        self.calls.append((name, data))
        self.commands.append(command)
        if name in self.failing:
            return status.Status.FAILURE
        place.parent.mkdir(parents=True, exist_ok=True)
        step = place.parent.name
        artifacts = data["outputs"].get("artifacts", {})
        place.write_text(json.dumps({"parameterValues": self.outputs.get(step, {}), "artifacts": artifacts}))
        return status.Status.SUCCESS

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def given(self, name: str) -> dict[str, Any]:
        return dict(self.calls)[name]["inputs"]["parameterValues"]
