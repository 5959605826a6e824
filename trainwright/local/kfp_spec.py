"""The pipeline spec that kfp.local runs: reject what it cannot run, correct what it runs wrongly.

Measured with kfp 2.17; each rule has a test that shows kfp's own behaviour. Placeholders get the run's name,
time and folder; a condition names its output so that kfp.local finds it; f-strings are filled in by us,
because kfp.local writes integers as floats; retries are ours, by exit code.
"""

import copy
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwright.authoring.pipeline_spec import PREFIX, Pipeline, channels, conditioned, is_closing, producers
from trainwright.errors import InputError

FILLER = "trainwright-filler"
"""A parameter for a group that takes only artifacts; kfp.local loses them otherwise."""

_PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
_MARKED = re.compile(r"\{\{trainwright:(pipelinechannel--[^}]+)\}\}")


def for_local_run(pipeline: Pipeline, run_id: str, created: str, folder: str) -> dict[str, Any]:
    """Return the pipeline spec for kfp.local.

    Args:
        pipeline: The compiled pipeline.
        run_id: Name of the run: job name and id in every placeholder, also when the run is resumed.
        created: Creation time of the run, ISO 8601.
        folder: The run's folder: the pipeline root.
    """
    document = copy.deepcopy(dict(pipeline.document))
    names = {
        "{{$.pipeline_job_name}}": f"{pipeline.name}-{run_id}",
        "{{$.pipeline_job_resource_name}}": f"{pipeline.name}-{run_id}",
        "{{$.pipeline_job_uuid}}": run_id,
        "{{$.pipeline_job_create_time_utc}}": created,
        "{{$.pipeline_job_schedule_time_utc}}": created,
        "{{$.pipeline_root}}": folder,
    }
    for group in pipeline.groups():
        owner = document["components"][group] if group else document["root"]
        for task_name, task in owner["dag"].get("tasks", {}).items():
            _adapt(task, task_name, names, run_id)
            component = task["componentRef"]["name"]
            if component in pipeline.owners:
                _fill(task, document["components"][component])
    for executor in document["deploymentSpec"]["executors"].values():
        executor.get("container", {}).pop("resources", None)
    return document


def _adapt(task: dict[str, Any], task_name: str, names: Mapping[str, str], run_id: str) -> None:
    task.pop("retryPolicy", None)
    task.pop("cachingOptions", None)
    parameters = task.get("inputs", {}).get("parameters", {})
    step = task["componentRef"]["name"].removeprefix(PREFIX)
    own = {"{{$.pipeline_task_name}}": task_name, "{{$.pipeline_task_uuid}}": f"{run_id}-{step}"}
    for entry in parameters.values():
        if "runtimeValue" in entry:
            entry["runtimeValue"]["constant"] = _marked(entry["runtimeValue"]["constant"], {**names, **own})
    if policy := task.get("triggerPolicy"):
        for channel in channels(policy.get("condition", "")):
            if source := parameters.get(channel, {}).get("taskOutputParameter"):
                exact = f"pipelinechannel--{source['producerTask']}--{source['outputParameterKey']}"
                policy["condition"] = policy["condition"].replace(f"'{channel}'", f"'{exact}'")


def _fill(task: dict[str, Any], component: dict[str, Any]) -> None:
    """Add a parameter to a group that takes only artifacts."""
    inputs = task.setdefault("inputs", {})
    if inputs.get("artifacts") and not inputs.get("parameters"):
        inputs["parameters"] = {FILLER: {"runtimeValue": {"constant": ""}}}
        definitions = component.setdefault("inputDefinitions", {}).setdefault("parameters", {})
        definitions[FILLER] = {"parameterType": "STRING", "isOptional": True, "defaultValue": ""}


def _marked(value: Any, names: Mapping[str, str]) -> Any:
    """Fill in the run's names, and hide references to parameters from kfp.local."""
    if isinstance(value, list):
        return [_marked(entry, names) for entry in value]
    if isinstance(value, dict):
        return {key: _marked(entry, names) for key, entry in value.items()}
    if not isinstance(value, str):
        return value
    for placeholder, name in names.items():
        value = value.replace(placeholder, name)
    return _PLACEHOLDER.sub(r"{{trainwright:\1}}", value)


def filled_in(value: Any, parameters: Mapping[str, Any]) -> Any:
    """Fill in the references to parameters that :func:`for_local_run` left."""
    if isinstance(value, list):
        return [filled_in(entry, parameters) for entry in value]
    if isinstance(value, dict):
        return {key: filled_in(entry, parameters) for key, entry in value.items()}
    if not isinstance(value, str):
        return value

    def put(match: re.Match[str]) -> str:
        found = parameters[match[1]]
        return found if isinstance(found, str) else json.dumps(whole(found))

    return _MARKED.sub(put, value)


def whole(value: Any) -> Any:
    """Turn 3.0 into 3 and sort keys in JSON data, as KFP's launcher does on a cluster."""
    if isinstance(value, list):
        return [whole(entry) for entry in value]
    if isinstance(value, dict):
        return {key: whole(value[key]) for key in sorted(value)}
    return int(value) if isinstance(value, float) and value.is_integer() else value


MAX_BYTES = 100_000
"""Longest parameter in bytes; Linux allows 131,072 for one process argument, JSON included."""

PLAIN = re.compile(r"(?!pipelinechannel--)[\w .:/@+,=#-]*")
"""Strings that a condition can compare; kfp.local evaluates them as Python source."""

KINDS: Mapping[str, tuple[type, ...]] = {
    "STRING": (str,),
    "NUMBER_INTEGER": (int,),
    "NUMBER_DOUBLE": (float, int),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}
"""Python types of a compiled parameter type."""


def check(pipeline: Pipeline, arguments: Mapping[str, Any], toolchains: Sequence[str]) -> None:
    """Reject a pipeline that kfp.local would not run as a cluster does.

    Args:
        pipeline: The compiled pipeline.
        arguments: Its arguments, without defaults.
        toolchains: Short names of the images with an environment here.

    Raises:
        InputError: Lists every obstacle.
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
    """Return why a string cannot be a parameter of a local run; empty if it can."""
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
    """Return whether kfp.local can compare a value, or each value of a list, in a condition."""
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
    """Return why a value does not fit a compiled type; empty if it fits."""
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
    """Yield inputs that kfp.local cannot pass."""
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
    """Return the inputs that a group gets from its task, loop items included."""
    parent, name = pipeline.owners[group]
    task = pipeline.tasks(parent)[name]
    declared = pipeline.definitions(group).get("parameters", {})
    given = set(task.get("inputs", {}).get("parameters", {}))
    given |= {key for key, definition in declared.items() if "defaultValue" in definition}
    return given | {task.get("parameterIterator", {}).get("itemInput", "")}


def _outputs(pipeline: Pipeline, group: str) -> Iterator[str]:
    """Yield outputs of groups that kfp.local cannot collect."""
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
    """Yield tasks whose order or loop kfp.local gets wrong."""
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
