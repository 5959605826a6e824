"""The flights in containers and in local environments: the same data, the same models, the same decisions.

Skipped where no engine can run or the seven images were not built; it takes some minutes where they were.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authoring import engine as engines
from trainwright.authoring import arguments, catalog
from trainwright.authoring.environments import TOOLCHAINS
from trainwright.local import containers, runner
from trainwright.local.containers import Engine
from trainwright.local.runner import Outcome
from trainwright.verdicts import Verdict

CONFIG = Path(__file__).resolve().parents[2] / "examples" / "flights" / "flights.yaml"
VERSIONS = {
    "ingest": "Output",
    "join": "Output",
    "train": "model_version",
    "get-production-model": "model_version",
    "score": "Output",
    "register": "Output",
}
Runs = dict[str, Outcome]
"""The first run, the two promotions of what it registered, and the second run."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runs, Runs]]:
    """The pipelines on this machine and in containers, each with folders and a registry of its own."""
    if not (CONFIG.parent / "data" / "flights.parquet").exists():
        pytest.skip("the flights are not here: make data")
    with engines.running(tmp_path_factory.mktemp("engine")):
        engines.require(*TOOLCHAINS)
        here = pipelines(tmp_path_factory.mktemp("here"))
        engine = Engine(seen=containers.requested_mounts([], CONFIG))
        yield here, pipelines(tmp_path_factory.mktemp("containers"), engine=engine)


def pipelines(folder: Path, **options: Any) -> Runs:
    """Train and register, bring that into production, train again: the second is compared with the first."""
    registry = arguments.load(CONFIG).registry
    registry = registry.model_copy(update={"tracking_uri": f"sqlite:///{folder}/mlflow.db"})

    def run(name: str, **values: str) -> Outcome:
        compiled = catalog.pipeline(name)
        params = [f"{key}={value}" for key, value in {"registry": registry.to_json(), **values}.items()]
        return runner.run(
            compiled, arguments.of_pipeline(compiled, CONFIG, params), runs_folder=folder / "runs", **options
        )

    def promoted(stage: str) -> Outcome:
        return run("promote_model", request=json.dumps({"to": stage, "by": "anna", "reason": "a test"}))

    return {
        "first": run("train_and_register"),
        "staging": promoted("staging"),
        "production": promoted("production"),
        "second": run("train_and_register"),
    }


def outputs(outcome: Outcome) -> dict[str, Any]:
    return {task.step: task.parameters for task in outcome.tasks}


def verdict(outcome: Outcome, step: str) -> Verdict:
    (task,) = (task for task in outcome.tasks if task.step == step)
    return Verdict.read(Path(task.outputs["verdict"].uri))


@pytest.mark.parametrize("run", ["first", "staging", "production", "second"])
def test_both_end_the_same_way(runs: tuple[Runs, Runs], run: str) -> None:
    here, contained = (side[run] for side in runs)
    assert here.state == "done", here.error
    assert contained.state == "done", contained.error
    assert {task.step: task.state for task in here.tasks} == {
        task.step: task.state for task in contained.tasks
    }


@pytest.mark.parametrize(("step", "output"), VERSIONS.items())
def test_the_version_is_the_same(runs: tuple[Runs, Runs], step: str, output: str) -> None:
    here, contained = (outputs(side["second"])[step][output] for side in runs)
    assert here
    assert contained == here


@pytest.mark.parametrize("run", ["first", "second"])
@pytest.mark.parametrize("step", ["validate", "evaluate"])
def test_the_verdict_is_the_same_to_the_last_number(runs: tuple[Runs, Runs], run: str, step: str) -> None:
    here, contained = (verdict(side[run], step) for side in runs)
    assert here.decision in {"PASS", "HOLD"}
    assert contained == here


@pytest.mark.parametrize("stage", ["staging", "production"])
def test_the_promotion_is_decided_the_same_way(runs: tuple[Runs, Runs], stage: str) -> None:
    assert [outputs(side[stage])["promote"]["Output"] for side in runs] == ["PASS", "PASS"]
