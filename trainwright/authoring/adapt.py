"""The copy of a compiled pipeline that kfp.local is given, with what it gets wrong put right.

Placeholders of the run become its real name, time and folder; a condition names its output so that kfp.local
finds it; f-strings are left to us, who know an integer from a float; retries are ours, by exit code.
"""

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

from trainwright.authoring.spec import PREFIX, Pipeline, channels

FILLER = "trainwright-filler"
"""A parameter for a group that takes artifacts only: kfp.local loses those artifacts otherwise."""

_PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
_MARKED = re.compile(r"\{\{trainwright:(pipelinechannel--[^}]+)\}\}")


def for_local_run(pipeline: Pipeline, run_id: str, created: str, folder: str) -> dict[str, Any]:
    """Return the pipeline spec to run with kfp.local.

    Args:
        pipeline: The pipeline as compiled.
        run_id: Name of the run: the job's name and id in every placeholder, also when the run is continued.
        created: When the run was made, ISO 8601.
        folder: The run's folder: the pipeline root that components see.
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
    """Give a group that takes artifacts and no parameters one parameter."""
    inputs = task.setdefault("inputs", {})
    if inputs.get("artifacts") and not inputs.get("parameters"):
        inputs["parameters"] = {FILLER: {"runtimeValue": {"constant": ""}}}
        definitions = component.setdefault("inputDefinitions", {}).setdefault("parameters", {})
        definitions[FILLER] = {"parameterType": "STRING", "isOptional": True, "defaultValue": ""}


def _marked(value: Any, names: Mapping[str, str]) -> Any:
    """Put the run's names into a constant, and hide references to parameters from kfp.local."""
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
    """Put the values of parameters where :func:`for_local_run` left a reference to them."""
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
    """Turn 3.0 into 3 and sort keys wherever they stand in JSON data, as a cluster's launcher does."""
    if isinstance(value, list):
        return [whole(entry) for entry in value]
    if isinstance(value, dict):
        return {key: whole(value[key]) for key in sorted(value)}
    return int(value) if isinstance(value, float) and value.is_integer() else value
