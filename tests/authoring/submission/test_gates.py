"""Which gate held a run of the main pipeline, from the states that the API of KFP 2.17 lists."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from kfp import compiler, dsl

from tests.authoring import steps
from trainwright.authoring import pipeline_spec
from trainwright.authoring.submission.follow import is_complete
from trainwright.authoring.submission.progress import Held, branches, held

PIPELINE = Path(__file__).resolve().parents[3] / "compiled" / "pipelines" / "train_and_register.yaml"
TO_JOIN = ("resolve", "locate", "ingest", "validate")
TO_EVALUATE = (*TO_JOIN, "join", "train", "score", "evaluate")


def run_of(*succeeded: str) -> SimpleNamespace:
    details = [SimpleNamespace(display_name=name, state="SUCCEEDED") for name in succeeded]
    return SimpleNamespace(run_details=SimpleNamespace(task_details=details))


def groups(*, explain: bool) -> dict[str, str]:
    """The groups behind the gates, by the step that decides: those that go on, or that say why it held."""
    found = branches(pipeline_spec.read(PIPELINE))
    return {branch.gate.name: branch.group for branch in found if branch.explains == explain}


def test_each_gate_has_one_group_that_goes_on_and_one_that_explains() -> None:
    assert len(list(branches(pipeline_spec.read(PIPELINE)))) == 4
    assert groups(explain=False).keys() == groups(explain=True).keys() == {"validate", "evaluate"}


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (TO_JOIN, Held(step="validate", code=11)),
        ((*TO_EVALUATE, "validate goes on"), Held(step="evaluate", code=12)),
        ((*TO_EVALUATE, "validate goes on", "evaluate goes on", "probe", "register"), None),
    ],
)
def test_a_gate_held_where_the_group_that_goes_on_was_not_taken(
    reached: tuple[str, ...], expected: Held | None
) -> None:
    pipeline = pipeline_spec.read(PIPELINE)
    named = {f"{gate} goes on": group for gate, group in groups(explain=False).items()}
    said = [named.get(name, name) for name in reached]
    why = [groups(explain=True)[expected.step], "hold"] if expected else []
    assert held(run_of(*said, *why), pipeline) == expected


def test_a_list_is_complete_though_it_has_attempts_from_before_a_retry_of_the_run() -> None:
    """Seen on KFP 2.17: the root's driver failed, the run was retried and succeeded."""
    run = run_of("train-and-register-cdzn2", "train-and-register-cdzn2(0)", "root", "register")
    listed = run.run_details.task_details
    listed.append(SimpleNamespace(display_name="train-and-register-cdzn2(1)", state="RUNNING"))
    assert is_complete(run)
    listed.append(SimpleNamespace(display_name="train", state="RUNNING"))
    assert not is_complete(run)


@steps.red
def evaluate() -> str:
    return "PASS"


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def hold(gate: str) -> str:
    return gate


def compiled(path: Path, condition: str, *branch: Callable[[], object]) -> pipeline_spec.Pipeline:
    """Compile a pipeline with one branch behind its gate, beside the one that goes on."""

    @dsl.pipeline(name="judged")
    def judged() -> None:
        decision = evaluate().output
        with dsl.If(decision == "PASS", name="goes-on"):
            steps.tell(number=1)
        with dsl.If(decision != "PASS" if condition == "not passed" else decision == "PASS", name="branch"):
            for step in branch:
                step()

    compiler.Compiler().compile(judged, str(path))
    return pipeline_spec.read(path)


def test_a_branch_that_says_why_and_notifies_is_no_gate_of_a_run_that_passed(tmp_path: Path) -> None:
    def why() -> object:
        return steps.hold(gate="evaluate")

    pipeline = compiled(tmp_path / "p.yaml", "not passed", why, lambda: steps.say(text="notify"))
    goes_on, branch = branches(pipeline)
    assert (goes_on.explains, branch.explains) == (False, True)
    assert held(run_of("evaluate", goes_on.group), pipeline) is None
    assert held(run_of("evaluate", branch.group), pipeline) == Held(step="evaluate", code=12)


def test_a_function_called_hold_in_an_image_of_a_users_own_leaves_the_gate_in_place(tmp_path: Path) -> None:
    pipeline = compiled(tmp_path / "p.yaml", "passed", lambda: hold(gate="evaluate"))
    assert [branch.explains for branch in branches(pipeline)] == [False, False]
    assert held(run_of("evaluate", "hold"), pipeline) == Held(step="evaluate", code=12)


def test_a_promotion_that_is_held_ends_with_12_although_nothing_depends_on_it() -> None:
    pipeline = pipeline_spec.read(PIPELINE.with_stem("promote_model"))
    [branch] = branches(pipeline)
    assert held(run_of("promote", "summarize"), pipeline) is None
    assert held(run_of("promote", branch.group), pipeline) == Held(step="promote", code=12)
