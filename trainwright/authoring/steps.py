"""What one task of a compiled pipeline is: its image, its policies, its outputs, what it stands on."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_FUNCTION = "--function_to_execute"
_EXPLAINS = "hold"
"""The component that only says why a gate held the run."""

_IMAGE = re.compile(r"(?:\S+/)?trainwright/[a-z]+[:@]\S+")


def toolchain_of(image: str) -> str:
    """Return the short name of an image: ``tabular`` for ``host:5000/team/trainwright/tabular:0.1.0``."""
    return image.split("@", 1)[0].rsplit("/", 1)[-1].split(":", 1)[0]


def toolchains_in(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the short names of images of this library that stand among parameters: those of a job's pods."""
    for value in values.values():
        if isinstance(value, str) and _IMAGE.fullmatch(value):
            yield toolchain_of(value)


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often, and after how long, a step that failed for a passing reason is tried again."""

    count: int = 0
    backoff_s: float = 0.0
    factor: float = 2.0
    longest_s: float = 3600.0

    @classmethod
    def parse(cls, policy: Mapping[str, Any]) -> "Retry":
        """Read a compiled retry policy, whose durations are texts such as ``30s``."""

        def seconds(key: str, default: float) -> float:
            return float(str(policy.get(key, default)).removesuffix("s"))

        return cls(
            count=int(policy.get("maxRetryCount", 0)),
            backoff_s=seconds("backoffDuration", 0.0),
            factor=float(policy.get("backoffFactor", 0.0)) or 2.0,
            longest_s=seconds("backoffMaxDuration", 3600.0),
        )

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number ``attempt``, counted from 0."""
        return float(min(self.backoff_s * self.factor**attempt, self.longest_s))


@dataclass(frozen=True, kw_only=True)
class Step:
    """One task that runs a container.

    Attributes:
        name: Unique in the pipeline; the name of its folder.
        image: Image reference, as compiled.
        container: Command, arguments and variables, with their placeholders: the component's source is here.
        inputs: Type of each parameter, such as ``NUMBER_INTEGER``, by name.
        constants: Values of parameters that are fixed in the pipeline, by name.
        outputs: The compiled output definitions.
        cacheable: The pipeline allows its result to be reused.
        closing: It is an exit handler: it runs last, whatever happened, and is never reused.
        judged: Output parameters that a condition of the pipeline reads.
        upstream: Steps that come before it because it reads from them or waits for them.
        timeout_s: Seconds after which it is stopped; 0 for no limit.
    """

    name: str
    image: str
    container: Mapping[str, Any]
    inputs: Mapping[str, str]
    constants: Mapping[str, Any]
    outputs: Mapping[str, Any]
    cacheable: bool
    closing: bool
    judged: frozenset[str]
    upstream: frozenset[str]
    retry: Retry = field(default_factory=Retry)
    timeout_s: float = 0.0

    @property
    def verb(self) -> str:
        """Name of the component that it runs: of its function; the step's own name of a container."""
        arguments = [str(part) for part in self.container.get("args", [])]
        return arguments[arguments.index(_FUNCTION) + 1] if _FUNCTION in arguments[:-1] else self.name

    @property
    def explains(self) -> bool:
        """It is this library's ``hold``, which says why a gate held the run: other runs do not reach it.

        A user's own function may be called ``hold`` as well, so the image is compared too.
        """
        return self.verb == _EXPLAINS and bool(_IMAGE.fullmatch(self.image))

    @property
    def toolchain(self) -> str:
        """The short name of its image."""
        return toolchain_of(self.image)

    @property
    def lightweight(self) -> bool:
        """It is a Python function whose source is in the pipeline: the only kind that runs locally."""
        command = " ".join(map(str, self.container.get("command", [])))
        arguments = self.container.get("args", [])
        return "kfp.dsl.executor_main" in command and "{{$}}" in arguments


def image_of(step: Step, parameters: Mapping[str, Any]) -> str:
    """Return the image that a step's container is started from on one machine.

    That of its job, if a parameter names one: the job's processes are started beside the step, which submits
    it with what the job's image has as well.
    """
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
    """Say whether a task is an exit handler: only those are given the final status of another task."""
    return any("taskFinalStatus" in entry for entry in task.get("inputs", {}).get("parameters", {}).values())


def in_order(tasks: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's tasks, each after its producers and the exit handlers last."""
    result: list[str] = []

    def visit(name: str) -> None:
        if name in tasks and name not in result:
            for producer in sorted(producers(tasks[name])):
                visit(producer)
            result.append(name)

    for name in sorted(tasks, key=lambda name: (is_closing(tasks[name]), name)):
        visit(name)
    return result
