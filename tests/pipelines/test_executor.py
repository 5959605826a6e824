"""How a step of a compiled pipeline finds and runs its function: ``python3 -m trainwright.executor``."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright import COMPONENTS, executor
from trainwright.errors import DependencyError, last_record

NAMES = sorted(path.parent.name for path in COMPONENTS.glob("*/component.py"))


def execute(
    folder: Path, function: str, parameters: dict[str, Any], **artifacts: Path
) -> "subprocess.CompletedProcess[str]":
    message = {
        "inputs": {
            "parameterValues": parameters,
            "artifacts": {
                name: {
                    "artifacts": [
                        {"name": name, "uri": str(path), "type": {"schemaTitle": "system.Artifact"}}
                    ]
                }
                for name, path in artifacts.items()
            },
        },
        "outputs": {"outputFile": str(folder / "output.json")},
    }
    command = [sys.executable, "-m", "trainwright.executor", "--executor_input", json.dumps(message)]
    command += ["--function_to_execute", function]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_function_of_every_component_loads_without_its_decorator(name: str) -> None:
    [written] = [
        node
        for node in ast.parse((COMPONENTS / name / "component.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
    ]
    function = executor.load(name)
    assert function.__name__ == written.name
    assert [*function.__annotations__] == [
        *(argument.arg for argument in written.args.args), *(["return"] if written.returns else [])
    ]  # fmt: skip


def test_inputs_of_kubeflow_for_the_size_of_a_pod_are_accepted() -> None:
    function = executor.load("ingest")
    executor.require_known(function, {"source", "data", "cpu_limit", "pipelinechannel--ingest_cpu"})
    with pytest.raises(DependencyError, match="ingest has no input sauce"):
        executor.require_known(function, {"sauce"})


@pytest.mark.parametrize(
    ("function", "parameters", "found"),
    [
        ("impute", {}, "it has no component 'impute'"),
        ("get_production_model", {"registry": {}, "stage": "x"}, "get_production_model has no input stage"),
    ],
)
def test_an_image_of_another_version_than_the_pipeline_ends_with_21_and_says_so(
    function: str, parameters: dict[str, Any], found: str, tmp_path: Path
) -> None:
    done = execute(tmp_path, function, parameters)
    assert done.returncode == 21, done.stderr
    record = last_record(done.stderr, done.returncode)
    assert record is not None
    assert record["what"] == f"the step's image is of another version than its pipeline: {found}"
    assert "make images" in record["hint"]
