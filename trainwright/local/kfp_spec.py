"""The pipeline spec that kfp.local runs: reject what it cannot run, correct what it runs wrongly.

Measured with kfp 2.17; each rule has a test that shows kfp's own behaviour. Placeholders get the run's name,
time and folder; a condition names its output so that kfp.local finds it; f-strings are filled in by us,
because kfp.local writes integers as floats; retries are ours, by exit code.
"""

import copy
import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.authoring.pipeline_spec import PREFIX, Pipeline, channels, conditioned, is_closing, producers
from trainwright.errors import InputError

FILLER = "trainwright-filler"

_PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
_MARKED = re.compile(r"\{\{trainwright:(pipelinechannel--[^}]+)\}\}")


def for_local_run(pipeline: Pipeline, run_id: str, created: str, folder: str) -> dict[str, Any]:
    """Return the pipeline spec for kfp.local."""
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
            component = task["componentRef"]["name"]
            names["{{$.pipeline_task_name}}"] = task_name
            names["{{$.pipeline_task_uuid}}"] = f"{run_id}-{component.removeprefix(PREFIX)}"
            _adapt(task, names)
            if component in pipeline.owners:
                _add_parameter(task, document["components"][component])
    for executor in document["deploymentSpec"]["executors"].values():
        executor.get("container", {}).pop("resources", None)
    return document


def _adapt(task: dict[str, Any], names: Mapping[str, str]) -> None:
    task.pop("retryPolicy", None)
    task.pop("cachingOptions", None)
    parameters = task.get("inputs", {}).get("parameters", {})
    for entry in parameters.values():
        if "runtimeValue" in entry:
            entry["runtimeValue"]["constant"] = _map_texts(
                entry["runtimeValue"]["constant"], lambda text: _marked(text, names)
            )
    if policy := task.get("triggerPolicy"):
        for channel in channels(policy.get("condition", "")):
            if source := parameters.get(channel, {}).get("taskOutputParameter"):
                exact = f"pipelinechannel--{source['producerTask']}--{source['outputParameterKey']}"
                policy["condition"] = policy["condition"].replace(f"'{channel}'", f"'{exact}'")


def _add_parameter(task: dict[str, Any], component: dict[str, Any]) -> None:
    """Add a parameter to a group that takes only artifacts; kfp.local loses them otherwise."""
    inputs = task.setdefault("inputs", {})
    if inputs.get("artifacts") and not inputs.get("parameters"):
        inputs["parameters"] = {FILLER: {"runtimeValue": {"constant": ""}}}
        definitions = component.setdefault("inputDefinitions", {}).setdefault("parameters", {})
        definitions[FILLER] = {"parameterType": "STRING", "isOptional": True, "defaultValue": ""}


def _map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Change every text in JSON data."""
    if isinstance(value, list):
        return [_map_texts(entry, change) for entry in value]
    if isinstance(value, dict):
        return {key: _map_texts(entry, change) for key, entry in value.items()}
    return change(value) if isinstance(value, str) else value


def _marked(text: str, names: Mapping[str, str]) -> str:
    """Fill in the run's names, and hide references to parameters from kfp.local."""
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return _PLACEHOLDER.sub(r"{{trainwright:\1}}", text)


def filled_in(value: Any, parameters: Mapping[str, Any]) -> Any:
    """Fill in the references to parameters that :func:`for_local_run` left."""

    def put(match: re.Match[str]) -> str:
        found = parameters[match[1]]
        return found if isinstance(found, str) else json.dumps(whole(found))

    return _map_texts(value, lambda text: _MARKED.sub(put, text))


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
    """Reject a pipeline that kfp.local would not run as a cluster does."""
    problems = [*_arguments(pipeline, arguments), *_images(pipeline, toolchains)]
    for group in pipeline.groups():
        for rule in (_conditions, _inputs, _outputs, _tasks):
            problems += rule(pipeline, group)
    if problems:
        raise InputError(
            "this pipeline cannot run here\n" + "\n".join(f"  {problem}" for problem in problems),
            where=pipeline.name,
        )


_INJECTED = "TASK_CONFIG"
"""Type of a parameter that Kubeflow fills in; here it stays empty."""


