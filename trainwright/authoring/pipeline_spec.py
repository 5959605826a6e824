"""Read a compiled pipeline: its parameters, its steps and their dependencies.

Every task gets a component of its own, named as KFP displays the task, so that a step's name is unique in the
pipeline and identifies its folder, policies and position in the graph.
"""

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright import executor
from trainwright.errors import InputError
from trainwright.yaml_reader import read_yaml_documents

_FUNCTION = "--function_to_execute"
_EXPLAINS = "hold"
"""The component that reports why a gate held the run."""

_IMAGE = re.compile(r"(?:\S+/)?trainwright/[a-z]+[:@]\S+")


def toolchain_of(image: str) -> str:
    """Return the short name of an image: ``tabular`` for ``host:5000/team/trainwright/tabular:0.1.0``."""
    return image.split("@", 1)[0].rsplit("/", 1)[-1].split(":", 1)[0]


def toolchains_in(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the short names of this library's images among parameters: those of a job's pods."""
    for value in values.values():
        if isinstance(value, str) and _IMAGE.fullmatch(value):
            yield toolchain_of(value)


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The retry policy of a step."""

    count: int = 0
    backoff_s: float = 0.0
    factor: float = 2.0
    longest_s: float = 3600.0

    @classmethod
    def parse(cls, policy: Mapping[str, Any]) -> "Retry":
        """Read a compiled retry policy; its durations are strings such as ``30s``."""
        backoff, longest = policy.get("backoffDuration", "0s"), policy.get("backoffMaxDuration", "3600s")
        return cls(
            count=int(policy.get("maxRetryCount", 0)),
            backoff_s=float(backoff.removesuffix("s")),
            factor=float(policy.get("backoffFactor", 0.0)) or 2.0,
            longest_s=float(longest.removesuffix("s")),
        )

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number ``attempt``, counted from 0."""
        return float(min(self.backoff_s * self.factor**attempt, self.longest_s))


@dataclass(frozen=True, kw_only=True)
class Step:
    """One task that runs a container; ``name`` is unique in the pipeline, and names its folder."""

    name: str
    image: str
    container: Mapping[str, Any]  # command, arguments and variables with placeholders
    inputs: Mapping[str, str]  # type of each parameter, such as NUMBER_INTEGER
    constants: Mapping[str, Any]  # parameters that the pipeline fixes
    outputs: Mapping[str, Any]  # compiled output definitions
    cacheable: bool
    closing: bool  # an exit handler: it runs last and is never reused
    judged: frozenset[str]  # output parameters that a condition of the pipeline reads
    upstream: frozenset[str]  # steps that it reads from or waits for
    retry: Retry = field(default_factory=Retry)
    timeout_s: float = 0.0  # 0 for none

    @property
    def verb(self) -> str:
        """Name of the component's function; the step's own name for a container."""
        arguments = [str(part) for part in self.container.get("args", [])]
        return arguments[arguments.index(_FUNCTION) + 1] if _FUNCTION in arguments[:-1] else self.name

    @property
    def explains(self) -> bool:
        """True for this library's ``hold``, which only runs if a gate held the run.

        The image is compared too, since a user's function may have the same name.
        """
        return self.verb == _EXPLAINS and bool(_IMAGE.fullmatch(self.image))

    @property
    def toolchain(self) -> str:
        """The short name of its image."""
        return toolchain_of(self.image)

    @property
    def lightweight(self) -> bool:
        """True for a Python function, of this library or with its source in the pipeline."""
        command = " ".join(map(str, self.container.get("command", [])))
        known = "kfp.dsl.executor_main" in command or executor.__name__ in command
        return known and "{{$}}" in self.container.get("args", [])


def image_of(step: Step, parameters: Mapping[str, Any]) -> str:
    """Return the image of a step's container on one machine; of its job, if a parameter names one."""
    images = (value for value in parameters.values() if isinstance(value, str) and _IMAGE.fullmatch(value))
    return next(images, step.image)


def producers(task: Mapping[str, Any]) -> set[str]:
    """Return the tasks of the same group that a task reads from or waits for."""
    inputs = task.get("inputs", {})
    references = [
        entry[kind]
        for entry in [*inputs.get("parameters", {}).values(), *inputs.get("artifacts", {}).values()]
        for kind in ("taskOutputParameter", "taskOutputArtifact", "taskFinalStatus")
        if kind in entry
    ]
    return {reference["producerTask"] for reference in references} | set(task.get("dependentTasks", []))


def is_closing(task: Mapping[str, Any]) -> bool:
    """Return whether a task is an exit handler: only those receive the final status of another task."""
    return any("taskFinalStatus" in entry for entry in task.get("inputs", {}).get("parameters", {}).values())


def in_order(tasks: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's tasks in dependency order, exit handlers last."""
    result: list[str] = []

    def visit(name: str) -> None:
        if name in tasks and name not in result:
            for producer in sorted(producers(tasks[name])):
                visit(producer)
            result.append(name)

    for name in sorted(tasks, key=lambda name: (is_closing(tasks[name]), name)):
        visit(name)
    return result


PREFIX = "comp-"
"""Prefix of every component's name in a compiled pipeline."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The source of a value: an argument of the pipeline (``step`` is empty) or an output of a step."""

    step: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A compiled pipeline or component."""

    name: str
    document: Mapping[str, Any]  # the pipeline spec; every task has a component of its own
    owners: Mapping[str, tuple[str, str]]  # parent group and task, for the component of every group of tasks
    steps: tuple[Step, ...] = ()  # in dependency order

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """Compiled definition of each parameter of the pipeline, by name."""
        parameters: Mapping[str, Mapping[str, Any]] = self.definitions("").get("parameters", {})
        return parameters

    def step(self, name: str) -> Step:
        """Return a step by its name."""
        return {step.name: step for step in self.steps}[name]

    def downstream(self, name: str) -> frozenset[str]:
        """Return the step and its direct and indirect dependents."""
        found = {name}
        for step in self.steps:
            if step.upstream & found:
                found.add(step.name)
        return frozenset(found)

    def groups(self) -> Iterator[str]:
        """Yield the pipeline itself as ``""``, and then the component name of every group of tasks."""
        yield ""
        yield from self.owners

    def tasks(self, group: str) -> Mapping[str, Any]:
        """Return the tasks of a group, or of the pipeline itself."""
        tasks: Mapping[str, Any] = self._owner(group)["dag"].get("tasks", {})
        return tasks

    def definitions(self, group: str) -> Mapping[str, Any]:
        """Return the compiled input definitions of a group, or of the pipeline itself."""
        inputs: Mapping[str, Any] = self._owner(group).get("inputDefinitions", {})
        return inputs

    def _owner(self, group: str) -> Mapping[str, Any]:
        owner: Mapping[str, Any] = self.document["components"][group] if group else self.document["root"]
        return owner

    def origins(self, group: str, source: Mapping[str, Any]) -> Iterator[Origin]:
        """Return the arguments and outputs from which an input of a task in ``group`` can come."""
        if output := source.get("taskOutputParameter"):
            yield from self._producers(group, output["producerTask"], output["outputParameterKey"])
        elif name := source.get("componentInputParameter"):
            yield from self._arguments(group, name)

    def _producers(self, group: str, task: str, key: str) -> Iterator[Origin]:
        component = self.tasks(group)[task]["componentRef"]["name"]
        if component not in self.owners:
            yield Origin(step=component.removeprefix(PREFIX), name=key)
            return
        output = self._owner(component)["dag"]["outputs"]["parameters"][key]
        one = output.get("valueFromParameter")
        for choice in [one] if one else output["valueFromOneof"]["parameterSelectors"]:
            yield from self._producers(component, choice["producerSubtask"], choice["outputParameterKey"])

    def _arguments(self, group: str, name: str) -> Iterator[Origin]:
        if not group:
            yield Origin(step="", name=name)
            return
        parent, task_name = self.owners[group]
        task = self.tasks(parent)[task_name]
        iterator = task.get("parameterIterator", {})
        if iterator.get("itemInput") == name:
            name = iterator.get("items", {}).get("inputParameter", "")
        if source := task.get("inputs", {}).get("parameters", {}).get(name):
            yield from self.origins(parent, source)


def read(path: Path) -> Pipeline:
    """Read a compiled pipeline."""
    try:
        documents = read_yaml_documents(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        hint = "Compile it with kfp 2.17, or take one of the library's: trainwright list."
        raise InputError("no such compiled pipeline", where=str(path), hint=hint) from None
    if not documents or not isinstance(documents[0], dict) or "root" not in documents[0]:
        raise InputError(
            "not a compiled pipeline: it has no root",
            where=str(path),
            hint="Compile it with kfp 2.17 (`make compile`).",
        )
    try:
        return parse(documents[0], documents[1] if len(documents) > 1 else {})
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"not a pipeline that kfp 2.17 compiled: {error!r}", where=str(path)) from error


def parse(document: Mapping[str, Any], platform: Mapping[str, Any]) -> Pipeline:
    """Parse the documents of a compiled pipeline: its spec, and the settings of its platform."""
    owned, owners = _own_components(document)
    bare = Pipeline(name=owned["pipelineInfo"]["name"], document=owned, owners=owners)
    judged = frozenset(conditioned(bare))
    kubernetes = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {})
    settings = kubernetes.get("executors", {})

    def steps(group: str, before: frozenset[str]) -> Iterator[Step]:
        """Yield the steps of a group in order; ``before`` are the dependencies of the group."""
        tasks = bare.tasks(group)
        done: dict[str, frozenset[str]] = {}
        for name in in_order(tasks):
            task = tasks[name]
            component = task["componentRef"]["name"]
            upstream = before.union(*(done[producer] for producer in producers(task) if producer in done))
            if component in owners:
                inner = tuple(steps(component, upstream))
                done[name] = frozenset(step.name for step in inner)
                yield from inner
            elif step := _step(bare, component, task, upstream, judged, settings):
                done[name] = frozenset({step.name})
                yield step

    return dataclasses.replace(bare, steps=tuple(steps("", frozenset())))


def _own_components(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Give every task a component of its own, named after the task; return the owner of each group."""
    result = copy.deepcopy(dict(document))
    old: dict[str, Any] = result.get("components", {})
    new: dict[str, Any] = {}
    owners: dict[str, tuple[str, str]] = {}
    waiting = [("", result["root"])]
    while waiting:
        group, owner = waiting.pop(0)
        for task_name, task in owner["dag"].get("tasks", {}).items():
            component = copy.deepcopy(old[task["componentRef"]["name"]])
            displayed = str(task.get("taskInfo", {}).get("name", ""))
            is_folder_name = re.fullmatch(r"[a-z0-9][a-z0-9-]*", displayed)
            name = PREFIX + (displayed if is_folder_name else task_name)
            if name in new:
                name = f"{group}-{name.removeprefix(PREFIX)}"
            while name in new:
                name += "-x"
            task["componentRef"]["name"] = name
            new[name] = component
            if "dag" in component:
                owners[name] = (group, task_name)
                waiting.append((name, component))
    result["components"] = new
    return result, owners


def _step(
    pipeline: Pipeline,
    component: str,
    task: Mapping[str, Any],
    upstream: frozenset[str],
    judged: frozenset[Origin],
    settings: Mapping[str, Any],
) -> Step | None:
    """Return the step of one task; None for an importer."""
    definition = pipeline.document["components"][component]
    label = definition["executorLabel"]
    container = pipeline.document["deploymentSpec"]["executors"][label].get("container")
    if container is None:
        return None
    inputs = definition.get("inputDefinitions", {}).get("parameters", {})
    values = task.get("inputs", {}).get("parameters", {})
    name = component.removeprefix(PREFIX)
    return Step(
        name=name,
        image=container["image"],
        container={key: container[key] for key in ("command", "args", "env") if key in container},
        inputs={key: entry["parameterType"] for key, entry in inputs.items()},
        constants={
            key: entry["runtimeValue"].get("constant")
            for key, entry in values.items()
            if "runtimeValue" in entry
        },
        outputs=definition.get("outputDefinitions", {}),
        cacheable=bool(task.get("cachingOptions", {}).get("enableCache", False)),
        closing=is_closing(task),
        judged=frozenset(origin.name for origin in judged if origin.step == name),
        upstream=upstream,
        retry=Retry.parse(task.get("retryPolicy", {})),
        timeout_s=float(settings.get(label, {}).get("activeDeadlineSeconds", 0)),
    )


def conditioned(pipeline: Pipeline) -> Iterator[Origin]:
    """Yield every value that a condition of the pipeline reads."""
    for group in pipeline.groups():
        for task in pipeline.tasks(group).values():
            inputs = task.get("inputs", {}).get("parameters", {})
            for channel in channels(task.get("triggerPolicy", {}).get("condition", "")):
                yield from pipeline.origins(group, inputs.get(channel, {}))


def channels(condition: str) -> list[str]:
    """Return the names of the inputs that a condition reads."""
    return re.findall(r"inputs\.parameter_values\['([^']+)'\]", condition)
