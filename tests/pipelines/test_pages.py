"""Every command of the pages is run, or stands in a short list with the reason why it is not."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.api.server import serving
from tests.docs.written import Command, commands
from tests.pipelines.world import ROOT, RUNS, World
from trainwright.authoring import arguments
from trainwright.local.run_folder import Request

LEFT = {
    r"make (test|check|demo)": "it is what runs this test, or minutes of the same pipeline on a year of rows",
    r"make (sbom|audit)\b.*": "an environment of their tools; audit also asks PyPI",
    r"make images\b.*": "an engine and minutes: tests/images builds with one where there is one",
    r"(docker|podman|debootstrap) .*": "an engine, or a package of Debian as root: not ours",
    r"kubectl apply .*": "a cluster: tests/launch/test_role.py makes what would be applied",
    r"kubectl .*": "a cluster",
    r"trainwright doctor --host .*": "a cluster: tests/authoring/installation/test_doctor_host.py",
    r"trainwright submit .* --config examples/flights/kubeflow.yaml .*": "tests/kubeflow/test_acceptance.py",
    r"python -m trainwright.launch.janitor .*": "another environment: tests/launch/test_janitor.py",
    r"trainwright run train_and_register .* --containers": (
        "an engine: tests/authoring/test_containers_flights.py"
    ),
    r"trainwright run train_and_register --config examples/own_model/own_model.yaml": (
        "a training of minutes: tests/train trains such a module"
    ),
    r"trainwright run train_and_register --config \S+/experiment.yaml": "tests/api/test_examples.py",
    r"trainwright run tune_and_register .*": "minutes of trials: tests/tune/test_tune.py",
    r"trainwright triggers .*": "minutes of the pipeline: tests/pipelines/test_retrain.py",
    r"trainwright serve\b.*": "it runs until it is stopped: tests/service/test_pages.py",
    r"trainwright reproduce .*": "minutes of the same run again: tests/reproduce/test_reproduce.py",
    r"trainwright run materialize_features .*": "tests/pipelines/test_materialize_features.py runs it, twice",
    r"trainwright run canary_model .*": "a canary and a log of it: tests/pipelines/test_canary_model.py",
    r"trainwright schema (diff|accept) .*": "seconds of TFDV each: tests/validate/test_schema.py",
    r"trainwright baseline accept \S+ --to gs://.*": "a bucket: the same on a disk is run here",
    r"trainwright runs cost .* --uri .*": "seconds of MLflow: tests/pipelines/test_alerts.py",
    r"trainwright curves .*": "seconds of MLflow: tests/tracking/test_shipping.py",
    r"trainwright features .*": "seconds of Feast each: tests/materialize/test_definitions.py",
    r"python -m tests\.\w+\.study": "minutes: tests/evaluate/test_study.py is a small form",
    r"python tests/versions.py .*": "another Python, gigabytes of torch: tests/train is what it runs",
    r"trainwright (init|predict) .*": "a registered model: tests/api/test_examples.py",
    r"python examples/text/prepare.py": "tests/api/test_examples.py",
    r"pip .*": "a package index: tests/api/test_examples.py",
    r"ln -s .*": "it changes the environment that trainings run in",
}
"""What is not run here. What is named after a colon is checked to be there."""

WHOLE = r"trainwright run train_and_register --config (examples/flights/)?flights.yaml"
"""The whole pipeline, on a year of flights: the same command has just been run on five weeks of them."""

Case = Callable[[World, list[str]], list[str]]


def one_step(world: World, words: list[str]) -> list[str]:
    """Run one component in place of a pipeline of minutes; what is asked of the run stays as it is."""
    read = arguments.read(world.folder / "experiment.yaml")
    given = ["compiled/components/resolve.yaml"]
    values = {"source": read["data"]["source"], "data": json.dumps(read["data"])}
    given += [part for name, value in values.items() for part in ("--param", f"{name}={value}")]
    words = [
        "resolve" if before == "--from" else word for before, word in zip(["", *words], words, strict=False)
    ]
    if "--run" in words:
        if world.once("one step"):
            assert world.call(["run", *given]).returncode == 0
        there = (world.folder / "runs").glob(f"*/{Request.FILE}")  # others of other pipelines are among them
        runs = [path.parent.name for path in there if Request.read(path.parent).pipeline == "resolve"]
        words = [
            runs[0] if before == "--run" else word for before, word in zip(["", *words], words, strict=False)
        ]
        given = given[:1]
    return ["run", *given, *words[2:]]


def of_a_run(_: World, words: list[str]) -> list[str]:
    """Read the finished run: as the page calls it, with the steps that it has."""
    renamed = [
        re.sub("|".join(map(re.escape, sorted(RUNS, key=len, reverse=True))), short, word) for word in words
    ]
    renamed = [word.replace("SNAPSHOT", "runs/0192f3/ingest/snapshot") for word in renamed if word != "..."]
    return renamed


def short(found: "re.Match[str]") -> str:
    return "runs/0192f3" if found[0].startswith("runs/") else "0192f3"


def on_a_cluster(world: World, words: list[str]) -> list[str]:
    """Ask the stand-in, about a run that is in the state in which one would ask this."""
    hosts = {"https://kubeflow.example/pipeline", "$KFP_HOST"}
    state = {"terminate": "RUNNING", "retry": "FAILED"}.get(words[0], "SUCCEEDED")
    renamed = {"RUN_ID": lambda: world.submitted(state), "$TOKEN_FILE": lambda: "token"}
    renamed |= {"$CI_PIPELINE_ID": lambda: "4711"} | {host: lambda: world.api.url for host in hosts}
    given = [renamed[word]() if word in renamed else word for word in words]
    return [
        world.api.url if before == "--host" else word
        for before, word in zip(["", *given], given, strict=False)
    ]


def of_a_model(world: World, words: list[str]) -> list[str]:
    world.registry()
    return words


def of_images(world: World, words: list[str]) -> list[str]:
    world.images()
    return words


def alone(_: World, words: list[str]) -> list[str]:
    return words


RUN: list[tuple[str, Case]] = [
    (r"run promote_model .*", of_a_model),
    (r"run (…|train_and_register).*", one_step),
    (r"cache explain .*|compare .*|schema .*|baseline .*|runs .*", of_a_run),
    (r"(submit|status|terminate|retry|schedules) .*", on_a_cluster),
    (r"model .*", of_a_model),
    (r"compile .*", of_images),
    (r"(list|doctor|interface-diff)\b.*", alone),
]


def left(command: Command) -> str:
    """Return why a command is not run; empty for one that is."""
    text = " ".join(command.words)
    return next((reason for pattern, reason in LEFT.items() if re.fullmatch(pattern, text)), "")


ALL = commands()
KEPT = [command for command in ALL if not left(command)]


@pytest.fixture(scope="module")
def world(
    job: Path, runs: Path, finished: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    assert finished
    (run, *_) = sorted(path.parent for path in runs.glob("*/run.json"))
    with serving() as api:
        made = World(tmp_path_factory.mktemp("world"), api, run)
        made.lay_out(job)
        yield made


done: dict[tuple[str, ...], None] = {}


@pytest.mark.parametrize("command", KEPT, ids=str)
def test_a_command_of_a_page_does_what_the_page_says(command: Command, world: World) -> None:
    text = " ".join(command.words)
    if re.fullmatch(WHOLE, text):
        return  # the fixture `finished` is this command
    case = next(case for pattern, case in RUN if re.fullmatch(pattern, " ".join(command.words[1:])))
    words = case(world, list(command.words[1:]))
    if tuple(words) in done:
        return
    done[tuple(words)] = None
    ended = world.call(words)
    assert ended.returncode == 0, f"{words}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"


def test_nothing_is_left_out_without_a_reason_that_holds() -> None:
    texts = [" ".join(command.words) for command in ALL]
    for pattern, reason in LEFT.items():
        assert any(re.fullmatch(pattern, text) for text in texts), f"no page has {pattern} any more"
        for path in re.findall(r"tests/[\w./]+\w", reason):
            assert (ROOT / path).exists(), path
    programs = {command.words[0] for command in KEPT}
    assert programs <= {"trainwright"}, programs
