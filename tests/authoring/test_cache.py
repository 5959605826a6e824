"""A result is reused when, and only when, everything that it was made from is the same."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

import trainwright
from tests.authoring.conftest import Venvs
from tests.authoring.steps import both, bring, close, count, red, tell, written
from trainwright.authoring import pipeline_spec
from trainwright.errors import InputError
from trainwright.local.cache import Entry
from trainwright.local.runner import Outcome

Run = Callable[..., Outcome]
States = Callable[[Outcome], dict[str, str]]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("library") / "trainwright"
    shutil.copytree(Path(trainwright.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


@pytest.fixture
def machine(machine: Venvs, copied: Path) -> Venvs:
    """The environments, with a library that nobody edits meanwhile: its digest is in every key."""
    return dataclasses.replace(machine, library=copied)


def pipeline(source: str, letter: str, marks: str) -> None:
    brought = bring(source=source).set_caching_options(False)
    counted = count(snapshot=brought.outputs["snapshot"], letter=letter, marks=marks)
    tell(number=counted.outputs["Output"])


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    source = tmp_path / "source"
    source.write_text("banana")
    return {"source": str(source), "letter": "a", "marks": str(tmp_path / "marks")}


DONE = {"bring": "done", "count": "done", "tell": "done"}
REUSED = {"bring": "done", "count": "cached", "tell": "cached"}


def test_unchanged_run_reuses_every_result_and_its_folder_is_whole(
    run: Run, states: States, arguments: dict[str, Any]
) -> None:
    first, second = run(pipeline, arguments), run(pipeline, arguments)
    assert states(first) == DONE
    assert states(second) == REUSED
    assert (second.folder / "count" / "summary.md").read_text() == "3\n"
    assert (second.folder / "count" / "log.txt").exists()
    assert second.tasks[-1].parameters == {"Output": "3 found"}
    assert [task.step for task in second.tasks if task.attempts] == ["bring"]


FORGED_OUTPUTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no mappings": {"executor": [], "files": []},
    "text for files": {"executor": {}, "files": "x"},
    "a file that is no output": {"executor": {}, "files": {"../../../x": "1"}},
    "a number for a file": {"executor": {}, "files": {"Output": 3}},
    "another output": {"executor": {"parameterValues": {"more": 1}}, "files": {}},
    "a placeholder": {"executor": {"parameterValues": {"Output": "{{$.inputs}}"}}, "files": {}},
    "an artifact elsewhere": {
        "executor": {"artifacts": {"summary": {"artifacts": [{"uri": "/etc/hostname"}]}}},
        "files": {},
    },
    "an artifact above": {
        "executor": {"artifacts": {"summary": {"artifacts": [{"uri": "{run}/count/../../x"}]}}},
        "files": {},
    },
    "an artifact as file URI": {
        "executor": {"artifacts": {"summary": {"artifacts": [{"uri": "file:///etc/hostname"}]}}},
        "files": {},
    },
    "an artifact without a place": {"executor": {"artifacts": {"summary": {"artifacts": [{}]}}}, "files": {}},
}


@pytest.mark.covers("A17")
@pytest.mark.parametrize("forgery", FORGED_OUTPUTS)
def test_cached_output_that_the_step_cannot_have_written_is_a_miss_with_a_note(
    run: Run, states: States, arguments: dict[str, Any], tmp_path: Path, told: Any, forgery: str
) -> None:
    run(pipeline, arguments)
    for path in (tmp_path / "runs" / ".cache").glob("*/*/entry.json"):
        body = json.loads(path.read_text())["entry"]
        if body["step"] == "count":
            body["output"] = FORGED_OUTPUTS[forgery]
            path.write_text(json.dumps({"sha256": Entry.from_json(body).digest, "entry": body}))
    outcome = run(pipeline, arguments)
    assert outcome.exit_code == 0
    assert states(outcome) == REUSED | {"count": "done"}
    assert [warning for warning in told.warnings if warning.startswith("count is done again: ")]
    assert states(run(pipeline, arguments)) == REUSED


@pytest.mark.covers("F42")
def test_other_bytes_at_the_same_place_are_another_input(
    run: Run, states: States, arguments: dict[str, Any]
) -> None:
    run(pipeline, arguments)
    Path(arguments["source"]).write_text("ananas!")
    outcome = run(pipeline, arguments)
    assert states(outcome)["count"] == "done"
    assert states(outcome)["tell"] == "cached", "the count is 3 again, and so what follows is the same"
    Path(arguments["source"]).write_text("papaya, banana")
    assert states(run(pipeline, arguments)) == DONE


def test_record_that_names_another_time_is_no_other_input(
    run: Run, states: States, arguments: dict[str, Any]
) -> None:
    first, second = run(pipeline, arguments), run(pipeline, arguments)
    records = [
        (outcome.folder / "bring" / "snapshot" / "record.json").read_text() for outcome in (first, second)
    ]
    assert records[0] != records[1]
    assert states(second) == REUSED


def test_another_parameter_is_another_result(run: Run, states: States, arguments: dict[str, Any]) -> None:
    run(pipeline, arguments)
    assert states(run(pipeline, arguments | {"letter": "b"})) == DONE


@pytest.mark.covers("F44")
def test_another_lock_is_another_result(
    run: Run, states: States, arguments: dict[str, Any], machine: Any
) -> None:
    run(pipeline, arguments)
    machine.locks["blue"] = "another lock, which no step stands on"
    assert states(run(pipeline, arguments)) == REUSED
    machine.locks["red"] = "another lock"
    assert states(run(pipeline, arguments)) == DONE


def test_another_lock_of_the_image_that_a_parameter_names_is_another_result(
    run: Run, states: States, machine: Any
) -> None:
    def launch() -> None:
        tell(number=1, image="trainwright/blue:0.1.0")

    run(launch)
    assert states(run(launch)) == {"tell": "cached"}
    machine.locks["blue"] = "another lock"
    assert states(run(launch)) == {"tell": "done"}


def test_another_library_is_another_result(
    run: Run, states: States, arguments: dict[str, Any], copied: Path
) -> None:
    run(pipeline, arguments)
    assert states(run(pipeline, arguments)) == REUSED
    library = copied / "__init__.py"
    library.write_text(library.read_text() + "\n# changed\n")
    assert states(run(pipeline, arguments)) == DONE


def test_another_source_of_a_component_is_another_result(run: Run, states: States, tmp_path: Path) -> None:
    def once() -> None:
        tell(number=1)

    compiled = tmp_path / "once.yaml"

    def say(text: str) -> dict[str, str]:
        from kfp import compiler

        compiler.Compiler().compile(dsl.pipeline(name="once")(once), str(compiled))
        compiled.write_text(compiled.read_text().replace(" found", text))
        return states(run(compiled))

    assert [say(text) for text in (" found", " found", " seen")] == [
        {"tell": "done"},
        {"tell": "cached"},
        {"tell": "done"},
    ]


def test_step_that_is_given_the_folder_of_the_run_can_be_reused(run: Run, states: States) -> None:
    @red
    def where(root: str) -> str:
        return root

    def rooted() -> None:
        where(root=dsl.PIPELINE_ROOT_PLACEHOLDER)

    first, second = run(rooted), run(rooted)
    assert states(second) == {"where": "cached"}
    assert second.tasks[0].parameters == {"Output": str(second.folder)} != first.tasks[0].parameters


def test_outputs_that_were_written_to_files_are_given_back_too(run: Run, states: States) -> None:
    def paths() -> None:
        made = written()
        both(name=made.outputs["name"], number=made.outputs["number"])

    run(paths)
    outcome = run(paths)
    assert states(outcome) == {"written": "cached", "both": "cached"}
    assert outcome.tasks[-1].parameters == {"Output": "a name 3"}


def test_exit_handler_is_never_reused(run: Run, states: States) -> None:
    def handled() -> None:
        with dsl.ExitHandler(close(root="", job="")):
            tell(number=1)

    run(handled)
    assert states(run(handled)) == {"tell": "cached", "close": "done"}


def entries(folder: Path, step: str) -> list[Path]:
    found = (folder / ".cache").glob("*/*/entry.json")
    return [path.parent for path in found if json.loads(path.read_text())["entry"]["step"] == step]


def test_damaged_result_is_reported_and_made_again(
    run: Run, states: States, told: Any, arguments: dict[str, Any]
) -> None:
    outcome = run(pipeline, arguments)
    (entry,) = entries(outcome.folder.parent, "count")
    (entry / "files" / "summary.md").chmod(0o644)
    (entry / "files" / "summary.md").write_text("4\n")
    again = run(pipeline, arguments)
    assert states(again) == {"bring": "done", "count": "done", "tell": "cached"}
    assert (again.folder / "count" / "summary.md").read_text() == "3\n"
    assert any("count is done again" in text for text in told.warnings)
    assert states(run(pipeline, arguments)) == REUSED


def test_cache_that_was_deleted_costs_time_and_nothing_else(
    run: Run, states: States, arguments: dict[str, Any], tmp_path: Path
) -> None:
    run(pipeline, arguments)
    shutil.rmtree(tmp_path / "runs" / ".cache")
    assert states(run(pipeline, arguments)) == DONE


def test_from_a_step_does_it_and_what_stands_on_it_again(
    run: Run, states: States, arguments: dict[str, Any]
) -> None:
    first = run(pipeline, arguments)
    outcome = run(pipeline, {}, run_id=first.id, again_from="count")
    assert outcome.folder == first.folder
    assert states(outcome) == {"bring": "cached", "count": "done", "tell": "done"}
    with pytest.raises(InputError, match="no step 'cuont'") as caught:
        run(pipeline, arguments, again_from="cuont")
    assert caught.value.hint == "Did you mean count?"


def test_without_the_cache_everything_is_done_again_and_kept(
    run: Run, states: States, arguments: dict[str, Any]
) -> None:
    run(pipeline, arguments)
    assert states(run(pipeline, arguments, use_cache=False)) == DONE
    assert states(run(pipeline, arguments)) == REUSED


def test_run_that_is_continued_repeats_no_finished_step_not_even_one_that_is_never_cached(
    run: Run, states: States, arguments: dict[str, Any]
) -> None:
    first = run(pipeline, arguments)
    assert states(run(pipeline, {}, run_id=first.id)) == dict.fromkeys(DONE, "cached")
    assert Path(arguments["marks"]).read_text() == "count "


def test_step_that_may_not_be_reused_is_not_taken_from_its_twin_either(run: Run, states: States) -> None:
    def twins() -> None:
        tell(number=1).set_caching_options(False)
        tell(number=1).set_caching_options(False)

    first = run(twins)
    assert states(first) == {"tell": "done", "tell-2": "done"}
    assert states(run(twins)) == {"tell": "done", "tell-2": "done"}
    assert states(run(twins, run_id=first.id)) == {"tell": "cached", "tell-2": "cached"}


def test_changed_argument_starts_a_new_run_and_leaves_the_continued_one_as_it_was(
    run: Run, states: States, arguments: dict[str, Any]
) -> None:
    first = run(pipeline, arguments)
    before = {name: (first.folder / name).read_bytes() for name in ("run.json", "tasks.json")}
    outcome = run(pipeline, {"letter": "n"}, run_id=first.id)
    assert outcome.id != first.id
    assert before == {name: (first.folder / name).read_bytes() for name in before}
    request = json.loads((outcome.folder / "run.json").read_text())
    assert request["continues"] == first.id
    assert request["arguments"] == arguments | {"letter": "n"}
    assert states(outcome) == {"bring": "done", "count": "done", "tell": "done"}
    assert outcome.tasks[-1].parameters == {"Output": "2 found"}


def test_what_stands_on_a_step_is_found_through_groups_and_conditions() -> None:
    path = Path(pipeline_spec.__file__).parents[2] / "compiled" / "pipelines" / "train_and_register.yaml"
    if not path.exists():
        pytest.skip("the main pipeline has not been compiled yet")
    main = pipeline_spec.read(path)
    assert main.downstream("train") >= {"train", "evaluate", "register", "summarize"}
    assert not main.downstream("train") & {"ingest", "validate", "join"}
