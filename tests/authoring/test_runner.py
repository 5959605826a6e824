"""Real components, compiled by kfp, run in real environments: what goes in and what comes out."""

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import dsl

from tests.authoring.steps import (
    content,
    counted,
    folders,
    say,
    surroundings,
    types,
    version_in_blue,
    version_in_red,
)
from trainwright.authoring import catalog
from trainwright.local import run_folder
from trainwright.local.runner import Outcome

Run = Callable[..., Outcome]
States = Callable[[Outcome], dict[str, str]]


def parameters(outcome: Outcome, step: str) -> dict[str, object]:
    return next(task.parameters for task in outcome.tasks if task.step == step)


def test_each_step_sees_the_packages_of_its_own_environment(run: Run) -> None:
    def pipeline() -> None:
        version_in_red()
        version_in_blue()

    outcome = run(pipeline)
    assert outcome.exit_code == 0
    assert parameters(outcome, "version-in-red")["Output"] == "red"
    assert parameters(outcome, "version-in-blue")["Output"] == "blue"


def test_nothing_of_our_own_interpreter_reaches_into_a_step(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "clash.py").write_text("VERSION = 'ours'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def pipeline() -> None:
        version_in_red()
        surroundings()

    outcome = run(pipeline)
    assert parameters(outcome, "version-in-red")["Output"] == "red"
    seen = json.loads(str(parameters(outcome, "surroundings")["Output"]))
    assert str(tmp_path) not in seen["path"]
    assert not Path(seen["temporary"]).exists(), "its temporary files are removed with it"


def test_python3_in_a_parameter_and_in_the_folder_survives(run: Run, tmp_path: Path) -> None:
    def pipeline() -> None:
        say(text="image python3.11-slim")

    outcome = run(pipeline, runs_folder=tmp_path / "python3 runs")
    assert parameters(outcome, "say")["Output"] == "image python3.11-slim"
    assert "said image python3.11-slim" in (outcome.folder / "say" / "log.txt").read_text()


def test_integers_stay_integers_in_lists_dicts_and_f_strings(run: Run) -> None:
    def pipeline(count: int) -> None:
        types(numbers=[64, 2.5], table={"epochs": 3, "inner": {"a": [1]}}, ratio=1.0, count=count)
        say(text=f"{counted().outputs['count']} of {count}")

    outcome = run(pipeline, {"count": 7})
    assert parameters(outcome, "types")["Output"] == repr(
        [[64, 2.5], {"epochs": 3, "inner": {"a": [1]}}, 1.0, 7]
    )
    assert parameters(outcome, "say")["Output"] == "3 of 7"


def test_artifacts_get_names_that_a_person_understands(run: Run) -> None:
    def pipeline() -> None:
        made = folders()
        content(snapshot=made.outputs["snapshot"])

    outcome = run(pipeline)
    step = outcome.folder / "folders"
    assert sorted(path.name for path in step.iterdir()) == [
        "log.txt",
        "report.html",
        "snapshot",
        "summary.md",
    ]
    assert parameters(outcome, "content")["Output"] == "1\n2\n"
    written = json.loads((outcome.folder / "tasks.json").read_text())
    task = written["tasks"][0]
    assert written["state"] == "done"
    assert (task["step"], task["state"], task["environment"]) == ("folders", "done", "red")
    assert task["outputs"]["metrics"]["metadata"] == {"rows": 2}
    assert task["outputs"]["report"]["uri"] == str(step / "report.html")


def test_name_time_and_folder_of_the_run_are_what_the_run_says(run: Run) -> None:
    def pipeline() -> None:
        say(text=f"{dsl.PIPELINE_JOB_NAME_PLACEHOLDER} {dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER}")
        say(text=dsl.PIPELINE_TASK_NAME_PLACEHOLDER)

    outcome = run(pipeline)
    created = json.loads((outcome.folder / "run.json").read_text())["created"]
    assert parameters(outcome, "say")["Output"] == f"pipeline-{outcome.id} {created}"
    assert parameters(outcome, "say-2")["Output"] == "say-2"


def test_condition_on_a_named_output_takes_its_branch(run: Run, states: States) -> None:
    def pipeline() -> None:
        made = counted()
        with dsl.If(made.outputs["word"] == "PASS"):
            say(text="a")
        with dsl.If(made.outputs["count"] > 3):
            say(text="b")

    assert states(run(pipeline)) == {"counted": "done", "say": "done", "say-2": "skipped"}


def test_nested_pipeline_gets_its_artifacts(run: Run, states: States) -> None:
    @dsl.pipeline
    def inner(snapshot: dsl.Input[dsl.Dataset]) -> None:
        content(snapshot=snapshot)

    def pipeline() -> None:
        made = folders()
        inner(snapshot=made.outputs["snapshot"])
        inner(snapshot=made.outputs["snapshot"])

    outcome = run(pipeline)
    assert sorted(states(outcome)) == ["content", "folders", "inner-2-content"]
    assert sorted(states(outcome).values()) == ["cached", "done", "done"]


def test_each_turn_of_a_loop_has_a_folder_of_its_own(run: Run, states: States) -> None:
    def pipeline() -> None:
        with dsl.ParallelFor(["a", "b", "c"]) as item:
            say(text=item)

    outcome = run(pipeline)
    assert sorted(states(outcome)) == ["say.0", "say.1", "say.2"]
    assert parameters(outcome, "say.2")["Output"] == "c"
    assert "said c" in (outcome.folder / "say.2" / "log.txt").read_text()


def test_step_is_named_as_it_is_shown(run: Run, states: States) -> None:
    def pipeline() -> None:
        say(text="a")
        say(text="b").set_display_name("say-features")

    assert sorted(states(run(pipeline))) == ["say", "say-features"]


def test_compiled_component_runs_alone(run: Run, compile_pipeline: Callable[..., Path]) -> None:
    outcome = run(compile_pipeline(say, "say"), {"text": "hello"})
    assert parameters(outcome, "say")["Output"] == "hello"


def test_nothing_of_kfp_reaches_the_screen_and_its_logging_is_put_back(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    import builtins

    from kfp.local import config, subprocess_task_handler

    def state() -> tuple[object, ...]:
        root = logging.getLogger()
        handler = subprocess_task_handler.SubprocessTaskHandler
        return (
            list(root.handlers), list(root.filters), root.level, builtins.print, sys.stdout, handler,
            config.LocalExecutionConfig.instance,
        )  # fmt: skip

    def pipeline() -> None:
        with dsl.ParallelFor(["a", "b"]) as item:
            say(text=item).set_memory_limit("1G")

    before = state()
    outcome = run(pipeline)
    assert state() == before
    assert capfd.readouterr() == ("", "")
    log = (outcome.folder / ".kfp" / "kfp.log").read_text()
    assert "Running pipeline" in log
    assert "\x1b[" not in log


def test_environment_of_an_image_that_a_parameter_names_must_be_there_too(
    run: Run, machine: object, tmp_path: Path
) -> None:
    asked: list[str] = []

    class Asking:
        names = ("red", "blue")

        def python(self, toolchain: str) -> Path:
            asked.append(toolchain)
            return machine.python(toolchain)

        def lock_digest(self, toolchain: str) -> str:
            return toolchain

        def library_digest(self) -> str:
            return "the library"

    def pipeline() -> None:
        say(text="trainwright/blue:0.1.0")

    run(pipeline, machine=Asking())
    assert "blue" in asked


def test_two_runs_at_the_same_second_have_two_names(run: Run) -> None:
    def pipeline() -> None:
        say(text="a")

    first, second = run(pipeline), run(pipeline)
    assert first.id < second.id
    assert os.path.samefile(first.folder.parent, second.folder.parent)


def test_every_compiled_pipeline_of_the_library_can_run_here() -> None:
    from trainwright.authoring import pipeline_spec
    from trainwright.authoring.environments import TOOLCHAINS
    from trainwright.local import kfp_spec

    for name in catalog.pipelines():
        pipeline = pipeline_spec.read(catalog.pipeline(name))
        types = {name: definition["parameterType"] for name, definition in pipeline.parameters.items()}
        values = {"STRUCT": {}, "NUMBER_DOUBLE": 0.5, "NUMBER_INTEGER": 1, "BOOLEAN": True, "LIST": []}
        arguments = {name: values.get(kind, "a") for name, kind in types.items()}
        kfp_spec.check(pipeline, arguments, TOOLCHAINS)


def test_run_ids_sort_by_time_and_are_six_digits_until_2059() -> None:
    moments = [run_folder.EPOCH, run_folder.EPOCH + 1, 1_800_000_000, 1_800_000_031, 2_800_000_000]
    ids = [run_folder.identifier(moment) for moment in moments]
    assert ids == sorted(set(ids))
    assert {len(name) for name in ids} == {6}
