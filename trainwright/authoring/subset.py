"""What kfp.local cannot run, or runs wrongly: found before anything starts, all of it at once.

Measured with kfp 2.17; each rule here has a test that shows kfp's own behaviour. What a change of the local
copy can mend is mended in :mod:`trainwright.authoring.adapt` instead.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwright.authoring.spec import Pipeline, channels, conditioned
from trainwright.authoring.steps import is_closing, producers
from trainwright.errors import InputError

MAX_BYTES = 100_000
"""Longest text of one parameter; Linux allows 131,072 bytes for one argument of a process, JSON included."""

PLAIN = re.compile(r"(?!pipelinechannel--)[\w .:/@+,=#-]*")
"""Texts that a condition can compare: kfp.local pastes them into Python source and evaluates that."""

KINDS: Mapping[str, tuple[type, ...]] = {
    "STRING": (str,),
    "NUMBER_INTEGER": (int,),
    "NUMBER_DOUBLE": (float, int),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}
"""What a parameter of a compiled type takes."""


def check(pipeline: Pipeline, arguments: Mapping[str, Any], toolchains: Sequence[str]) -> None:
    """Refuse a pipeline that kfp.local would not run as a cluster does.

    Args:
        pipeline: The compiled pipeline.
        arguments: Its arguments, without its defaults.
        toolchains: Short names of the images that have an environment here.

    Raises:
        InputError: Names everything that stands in the way.
    """
    rules = (_arguments, _conditions, _conditioned_arguments)
    problems = [problem for rule in rules for problem in rule(pipeline, arguments)]
    problems += _images(pipeline, toolchains)
    problems += [
        problem
        for group in pipeline.groups()
        for rule in (_inputs, _outputs, _tasks)
        for problem in rule(pipeline, group)
    ]
    if problems:
        raise InputError(
            "this pipeline cannot run here\n" + "\n".join(f"  {problem}" for problem in problems),
            where=pipeline.name,
        )


def wrong_text(text: str) -> str:
    """Say why a text cannot be a parameter of a local run; empty if it can."""
    if "{{$" in text:
        return "holds {{$, which kfp would replace as one of its placeholders"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "is not text: it holds bytes that are no UTF-8"
    if size > MAX_BYTES:
        return f"is {size:,} bytes long; at most {MAX_BYTES:,} fit into a process's argument: pass a file"
    return ""


def is_plain(value: Any) -> bool:
    """Say whether kfp.local can compare a value in a condition, or each value of a list."""
    if isinstance(value, list):
        return all(is_plain(entry) for entry in value)
    return not isinstance(value, str) or bool(PLAIN.fullmatch(value))


def _arguments(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[str]:
    for name in arguments.keys() - pipeline.parameters.keys():
        close = difflib.get_close_matches(name, pipeline.parameters, n=1)
        advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(pipeline.parameters)}"
        yield f"argument {name}: unknown; {advice}"
    for name, definition in pipeline.parameters.items():
        kind = definition["parameterType"]
        if name in arguments:
            if problem := _wrong(arguments[name], kind):
                yield f"argument {name}: {problem}"
        elif "defaultValue" not in definition:
            advice = "; pass '' for absent" if definition.get("isOptional") else ""
            yield f"argument {name}: missing ({kind}){advice}"


def _wrong(value: Any, kind: str) -> str:
    """Say why a value cannot be an argument of a compiled type; empty if it can."""
    wrong_bool = isinstance(value, bool) and kind != "BOOLEAN"
    if wrong_bool or not isinstance(value, KINDS.get(kind, (object,))):
        return f"expected {kind}, got {value!r:.80}"
    try:
        return wrong_text(value if isinstance(value, str) else json.dumps(value, allow_nan=False))
    except ValueError:
        return f"{value!r:.80} is no JSON"


def _images(pipeline: Pipeline, toolchains: Sequence[str]) -> Iterator[str]:
    for step in pipeline.steps:
        if "{{$" not in step.image and step.toolchain not in toolchains:
            yield (
                f"step {step.name}: no environment is known for image {step.image}; "
                f"known are {', '.join(sorted(toolchains))}"
            )
        if not step.lightweight:
            yield f"step {step.name}: runs a container; only Python functions run without Docker"


def _conditions(pipeline: Pipeline, _: Mapping[str, Any]) -> Iterator[str]:
    for group in pipeline.groups():
        for name, task in pipeline.tasks(group).items():
            condition = task.get("triggerPolicy", {}).get("condition", "")
            for channel in channels(condition):
                condition = condition.replace(f"inputs.parameter_values['{channel}']", "")
            rest = re.sub(f"'{PLAIN.pattern}'", "", condition)
            if "'" in rest or '"' in rest:
                yield f"{name}: its condition compares with a text that is not a plain word: {condition!r}"


def _conditioned_arguments(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({origin.name for origin in conditioned(pipeline) if not origin.step}):
        value = arguments.get(name, pipeline.parameters.get(name, {}).get("defaultValue"))
        if not is_plain(value):
            yield f"argument {name}: a condition reads it, so it must be a plain word, not {value!r:.80}"


def _inputs(pipeline: Pipeline, group: str) -> Iterator[str]:
    """Find inputs that kfp.local cannot pass."""
    definitions = pipeline.definitions(group)
    if not group and (names := sorted(definitions.get("artifacts", {}))):
        yield f"it takes artifacts ({', '.join(names)}); a local run starts from parameters only"
    given = _given(pipeline, group) if group else set(definitions.get("parameters", {}))
    for name, task in pipeline.tasks(group).items():
        for entry in task.get("inputs", {}).get("parameters", {}).values():
            wanted = entry.get("componentInputParameter")
            if wanted and wanted not in given:
                yield f"{name}: reads {wanted}, which kfp did not pass on; take loop items out of f-strings"
    for name, definition in definitions.get("parameters", {}).items():
        if group and "defaultValue" not in definition and definition.get("isOptional") and name not in given:
            yield f"{group}: parameter {name} has no value; pass '' for absent"


def _given(pipeline: Pipeline, group: str) -> set[str]:
    """Return the inputs that a group is given by its task, loop items included."""
    parent, name = pipeline.owners[group]
    task = pipeline.tasks(parent)[name]
    declared = pipeline.definitions(group).get("parameters", {})
    given = set(task.get("inputs", {}).get("parameters", {}))
    given |= {key for key, definition in declared.items() if "defaultValue" in definition}
    return given | {task.get("parameterIterator", {}).get("itemInput", "")}


def _outputs(pipeline: Pipeline, group: str) -> Iterator[str]:
    """Find outputs of groups that kfp.local cannot collect."""
    owner = pipeline.document["components"][group] if group else pipeline.document["root"]
    outputs = owner["dag"].get("outputs", {})
    for name, output in outputs.get("artifacts", {}).items():
        if len(output.get("artifactSelectors", [])) != 1:
            yield f"{group or pipeline.name}: output {name} is one of several artifacts (dsl.OneOf)"
    if group and _loops(pipeline, group):
        chosen = [output.get("valueFromParameter", {}) for output in outputs.get("parameters", {}).values()]
        tasks = {choice.get("producerSubtask") for choice in chosen}
        if any("parameterIterator" in pipeline.tasks(group).get(name, {}) for name in tasks):
            yield f"{group}: collects from a loop inside a loop, whose lists kfp.local nests"


def _loops(pipeline: Pipeline, group: str) -> bool:
    parent, name = pipeline.owners[group]
    return "parameterIterator" in pipeline.tasks(parent)[name]


def _tasks(pipeline: Pipeline, group: str) -> Iterator[str]:
    """Find tasks whose order or loop kfp.local gets wrong."""
    for name, task in pipeline.tasks(group).items():
        items = task.get("parameterIterator", {}).get("items", {}).get("inputParameter", "")
        source = task.get("inputs", {}).get("parameters", {}).get(items, {}).get("taskOutputParameter", {})
        if source.get("outputParameterKey", "Output") != "Output":
            yield f"{name}: loops over the named output {source['outputParameterKey']}; return it alone"
        waits = task.get("triggerPolicy", {}).get("strategy") == "ALL_UPSTREAM_TASKS_COMPLETED"
        reads = producers(task | {"dependentTasks": []})
        if waits and not is_closing(task) and reads:
            yield f"{name}: ignores the failure of {', '.join(sorted(reads))}, whose output it reads"
        if task["componentRef"]["name"] in pipeline.owners and "{{$.inputs." in json.dumps(task):
            yield f"{name}: is given an f-string; kfp.local fills those in for single tasks only"
        if "{{$.workspace_path}}" in json.dumps(task):
            yield f"{name}: uses the pipeline's workspace, which kfp.local deletes after each run"
