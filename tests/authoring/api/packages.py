"""Small compiled pipelines for the API: two steps and a gate, and an experiment-free one with parameters."""

from pathlib import Path

import yaml

IMAGE = "registry.example/team/trainwright"


def _executor(verb: str, image: str) -> dict[str, object]:
    command = ["sh", "-ec", 'python3 -m kfp.dsl.executor_main "$@"', f"def {verb}():\n    pass\n"]
    arguments = ["--executor_input", "{{$}}", "--function_to_execute", verb]
    return {"container": {"image": f"{IMAGE}/{image}:0.1.0", "command": command, "args": arguments}}


def _task(component: str, **more: object) -> dict[str, object]:
    return {
        "componentRef": {"name": component},
        "taskInfo": {"name": component.removeprefix("comp-")},
        **more,
    }


def _component(verb: str) -> dict[str, object]:
    return {
        "executorLabel": f"exec-{verb}",
        "outputDefinitions": {"parameters": {"decision": {"parameterType": "STRING"}}},
    }


def gated(folder: Path, text: str = "") -> Path:
    """Write ``ingest``, then ``validate``, and ``train`` if its decision is PASS."""
    decision = {"taskOutputParameter": {"outputParameterKey": "decision", "producerTask": "validate"}}
    condition = "inputs.parameter_values['pipelinechannel--validate-decision'] == 'PASS'"
    channel = {"pipelinechannel--validate-decision": decision}
    guarded = _task(
        "comp-condition-1",
        inputs={"parameters": channel},
        dependentTasks=["validate"],
        triggerPolicy={"condition": condition},
    )
    group = {
        "dag": {"tasks": {"train": _task("comp-train")}},
        "inputDefinitions": {"parameters": {name: {"parameterType": "STRING"} for name in channel}},
    }
    document = {
        "pipelineInfo": {"name": "gated", "displayName": "A gated pipeline", "description": text},
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.17.0",
        "components": {**{f"comp-{verb}": _component(verb) for verb in VERBS}, "comp-condition-1": group},
        "deploymentSpec": {"executors": {f"exec-{verb}": _executor(verb, IMAGES[verb]) for verb in VERBS}},
        "root": {
            "dag": {
                "tasks": {
                    "ingest": _task("comp-ingest"),
                    "validate": _task("comp-validate", dependentTasks=["ingest"]),
                    "condition-1": guarded,
                }
            },
            "inputDefinitions": {
                "parameters": {
                    "source": {"parameterType": "STRING"},
                    "rows": {"parameterType": "NUMBER_INTEGER", "isOptional": True, "defaultValue": 3.0},
                    "date": {"parameterType": "STRING", "isOptional": True, "defaultValue": ""},
                    "run": {"parameterType": "STRUCT", "isOptional": True, "defaultValue": {}},
                    "registry": {"parameterType": "STRUCT", "isOptional": True, "defaultValue": {}},
                }
            },
        },
    }
    timeouts = {"exec-ingest": {"activeDeadlineSeconds": "3600"}}
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": timeouts}}}}
    path = folder / "gated.yaml"
    path.write_text(yaml.safe_dump_all([document, platform]))
    return path


VERBS = ("ingest", "validate", "train")
IMAGES = {"ingest": "ingest", "validate": "tfdv", "train": "launcher"}