def component_inputs(pipeline: Pipeline, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the parameters of a component, with their defaults, and the absolute paths of its artifacts.

    Raises:
        InputError: An input is unknown, missing, of another type, or there is no such file; all are named.
    """
    declared = pipeline.definitions("").get("artifacts", {})
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in inputs.items()}
    parameters = {name: value for name, value in plain.items() if name not in declared}
    artifacts = {name: Path(str(plain[name])).resolve() for name in declared if plain.get(name) is not None}
    problems = list(_arguments(pipeline, parameters))
    problems += [
        f"artifact {name}: there is no {path}" for name, path in artifacts.items() if not path.exists()
    ]
    problems += [
        f"artifact {name}: missing; pass the path of a file or folder"
        for name, entry in declared.items()
        if name not in artifacts and not entry.get("isOptional")
    ]
    if problems:
        text = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"this component cannot run with these inputs\n{text}", where=pipeline.name)
    defaults = {
        name: entry["defaultValue"] for name, entry in pipeline.parameters.items() if "defaultValue" in entry
    }
    return defaults | parameters, artifacts


def is_plain(value: Any) -> bool:
    """Return whether kfp.local can compare a value, or each value of a list, in a condition."""
    if isinstance(value, list):
        return all(is_plain(entry) for entry in value)
    return not isinstance(value, str) or bool(PLAIN.fullmatch(value))


def _arguments(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[str]:
    known = [*pipeline.parameters, *pipeline.definitions("").get("artifacts", {})]
    for name in arguments.keys() - pipeline.parameters.keys():
        close = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        yield f"argument {name}: unknown; {advice}"
    in_conditions = {origin.name for origin in conditioned(pipeline) if not origin.step}
    for name, definition in pipeline.parameters.items():
        kind = definition["parameterType"]
        if name in arguments:
            if problem := _wrong(arguments[name], kind):
                yield f"argument {name}: {problem}"
        elif "defaultValue" not in definition and kind != _INJECTED:
            advice = "; pass '' for absent" if definition.get("isOptional") else ""
            yield f"argument {name}: missing ({kind}){advice}"
        value = arguments.get(name, definition.get("defaultValue"))
        if name in in_conditions and not is_plain(value):
            yield f"argument {name}: a condition reads it, so it must be a plain word, not {value!r:.80}"


def _wrong(value: Any, kind: str) -> str:
    """Return why a value cannot be a parameter of a compiled type here; empty if it can."""
    wrong_bool = isinstance(value, bool) and kind != "BOOLEAN"
    if wrong_bool or not isinstance(value, KINDS.get(kind, (object,))):
        return f"expected {kind}, got {value!r:.80}"
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        return "is not text: it holds bytes that are no UTF-8"
    except ValueError:
        return f"{value!r:.80} is no JSON"
    if "{{$" in text:
        return "holds {{$, which kfp would replace as one of its placeholders"
    if size > MAX_BYTES:
        return f"is {size:,} bytes long; at most {MAX_BYTES:,} fit into a process's argument: pass a file"
    return ""


def _images(pipeline: Pipeline, toolchains: Sequence[str]) -> Iterator[str]:
    for step in pipeline.steps:
        if "{{$" not in step.image and step.toolchain not in toolchains:
            yield (
                f"step {step.name}: no environment is known for image {step.image}; "
                f"known are {', '.join(sorted(toolchains))}"
            )
        if not step.lightweight:
            yield f"step {step.name}: runs a container; only Python functions run without Docker"


def _conditions(pipeline: Pipeline, group: str) -> Iterator[str]:
    """Yield conditions that kfp.local, which evaluates them as Python, could misread."""
    for name, task in pipeline.tasks(group).items():
        condition = task.get("triggerPolicy", {}).get("condition", "")
        for channel in channels(condition):
            condition = condition.replace(f"inputs.parameter_values['{channel}']", "")
        rest = re.sub(f"'{PLAIN.pattern}'", "", condition)
        if "'" in rest or '"' in rest:
            yield f"{name}: its condition compares with a text that is not a plain word: {condition!r}"


def _inputs(pipeline: Pipeline, group: str) -> Iterator[str]:
    """Yield inputs that kfp.local cannot pass."""
    definitions = pipeline.definitions(group)
    if not group and (taken := sorted(definitions.get("artifacts", {}))):
        yield f"it takes artifacts ({', '.join(taken)}); a local run starts from parameters only"
    names = set(definitions.get("parameters", {}))
    if group:  # what its task passes on, loop items included
        parent, own = pipeline.owners[group]
        task = pipeline.tasks(parent)[own]
        names = {name for name in names if "defaultValue" in definitions["parameters"][name]}
        names |= {*task.get("inputs", {}).get("parameters", {})}
        names.add(task.get("parameterIterator", {}).get("itemInput", ""))
    for name, task in pipeline.tasks(group).items():
        for entry in task.get("inputs", {}).get("parameters", {}).values():
            wanted = entry.get("componentInputParameter")
            if wanted and wanted not in names:
                yield f"{name}: reads {wanted}, which kfp did not pass on; take loop items out of f-strings"
    for name, definition in definitions.get("parameters", {}).items():
        if group and definition.get("isOptional") and name not in names:
            yield f"{group}: parameter {name} has no value; pass '' for absent"


def _outputs(pipeline: Pipeline, group: str) -> Iterator[str]:
    """Yield outputs of groups that kfp.local cannot collect."""
    owner = pipeline.document["components"][group] if group else pipeline.document["root"]
    outputs = owner["dag"].get("outputs", {})
    for name, output in outputs.get("artifacts", {}).items():
        if len(output.get("artifactSelectors", [])) != 1:
            yield f"{group or pipeline.name}: output {name} is one of several artifacts (dsl.OneOf)"
    if not group:
        return
    parent, own = pipeline.owners[group]
    if "parameterIterator" in pipeline.tasks(parent)[own]:
        chosen = [output.get("valueFromParameter", {}) for output in outputs.get("parameters", {}).values()]
        tasks = {choice.get("producerSubtask") for choice in chosen}
        if any("parameterIterator" in pipeline.tasks(group).get(name, {}) for name in tasks):
            yield f"{group}: collects from a loop inside a loop, whose lists kfp.local nests"


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
