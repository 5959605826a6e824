"""The component as Kubeflow runs it: its source alone, by kfp's executor, in this environment."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.conftest import UNFAIR, Step, rows_of
from trainwright.errors import MARK

COMPONENT = Path(__file__).parents[2] / "components" / "evaluate" / "component.py"
OUTPUTS = {
    "verdict": "system.Artifact",
    "report": "system.HTML",
    "metrics": "system.Metrics",
    "slices": "system.Metrics",
    "curve": "system.ClassificationMetrics",
}


def artifact(name: str, kind: str, path: Path) -> dict[str, Any]:
    """An artifact as it stands in the executor's input."""
    schema = {"schemaTitle": kind, "schemaVersion": "0.0.1"}
    return {"artifacts": [{"name": name, "uri": str(path), "type": schema, "metadata": {}}]}


def execute(step: Step, evaluation: str) -> subprocess.CompletedProcess[str]:
    """Run the component's function and leave its outputs in the step's folder."""
    values = {"predictions_version": step.version, "evaluation": evaluation}
    message = {
        "inputs": {
            "parameterValues": values,
            "artifacts": {
                "predictions": artifact("predictions", "system.Dataset", step.folder / "predictions")
            },
        },
        "outputs": {
            "outputFile": str(step.folder / "output.json"),
            "parameters": {"Output": {"outputFile": str(step.folder / "Output")}},
            "artifacts": {name: artifact(name, kind, step.folder / name) for name, kind in OUTPUTS.items()},
        },
    }
    command = [sys.executable, "-m", "trainwright.executor", "--function_to_execute", "evaluate"]
    command += ["--executor_input", json.dumps(message)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_it_returns_its_decision_and_leaves_every_artifact(written: Callable[..., Step]) -> None:
    step = written(rows_of(UNFAIR))
    done = execute(step, json.dumps({"slices": ["origin"], "max_recall_gap": 0.1}))
    assert done.returncode == 0, done.stderr
    output = json.loads((step.folder / "output.json").read_text(), parse_constant=refuse_constant)
    assert output["parameterValues"]["Output"] == "HOLD"
    left = {name: entry["artifacts"][0]["metadata"] for name, entry in output["artifacts"].items()}
    assert left["slices"]["slice/origin/EWR/recall"] == 0.5
    assert "auc" in left["metrics"]
    assert left["curve"]["confusionMatrix"]["annotationSpecs"] == [
        {"displayName": "late = 0"},
        {"displayName": "late = 1"},
    ]
    points = left["curve"]["confidenceMetrics"]
    assert 10 < len(points) <= 100
    assert {"confidenceThreshold", "falsePositiveRate", "recall"} <= points[0].keys()
    assert (step.folder / "verdict" / "verdict.json").is_file()
    assert "<strong>HOLD</strong>" in (step.folder / "report").read_text()


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ('{"slices": ["orgin"]}', "'orgin' (close: origin)"),
        ('{"slice": [], "min_auc": 2}', "found 2 errors"),
        ("{", "not JSON"),
    ],
)
def test_bad_input_ends_with_exit_code_10_and_one_line_that_says_so(
    evaluation: str, said: str, written: Callable[..., Step]
) -> None:
    step = written(rows_of(UNFAIR))
    done = execute(step, evaluation)
    assert done.returncode == 10
    line = next(text for text in done.stderr.splitlines() if text.startswith(MARK))
    told = json.loads(line.removeprefix(MARK))
    assert (told["code"], told["component"], told["retryable"]) == (10, "evaluate", False)
    assert said in told["what"]
    assert not (step.folder / "verdict" / "verdict.json").exists()
