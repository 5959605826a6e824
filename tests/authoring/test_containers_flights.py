"""The flights in containers and in local environments: the same data, the same model, the same verdicts.

Skipped where no engine can run or the seven images were not built; it takes some minutes where they were.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authoring import engine as engines
from trainwright.authoring import arguments, catalog, local, mounts
from trainwright.authoring.containers import Engine
from trainwright.authoring.local import Outcome
from trainwright.authoring.toolchains import TOOLCHAINS
from trainwright.verdicts import Verdict

FLIGHTS = Path(__file__).resolve().parents[2] / "examples" / "flights"
VERSIONS = {"ingest": "Output", "join": "Output", "train": "model_version"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcome, Outcome]]:
    """The pipeline on this machine and in containers, each with folders and a registry of its own."""
    if not (FLIGHTS / "data" / "flights.parquet").exists():
        pytest.skip("the flights are not here: make data")
    with engines.running(tmp_path_factory.mktemp("engine")):
        engines.require(*TOOLCHAINS)

        def run(name: str, **options: Any) -> Outcome:
            folder = tmp_path_factory.mktemp(name)
            given = arguments.read(FLIGHTS / "flights.yaml")
            registry = json.loads(given["registry"]) | {"tracking_uri": f"sqlite:///{folder}/mlflow.db"}
            given["registry"] = json.dumps(registry)
            compiled = catalog.pipeline("train_and_register")
            return local.run(compiled, given, runs_folder=folder / "runs", **options)

        yield run("here"), run("containers", engine=Engine(seen=mounts.asked([], FLIGHTS / "flights.yaml")))


def outputs(outcome: Outcome) -> dict[str, Any]:
    return {task.step: task.parameters for task in outcome.tasks}


def verdict(outcome: Outcome, step: str) -> Verdict:
    (task,) = (task for task in outcome.tasks if task.step == step)
    return Verdict.read(Path(task.outputs["verdict"].uri))


def test_both_end_the_same_way(outcomes: tuple[Outcome, Outcome]) -> None:
    here, contained = outcomes
    assert here.state == "done", here.error
    assert contained.state == "done", contained.error
    assert {task.step: task.state for task in here.tasks} == {
        task.step: task.state for task in contained.tasks
    }


@pytest.mark.parametrize(("step", "output"), VERSIONS.items())
def test_the_version_is_the_same(outcomes: tuple[Outcome, Outcome], step: str, output: str) -> None:
    here, contained = (outputs(outcome)[step][output] for outcome in outcomes)
    assert len(here) == 64
    assert contained == here


@pytest.mark.parametrize("step", ["validate", "evaluate"])
def test_the_verdict_is_the_same_to_the_last_number(outcomes: tuple[Outcome, Outcome], step: str) -> None:
    here, contained = (verdict(outcome, step) for outcome in outcomes)
    assert here.decision in {"PASS", "HOLD"}
    assert contained == here
